"""Connections: a few per event loop, opened when needed and discarded when they break."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import select
import time
from collections.abc import AsyncIterator
from dataclasses import astuple, dataclass, field
from typing import Any

import psycopg

from mainspring.stores.postgres.errors import explain_on, explained

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

MAX_CONNECTIONS = 8  # per event loop; a caller that needs another one waits
CONNECT_TIMEOUT = 10  # seconds
SHOW_LIFE = "SELECT pg_advisory_lock_shared(%(key)s)"
KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""With these, a server that disappears without closing the connection is noticed within half a minute."""


@dataclass(slots=True)
class Tally:
    """What the connections of one event loop were used for. One thread counts, so that no count gets lost."""

    opened: int = 0  # connections
    calls: int = 0
    seconds: float = 0.0  # for which connections were in use
    waits: int = 0  # calls that had to wait for a connection
    waited: float = 0.0  # seconds

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(slots=True)
class LoopConnections:
    """The connections of one event loop."""

    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONNECTIONS))
    free: list[Connection] = field(default_factory=list)
    closed: bool = False  # connections still in use are closed when they are returned
    tally: Tally = field(default_factory=Tally)
    waiting: int = 0  # calls that wait for a connection
    in_use: int = 0


class Pool:
    def __init__(self, dsn: str, *, prepare: bool = True) -> None:
        self.dsn = dsn
        self.prepare = prepare
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopConnections] = {}
        self._past = Tally()  # of event loops that have ended
        self._life: tuple[int, int] | None = None  # this process, and the key of the lock that shows its life

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """Lend a connection in autocommit mode. psycopg's errors are raised as Mainspring's."""
        mine = self._mine()
        async with lent_room(mine):
            connection = await self._take(mine)
            try:
                yield connection
            except psycopg.Error as error:
                raise explain_on(connection, error) from error
            finally:
                await give_back(mine, connection)

    def measures(self) -> dict[str, float]:
        """Return the numbers of this process since it opened the store; see docs/postgres.md."""
        loops = list(self._by_loop.values())
        total = sum((mine.tally for mine in loops), self._past)
        in_use, free = sum(mine.in_use for mine in loops), sum(len(mine.free) for mine in loops)
        return {
            "calls": total.calls, "call_seconds": round(total.seconds, 3), "connections": in_use + free,
            "connections_in_use": in_use, "connections_limit": MAX_CONNECTIONS * len(loops),
            "connections_opened": total.opened, "waiting": sum(mine.waiting for mine in loops), "waits": total.waits,
            "waited_seconds": round(total.waited, 3),
        }  # fmt: skip

    async def connect(self) -> Connection:
        """Open a connection that only the caller uses."""
        with explained():
            connection = await psycopg.AsyncConnection.connect(self.dsn, **self._options())
        if self._life is not None and self._life[0] == os.getpid():
            await show_life_on(connection, self._life[1])
        return connection

    def show_life(self) -> int:
        """Make every connection that is opened from now on hold a shared lock of this process, and return its key.

        The server frees the lock when the last of them ends. One connection may be cut while the process lives.
        """
        if self._life is None or self._life[0] != os.getpid():
            self._life = os.getpid(), secrets.randbits(63)
        return self._life[1]

    def connect_here(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a connection for code without an event loop."""
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
        """Close all free connections. Those of other loops are cut off, since this loop cannot wait for them."""
        here = asyncio.get_running_loop()
        for loop, mine in list(self._by_loop.items()):
            mine.closed = True
            self._past += mine.tally
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
                ended = self._by_loop.pop(other)
                self._past += ended.tally
                for connection in ended.free:
                    connection.pgconn.finish()
            mine = self._by_loop[loop] = LoopConnections()
        return mine

    async def _take(self, mine: LoopConnections) -> Connection:
        while mine.free:
            connection = mine.free.pop()
            if not connection.closed and is_alive(connection):
                return connection
            await connection.close()
        mine.tally.opened += 1
        return await self.connect()


@contextlib.asynccontextmanager
async def lent_room(mine: LoopConnections) -> AsyncIterator[None]:
    """Wait for room for one more connection, and count how long that takes and how long it is used."""
    if mine.room.locked():
        await wait_for_room(mine)
    else:
        await mine.room.acquire()
    began, mine.in_use = time.monotonic(), mine.in_use + 1
    try:
        yield
    finally:
        mine.in_use -= 1
        mine.tally.calls += 1
        mine.tally.seconds += time.monotonic() - began
        mine.room.release()


async def wait_for_room(mine: LoopConnections) -> None:
    began, mine.waiting = time.monotonic(), mine.waiting + 1
    mine.tally.waits += 1
    try:
        await mine.room.acquire()
    finally:
        mine.waiting -= 1
        mine.tally.waited += time.monotonic() - began


async def show_life_on(connection: Connection, key: int) -> None:
    """Take the lock, or close the connection: also if the caller is cancelled meanwhile."""
    async with contextlib.AsyncExitStack() as closing:
        closing.push_async_callback(connection.close)
        try:
            await connection.execute(SHOW_LIFE, {"key": key})
        except psycopg.Error as error:
            raise explain_on(connection, error) from error
        closing.pop_all()


@contextlib.asynccontextmanager
async def short_transaction(connection: Connection, silence: float) -> AsyncIterator[None]:
    """Open a transaction that the server ends if this client sends nothing for `silence` seconds.

    A worker may be stopped or lose its machine in the middle of a transaction. The server would keep its locks for
    hours, and all other workers would wait for them.
    """
    limit = max(1000, round(silence * 1000))
    await connection.execute(
        f"BEGIN; SET LOCAL idle_in_transaction_session_timeout = {limit}".encode(),
        prepare=False,  # one round trip for both; two statements cannot be prepared
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
    else:  # the operation was interrupted and left the connection in an unknown state, or the pool is closed
        await connection.close()


def is_alive(connection: Connection) -> bool:
    """Return whether an idle connection is usable. A server that hung up has written to its socket, or closed it."""
    socket = select.poll()  # select() knows only the first 1024 files of a process
    socket.register(connection.fileno(), select.POLLIN)
    return not socket.poll(0)


async def is_pooled(connection: Connection) -> bool:
    """Return whether a pooler is in between. A pooler reports a made-up process id for the connection."""
    cursor = await connection.execute("SELECT pg_backend_pid()")
    return await cursor.fetchone() != (connection.info.backend_pid,)
