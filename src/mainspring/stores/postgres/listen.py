"""Wake-ups between machines: NOTIFY after the commit, and only if somebody sleeps.

NOTIFY in the transaction itself would take a lock on the whole server at commit. So who commits looks afterwards
whether a worker is idle, and only then notifies. A worker marks itself idle, commits that, and then looks once more
for jobs: whichever of the two comes second sees the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psycopg

from mainspring.errors import StoreError
from mainspring.ids import new_id
from mainspring.log import get_log
from mainspring.stores.postgres.pool import Connection, Pool, is_pooled
from mainspring.stores.postgres.transaction import SERVER_START, Transaction
from mainspring.stores.protocol import EVERY_QUEUE, Wake

log = get_log("mainspring.postgres")

POLL = 1.0  # seconds between looks while nobody can tell us
STEADY = 1.0  # seconds; a connection that listened for less is not replaced at once
LONGEST_RETRY = 15.0  # seconds between tries to listen again
ECHO_WITHIN = 5.0  # seconds in which we hear ourselves, if we can
POOLER_RETRY = 600.0  # seconds between tries to listen through a pooler, each of which leaves an ear behind in it

NOTIFY_IDLE = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s, %(message)s)
WHERE EXISTS (SELECT 1 FROM {s}.workers WHERE idle AND (queues && %(queues)s OR %(everyone)s))
"""
"""Nothing of it need be on disk: what it tells of is."""
NOTIFY = "SELECT pg_notify(%(channel)s, %(message)s)"


def channel(schema: str) -> str:
    return f"mainspring_{schema}"


def describe(wake: Wake, queues: Iterable[str]) -> str:
    """Short, whatever the queues are called: a message has at most 8000 bytes."""
    message = json.dumps({"wake": wake.value, "queues": sorted(queues)})
    return message if len(message.encode()) < 7000 else json.dumps({"wake": wake.value, "queues": [EVERY_QUEUE]})


async def tell_with_commit(transaction: Transaction) -> None:
    """Before the commit, which carries the notice along. Which workers will be idle then is not known yet."""
    if transaction.wakes():
        message = describe(transaction.wakes(), [EVERY_QUEUE] if transaction.cancellations else transaction.woken)
        await transaction.rows(NOTIFY, channel=channel(transaction.dialect.schema), message=message)


async def tell(transaction: Transaction) -> None:
    """What a transaction that has committed means for others."""
    schema = transaction.dialect.schema
    if transaction.wakes_the_busy:
        await tell_with_commit(transaction)
    elif transaction.woken:
        everyone = EVERY_QUEUE in transaction.woken
        await transaction.rows(
            NOTIFY_IDLE,
            channel=channel(schema),
            message=describe(Wake.JOBS, transaction.woken),
            queues=[EVERY_QUEUE, *transaction.woken],
            everyone=everyone,
        )


def understood(message: str) -> tuple[Wake, set[str]]:
    """Whatever else somebody may send by hand, or another version of us: better to look in vain than not at all."""
    try:
        told = json.loads(message)
        return Wake(told["wake"]), set(told["queues"])
    except (ValueError, TypeError, KeyError):
        return Wake.ALL, {EVERY_QUEUE}


class Deaf(StoreError):
    """No notice reaches us through this pooler: give workers a direct connection (listen=…, see docs/postgres.md)."""


LOCK = f"SELECT pg_advisory_lock(%(key)s), {SERVER_START}"


@dataclass(frozen=True, slots=True)
class SessionLock:
    """An advisory lock of the listening session. The server frees it when the worker's process dies."""

    key: int
    server: int  # when that server started: after a restart or failover nobody holds the lock


async def lock_session(connection: Connection) -> SessionLock:
    """Take a lock that no other session ever asks for."""
    key = secrets.randbits(63)
    row = await (await connection.execute(LOCK, {"key": key})).fetchone()
    return SessionLock(key, 0 if row is None else row[1])


class Listener:
    """One worker's ear: a connection of its own, or a poll while it has none."""

    def __init__(self, pool: Pool, schema: str, queues: Iterable[str], wake: Callable[[Wake], None]) -> None:
        self._pool = pool
        self._schema = schema
        self._queues = set(queues)
        self._wake = wake
        self._task = asyncio.get_running_loop().create_task(self._serve(), name="mainspring-listener")
        self.loop = asyncio.get_running_loop()
        self.listening = False
        self.polling = False  # because listening failed, or was in vain
        self.lock: SessionLock | None = None  # None: not connected, or only through a pooler, which would keep the lock
        self._failures = 0  # in a row
        self._since = 0.0  # when it began to listen

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def look(self) -> None:
        """From any thread: have the worker look for itself."""
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self.loop.call_soon_threadsafe(self._wake, Wake.ALL)

    async def _serve(self) -> None:
        while True:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    connection = await self._pool.connect()
                    stack.push_async_callback(connection.close)
                    await connection.execute(f"LISTEN {channel(self._schema)}")
                    if await is_pooled(connection):
                        await self._hear_ourselves(connection)
                    else:
                        self.lock = await lock_session(connection)
                    self._back()
                    await self._listen(connection)
            except (StoreError, psycopg.Error, OSError) as error:
                if not self._worth_a_fresh_connection():
                    await self._poll(self._lost(error))

    async def _hear_ourselves(self, connection: Connection) -> None:
        """A pooler in transaction mode takes a LISTEN without complaint, for a connection that is not ours any more."""
        mark = json.dumps({"wake": 0, "queues": [], "echo": new_id()})  # means nothing to others
        async with await self._pool.connect() as other:
            await other.execute(NOTIFY, {"channel": channel(self._schema), "message": mark})
        async with contextlib.aclosing(connection.notifies(timeout=ECHO_WITHIN)) as notices:
            async for notice in notices:
                if notice.payload == mark:
                    return
        await connection.execute(f"UNLISTEN {channel(self._schema)}")  # most likely where we said LISTEN
        raise Deaf

    def _worth_a_fresh_connection(self) -> bool:
        """One that stood for a while may have been lost alone: the next one, at once, shows whether the server is."""
        stood = self.listening and self.loop.time() - self._since >= STEADY
        self.listening, self.lock = False, None
        return stood

    def _lost(self, error: Exception) -> float:
        """Said at the first failure, and then ever more rarely. Returns the seconds until the next try."""
        self.listening, self.polling, self.lock = False, True, None
        self._failures += 1
        retry = POOLER_RETRY if isinstance(error, Deaf) else min(LONGEST_RETRY, 2.0 ** min(self._failures, 10) / 4)
        if self._failures & (self._failures - 1) == 0:
            log.warning("not_listening", error=str(error), polling_every=POLL, retry_in=retry)
        return retry

    def _back(self) -> None:
        self.listening, self.polling = True, False
        self._since = self.loop.time()
        if self._failures:
            log.info("listening_again", failures=self._failures)
        self._failures = 0
        self._wake(Wake.ALL)  # of what came before we listened, nobody told us

    async def _listen(self, connection: Connection) -> None:
        """By the socket itself: psycopg's own way to listen looks ten times a second, also while nothing happens."""
        readable, socket = asyncio.Event(), connection.fileno()
        self.loop.add_reader(socket, readable.set)
        try:
            while True:
                connection.pgconn.consume_input()
                while notice := connection.pgconn.notifies():
                    self._hear(notice.extra.decode(errors="replace"))
                readable.clear()
                await readable.wait()
        finally:
            self.loop.remove_reader(socket)

    def _hear(self, message: str) -> None:
        wake, about = understood(message)
        if EVERY_QUEUE not in self._queues | about and not self._queues & about:
            wake &= ~Wake.JOBS
        if wake:
            self._wake(wake)

    async def _poll(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            self._wake(Wake.ALL)
            await asyncio.sleep(min(POLL, left))
