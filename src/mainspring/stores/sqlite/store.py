"""The store's operations on its tables.

Subclasses say where the database is and how it is used: a file that several processes share (file_store.py), or the
memory of this process (memory.py).
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from mainspring.clock import Clock, Millis, SteadyClock, may_delete, to_datetime
from mainspring.job import Attempt, Inserted, Job, NewJob, Outcome, ProgressReport, Save, Status, Step, TimelineEntry
from mainspring.stores.documents import Bundle, By, Document, Due, Key, Listing
from mainspring.stores.engine.ack import Timed
from mainspring.stores.engine.change import ChangeRequest, refuse_negative
from mainspring.stores.engine.halts import serves
from mainspring.stores.paging import check_page
from mainspring.stores.protocol import (
    Action,
    AfterStall,
    AuditEntry,
    Changed,
    Claims,
    Edit,
    Filter,
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
from mainspring.stores.records import Kind, Record, RecordPage
from mainspring.stores.sqlite import (
    acks,
    admin,
    claims,
    documents,
    insertion,
    maintenance,
    read,
    steps,
    transfer,
    wakeups,
)
from mainspring.stores.sqlite.transaction import Operation, Transaction

P = ParamSpec("P")
R = TypeVar("R")


class Registry(Protocol):
    """The workers that have joined: which of them are alive, and how to wake them."""

    def leave(self, worker: str) -> None: ...
    def beat(self, worker: str, stuck: int = 0) -> None: ...
    def dead(self, worker: str) -> bool: ...
    def heartbeat_of(self, worker: str) -> int: ...
    def workers(self) -> Iterable[WorkerInfo]: ...
    def sweep(self) -> None: ...
    def wake(self, wake: Wake, queues: Iterable[str] = ()) -> None: ...


class SqlStore(ABC):
    """All operations of `Store` that are the same for a database in a file and in memory."""

    liveness: Registry

    def __init__(self, clock: Clock | None, lease: float, stall_grace: Millis, patience: Millis) -> None:
        self.clock: Clock = clock or SteadyClock()
        self.lease = lease
        self.stall_grace = stall_grace
        self.patience = patience
        self._seen: dict[str, tuple[int, float]] = {}  # worker -> last heartbeat, and when this process first saw it
        self._watched: dict[tuple[str, int], float] = {}  # claim with a timeout -> when this process first saw it
        self._dead: set[str] = set()  # workers that `reap` found dead
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
        """Wake workers after a commit."""
        if wake := transaction.wakes():
            queues = () if transaction.cancellations or "*" in transaction.woken else transaction.woken
            self.liveness.wake(wake, queues)

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
    ) -> Claims:
        self._turn += 1
        most = sum(want.limit for want in wants) if limit is None else limit
        request = claims.ClaimRequest(worker, wants, most, solo, tasks, self.stall_grace, self.patience, self._turn)
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
            await self._write(maintenance.release_all, [worker])
        finally:
            self.liveness.leave(worker)

    async def heartbeat(self, worker: str, held: Mapping[str, int], *, stuck: int = 0) -> Pulse:
        self.liveness.beat(worker, stuck)
        self._dead.discard(worker)
        if not held:
            return Pulse()
        return await self._read(maintenance.pulse, worker, held)

    async def reap(self, after_stall: AfterStall = retry_at_once) -> Reaped:
        began = self.clock.monotonic()
        holders, stalled = await self._read(self._look_for_claims)
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

    async def prune(self, limit: int = 1000) -> int:
        """Delete what has expired by now. The writer may run later, when a jump of the clock may have been accepted."""
        now = self.clock.now()
        if not may_delete(self.clock) or not await self._read(maintenance.something_expired, now):
            return 0
        pruned: list[int] = await self._write(maintenance.prune, [maintenance.Prune(now, limit)], durable=False)
        return pruned[0]

    # -- reading ------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job]:
        return await self._read(read.get, ids)

    async def find(self, where: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        check_page(limit, cursor)
        return await self._read(read.find, where, limit, cursor)

    async def count(self, where: Filter) -> int:
        return await self._read(read.count, where)

    async def attempts(self, job_id: str) -> list[Attempt]:
        return await self._read(read.attempts, job_id)

    async def steps(self, job_id: str) -> list[Step]:
        return await self._read(steps.steps, job_id)

    async def timeline(self, job_id: str) -> list[TimelineEntry]:
        return await self._read(read.timeline, job_id)

    async def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        return await self._read(read.audit, limit)

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

    async def stats(self) -> Stats:
        return await self._read(self._read_stats)

    def _read_stats(self, connection: sqlite3.Connection) -> Stats:
        now = self.clock.now()
        queues = read.counts(connection)
        due = [read.due(connection, counts.queue, now) for counts in queues]
        return Stats(
            queues=queues,
            due={line.queue: line.number for line in due},
            oldest_due={line.queue: to_datetime(line.oldest) for line in due if line.oldest is not None},
            workers=self._living(),
            halts=read.halts(connection, now),
            due_tasks=[task for line in due for task in line.tasks],
        )

    def _living(self) -> list[WorkerInfo]:
        return [info for info in self.liveness.workers() if info.id not in self._dead]

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

    async def sizes(self) -> Mapping[Kind, int]:
        return await self._read(transfer.sizes)

    async def under_way(self) -> int:
        return await self._read(transfer.under_way)
