"""Connections: a few per event loop, opened when needed, and thrown away when they break."""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from mainspring.stores.postgres.errors import explain_on, explained

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

MOST = 8  # per event loop; who needs one more waits
CONNECT_TIMEOUT = 10  # seconds
KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""So that a server that is gone without a word is noticed within half a minute."""


@dataclass(slots=True)
class LoopConnections:
    """The connections of one event loop."""

    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST))
    free: list[Connection] = field(default_factory=list)
    closed: bool = False  # what is still in use then is closed by who uses it


class Pool:
    def __init__(self, dsn: str, *, prepare: bool = True) -> None:
        self.dsn = dsn
        self.prepare = prepare
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopConnections] = {}

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """A connection that commits each statement by itself. Errors are said in our own words."""
        mine = self._mine()
        async with mine.room:
            connection = await self._take(mine)
            try:
                yield connection
            except psycopg.Error as error:
                raise explain_on(connection, error) from error
            finally:
                await give_back(mine, connection)

    async def connect(self) -> Connection:
        """One that is the caller's alone."""
        with explained():
            return await psycopg.AsyncConnection.connect(self.dsn, **self._options())

    def connect_here(self) -> psycopg.Connection[tuple[Any, ...]]:
        """The same for code without an event loop."""
        with explained():
            return psycopg.connect(self.dsn, **self._options())

    def _options(self) -> dict[str, Any]:
        return {
            "autocommit": True,
            "connect_timeout": CONNECT_TIMEOUT,
            "prepare_threshold": 5 if self.prepare else None,
            **KEEPALIVES,
        }

    async def close(self) -> None:
        """Those of this loop in order; those of loops that have ended cannot wait for an answer."""
        here = asyncio.get_running_loop()
        for loop, mine in list(self._by_loop.items()):
            mine.closed = True
            for connection in mine.free:
                if loop is here:
                    await connection.close()
                else:
                    connection.pgconn.finish()
        self._by_loop.clear()

    def _mine(self) -> LoopConnections:
        loop = asyncio.get_running_loop()
        mine = self._by_loop.get(loop)
        if mine is None:
            for other in [other for other in self._by_loop if other.is_closed()]:
                for connection in self._by_loop.pop(other).free:
                    connection.pgconn.finish()
            mine = self._by_loop[loop] = LoopConnections()
        return mine

    async def _take(self, mine: LoopConnections) -> Connection:
        while mine.free:
            connection = mine.free.pop()
            if not connection.closed and is_alive(connection):
                return connection
            await connection.close()
        return await self.connect()


@contextlib.asynccontextmanager
async def short_transaction(connection: Connection, silence: float) -> AsyncIterator[None]:
    """One that the server ends if we say nothing for so many seconds: its locks are in the way of all others.

    A worker may be stopped or lose its machine in the middle of it, and the server would wait for hours.
    """
    limit = max(1000, round(silence * 1000))
    await connection.execute(
        f"BEGIN; SET LOCAL idle_in_transaction_session_timeout = {limit}".encode(),
        prepare=False,  # one journey for both; two statements cannot be prepared
    )
    try:
        yield
    except BaseException:
        with contextlib.suppress(psycopg.Error):
            await connection.rollback()
        raise
    await connection.commit()


async def give_back(mine: LoopConnections, connection: Connection) -> None:
    if connection.closed:
        return
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE and not mine.closed:
        mine.free.append(connection)
    else:  # else something went wrong in the middle, and nobody knows what state it is in
        await connection.close()


def is_alive(connection: Connection) -> bool:
    """Whether the server has not hung up on us while we did nothing: it would have written, or closed, the socket."""
    socket = select.poll()  # select() knows only the first 1024 files of a process
    socket.register(connection.fileno(), select.POLLIN)
    return not socket.poll(0)


async def is_pooled(connection: Connection) -> bool:
    """Whether a pooler is in between: it makes up the process that it tells us is ours."""
    cursor = await connection.execute("SELECT pg_backend_pid()")
    return await cursor.fetchone() != (connection.info.backend_pid,)
