"""The store in a file: decides which thread does what, and which workers are woken afterwards."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from mainspring.clock import Clock, Millis
from mainspring.errors import StoreError
from mainspring.job import Inserted, NewJob, Outcome
from mainspring.stores.protocol import Completion, Finding, Wake, WorkerInfo
from mainspring.stores.sqlite import claims, fork, insertion, maintenance
from mainspring.stores.sqlite.completion import ForeignCompletion, SqliteCompletion
from mainspring.stores.sqlite.connection import BUSY_TIMEOUT, DatabaseFile, FileConnection
from mainspring.stores.sqlite.foreign_connection import lent, run_on
from mainspring.stores.sqlite.liveness import Liveness, read_wakes
from mainspring.stores.sqlite.reader import Reader
from mainspring.stores.sqlite.store import SqlStore
from mainspring.stores.sqlite.timekeeper import Timekeeper
from mainspring.stores.sqlite.transaction import Operation, Transaction
from mainspring.stores.sqlite.writer import Writer

P = ParamSpec("P")
R = TypeVar("R")

MAX_INLINE_CLAIM = 8  # jobs; the writer thread claims the rest
MAX_INLINE_SET_ASIDE = 100  # jobs of unknown tasks; the writer thread sets aside the rest
FOREIGN_WRITE_POLL = 0.25  # seconds; a commit by the application's own connection sends no wake-up

QUOTED = str.maketrans({"%": "%25", "?": "%3F", "#": "%23"})  # characters that would end the path in a URL


class SqliteStore(SqlStore):
    """A store in one SQLite file, for any number of processes on one machine."""

    transactional = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        lease: float = 30.0,
        stall_grace: Millis = 30_000,
        patience: Millis = 60_000,
        busy_timeout: float = BUSY_TIMEOUT,
    ) -> None:
        super().__init__(clock, lease, stall_grace, patience)
        self.file = DatabaseFile(path, busy_timeout=busy_timeout)
        self.url = f"sqlite:///{str(self.file.path).translate(QUOTED)}"
        self.liveness: Liveness = Liveness(self.file.path)
        self._timekeeper = Timekeeper(self.liveness.directory, self.clock)
        self._threads: _Threads | None = None
        self._opening = threading.Lock()
        self._listeners: dict[str, _Listener] = {}
        self._idle = True  # the last claim found no job
        fork.tell_children(self)

    # -- opening ------------------------------------------------------------------------------

    async def open(self) -> None:
        self._open()

    def _open(self) -> _Threads:
        with self._opening:  # several threads without an event loop may enqueue, and so open it, at once
            if self._threads is None:
                self.file.prepare()
                self._timekeeper.begin()
                self._threads = _Threads(Writer(self.file, self.clock, self._committed), Reader(self.file))
            return self._threads

    def forget_parent(self) -> None:
        """Reset the store in a forked child: its threads did not survive the fork, and its workers are the parent's."""
        self._threads = None
        self._opening = threading.Lock()
        self._listeners = {}
        self.liveness.forget_parent()

    async def close(self) -> None:
        for worker in list(self._listeners):
            self._stop_listening(worker)
        threads, self._threads = self._threads, None
        if threads is not None:
            await run_in_own_thread(threads.stop)
        self.liveness.close()

    def _write(self, operation: Operation, items: list[Any], *, durable: bool = True) -> asyncio.Future[list[Any]]:
        return (self._threads or self._open()).writer.run(operation, items, durable=durable)

    def _read(
        self, function: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        return self._open().reader.run(function, *args, **kwargs)

    # -- the life of a job --------------------------------------------------------------------------

    def insert_now(self, jobs: Sequence[NewJob]) -> list[Inserted] | None:
        """Insert in the calling thread, or return None while the writer is busy: to share its next commit is faster."""
        writer = self._open().writer
        return None if writer.busy else writer.run_inline(insertion.insert, insertion.prepare(jobs))

    async def _insert_on(self, connection: Any, new: list[insertion.PreparedJob]) -> list[Inserted]:
        return await run_on(connection, lambda driver: self._insert_lent(driver, new))

    def _insert_lent(self, connection: sqlite3.Connection, new: list[insertion.PreparedJob]) -> list[Inserted]:
        """Insert in the caller's transaction and thread. Workers notice its commit by `_notice_foreign_writes`."""
        with lent(connection, self.file):
            transaction = Transaction(connection, self.clock.now())
            inserted = insertion.insert(transaction, new)
            transaction.write_counts()
        return inserted

    async def _claim(self, request: claims.ClaimRequest) -> claims.Taken:
        taken = self._claim_inline(request) if self._idle else None
        if taken is None or (taken.unfinished and not taken.number):
            taken = await super()._claim(request)
        elif taken.number == MAX_INLINE_CLAIM < request.limit:
            with suppress(StoreError):  # an error must not lose the jobs claimed inline
                taken.add(await super()._claim(replace(request, limit=request.limit - taken.number)))
        self._idle = not taken.number
        return taken

    def _claim_inline(self, request: claims.ClaimRequest) -> claims.Taken | None:
        """Claim a few jobs in the calling thread, which is the event loop; None if the writer thread must do it."""
        few = replace(request, limit=min(request.limit, MAX_INLINE_CLAIM), max_set_aside=MAX_INLINE_SET_ASIDE)
        taken = (self._threads or self._open()).writer.run_inline(claims.claim, [few], durable=False)
        return None if taken is None else taken[0]

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        self._open()
        if connection is not None:
            return ForeignCompletion(connection, self.file, self.clock, outcome, self._committed)
        return SqliteCompletion(self.file, self.clock, outcome, self._committed)

    # -- workers ------------------------------------------------------------------------------

    async def join(self, worker: WorkerInfo, wake: Callable[[Wake], None]) -> None:
        self._open()
        self._stop_listening(worker.id)
        with self.file.errors():
            listener = self.liveness.join(worker)
        loop = asyncio.get_running_loop()
        poll = loop.create_task(self._notice_foreign_writes(wake), name="mainspring-poll")
        self._listeners[worker.id] = _Listener(loop, listener, poll)
        if listener is not None:
            loop.add_reader(listener, lambda: wake(read_wakes(listener, worker.queues)))

    async def _notice_foreign_writes(self, wake: Callable[[Wake], None]) -> None:
        """Wake the worker after commits that send no wake-up: `data_version` changes with each commit elsewhere."""
        link = FileConnection(self.file)
        last: tuple[sqlite3.Connection, int] | None = None
        try:
            while True:
                seen = None
                with suppress(StoreError), link.use() as connection:  # the writer reports it; try again later
                    seen = connection, connection.execute("PRAGMA data_version").fetchone()[0]
                if seen != last:  # numbers of a reopened connection cannot be compared with earlier ones
                    last = seen
                    wake(Wake.JOBS | Wake.DOCUMENTS)
                await asyncio.sleep(FOREIGN_WRITE_POLL)
        finally:
            link.close()

    async def leave(self, worker: str) -> None:
        self._stop_listening(worker)
        await super().leave(worker)

    def _stop_listening(self, worker: str) -> None:
        if (listener := self._listeners.pop(worker, None)) is not None:
            listener.stop()

    def keep_time(self, doubted_until: Millis) -> tuple[Millis | None, Millis]:
        return self._timekeeper.keep(doubted_until)

    # -- the state of the file ----------------------------------------------------------------

    async def wait_to_write(self) -> None:
        await self._write(lambda _, items: items, [None], durable=False)

    async def diagnose(self) -> list[Finding]:
        return await self._read(maintenance.diagnose, self.file, self.liveness)


async def run_in_own_thread(work: Callable[[], None]) -> None:
    """Run work in a new thread: hanging handlers may occupy all threads of the event loop for ever."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="mainspring-closing")
    try:
        await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)


@dataclass(slots=True)
class _Threads:
    writer: Writer
    reader: Reader

    def stop(self) -> None:
        self.writer.stop()
        self.reader.close()


@dataclass(slots=True)
class _Listener:
    """What a joined worker needs on its event loop."""

    loop: asyncio.AbstractEventLoop
    socket: socket.socket | None
    poll: asyncio.Task[None]

    def stop(self) -> None:
        if self.socket is not None:
            with suppress(RuntimeError):  # the loop may be closed
                self.loop.remove_reader(self.socket)
            self.socket.close()
        if not self.loop.is_closed():
            self.poll.cancel()
