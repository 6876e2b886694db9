"""`ctx.transaction()`: the handler's transaction and its job's outcome are committed together, or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

from mainspring.clock import Clock
from mainspring.errors import ClaimLost, ConfigurationError
from mainspring.job import Outcome
from mainspring.portal import run_at_once
from mainspring.stores.foreign_connection import (
    ENDED_INSIDE,
    NEEDS_ASYNC_WITH,
    NOT_OUTERMOST,
    is_asynchronous,
    made_by,
    own_transaction,
    unscoped,
)
from mainspring.stores.sqlite.acks import settle
from mainspring.stores.sqlite.connection import DatabaseFile, WriteConnection, WriteLock, inside, refuse_inside
from mainspring.stores.sqlite.foreign_connection import (
    BareTransaction,
    call,
    is_aiosqlite,
    lent,
    refuse_other_driver,
    refuse_other_file,
    take_write_lock,
)
from mainspring.stores.sqlite.transaction import Transaction, roll_back


class SqliteCompletion:
    """A completion on a connection of the store. Entering returns the sqlite3 connection.

    Use `with` in threads and `async with` on the event loop. Keep the block short: all other writers wait for it.
    """

    def __init__(
        self,
        file: DatabaseFile,
        clock: Clock,
        outcome: Callable[[], Outcome],
        committed: Callable[[Transaction], None],
    ) -> None:
        self._write_connection = WriteConnection(file)
        self._clock = clock
        self._outcome = outcome
        self._committed = committed
        self._held = ExitStack()
        self._connection: sqlite3.Connection | None = None

    @property
    def begun(self) -> bool:
        return self._connection is not None

    def __enter__(self) -> sqlite3.Connection:
        refuse_inside()
        connection = self._begin()
        self._inside = inside.set(self)
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inside.reset(self._inside)
        self._end(error)

    async def __aenter__(self) -> sqlite3.Connection:
        """Begin in a new thread.

        In a shared pool, blocks that wait for the write lock could occupy all threads. The block that holds the lock
        would then have no thread in which to end.
        """
        refuse_inside()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mainspring-transaction")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(self._thread, self._begin)
        except BaseException as error:  # if cancelled, the thread begins all the same: end that transaction
            self._thread.submit(self._end, error)
            self._thread.shutdown(wait=False)
            raise
        self._inside = inside.set(self)
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inside.reset(self._inside)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._end, error)
        finally:
            self._thread.shutdown(wait=False)

    def _begin(self) -> sqlite3.Connection:
        try:
            self._connection = self._held.enter_context(self._write_connection.use())
            with self._write_connection.file.errors():
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.set_authorizer(forbid_commit)
        except BaseException as error:
            self._end(error)
            raise
        return self._connection

    def _end(self, error: BaseException | None) -> None:
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                connection.set_authorizer(None)
                self._finish(connection, error)
        finally:
            self._held.close()  # releases the write lock
            self._write_connection.close()

    def _finish(self, connection: sqlite3.Connection, error: BaseException | None) -> None:
        try:
            with self._write_connection.file.errors():
                if error is None:
                    self._commit(connection)
        finally:
            roll_back(connection)
        explain_denied(error)

    def _commit(self, connection: sqlite3.Connection) -> None:
        transaction = end_job(connection, self._clock, self._outcome)
        connection.execute("COMMIT")
        self._committed(transaction)


class ForeignCompletion:
    """A completion on the caller's own connection. Entering returns the object that the caller passed."""

    def __init__(
        self,
        given: Any,
        file: DatabaseFile,
        clock: Clock,
        outcome: Callable[[], Outcome],
        committed: Callable[[Transaction], None],
    ) -> None:
        self._given = given
        self._file = file
        self._clock = clock
        self._outcome = outcome
        self._committed = committed
        self._own = own_transaction(given, BareTransaction)
        self._driver: Any = None
        self._write_lock: WriteLock | None = None

    @property
    def begun(self) -> bool:
        return self._driver is not None

    def __enter__(self) -> Any:
        refuse_inside()
        if is_aiosqlite(self._given) or is_asynchronous(self._given):
            raise TypeError(NEEDS_ASYNC_WITH)
        self._open_write_lock().__enter__()
        run_at_once(self._begin())
        self._inside = inside.set(self)
        return self._given

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inside.reset(self._inside)
        run_at_once(self._end(error))

    async def __aenter__(self) -> Any:
        """Wait for the write lock in a thread: the block that holds it may need this event loop to finish."""
        refuse_inside()
        write_lock, thread = self._open_write_lock(), ThreadPoolExecutor(1, thread_name_prefix="mainspring-lock")
        try:
            await asyncio.get_running_loop().run_in_executor(thread, write_lock.__enter__)
        except BaseException:  # if cancelled, the thread takes the lock all the same: release it
            thread.submit(self._close)
            raise
        finally:
            thread.shutdown(wait=False)
        await self._begin()
        self._inside = inside.set(self)
        return self._given

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inside.reset(self._inside)
        await self._end(error)

    def _open_write_lock(self) -> WriteLock:
        with self._file.errors():
            self._write_lock = WriteLock(self._file.path)
        return self._write_lock

    async def _begin(self) -> None:
        """Begin the transaction with the write lock, or undo what was begun."""
        try:
            before = in_transaction(self._given)
            driver = await self._own.begin()
            refuse_begun(driver, before=before)
            self._driver = driver  # from here on, `_undo` has a transaction to roll back
            refuse_other_driver(driver, self._given)
            with self._file.errors():
                await call(driver, self._lock)
        except BaseException:
            await self._undo()
            raise

    def _lock(self, connection: sqlite3.Connection) -> None:
        refuse_other_file(connection, self._file)
        if connection.in_transaction:
            take_write_lock(connection)
        else:
            connection.execute("BEGIN IMMEDIATE")
        connection.set_authorizer(forbid_commit)

    async def _end(self, error: BaseException | None) -> None:
        if error is not None:
            await self._undo()
            explain_denied(error)
            return
        try:
            with self._file.errors():
                transaction = await call(self._driver, self._end_job)
                await self._own.commit()
        except BaseException:
            await self._undo()
            raise
        self._close()
        self._committed(transaction)

    def _end_job(self, connection: sqlite3.Connection) -> Transaction:
        connection.set_authorizer(None)
        with lent(connection, self._file):
            return end_job(connection, self._clock, self._outcome)

    async def _undo(self) -> None:
        try:
            if isinstance(self._driver, sqlite3.Connection) or is_aiosqlite(self._driver):
                await call(self._driver, allow_commit)
            if self._driver is not None:
                await self._own.roll_back()
        finally:
            self._close()

    def _close(self) -> None:
        self._driver = None
        write_lock, self._write_lock = self._write_lock, None
        if write_lock is not None:
            write_lock.__exit__(None, None, None)
            write_lock.close()


def end_job(connection: sqlite3.Connection, clock: Clock, outcome: Callable[[], Outcome]) -> Transaction:
    """Write the job's outcome as part of the transaction; raise ClaimLost if another worker has taken the job over."""
    transaction = Transaction(connection, clock.now())
    if settle(transaction, [outcome()]) == [None]:
        raise ClaimLost
    transaction.finish()
    return transaction


def in_transaction(given: Any) -> bool:
    """Return whether an SQLAlchemy session or connection has begun a transaction.

    For other libraries, `begin` of their transaction class checks it.
    """
    return made_by("sqlalchemy", given) and hasattr(own := unscoped(given), "in_transaction") and own.in_transaction()


def refuse_begun(driver: Any, *, before: bool) -> None:
    """Raise if the caller's SQLAlchemy object was in a transaction before.

    SQLAlchemy may have begun one without the driver's knowledge. It is still empty then, and may be used.
    """
    if before and getattr(driver, "in_transaction", False):
        raise ConfigurationError(NOT_OUTERMOST)


def allow_commit(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.ProgrammingError):  # closed: SQLAlchemy does so if it could not roll back
        connection.set_authorizer(None)


def explain_denied(error: BaseException | None) -> None:
    """Raise an error that says what to do instead, if the block failed because it tried to commit.

    SQLAlchemy and Django wrap the driver's errors.
    """
    causes = (error, getattr(error, "orig", None), getattr(error, "__cause__", None))
    if any(getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH for cause in causes):
        raise ConfigurationError(ENDED_INSIDE) from error


def forbid_commit(action: int, *_: object) -> int:
    """Deny commits and rollbacks in the block, as an authorizer of sqlite3. Savepoints are allowed.

    Rows that the block committed itself would stay even if the claim turns out to be lost.
    """
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
