"""The store: its operations, and for a database in a file, which thread does them.

`SqlStore` has the operations. Its subclasses say where the database is and how it is used: a file that several
processes share (`SqliteStore`), or the memory of this process (memory.py).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from mainspring.clock import Clock, Millis, SteadyClock, may_delete
from mainspring.errors import StoreError
from mainspring.ids import new_id
from mainspring.job import Attempt, Inserted, Job, NewJob, Outcome, ProgressReport, Save, Status, Step, TimelineEntry
from mainspring.stores.audit import audit_spot
from mainspring.stores.documents import Bundle, By, Document, Due, Key, Listing
from mainspring.stores.engine.change import ChangeRequest, refuse_negative
from mainspring.stores.engine.halts import serves
from mainspring.stores.feed import ChangePage, parse_cursor
from mainspring.stores.numbers import Figure, NumbersQuery
from mainspring.stores.paging import check_limit, check_page, page_request
from mainspring.stores.protocol import (
    AUDIT_RETENTION,
    Action,
    AfterStall,
    AuditEntry,
    AuditFilter,
    CappedCount,
    Changed,
    Claims,
    Completable,
    Completion,
    Edit,
    Filter,
    Finding,
    Halt,
    Page,
    Pulse,
    Reaped,
    Rewrite,
    Sort,
    Stats,
    Takeover,
    Wake,
    Want,
    WorkerInfo,
    retry_at_once,
)
from mainspring.stores.records import Kind, Record, RecordPage
from mainspring.stores.sorting import Order
from mainspring.stores.sqlite import (
    acks,
    admin,
    changes,
    claims,
    documents,
    failures,
    fork,
    insertion,
    maintenance,
    numbers,
    read,
    rewrites,
    sorting,
    steps,
    suggestions,
    transfer,
    wakeups,
)
from mainspring.stores.sqlite.completion import ForeignCompletion, SqliteCompletion
from mainspring.stores.sqlite.connection import BUSY_TIMEOUT, DatabaseFile
from mainspring.stores.sqlite.foreign_connection import lent, run_on
from mainspring.stores.sqlite.listener import Listener
from mainspring.stores.sqlite.liveness import Liveness, Registry
from mainspring.stores.sqlite.reader import Reader
from mainspring.stores.sqlite.timekeeper import Timekeeper
from mainspring.stores.sqlite.transaction import Operation, Transaction
from mainspring.stores.sqlite.writer import Writer
from mainspring.stores.suggestions import searched
from mainspring.stores.workers import Watch

P = ParamSpec("P")
R = TypeVar("R")

MAX_INLINE_CLAIM = 8  # jobs; the writer thread claims the rest
MAX_INLINE_SET_ASIDE = 100  # jobs of unknown tasks; the writer thread sets aside the rest

QUOTED = str.maketrans({"%": "%25", "?": "%3F", "#": "%23"})  # characters that would end the path in a URL


class SqlStore(ABC):
    """All operations of `Store` that are the same for a database in a file and in memory."""

    liveness: Registry

    def __init__(self, clock: Clock | None, lease: float, stall_grace: Millis, patience: Millis) -> None:
        self.clock: Clock = clock or SteadyClock()
        self.lease = lease
        self.stall_grace = stall_grace
        self.patience = patience
        self._watch = Watch(self.clock, lease)
        self._turn = 0

    @abstractmethod
    def _write(self, operation: Operation, items: list[Any], *, durable: bool = True) -> Awaitable[list[Any]]:
        """Run an operation in a write transaction; return its results after the commit."""

    @abstractmethod
    def _read(
        self, function: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]:
        """Call the function with a connection, inside one read transaction: it sees a consistent snapshot."""

    @abstractmethod
    async def _insert_on(self, connection: Any, new: list[insertion.PreparedJob]) -> list[Inserted]:
        """Insert as part of the caller's transaction."""

    def _committed(self, transaction: Transaction) -> None:
        """Wake workers and readers of the change feed after a commit."""
        if wake := transaction.wakes():
            queues = () if transaction.cancellations or "*" in transaction.woken else transaction.woken
            self.liveness.wake(wake, queues)
        if transaction.has_news:
            self.liveness.wake_readers()

    # -- the life of a job --------------------------------------------------------------------------

    async def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        new = insertion.prepare(jobs)
        if connection is not None:
            return await self._insert_on(connection, new)
        return await self._write(insertion.insert, new)

    async def claim(
        self,
        worker: str,
        wants: Sequence[Want],
        *,
        limit: int | None = None,
        solo: bool = False,
        tasks: frozenset[str] | None = None,
        version: str = "",
    ) -> Claims:
        self._turn += 1
        most = sum(want.limit for want in wants) if limit is None else limit
        bounds = self.stall_grace, self.patience
        request = claims.ClaimRequest(worker, wants, most, solo, tasks, *bounds, self._turn, version or None)
        return (await self._claim(request)).claims()

    async def _claim(self, request: claims.ClaimRequest) -> claims.Taken:
        taken: list[claims.Taken] = await self._write(claims.claim, [request], durable=False)
        return taken[0]

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

    # -- workers ------------------------------------------------------------------------------

    async def leave(self, worker: str) -> None:
        try:
            await self._write(maintenance.leave, [worker])
        finally:
            self.liveness.leave(worker)

    async def heartbeat(self, worker: str, held: Mapping[str, int], *, stuck: int = 0) -> Pulse:
        known = self.liveness.beat(worker, stuck)
        self._watch.dead.discard(worker)
        if not held:
            return Pulse(known=known)
        return replace(await self._read(maintenance.pulse, worker, held), known=known)

    async def reap(self, after_stall: AfterStall = retry_at_once) -> Reaped:
        watch = self._watch
        with watch.looking():
            overview = await self._read(maintenance.look)
        late = [(run, after_stall) for run in watch.overdue(overview.timed)]
        known = {info.id for info in self.liveness.workers()} | overview.joined | overview.holders
        watch.forget_others(known)
        before, watch.dead = watch.dead, {worker for worker in known if self._is_dead(worker)}
        self._remove_files_of_dead()
        deaths = self._deaths_to_write(overview)
        try:
            taken: list[list[Takeover]] = await self._write(maintenance.take_over, deaths) if deaths else []
            taken += await self._write(maintenance.take_stalled, late) if late else []
        except BaseException:
            watch.dead &= before  # the next call reports the others
            raise
        new = (watch.dead - before).union(death.worker for death in deaths)
        return Reaped([takeover for takeovers in taken for takeover in takeovers], frozenset(new))

    def _remove_files_of_dead(self) -> None:
        """Remove the files of dead workers, before their deaths are written.

        From now on, such a worker that comes back has to join again, and so is recorded again. If this process dies
        before it has written the deaths, the rows of the workers are left: the next `reap` writes them.
        """
        self.liveness.sweep()
        for worker in self._watch.dead:
            self.liveness.forget(worker, self._watch.last_heartbeat(worker))

    def _deaths_to_write(self, overview: maintenance.Overview) -> list[maintenance.Death]:
        """Return the dead workers that hold jobs, and those whose end the change feed does not have.

        A worker that is only silent may come back without joining again, so the feed does not get its end.
        """
        found = [
            maintenance.Death(worker, self._watch.last_heartbeat(worker), self.liveness)
            for worker in sorted(self._watch.dead & (overview.joined | overview.holders))
        ]
        return [death for death in found if death.worker in overview.holders or death.is_certain()]

    def _is_dead(self, worker: str) -> bool:
        """Return whether the worker's lock is free, or its heartbeat has not changed for a lease."""
        return self.liveness.dead(worker) or self._watch.is_silent(worker, self.liveness.heartbeat_of(worker))

    async def prune(self, limit: int = 1000, *, keep_audit: Millis = AUDIT_RETENTION) -> int:
        """Delete what has expired by now. The writer may run later, when a jump of the clock may have been accepted."""
        now = self.clock.now()
        if not may_delete(self.clock) or not await self._read(maintenance.something_expired, now, keep_audit):
            return 0
        pruned: list[int] = await self._write(
            maintenance.prune, [maintenance.Prune(now, limit, keep_audit)], durable=False
        )
        return pruned[0]

    # -- reading ------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, within: Sequence[str] = ()) -> list[Job]:
        return await self._read(read.get, ids, within)

    async def tags(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        return await self._read(read.tags, ids)

    async def find(
        self,
        where: Filter,
        *,
        sort: Sort = Sort.CREATED,
        descending: bool = True,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        order = Order(sort, descending)
        return await self._read(sorting.find, page_request(where, order, limit, cursor))

    async def count(self, where: Filter) -> int:
        return await self._read(read.count, where)

    async def count_up_to(self, where: Filter, cap: int) -> CappedCount:
        check_limit(cap, "cap")
        return await self._read(sorting.count_up_to, where, cap)

    async def dead_letters(
        self, fingerprints: Sequence[str], cap: int, *, within: Sequence[str] = ()
    ) -> dict[str, dict[str, int]]:
        check_limit(cap, "cap")
        return await self._read(failures.dead_letters, list(fingerprints), cap, within)

    async def complete(
        self,
        what: Completable,
        prefix: str,
        *,
        limit: int = 20,
        task: str | None = None,
        within: Sequence[str] = (),
    ) -> list[str]:
        check_limit(limit)
        return await self._read(suggestions.complete, what, prefix, limit, searched(task, within))

    async def attempts(self, job_id: str) -> list[Attempt]:
        return await self._read(read.attempts, job_id)

    async def steps(self, job_id: str) -> list[Step]:
        return await self._read(steps.steps, job_id)

    async def timeline(self, job_id: str) -> list[TimelineEntry]:
        return await self._read(read.timeline, job_id)

    async def audit(
        self, where: AuditFilter | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> list[AuditEntry]:
        check_limit(limit)
        spot = audit_spot(cursor)
        return await self._read(read.audit, where or AuditFilter(), limit, spot)

    async def halts(self) -> list[Halt]:
        return await self._read(read.halts, self.clock.now())

    async def confirm(self, worker: str, number: int) -> None:
        await self._write(admin.confirm, [(worker, number)], durable=False)

    async def unconfirmed(self, halt: Halt) -> list[WorkerInfo]:
        late = await self._read(self._unconfirmed, halt)
        if late:
            self.liveness.wake(Wake.HALTS)  # the first wake-up was lost if the worker's socket was full
        return late

    def _unconfirmed(self, connection: sqlite3.Connection, halt: Halt) -> list[WorkerInfo]:
        if read.is_over(connection, halt, self.clock.now()):
            return []
        confirmed = read.confirmed_by(connection, halt.number)
        return [info for info in self._living() if info.id not in confirmed and info.alive and serves(info, halt)]

    async def changes(
        self, after: str | None = None, *, limit: int = 500, starts: bool = False, until: str | None = None
    ) -> ChangePage:
        span = parse_cursor(after), limit, parse_cursor(until)
        if starts:
            page = await self._read(changes.read_if_asked, self.clock.now(), *span)
            if page is not None:
                return page
            await self._write(changes.ask_for_starts, [None])
        return await self._read(changes.read, *span)

    async def numbers(self, query: NumbersQuery) -> list[Figure]:
        return await self._read(numbers.read, query)

    async def stats(self, within: Sequence[str] = ()) -> Stats:
        return await self._read(read.stats, self.clock.now(), self._living, within)

    def _living(self) -> list[WorkerInfo]:
        return [info for info in self.liveness.workers() if info.id not in self._watch.dead]

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
        expect: str | None = None,
    ) -> Changed:
        check_page(limit, cursor)
        request = ChangeRequest(action, where, by, edit, limit, cursor, dry_run, expect)
        changed: list[Changed] = await self._write(admin.change, [request])
        return changed[0]

    async def halt(self, halt: Halt) -> Halt:
        halted: list[Halt] = await self._write(admin.halt, [halt])
        return halted[0]

    async def resume(self, by: By, queue: str | None = None) -> bool:
        resumed: list[bool] = await self._write(admin.resume, [(by, queue)])
        return resumed[0]

    # -- documents --------------------------------------------------------------------------

    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        return await self._write(documents.write, documents.prepare(bundles))

    async def documents(self, keys: Sequence[Key]) -> list[Document]:
        return await self._read(documents.read, keys, self.clock.now())

    async def browse(self, listing: Listing) -> list[Document]:
        return await self._read(documents.browse, listing, self.clock.now())

    async def due(self, collection: str, limit: int = 100, *, ahead: Millis = 0) -> Due:
        return await self._read(documents.due, collection, limit, self.clock.now(), ahead)

    # -- moving to another store --------------------------------------------------------------

    async def dump(self, kind: Kind, *, after: str | None = None, limit: int = 1000) -> RecordPage:
        return await self._read(transfer.dump, kind, after, limit, self.clock.now())

    async def look_up(self, kind: Kind, keys: Sequence[str]) -> list[Record]:
        return await self._read(transfer.look_up, kind, keys, self.clock.now())

    async def load(self, kind: Kind, records: Sequence[Record]) -> dict[str, str]:
        request = transfer.LoadRequest(kind, records, self.stall_grace)
        in_the_way: list[dict[str, str]] = await self._write(transfer.load, [request])
        return in_the_way[0]

    async def rewrite(self, texts: Sequence[Rewrite]) -> int:
        numbers: list[int] = await self._write(rewrites.rewrite, [texts])
        return numbers[0]

    async def sizes(self) -> Mapping[Kind, int]:
        return await self._read(transfer.sizes)

    async def under_way(self) -> int:
        return await self._read(transfer.under_way)


class SqliteStore(SqlStore):
    """A store in one SQLite file, for any number of processes on one machine."""

    poll = 0.0
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
        self.liveness: Liveness = Liveness(self.file.path, lease)
        self._timekeeper = Timekeeper(self.liveness.directory, self.clock)
        self._threads: _Threads | None = None
        self._opening = threading.Lock()
        self._listeners: dict[str, Listener] = {}
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
            threads.writer.hand_over(asyncio.get_running_loop())
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
        """Insert in the calling thread, or return None while the writer is busy: sharing its next commit is faster."""
        writer = self._open().writer
        return None if writer.busy else writer.run_inline(insertion.insert, insertion.prepare(jobs))

    async def _insert_on(self, connection: Any, new: list[insertion.PreparedJob]) -> list[Inserted]:
        return await run_on(connection, lambda driver: self._insert_lent(driver, new))

    def _insert_lent(self, connection: sqlite3.Connection, new: list[insertion.PreparedJob]) -> list[Inserted]:
        """Insert in the caller's transaction and thread. Workers notice its commit by their `Listener`."""
        with lent(connection, self.file):
            transaction = Transaction(connection, self.clock.now())
            inserted = insertion.insert(transaction, new)
            transaction.finish()
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

    async def join(self, worker: WorkerInfo, wake: Callable[[Wake], None] | None) -> None:
        self._open()
        self._stop_listening(worker.id)
        with self.file.errors():
            is_new = self.liveness.dead(worker.id)
            listening = self.liveness.join(worker, listen=wake is not None)
        if wake is not None:
            self._listeners[worker.id] = Listener(listening, self.file, worker.queues, wake)
        try:
            await self._record_join(worker)
        except BaseException:
            if is_new:  # otherwise it would be listed as alive
                self._stop_listening(worker.id)
                self.liveness.leave(worker.id)
            raise

    async def _record_join(self, worker: WorkerInfo) -> None:
        """Write that the worker has joined, in the calling thread if it can: each claim of a remote worker joins it."""
        if self._open().writer.run_inline(maintenance.join, [worker], durable=False) is None:
            await self._write(maintenance.join, [worker], durable=False)

    async def leave(self, worker: str) -> None:
        self._stop_listening(worker)
        await super().leave(worker)

    @asynccontextmanager
    async def watching(self, notice: Callable[[], None]) -> AsyncIterator[None]:
        """Call `notice` after each commit, whichever connection makes it."""
        self._open()
        reader = new_id()
        with self.file.errors():
            listener = Listener(self.liveness.join_reader(reader), self.file, (), lambda _: notice())
        try:
            yield
        finally:
            listener.stop()
            self.liveness.leave_reader(reader)

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
