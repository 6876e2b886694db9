"""A handler's own transaction, which ends with its job's outcome: both are committed, or neither."""

from __future__ import annotations

import asyncio
import contextvars
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
from mainspring.stores.sqlite.connection import WriteConnection
from mainspring.stores.sqlite.file import DatabaseFile
from mainspring.stores.sqlite.foreign_connection import (
    BareTransaction,
    call,
    is_aiosqlite,
    lent,
    refuse_other_driver,
    refuse_other_file,
    take_write_lock,
)
from mainspring.stores.sqlite.write_lock import WriteLock
from mainspring.stores.sqlite.writer import Transaction, roll_back

inside: contextvars.ContextVar[SqliteCompletion | LentCompletion | None] = contextvars.ContextVar(
    "mainspring_inside", default=None
)


def refuse_inside() -> None:
    """The block holds the file's one write lock: to wait for the writer thread in there would be to wait for ever.

    What was started in the block and outlives it has inherited its context, and is free again.
    """
    block = inside.get()
    if block is not None and block.begun:
        msg = (
            "inside ctx.transaction() the database is yours alone: "
            "enqueue with using(connection=tx), or do this after the block"
        )
        raise ConfigurationError(msg)


class SqliteCompletion:
    """`with` in threads, `async with` on the loop; entering gives the sqlite3 connection. Keep the block short."""

    def __init__(
        self,
        file: DatabaseFile,
        clock: Clock,
        outcome: Callable[[], Outcome],
        committed: Callable[[Transaction], None],
    ) -> None:
        self._link = WriteConnection(file)
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
        """In a thread of its own: in a shared pool those who wait for the gate would keep out the one who holds it."""
        refuse_inside()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mainspring-transaction")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(self._thread, self._begin)
        except BaseException as error:  # cancelled, perhaps: the thread begins all the same, and nobody would end it
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
            self._connection = self._held.enter_context(self._link.use())
            with self._link.file.errors():
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
            self._held.close()  # the gate opens
            self._link.close()

    def _finish(self, connection: sqlite3.Connection, error: BaseException | None) -> None:
        try:
            with self._link.file.errors():
                if error is None:
                    self._commit(connection)
        finally:
            roll_back(connection)
        explain_denied(error)

    def _commit(self, connection: sqlite3.Connection) -> None:
        transaction = end_job(connection, self._clock, self._outcome)
        connection.execute("COMMIT")
        self._committed(transaction)


class LentCompletion:
    """As SqliteCompletion, on the caller's own connection: entering gives what the caller gave."""

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
        self._gate: WriteLock | None = None

    @property
    def begun(self) -> bool:
        return self._driver is not None

    def __enter__(self) -> Any:
        refuse_inside()
        if is_aiosqlite(self._given) or is_asynchronous(self._given):
            raise TypeError(NEEDS_ASYNC_WITH)
        self._open_gate().__enter__()
        run_at_once(self._begin())
        self._inside = inside.set(self)
        return self._given

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inside.reset(self._inside)
        run_at_once(self._end(error))

    async def __aenter__(self) -> Any:
        """Wait for the gate in a thread: the block that holds it may be waiting for this event loop."""
        refuse_inside()
        gate, thread = self._open_gate(), ThreadPoolExecutor(1, thread_name_prefix="mainspring-gate")
        try:
            await asyncio.get_running_loop().run_in_executor(thread, gate.__enter__)
        except BaseException:  # cancelled, perhaps: the thread enters all the same, and must leave again
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

    def _open_gate(self) -> WriteLock:
        with self._file.errors():
            self._gate = WriteLock(self._file.path)
        return self._gate

    async def _begin(self) -> None:
        """Begin the transaction with the write lock, or undo what was begun."""
        try:
            before = in_transaction(self._given)
            driver = await self._own.begin()
            refuse_begun(driver, before=before)
            self._driver = driver  # from now on there is something to undo
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
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.__exit__(None, None, None)
            gate.close()


def end_job(connection: sqlite3.Connection, clock: Clock, outcome: Callable[[], Outcome]) -> Transaction:
    """Write the job's outcome as part of the transaction; raise ClaimLost if another worker has taken the job over."""
    transaction = Transaction(connection, clock.now())
    if settle(transaction, [outcome()]) == [None]:
        raise ClaimLost
    transaction.write_counts()
    return transaction


def in_transaction(given: Any) -> bool:
    """Whether an SQLAlchemy session or connection has begun a transaction; others are asked by their own means."""
    return made_by("sqlalchemy", given) and hasattr(own := unscoped(given), "in_transaction") and own.in_transaction()


def refuse_begun(driver: Any, *, before: bool) -> None:
    """SQLAlchemy may have begun one without telling the driver: then there is nothing in it yet."""
    if before and getattr(driver, "in_transaction", False):
        raise ConfigurationError(NOT_OUTERMOST)


def allow_commit(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.ProgrammingError):  # SQLAlchemy closes a connection that it could not roll back
        connection.set_authorizer(None)


def explain_denied(error: BaseException | None) -> None:
    """Say what to do instead, if the block has failed because it tried to commit. SQLAlchemy and Django wrap errors."""
    causes = (error, getattr(error, "orig", None), getattr(error, "__cause__", None))
    if any(getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH for cause in causes):
        raise ConfigurationError(ENDED_INSIDE) from error


def forbid_commit(action: int, *_: object) -> int:
    """Rows that the block committed by itself would stay when the claim turns out to be lost. Savepoints are fine."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
