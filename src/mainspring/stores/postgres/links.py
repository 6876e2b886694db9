"""Connections: a few per event loop, opened when needed, and thrown away when they break."""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import errors

from mainspring.errors import StoreBusy, StoreError, StoreFull, StoreReadOnly, StoreUnavailable

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
class Mine:
    """The connections of one event loop."""

    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST))
    free: list[Connection] = field(default_factory=list)


class Links:
    def __init__(self, dsn: str, *, prepare: bool = True) -> None:
        self.dsn = dsn
        self._prepare = prepare
        self._by_loop: dict[asyncio.AbstractEventLoop, Mine] = {}

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """A connection that commits each statement by itself. Errors are said in our own words."""
        mine = self._mine()
        async with mine.room:
            with explained():
                connection = await self._take(mine)
                try:
                    yield connection
                finally:
                    await give_back(mine, connection)

    async def connect(self, **options: Any) -> Connection:
        """One that is the caller's alone."""
        with explained():
            return await psycopg.AsyncConnection.connect(
                self.dsn,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT,
                prepare_threshold=5 if self._prepare else None,
                **KEEPALIVES,
                **options,
            )

    async def close(self) -> None:
        """Those of this loop in order; those of loops that have ended cannot wait for an answer."""
        here = asyncio.get_running_loop()
        for loop, mine in list(self._by_loop.items()):
            for connection in mine.free:
                if loop is here:
                    await connection.close()
                else:
                    connection.pgconn.finish()
        self._by_loop.clear()

    def _mine(self) -> Mine:
        loop = asyncio.get_running_loop()
        mine = self._by_loop.get(loop)
        if mine is None:
            for other in [other for other in self._by_loop if other.is_closed()]:
                for connection in self._by_loop.pop(other).free:
                    connection.pgconn.finish()
            mine = self._by_loop[loop] = Mine()
        return mine

    async def _take(self, mine: Mine) -> Connection:
        while mine.free:
            connection = mine.free.pop()
            if not connection.closed and is_alive(connection):
                return connection
            await connection.close()
        return await self.connect()


async def give_back(mine: Mine, connection: Connection) -> None:
    if connection.closed:
        return
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        mine.free.append(connection)
    else:  # something went wrong in the middle; nobody knows what state it is in
        await connection.close()


def is_alive(connection: Connection) -> bool:
    """Whether the server has not hung up on us while we did nothing: it would have written, or closed, the socket."""
    socket = select.poll()  # select() knows only the first 1024 files of a process
    socket.register(connection.fileno(), select.POLLIN)
    return not socket.poll(0)


@contextlib.contextmanager
def explained() -> Any:
    try:
        yield
    except psycopg.Error as error:
        raise explain(error) from error


KINDS: tuple[tuple[tuple[type[psycopg.Error], ...], type[StoreError], str], ...] = (
    ((errors.DiskFull, errors.OutOfMemory), StoreFull, "the database server has no room left"),
    ((errors.ReadOnlySqlTransaction,), StoreReadOnly, "the database takes no writes; is it a standby?"),
    ((errors.InsufficientPrivilege,), StoreReadOnly, "this database user may not do that"),
    (
        (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure),
        StoreBusy,
        "another transaction was in the way",
    ),
    (
        (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName),
        StoreError,
        "our tables are not there, or not up to date; run `mainspring migrate`",
    ),
    ((errors.InvalidPassword, errors.InvalidCatalogName), StoreError, "cannot connect"),
    ((psycopg.OperationalError, psycopg.InterfaceError), StoreUnavailable, "the database cannot be reached"),
)


def explain(error: psycopg.Error) -> StoreError:
    words = " ".join(str(error).split()) or type(error).__name__
    for kinds, told_as, message in KINDS:
        if isinstance(error, kinds):
            return told_as(f"{message}: {words}")
    return StoreError(words)
