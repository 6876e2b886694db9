"""A handler's own transaction, which ends with its job's outcome: both are committed, or neither."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
from collections.abc import Callable
from types import TracebackType

from mainspring.clock import Clock
from mainspring.errors import ClaimLost, ConfigurationError
from mainspring.job import Outcome
from mainspring.stores.sqlite.file import DatabaseFile
from mainspring.stores.sqlite.gate import Gate
from mainspring.stores.sqlite.jobs import ack
from mainspring.stores.sqlite.writer import Transaction, roll_back

inside: contextvars.ContextVar[bool] = contextvars.ContextVar("mainspring_inside_transaction", default=False)


def refuse_inside() -> None:
    """The block holds the file's one write lock: to wait for the writer thread in there would be to wait for ever."""
    if inside.get():
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
        self._file = file
        self._clock = clock
        self._outcome = outcome
        self._committed = committed

    def __enter__(self) -> sqlite3.Connection:
        refuse_inside()
        connection = self._begin()
        self._inside = inside.set(True)
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inside.reset(self._inside)
        self._end(error)

    async def __aenter__(self) -> sqlite3.Connection:
        refuse_inside()
        connection = await asyncio.to_thread(self._begin)
        self._inside = inside.set(True)
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inside.reset(self._inside)
        await asyncio.to_thread(self._end, error)

    def _begin(self) -> sqlite3.Connection:
        with self._file.errors():
            self._connection, self._gate = self._file.connect(), Gate(self._file.path)
            self._gate.__enter__()
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except BaseException:
                self._close()
                raise
        return self._connection

    def _end(self, error: BaseException | None) -> None:
        try:
            with self._file.errors():
                if error is None:
                    self._commit()
        finally:
            roll_back(self._connection)
            self._close()

    def _commit(self) -> None:
        transaction = Transaction(self._connection, self._clock.now())
        if ack(transaction, [self._outcome()]) == [None]:
            raise ClaimLost
        transaction.write_counts()
        self._connection.execute("COMMIT")
        self._committed(transaction)

    def _close(self) -> None:
        self._connection.close()
        self._gate.close()  # closing releases it
