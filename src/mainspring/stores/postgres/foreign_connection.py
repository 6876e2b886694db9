"""Use the caller's own connection, whichever library it comes from."""

from __future__ import annotations

from typing import Any

import psycopg

from mainspring.errors import ConfigurationError
from mainspring.stores.foreign_connection import NOT_OUTERMOST, Undone, finished, unwrap


class AsyncAdapter:
    """Give a synchronous psycopg connection the async interface. Each call blocks and its result is ready at once."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def execute(self, statement: Any, parameters: Any = None) -> AwaitableCursor:
        cursor = self._connection.cursor(row_factory=psycopg.rows.tuple_row)
        return AwaitableCursor(cursor.execute(statement, parameters))


class AwaitableCursor:
    def __init__(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self._cursor = cursor
        self.rowcount = cursor.rowcount

    async def fetchall(self) -> list[tuple[Any, ...]]:
        return self._cursor.fetchall()


class TupleRows:
    """Make an asynchronous connection return rows as tuples, whatever row factory the caller has set."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def execute(self, statement: Any, parameters: Any = None) -> psycopg.AsyncCursor[tuple[Any, ...]]:
        return await self._connection.cursor(row_factory=psycopg.rows.tuple_row).execute(statement, parameters)


async def borrow(given: Any) -> Any:
    """Return what store operations can use, given a psycopg, SQLAlchemy or Django connection or session."""
    return operable(await unwrap(given), given)


def operable(driver: Any, given: Any) -> Any:
    if isinstance(driver, psycopg.AsyncConnection):
        return TupleRows(driver)
    if isinstance(driver, psycopg.Connection):
        return AsyncAdapter(driver)
    msg = (
        f"connection must be a psycopg connection, an SQLAlchemy session or connection, or a Django connection, "
        f"not {type(given).__name__}"
    )
    if driver is not given:
        msg += f" over {type(driver).__module__.partition('.')[0]}: have it use psycopg 3"
    raise ConfigurationError(msg)


class BareTransaction:
    """A transaction that Mainspring begins and ends on a psycopg connection. psycopg rejects commit() within it."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._block: Any = None

    async def begin(self) -> Any:
        operable(self._given, self._given)
        if self._given.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            raise ConfigurationError(NOT_OUTERMOST)
        block = self._given.transaction()
        await finished(block.__aenter__() if self._asynchronous else block.__enter__())
        self._block = block
        return self._given

    async def commit(self) -> None:
        await self._leave(None, None, None)

    async def roll_back(self) -> None:
        if self._block is not None:  # None: begin or commit failed, and the transaction is rolled back already
            await self._leave(Undone, Undone(), None)

    async def _leave(self, *error: Any) -> None:
        block, self._block = self._block, None
        await finished(block.__aexit__(*error) if self._asynchronous else block.__exit__(*error))

    @property
    def _asynchronous(self) -> bool:
        return isinstance(self._given, psycopg.AsyncConnection)
