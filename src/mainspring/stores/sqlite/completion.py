"""A handler's own transaction, which ends with its job's outcome: both are committed, or neither."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType

from mainspring.clock import Clock
from mainspring.errors import ClaimLost, ConfigurationError
from mainspring.job import Outcome
from mainspring.stores.sqlite.endings import settle
from mainspring.stores.sqlite.file import DatabaseFile
from mainspring.stores.sqlite.link import WriteLink
from mainspring.stores.sqlite.writer import Transaction, roll_back

inside: contextvars.ContextVar[SqliteCompletion | None] = contextvars.ContextVar("mainspring_inside", default=None)


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
        self._link = WriteLink(file)
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
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
            msg = "ctx.transaction() commits at its end, with the job's outcome; do not commit or roll back inside it"
            raise ConfigurationError(msg) from error

    def _commit(self, connection: sqlite3.Connection) -> None:
        transaction = Transaction(connection, self._clock.now())
        if settle(transaction, [self._outcome()]) == [None]:
            raise ClaimLost
        transaction.write_counts()
        connection.execute("COMMIT")
        self._committed(transaction)


def forbid_commit(action: int, *_: object) -> int:
    """Rows that the block committed by itself would stay when the claim turns out to be lost. Savepoints are fine."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
