"""The SQLite store: decides which thread does what, and which workers are woken afterwards."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from mainspring.clock import Clock, Millis, SteadyClock, may_delete, to_datetime
from mainspring.errors import StoreError
from mainspring.job import Attempt, Inserted, Job, NewJob, Outcome, ProgressReport, Save, Status, Step, TimelineEntry
from mainspring.stores.documents import Bundle, Document, Due, Key, Listing
from mainspring.stores.protocol import (
    Action,
    AfterStall,
    AuditEntry,
    By,
    Changed,
    Claims,
    Completion,
    Edit,
    Filter,
    Finding,
    Halt,
    Page,
    Pulse,
    Reaped,
    Stats,
    Wake,
    Want,
    WorkerInfo,
    retry_at_once,
)
from mainspring.stores.records import Chunk, Kind, Record
from mainspring.stores.rules import check_page, refuse_negative, serves
from mainspring.stores.sqlite import (
    acks,
    admin,
    claims,
    documents,
    fork,
    inline_writer,
    insertion,
    maintenance,
    read,
    steps,
    transfer,
    wakeups,
)
from mainspring.stores.sqlite.completion import LentCompletion, SqliteCompletion, refuse_inside
from mainspring.stores.sqlite.connection import FileConnection
from mainspring.stores.sqlite.file import BUSY_TIMEOUT, DatabaseFile
from mainspring.stores.sqlite.foreign_connection import lent, run_on
from mainspring.stores.sqlite.halts import confirm, confirmed_by, is_over, read_halts
from mainspring.stores.sqlite.liveness import Liveness, read_wakes
from mainspring.stores.sqlite.reader import Reader
from mainspring.stores.sqlite.timekeeper import Timekeeper
from mainspring.stores.sqlite.writer import Operation, Transaction, Writer
from mainspring.stores.tables import ChangeRequest, Timed

FOREIGN_WRITE_POLL = 0.25  # seconds; a commit by the application's own connection sends no wake-up

QUOTED = str.maketrans({"%": "%25", "?": "%3F", "#": "%23"})  # characters that would end the path in a URL


class SqliteStore:
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
        self.clock: Clock = clock or SteadyClock()
        self.lease = lease
        self.stall_grace = stall_grace
        self.patience = patience
        self.file = DatabaseFile(path, busy_timeout=busy_timeout)
        self.url = f"sqlite:///{str(self.file.path).translate(QUOTED)}"
        self.liveness = Liveness(self.file.path)
        self._timekeeper = Timekeeper(self.liveness.directory, self.clock)
        self._threads: _Threads | None = None
        self._opening = threading.Lock()
        self._listeners: dict[str, _Listener] = {}
        self._seen: dict[str, tuple[int, float]] = {}  # worker -> last heartbeat, and when this process first saw it
        self._watched: dict[tuple[str, int], float] = {}  # claim with a timeout -> when this process first saw it
        self._dead: set[str] = set()  # workers that `reap` found dead
        self._turn = 0
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
                writer = Writer(self.file, self.clock, self._committed)
                inline = inline_writer.InlineWriter(self.file, self.clock, self._committed)
                self._threads = _Threads(writer, Reader(self.file), inline)
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
        refuse_inside()
        return (self._threads or self._open()).writer.run(operation, items, durable=durable)

    def _committed(self, transaction: Transaction) -> None:
        if wake := transaction.wakes():
            queues = () if transaction.cancellations or "*" in transaction.woken else transaction.woken
            self.liveness.wake(wake, queues)

    # -- the life of a job --------------------------------------------------------------------------

    async def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        new = insertion.prepare(jobs)
        if connection is not None:
            return await run_on(connection, lambda driver: self._insert_on(driver, new))
        return await self._write(insertion.insert, new)

    def insert_now(self, jobs: Sequence[NewJob]) -> list[Inserted] | None:
        """Insert in the calling thread, or return None while the writer is busy: to share its next commit is faster."""
        refuse_inside()
        threads = self._open()
        return None if threads.writer.busy else threads.inline_writer.insert(insertion.prepare(jobs))

    def _insert_on(self, connection: sqlite3.Connection, new: list[insertion.PreparedJob]) -> list[Inserted]:
        """Insert in the caller's transaction and thread. Workers notice its commit by `_notice_foreign_writes`."""
        with lent(connection, self.file):
            transaction = Transaction(connection, self.clock.now())
            inserted = insertion.insert(transaction, new)
            transaction.write_counts()
        return inserted

    async def claim(
        self,
        worker: str,
        wants: Sequence[Want],
        *,
        limit: int | None = None,
        solo: bool = False,
        tasks: frozenset[str] | None = None,
    ) -> Claims:
        refuse_inside()
        self._turn += 1
        most = sum(want.limit for want in wants) if limit is None else limit
        request = claims.ClaimRequest(worker, wants, most, solo, tasks, self.stall_grace, self.patience, self._turn)
        taken = self._open().inline_writer.claim(request) if self._idle else None
        if taken is None or (taken.unfinished and not taken.number):
            [taken] = await self._write(claims.claim, [request], durable=False)
        elif taken.number == inline_writer.MAX_JOBS < most:
            with suppress(StoreError):  # an error must not lose the jobs claimed inline
                taken.add(
                    *await self._write(claims.claim, [replace(request, limit=most - taken.number)], durable=False)
                )
        self._idle = not taken.number
        return taken.claims()

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        statuses: list[list[Status | None]] = await self._write(acks.ack, [acks.AckRequest.of(outcomes)])
        return statuses[0]

    async def report(self, reports: Sequence[ProgressReport]) -> set[str]:
        accepted = await self._write(acks.report, list(reports), durable=False)
        return {report.job_id for report, good in zip(reports, accepted, strict=True) if good}

    async def save(self, saves: Sequence[Save]) -> list[list[Inserted] | None]:
        return await self._write(acks.save, acks.save_requests(saves))

    async def wake(self, keys: Mapping[str, int]) -> dict[str, int]:
        refuse_negative(keys)
        woken: list[dict[str, int]] = await self._write(wakeups.wake, [keys])
        return woken[0]

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        self._open()
        if connection is not None:
            return LentCompletion(connection, self.file, self.clock, outcome, self._committed)
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
        try:
            await self._write(maintenance.release_all, [worker])
        finally:
            self.liveness.leave(worker)

    def _stop_listening(self, worker: str) -> None:
        if (listener := self._listeners.pop(worker, None)) is not None:
            listener.stop()

    async def heartbeat(self, worker: str, held: Mapping[str, int], *, stuck: int = 0) -> Pulse:
        self.liveness.beat(worker, stuck)
        self._dead.discard(worker)
        if not held:
            return Pulse()
        return await self._open().reader.run(maintenance.pulse, worker, held)

    async def reap(self, after_stall: AfterStall = retry_at_once) -> Reaped:
        began = self.clock.monotonic()
        holders, stalled = await self._open().reader.run(self._look_for_claims)
        if self.clock.monotonic() - began > self.lease / 2:  # this process was stopped, perhaps the others too
            self._seen.clear()
        known = {info.id for info in self.liveness.workers()}.union(holders)
        self._seen = {worker: seen for worker, seen in self._seen.items() if worker in known}
        before, self._dead = self._dead, {worker for worker in known if self._gone(worker)}
        gone = [(worker, self._death_of(worker)) for worker in holders if worker in self._dead]
        self.liveness.sweep()
        taken = await self._write(maintenance.take_over, gone) if gone else []
        taken += (
            await self._write(maintenance.take_stalled, [(timed, after_stall) for timed in stalled]) if stalled else []
        )
        return Reaped([takeover for takeovers in taken for takeover in takeovers], frozenset(self._dead - before))

    def _look_for_claims(self, connection: sqlite3.Connection) -> tuple[list[str], list[Timed]]:
        """Return the workers that hold jobs, and the stalled jobs."""
        return maintenance.holders(connection), self._overdue(maintenance.timed(connection))

    def _overdue(self, timed: Sequence[Timed]) -> list[Timed]:
        """Return the claims that have lasted too long since this process first saw them.

        Time is taken from the monotonic clock: a change of the wall clock must not make healthy jobs look stalled.
        """
        now, before = self.clock.monotonic(), self._watched
        self._watched = {(claim.id, claim.token): before.get((claim.id, claim.token), now) for claim in timed}
        return [claim for claim in timed if now - self._watched[claim.id, claim.token] >= claim.longest / 1000]

    def _gone(self, worker: str) -> bool:
        """Return whether the worker is dead: its lock is free, or its heartbeat has not changed for `lease` seconds.

        The seconds are those of this process's monotonic clock.
        """
        if self.liveness.dead(worker):
            return True
        heartbeat, now = self.liveness.heartbeat_of(worker), self.clock.monotonic()
        seen = self._seen.get(worker)
        if seen is None or seen[0] != heartbeat:
            self._seen[worker] = heartbeat, now
            return False
        return now - seen[1] >= self.lease

    def _death_of(self, worker: str) -> Callable[[], bool]:
        """Return a thread-safe check whether the worker has sent no heartbeat since it was found dead."""
        liveness, (heartbeat, _) = self.liveness, self._seen.get(worker, (0, 0.0))  # 0: the kernel says that it is dead
        return lambda: liveness.dead(worker) or liveness.heartbeat_of(worker) == heartbeat

    def keep_time(self, doubted_until: Millis) -> tuple[Millis | None, Millis]:
        return self._timekeeper.keep(doubted_until)

    async def prune(self, limit: int = 1000) -> int:
        """Delete what has expired by now. The writer may run later, when a jump of the clock may have been accepted."""
        now = self.clock.now()
        if not may_delete(self.clock) or not await self._open().reader.run(maintenance.something_expired, now):
            return 0
        pruned: list[int] = await self._write(maintenance.prune, [maintenance.Prune(now, limit)], durable=False)
        return pruned[0]

    # -- reading ------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job]:
        return await self._open().reader.run(read.get, ids)

    async def find(self, where: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        check_page(limit, cursor)
        return await self._open().reader.run(read.find, where, limit, cursor)

    async def count(self, where: Filter) -> int:
        return await self._open().reader.run(read.count, where)

    async def attempts(self, job_id: str) -> list[Attempt]:
        return await self._open().reader.run(read.attempts, job_id)

    async def steps(self, job_id: str) -> list[Step]:
        return await self._open().reader.run(steps.steps, job_id)

    async def timeline(self, job_id: str) -> list[TimelineEntry]:
        return await self._open().reader.run(read.timeline, job_id)

    async def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        return await self._open().reader.run(read.audit, limit)

    async def halts(self) -> list[Halt]:
        return await self._open().reader.run(read_halts, self.clock.now())

    async def confirm(self, worker: str, number: int) -> None:
        await self._write(confirm, [(worker, number)], durable=False)

    async def unconfirmed(self, halt: Halt) -> list[WorkerInfo]:
        late = await self._open().reader.run(self._unconfirmed, halt)
        if late:
            self.liveness.wake(Wake.HALTS)  # the first wake-up was lost if the worker's socket was full
        return late

    def _unconfirmed(self, connection: sqlite3.Connection, halt: Halt) -> list[WorkerInfo]:
        if is_over(connection, halt, self.clock.now()):
            return []
        confirmed = confirmed_by(connection, halt.number)
        return [info for info in self._living() if info.id not in confirmed and info.alive and serves(info, halt)]

    async def stats(self) -> Stats:
        return await self._open().reader.run(self._read_stats)

    def _read_stats(self, connection: sqlite3.Connection) -> Stats:
        now = self.clock.now()
        queues = read.counts(connection)
        due = [read.due(connection, counts.queue, now) for counts in queues]
        return Stats(
            queues=queues,
            due={line.queue: line.number for line in due},
            oldest_due={line.queue: to_datetime(line.oldest) for line in due if line.oldest is not None},
            workers=self._living(),
            halts=read_halts(connection, now),
            due_tasks=[task for line in due for task in line.tasks],
        )

    def _living(self) -> list[WorkerInfo]:
        return [info for info in self.liveness.workers() if info.id not in self._dead]

    async def diagnose(self) -> list[Finding]:
        return await self._open().reader.run(maintenance.diagnose, self.file, self.liveness)

    async def repair(self) -> None:
        await self._write(maintenance.repair, [None])

    # -- changes by hand ------------------------------------------------------------------------------

    async def change(
        self,
        action: Action,
        where: Filter,
        by: By,
        *,
        edit: Edit | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
    ) -> Changed:
        check_page(limit, cursor)
        request = ChangeRequest(action, where, by, edit, limit, cursor, dry_run)
        changed: list[Changed] = await self._write(admin.change, [request])
        return changed[0]

    async def halt(self, halt: Halt) -> Halt:
        halted: list[Halt] = await self._write(admin.halt, [halt])
        return halted[0]

    async def wait_to_write(self) -> None:
        await self._write(lambda _, items: items, [None], durable=False)

    async def resume(self, by: By, queue: str | None = None) -> bool:
        resumed: list[bool] = await self._write(admin.resume, [(by, queue)])
        return resumed[0]

    # -- documents --------------------------------------------------------------------------

    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        return await self._write(documents.write, documents.prepare(bundles))

    async def documents(self, keys: Sequence[Key]) -> list[Document]:
        return await self._open().reader.run(documents.read, keys, self.clock.now())

    async def browse(self, listing: Listing) -> list[Document]:
        return await self._open().reader.run(documents.browse, listing, self.clock.now())

    async def due(self, collection: str, limit: int = 100, *, ahead: Millis = 0) -> Due:
        return await self._open().reader.run(documents.due, collection, limit, self.clock.now(), ahead)

    # -- moving to another store --------------------------------------------------------------

    async def dump(self, kind: Kind, *, after: str | None = None, limit: int = 1000) -> Chunk:
        return await self._open().reader.run(transfer.dump, kind, after, limit, self.clock.now())

    async def look_up(self, kind: Kind, keys: Sequence[str]) -> list[Record]:
        return await self._open().reader.run(transfer.look_up, kind, keys, self.clock.now())

    async def load(self, kind: Kind, records: Sequence[Record]) -> dict[str, str]:
        request = transfer.LoadRequest(kind, records, self.stall_grace)
        in_the_way: list[dict[str, str]] = await self._write(transfer.load, [request])
        return in_the_way[0]

    async def sizes(self) -> Mapping[Kind, int]:
        return await self._open().reader.run(transfer.sizes)

    async def under_way(self) -> int:
        return await self._open().reader.run(transfer.under_way)


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
    inline_writer: inline_writer.InlineWriter

    def stop(self) -> None:
        self.inline_writer.close()
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
