"""Use the caller's own connection, so that jobs become part of the caller's transaction."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from mainspring.errors import ConfigurationError
from mainspring.stores.foreign_connection import NOT_OUTERMOST, made_by, unwrap
from mainspring.stores.sqlite import schema
from mainspring.stores.sqlite.connection import DatabaseFile
from mainspring.stores.sqlite.transaction import roll_back

T = TypeVar("T")

TAKE_WRITE_LOCK = "DELETE FROM mainspring_migrations WHERE 0"


async def run_on(given: Any, work: Callable[[sqlite3.Connection], T]) -> T:
    """Call `work` with the sqlite3 connection inside the caller's object, in the thread that the connection uses."""
    driver = await unwrap(given)
    refuse_other_driver(driver, given)
    return await call(driver, work)


def refuse_other_driver(driver: Any, given: Any) -> None:
    if isinstance(driver, sqlite3.Connection) or is_aiosqlite(driver):
        return
    msg = (
        "connection must be an sqlite3 or aiosqlite connection, an SQLAlchemy session or connection, or a Django "
        f"connection, not {type(given).__name__}"
    )
    if driver is not given:
        msg += f" over {type(driver).__module__.partition('.')[0]}: have it use sqlite3 or aiosqlite"
    raise ConfigurationError(msg)


def is_aiosqlite(driver: Any) -> bool:
    return made_by("aiosqlite", driver) and hasattr(driver, "_execute")


async def call(driver: Any, work: Callable[[sqlite3.Connection], T]) -> T:
    """Call `work` with the driver's sqlite3 connection. For aiosqlite, all of it runs in the connection's thread."""
    if isinstance(driver, sqlite3.Connection):
        return work(driver)
    if getattr(driver, "_connection", None) is None:
        msg = "the aiosqlite connection is not open; use it inside `async with aiosqlite.connect(…) as connection:`"
        raise ConfigurationError(msg)
    await asyncio.sleep(0)  # code without an event loop cannot await: it fails here, before anything is done
    result: T = await driver._execute(lambda: work(driver._conn))  # noqa: SLF001 - aiosqlite has no public way
    return result


@contextmanager
def lent(connection: sqlite3.Connection, file: DatabaseFile) -> Iterator[None]:
    """Let the store use the caller's connection; everything in the block becomes part of the caller's transaction.

    If Mainspring's tables do not exist yet, they are created in that transaction too, and a rollback removes them.
    Creating them on another connection would be a deadlock: that connection would wait for the caller's transaction.
    """
    refuse_other_file(connection, file)
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        with file.errors(), all_or_nothing(connection):
            if not file.prepared:
                create_tables(plain_cursor(connection), file)
            yield
    finally:
        connection.text_factory = text_factory


def refuse_other_file(connection: sqlite3.Connection, file: DatabaseFile) -> None:
    with file.errors():
        opened = plain_cursor(connection).execute("PRAGMA database_list").fetchone()[2]
    if not opened or not is_same_file(os.fsdecode(opened), file.path):
        msg = f"the connection is to {opened or 'a database in memory'}, but the jobs are in {file.path}"
        raise ConfigurationError(msg)


def is_same_file(first: str, second: os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(first, second)
    except FileNotFoundError:  # SQLite creates a file when it is first used
        return os.path.realpath(first) == os.path.realpath(second)


def plain_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """Return a cursor that returns tuples, whatever row factory the caller's connection has."""
    cursor = sqlite3.Cursor(connection)
    cursor.row_factory = None
    return cursor


def create_tables(cursor: sqlite3.Cursor, file: DatabaseFile) -> None:
    if schema.version_of(cursor) != len(schema.MIGRATIONS):
        file.check_place()
        schema.refuse_unusable(cursor, file.path)
        schema.migrate(cursor)


@contextmanager
def all_or_nothing(connection: sqlite3.Connection) -> Iterator[None]:
    """Make all statements of the block take effect, or none; take SQLite's write lock before the first one.

    If a read came before the first write, SQLite would fail at once while another program writes, instead of waiting.
    """
    if connection.in_transaction:
        with savepoint(connection):
            take_write_lock(connection)
            yield
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        if commits_by_itself(connection):
            connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


@contextmanager
def savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("SAVEPOINT mainspring_lent")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # SQLite rolls back everything by itself if, for example, the disk is full
            connection.execute("ROLLBACK TO mainspring_lent")
            connection.execute("RELEASE mainspring_lent")
        raise
    connection.execute("RELEASE mainspring_lent")


def take_write_lock(connection: sqlite3.Connection) -> None:
    try:
        connection.execute(TAKE_WRITE_LOCK)
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        connection.execute(schema.CREATE_MIGRATIONS)


def commits_by_itself(connection: sqlite3.Connection) -> bool:
    """Return whether the connection commits each statement, unless the caller begins a transaction."""
    return connection.isolation_level is None or getattr(connection, "autocommit", False) is True


class BareTransaction:
    """A transaction on an sqlite3 or aiosqlite connection that Mainspring begins and ends."""

    def __init__(self, given: Any) -> None:
        self._given = given

    async def begin(self) -> Any:
        refuse_other_driver(self._given, self._given)
        await call(self._given, refuse_begun)
        return self._given

    async def commit(self) -> None:
        await call(self._given, commit)

    async def roll_back(self) -> None:
        await call(self._given, undo)


def refuse_begun(connection: sqlite3.Connection) -> None:
    if connection.in_transaction and not always_in_transaction(connection):
        raise ConfigurationError(NOT_OUTERMOST)


def always_in_transaction(connection: sqlite3.Connection) -> bool:
    """Return whether the connection has `autocommit=False`, which Python has since 3.12."""
    return getattr(connection, "autocommit", None) is False


def undo(connection: sqlite3.Connection) -> None:
    if always_in_transaction(connection):
        connection.rollback()
    else:
        roll_back(connection)


def commit(connection: sqlite3.Connection) -> None:
    if getattr(connection, "autocommit", None) is True:  # commit() does nothing then
        connection.execute("COMMIT")
    else:
        connection.commit()
