"""Wake-ups between machines: NOTIFY after the commit, and only if a worker is idle.

NOTIFY inside the transaction would take a server-wide lock at commit. So a process commits first, then checks whether
a worker is idle, and only then notifies. A worker first commits that it is idle, then looks for jobs once more.
Whichever of the two comes second sees the other's commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psycopg

from mainspring.errors import StoreError
from mainspring.ids import new_id
from mainspring.log import get_log
from mainspring.queue_patterns import meet
from mainspring.stores.postgres.pool import Connection, Pool, is_pooled
from mainspring.stores.postgres.transaction import SERVER_START, Dialect, Transaction
from mainspring.stores.protocol import EVERY_QUEUE, Wake

log = get_log("mainspring.postgres")

POLL_INTERVAL = 1.0  # seconds, while the worker cannot be notified
STABLE_AFTER = 1.0  # seconds; a connection that listened for less is not replaced at once
MAX_RETRY_DELAY = 15.0  # seconds between attempts to listen again
ECHO_TIMEOUT = 5.0  # seconds to wait for the listener's own test notification
NOTIFY_INTERVAL = 0.02  # seconds between two looks for idle readers, while a process commits often
NOTIFY_TIMEOUT = 5.0  # seconds
POOLER_RETRY_DELAY = 600.0  # seconds between attempts to listen through a pooler; each leaves a LISTEN behind in it

NOTIFY_IDLE = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s, %(message)s)
WHERE EXISTS (SELECT 1 FROM {s}.workers WHERE idle AND (queues && %(queues)s OR %(everyone)s))
"""
"""The notification's own commit need not be flushed to disk: what it announces already is."""
NOTIFY = "SELECT pg_notify(%(channel)s, %(message)s)"


NOTIFY_READERS = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s, '')
WHERE EXISTS (SELECT 1 FROM {s}.readers WHERE idle)
"""


def channel(schema: str) -> str:
    return f"mainspring_{schema}"


def feed_channel(schema: str) -> str:
    return f"{channel(schema)}_changes"


def describe(wake: Wake, queues: Iterable[str]) -> str:
    """Return the text of a notification. Many long queue names become "every queue": the limit is 8000 bytes."""
    message = json.dumps({"wake": wake.value, "queues": sorted(queues)})
    return message if len(message.encode()) < 7000 else json.dumps({"wake": wake.value, "queues": [EVERY_QUEUE]})


async def tell_with_commit(transaction: Transaction) -> None:
    """Notify before the commit, which sends the notification. It is not known yet which workers will be idle then."""
    if transaction.wakes():
        message = describe(transaction.wakes(), [EVERY_QUEUE] if transaction.cancellations else transaction.woken)
        await transaction.rows(NOTIFY, channel=channel(transaction.dialect.schema), message=message)
    if transaction.recorded and transaction.dialect.has_readers:
        await transaction.rows(NOTIFY, channel=feed_channel(transaction.dialect.schema), message="")


async def tell(transaction: Transaction, readers: ReaderNotifier | None = None) -> None:
    """Notify workers, and readers of the change feed, of what a committed transaction means for them.

    Without a notifier, readers are notified at once.
    """
    if transaction.wakes_busy_workers:
        await tell_with_commit(transaction)
        return
    if transaction.recorded and transaction.dialect.has_readers:
        await (readers.notify(transaction) if readers else notify_readers(transaction))
    if transaction.woken:
        everyone = EVERY_QUEUE in transaction.woken
        await transaction.rows(
            NOTIFY_IDLE,
            channel=channel(transaction.dialect.schema),
            message=describe(Wake.JOBS, transaction.woken),
            queues=[EVERY_QUEUE, *transaction.woken],
            everyone=everyone,
        )


async def notify_readers(transaction: Transaction) -> None:
    """Notify readers of the change feed, if one of them is idle."""
    await transaction.rows(NOTIFY_READERS, channel=feed_channel(transaction.dialect.schema))


class ReaderNotifier:
    """Notifies idle readers of the change feed after the commits of one process.

    A busy worker commits hundreds of times a second, and each look for idle readers is a statement of its own. So
    commits that closely follow a notification share the next one.
    """

    def __init__(self, pool: Pool, dialect: Dialect) -> None:
        self._pool = pool
        self._dialect = dialect
        self._last = float("-inf")  # when readers were notified, by the monotonic clock
        self._pending: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    async def notify(self, transaction: Transaction) -> None:
        """Notify readers now, or a moment later if they were notified a moment ago."""
        loop = asyncio.get_running_loop()
        if loop in self._pending:
            return  # it will look for idle readers after this commit
        wait = self._last + NOTIFY_INTERVAL - time.monotonic()
        if wait <= 0:
            await self._notify(transaction)
        else:
            self._pending[loop] = loop.create_task(self._notify_after(wait), name="mainspring-notify-readers")

    async def close(self) -> None:
        """Send what is pending in this event loop."""
        if (task := self._pending.get(asyncio.get_running_loop())) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _notify_after(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:  # if the application ends now, the commits are announced nevertheless
            del self._pending[asyncio.get_running_loop()]  # first: a commit after this look needs another one
            with contextlib.suppress(StoreError, TimeoutError):  # readers look for themselves after a while
                async with asyncio.timeout(NOTIFY_TIMEOUT), self._pool.use() as connection:
                    await self._notify(Transaction(connection, self._dialect))

    async def _notify(self, transaction: Transaction) -> None:
        self._last = time.monotonic()
        await notify_readers(transaction)


def parse(message: str) -> tuple[Wake, set[str]]:
    """Read a notification. If the text is unknown (sent by hand or by another version), wake for everything.

    A needless look for jobs does no harm; a missed notification would.
    """
    try:
        notice = json.loads(message)
        return Wake(notice["wake"]), set(notice["queues"])
    except (ValueError, TypeError, KeyError):
        return Wake.ALL, {EVERY_QUEUE}


class NotificationsBlocked(StoreError):
    """No notification passes this pooler: give workers a direct connection (listen=…, see docs/postgres.md)."""


LOCK = f"SELECT pg_advisory_lock_shared(%(key)s), {SERVER_START}"


@dataclass(frozen=True, slots=True)
class SessionLock:
    """An advisory lock of the process's sessions. The server frees it when the process dies."""

    key: int
    server: int  # when that server started: after a restart or failover the lock is gone


async def lock_session(connection: Connection, key: int) -> SessionLock:
    """Take a lock that no other process ever asks for."""
    row = await (await connection.execute(LOCK, {"key": key})).fetchone()
    return SessionLock(key, 0 if row is None else row[1])


class Listener:
    """Receive the wake-ups of a worker or reader: on a connection of its own, or by polling while it has none."""

    def __init__(
        self,
        pool: Pool,
        channel: str,
        queues: Iterable[str],
        wake: Callable[[Wake], None],
        *,
        shows_life: bool = True,  # its connection shows that the worker's process is alive
    ) -> None:
        self._pool = pool
        self._channel = channel
        self._shows_life = shows_life
        self._queues = set(queues)
        self._wake = wake
        self._task = asyncio.get_running_loop().create_task(self._serve(), name="mainspring-listener")
        self.loop = asyncio.get_running_loop()
        self.listening = False
        self.polling = False  # because listening failed, or no notification gets through
        self.lock: SessionLock | None = None  # None: not connected, or only through a pooler, which would keep the lock
        self._failures = 0  # in a row
        self._since = 0.0  # loop time at which it began to listen

    async def stop(self) -> None:
        """Stop listening, and wait until the connection is closed."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def look(self) -> None:
        """Make the worker look for everything, from any thread."""
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self.loop.call_soon_threadsafe(self._wake, Wake.ALL)

    async def _serve(self) -> None:
        while True:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    connection = await self._pool.connect()
                    stack.push_async_callback(connection.close)
                    await connection.execute(f"LISTEN {self._channel}")
                    if await is_pooled(connection):
                        await self._check_echo(connection)
                    elif self._shows_life:
                        self.lock = await lock_session(connection, self._pool.show_life())
                    self._back()
                    await self._listen(connection)
            except (StoreError, psycopg.Error, OSError) as error:
                if not self._worth_a_fresh_connection():
                    await self._poll(self._lost(error))

    async def _check_echo(self, connection: Connection) -> None:
        """Raise `NotificationsBlocked` if a test notification does not arrive.

        A pooler in transaction mode accepts LISTEN, but for a connection that it then gives to other clients.
        """
        mark = json.dumps({"wake": 0, "queues": [], "echo": new_id()})  # other listeners ignore it
        async with await self._pool.connect() as other:
            await other.execute(NOTIFY, {"channel": self._channel, "message": mark})
        async with contextlib.aclosing(connection.notifies(timeout=ECHO_TIMEOUT)) as notices:
            async for notice in notices:
                if notice.payload == mark:
                    return
        await connection.execute(f"UNLISTEN {self._channel}")  # most likely on the connection that got LISTEN
        raise NotificationsBlocked

    def _worth_a_fresh_connection(self) -> bool:
        """Return whether to connect again at once: if the connection was stable, the server may still be there."""
        stood = self.listening and self.loop.time() - self._since >= STABLE_AFTER
        self.listening, self.lock = False, None
        return stood

    def _lost(self, error: Exception) -> float:
        """Fall back to polling and return the seconds until the next attempt. Log repeated failures more rarely."""
        self.listening, self.polling, self.lock = False, True, None
        self._failures += 1
        delay = min(MAX_RETRY_DELAY, 2.0 ** min(self._failures, 10) / 4)
        retry = POOLER_RETRY_DELAY if isinstance(error, NotificationsBlocked) else delay
        if self._failures & (self._failures - 1) == 0:
            log.warning("not_listening", error=str(error), polling_every=POLL_INTERVAL, retry_in=retry)
        return retry

    def _back(self) -> None:
        self.listening, self.polling = True, False
        self._since = self.loop.time()
        if self._failures:
            log.info("listening_again", failures=self._failures)
        self._failures = 0
        self._wake(Wake.ALL)  # notifications sent before LISTEN did not arrive

    async def _listen(self, connection: Connection) -> None:
        """Wait on the socket itself. psycopg's own `notifies` polls ten times a second, even while nothing happens."""
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
        wake, about = parse(message)
        if not meet(self._queues, about):
            wake &= ~Wake.JOBS
        if wake:
            self._wake(wake)

    async def _poll(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            self._wake(Wake.ALL)
            await asyncio.sleep(min(POLL_INTERVAL, left))


class SharedListener(Listener):
    """Receive the wake-ups of all remote workers of one event loop, on one connection."""

    def __init__(self, pool: Pool, channel: str) -> None:
        self._ears: dict[str, tuple[set[str], Callable[[Wake], None]]] = {}  # worker -> its queues, and what to call
        super().__init__(pool, channel, (), self._wake_all)

    def add(self, worker: str, queues: Iterable[str], wake: Callable[[Wake], None]) -> None:
        self._ears[worker] = set(queues), wake
        if self.listening:
            wake(Wake.ALL)  # as `_back` does: notifications sent before did not reach it

    def remove(self, worker: str) -> None:
        self._ears.pop(worker, None)

    @property
    def has_ears(self) -> bool:
        return bool(self._ears)

    def _hear(self, message: str) -> None:
        wake, about = parse(message)
        for queues, ear in list(self._ears.values()):
            if heard := wake if meet(queues, about) else wake & ~Wake.JOBS:
                ear(heard)

    def _wake_all(self, wake: Wake) -> None:
        for _, ear in list(self._ears.values()):
            ear(wake)
