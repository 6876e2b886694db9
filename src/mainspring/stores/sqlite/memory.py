"""The store in memory, for tests and for trying things out: the tables of the SQLite store, without a file.

The database belongs to this process and is lost with it. Its only connection is used in the calling thread, under a
lock: no statement waits for a disk, so switching to another thread would take longer than the statement.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from mainspring.clock import Clock, Millis, to_datetime
from mainspring.errors import ConfigurationError, UnsupportedCall
from mainspring.job import Inserted, Outcome
from mainspring.queue_patterns import meet
from mainspring.stores.protocol import Completion, Finding, Severity, Wake, WorkerInfo
from mainspring.stores.sqlite import fork, insertion, maintenance, schema
from mainspring.stores.sqlite.errors import explain
from mainspring.stores.sqlite.store import SqlStore
from mainspring.stores.sqlite.transaction import Committing, Operation

P = ParamSpec("P")
R = TypeVar("R")

URL = "memory://"
LOST = Finding(
    Severity.WARNING,
    "durability",
    "jobs are kept in memory only and are lost when this process ends",
    "use sqlite:/// for jobs that matter",
)


class MemoryStore(SqlStore):
    """A store for the threads of one process. It is neither durable nor transactional."""

    poll = 0.0
    transactional = False

    def __init__(
        self,
        url: str = URL,
        *,
        clock: Clock | None = None,
        lease: float = 30.0,
        stall_grace: Millis = 30_000,
        patience: Millis = 60_000,
    ) -> None:
        super().__init__(clock, lease, stall_grace, patience)
        self.url = url
        self.liveness: LocalWorkers = LocalWorkers(self.clock)
        self._database = MemoryDatabase()

    async def open(self) -> None:
        """Do nothing: the database is created at its first use."""

    async def close(self) -> None:
        """Do nothing: the jobs stay for as long as this object does."""

    async def _write(self, operation: Operation, items: list[Any], *, durable: bool = True) -> list[Any]:
        del durable
        with self._database as connection, Committing(connection, self.clock) as transaction:
            results = operation(transaction, items)
        self._committed(transaction)
        return results

    async def _read(
        self, function: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        with self._database as connection:
            return function(connection, *args, **kwargs)

    async def _insert_on(self, connection: Any, new: list[insertion.PreparedJob]) -> list[Inserted]:
        del connection, new
        msg = "memory:// has no transactions to join; insert without a connection, or use sqlite:// or postgresql://"
        raise ConfigurationError(msg)

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        del outcome, connection
        msg = "memory:// has no transactions to complete a job in; use sqlite:// or postgresql://"
        raise UnsupportedCall(msg)

    async def join(self, worker: WorkerInfo, wake: Callable[[Wake], None] | None) -> None:
        self.liveness.join(worker, wake)
        await self._write(maintenance.join, [worker])

    @asynccontextmanager
    async def watching(self, notice: Callable[[], None]) -> AsyncIterator[None]:
        """Call `notice` after each commit."""
        with self.liveness.reader(notice):
            yield

    async def diagnose(self) -> list[Finding]:
        return [LOST]


class MemoryDatabase:
    """One connection to a database in memory. It serves one user at a time."""

    path = Path(":memory:")

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        fork.close_for_forks(self)

    def __enter__(self) -> sqlite3.Connection:
        self._lock.acquire()
        if self._connection is None:
            try:
                self._connection = create_database()
                # not __del__: if both are in a garbage cycle, the connection may be finalized first, and warns
                weakref.finalize(self, self._connection.close).atexit = False
            except BaseException:
                self._lock.release()
                raise
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        if error is not None and isinstance(error, sqlite3.Error):
            raise explain(error, URL) from error

    def pause(self, seconds: float) -> bool:
        """Let no thread use the database while the process forks: the child then gets a whole copy of it."""
        return self._lock.acquire(timeout=seconds)

    def resume(self) -> None:
        self._lock.release()


NEW_LIFE = "UPDATE mainspring_feed SET life = lower(hex(randomblob(4)))"  # each copy is a feed of its own


def create_database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=256)
    if not hasattr(connection, "deserialize"):  # some builds of SQLite leave it out
        schema.migrate(connection.cursor())
        return connection
    with closing(sqlite3.connect(":memory:")) as template:
        template.deserialize(empty_database())
        template.backup(connection)
    connection.execute(NEW_LIFE)
    return connection


@cache
def empty_database() -> bytes:
    """Return the tables. Copying them takes a tenth of the time that creating them takes; tests often do it."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.migrate(connection.cursor())
        return connection.serialize()


@dataclass(slots=True)
class LocalWorker:
    info: WorkerInfo
    wake: Callable[[Wake], None] | None
    loop: asyncio.AbstractEventLoop
    seen_at: Millis = 0
    heartbeat: int = 0


class LocalWorkers:
    """The workers of this process. They are woken by a call on their event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._workers: dict[str, LocalWorker] = {}
        self._readers: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._heartbeats = count(1)  # of all workers: one that leaves and joins again has a new number

    def join(self, info: WorkerInfo, wake: Callable[[Wake], None] | None) -> None:
        self._workers[info.id] = LocalWorker(info, wake, asyncio.get_running_loop())
        self.beat(info.id)

    def leave(self, worker: str) -> None:
        self._workers.pop(worker, None)

    def beat(self, worker: str, stuck: int = 0) -> bool:
        """Record a heartbeat; return False if there is no such worker."""
        if (local := self._workers.get(worker)) is None:
            return False
        local.info = replace(local.info, stuck=stuck)
        local.seen_at = self._clock.now()
        local.heartbeat = next(self._heartbeats)
        return True

    def forget(self, worker: str, heartbeat: object) -> None:
        """Remove a remote worker, unless it has sent another heartbeat than this one."""
        local = self._workers.get(worker)
        if local is not None and local.info.remote and local.heartbeat == heartbeat:
            del self._workers[worker]

    def dead(self, worker: str) -> bool:
        """Return whether the worker is certainly dead: it has left, or has never joined."""
        return worker not in self._workers

    def heartbeat_of(self, worker: str) -> int:
        """Return a number that changes with each heartbeat; 0 if there is no such worker."""
        local = self._workers.get(worker)
        return local.heartbeat if local else 0

    def workers(self) -> list[WorkerInfo]:
        locals_ = list(self._workers.values())  # other threads may join meanwhile
        return [replace(local.info, seen_at=to_datetime(local.seen_at), alive=True) for local in locals_]

    def sweep(self) -> None:
        """Do nothing: a worker that has left leaves nothing behind."""

    @contextmanager
    def reader(self, notice: Callable[[], None]) -> Iterator[None]:
        """Call `notice` on this event loop when the change feed has grown, until the block is left."""
        reader = asyncio.get_running_loop(), notice
        self._readers.append(reader)
        try:
            yield
        finally:
            self._readers.remove(reader)

    def wake_readers(self) -> None:
        for loop, notice in list(self._readers):
            with suppress(RuntimeError):  # the loop is closed
                call_soon(loop)(notice)

    def wake(self, wake: Wake, queues: Iterable[str] = ()) -> None:
        about = frozenset(queues)
        for local in list(self._workers.values()):
            wanted = not about or meet(local.info.queues, about)
            heard = wake if wanted else wake & ~Wake.JOBS
            if heard and local.wake is not None:
                with suppress(RuntimeError):  # the loop is closed, so there is no worker to wake
                    call_soon(local.loop)(local.wake, heard)


def call_soon(loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    """Return the method by which this thread may call something on the loop; waking another thread takes longer."""
    try:
        return loop.call_soon if asyncio.get_running_loop() is loop else loop.call_soon_threadsafe
    except RuntimeError:  # no loop runs in this thread
        return loop.call_soon_threadsafe
