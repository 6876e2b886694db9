"""The caller's own connection, whatever library it comes from."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import psycopg

from mainspring.errors import ConfigurationError
from mainspring.stores.borrowed import unwrap

T = TypeVar("T")


class Awaitable:
    """A psycopg connection without an event loop, in the clothes of one with: what is awaited is there at once."""

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


class WithTuples:
    """A caller's asynchronous connection may give its rows in another shape."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def execute(self, statement: Any, parameters: Any = None) -> psycopg.AsyncCursor[tuple[Any, ...]]:
        return await self._connection.cursor(row_factory=psycopg.rows.tuple_row).execute(statement, parameters)


async def borrow(given: Any) -> Any:
    """What operations can use, of a psycopg connection, an SQLAlchemy session or connection, or a Django connection."""
    driver = await unwrap(given)
    if isinstance(driver, psycopg.AsyncConnection):
        return WithTuples(driver)
    if isinstance(driver, psycopg.Connection):
        return Awaitable(driver)
    msg = (
        f"connection must be a psycopg connection, an SQLAlchemy session or connection, or a Django connection, "
        f"not {type(given).__name__}"
    )
    if driver is not given:
        msg += f" over {type(driver).__module__.partition('.')[0]}: have it use psycopg 3"
    raise ConfigurationError(msg)


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, because all that it awaits is `Awaitable`."""
    try:
        work.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    work.close()
    msg = "this was to be done at once, but waits"
    raise RuntimeError(msg)
