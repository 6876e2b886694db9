"""Jobs in a dictionary: for tests and for trying things out. They are gone when the process ends.

`MemoryStore` is what the other stores are measured against, so it is written for the reader first. Only waiting jobs
are not kept the plain way: lines.py has a heap per queue, priority and suspicion, so that a claim costs the same
however many jobs wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from mainspring.clock import Clock, Millis, SteadyClock, may_delete, to_datetime
from mainspring.errors import ConfigurationError, SystemHalted, UnsupportedCall, WorkerCrashed
from mainspring.job import (
    CLAIMABLE,
    FINISHED,
    FOREVER,
    MAX_CRASHES,
    TRANSITIONS,
    UNTIL_WOKEN,
    Attempt,
    Claim,
    Counts,
    Failure,
    Inserted,
    Job,
    Move,
    NewJob,
    Outcome,
    Progress,
    ProgressReport,
    Save,
    Status,
    Step,
    TimelineEntry,
    awaited_job,
    end_of,
    is_end,
    statuses_that_allow,
)
from mainspring.stores.audit import action_of_halt, detail_of_change, detail_of_halt
from mainspring.stores.documents import (
    Bundle,
    Document,
    Due,
    Key,
    Listing,
    Write,
    accepted,
    answers,
    comes_soon,
    last_writes,
)
from mainspring.stores.memory.crew import Crew
from mainspring.stores.memory.filters import matches
from mainspring.stores.memory.halts import end_of_halt, is_wanted
from mainspring.stores.memory.keys import NEVER, Keys
from mainspring.stores.memory.lines import Lines, Tasks, is_known
from mainspring.stores.memory.row import (
    DedupeKey,
    Operation,
    Row,
    attempt_of,
    claim_of,
    first_run,
    job_of,
    life_of,
    moment,
)
from mainspring.stores.memory.transfer import audit_record, document_record, pause_record, record_of, row_of
from mainspring.stores.protocol import (
    DUE_CAP,
    EVERY_QUEUE,
    Action,
    AfterStall,
    AuditEntry,
    By,
    Changed,
    Claims,
    Completion,
    DueTask,
    Edit,
    Filter,
    Finding,
    Halt,
    Page,
    Pulse,
    Reaped,
    Severity,
    StalledRun,
    Stats,
    Takeover,
    TakeoverCause,
    Wake,
    Want,
    WorkerInfo,
    retry_at_once,
)
from mainspring.stores.records import JOBS, Chunk, Kind, Record, kind_of, make_key, split_key
from mainspring.stores.rules import (
    COUNTS_AS_ATTEMPT,
    begins_anew,
    check_page,
    combined,
    last_reason,
    refuse_illegal,
    refuse_negative,
    refuse_unkeepable,
    serves,
)
from mainspring.stores.shelf import Shelf

IN_HISTORY = COUNTS_AS_ATTEMPT | {Move.CRASH}
YIELDS_TO_CANCEL = frozenset({Move.RETRY, Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.CRASH})
"""Ways to end a run that do not end the job: a cancel that was asked for meanwhile takes effect then."""

ALLOWED = {
    Action.CANCEL: statuses_that_allow(Move.CANCEL),
    Action.REPLAY: statuses_that_allow(Move.REPLAY),
    Action.EDIT: statuses_that_allow(Move.EDIT),
    Action.DELETE: frozenset(Status) - {Status.RUNNING},
}

SHARE = 4
"""Of so many jobs, one goes to a priority that has waited longer than its patience."""


class StoreCall:
    """The work of one method: alone, at one moment, and followed by the wake-ups that it caused.

    Not a `contextlib.contextmanager`: entering and leaving one takes as long as a quick method itself.
    """

    __slots__ = ("_clock", "_finish", "_lock", "_now")

    def __init__(self, lock: threading.Lock, clock: Clock, finish: Callable[[Millis], None]) -> None:
        self._lock, self._clock, self._finish = lock, clock, finish

    def __enter__(self) -> Millis:
        self._lock.acquire()
        try:
            self._now = self._clock.now()
        except BaseException:
            self._lock.release()
            raise
        return self._now

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish(self._now)
        finally:
            self._lock.release()


class MemoryStore:
    """All of `Store` within one process, for any number of threads. Neither durable nor transactional."""

    transactional = False

    def __init__(
        self,
        url: str = "memory://",
        *,
        clock: Clock | None = None,
        lease: float = 30.0,
        stall_grace: Millis = 30_000,
        patience: Millis = 60_000,
    ) -> None:
        self.url = url
        self.clock: Clock = clock or SteadyClock()
        self.lease = lease
        self.stall_grace = stall_grace
        self.patience = patience
        self._lock = threading.Lock()
        self._rows: dict[str, Row] = {}
        self._running: dict[str, Row] = {}
        self._lines = Lines()
        self._waiting: defaultdict[str, dict[str, Row]] = defaultdict(dict)  # suspended jobs by what they wait for
        self._new_waits: set[str | None] = set()  # what jobs wait for since this operation
        self._keys = Keys()
        self._crew = Crew()
        self._halts: dict[str | None, Halt] = {}
        self._halt_number = 0  # of the last halt
        self._confirmed: dict[str, int] = {}  # worker -> number of the last halt that it has confirmed
        self._audit: dict[Operation, AuditEntry] = {}
        self._turns: Counter[str] = Counter()
        self._shelf = Shelf()

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close: the jobs stay for as long as this object does."""

    def _operation(self) -> StoreCall:
        return StoreCall(self._lock, self.clock, self._finish_operation)

    def _finish_operation(self, now: Millis) -> None:
        if self._new_waits:
            self._wake_if_ended(now)
        self._crew.ring()

    # -- inserting --------------------------------------------------------------------------------

    async def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        if connection is not None:
            msg = (
                "memory:// has no transactions to join; insert without a connection, or use sqlite:// or postgresql://"
            )
            raise ConfigurationError(msg)
        refuse_unkeepable(jobs)
        with self._operation() as now:
            self._refuse_if_halted(jobs, now)
            return [self._insert(job, now) for job in jobs]

    def _refuse_if_halted(self, jobs: Sequence[NewJob], now: Millis) -> None:
        refusing = {queue for queue, halt in self._standing(now).items() if not halt.accept}
        if None in refusing:
            raise SystemHalted
        for queue in refusing.intersection(job.queue for job in jobs):
            msg = f"Queue {queue!r} is paused and refuses new jobs. Resume it, or pause it with accept=True."
            raise SystemHalted(msg)

    def _insert(self, job: NewJob, now: Millis) -> Inserted:
        if job.id in self._rows:
            return Inserted(job.id, created=True)
        row = Row(replace(job), first_run(job, now), now, waits_for=job.waits_for)
        if job.waits_for is not None:
            row.status = Status.SUSPENDED
        if row.key and (holder := self._keys.holder(row.key, now)):
            return Inserted(holder, created=False)
        self._rows[row.id] = row
        self._keys.take(row)
        self._keys.keep(row, now)
        self._put_in_line(row)
        self._new_waits.add(row.waits_for)
        return Inserted(row.id, created=True)

    def _put_in_line(self, row: Row) -> None:
        """Wakes for jobs of the future too: a worker may have planned to sleep for longer."""
        self._lines.join(row)
        if row.waits_for is not None:
            self._waiting[row.waits_for][row.id] = row
        self._crew.call_for_jobs(row.spec.queue)

    # -- claiming ---------------------------------------------------------------------------------

    async def claim(
        self,
        worker: str,
        wants: Sequence[Want],
        *,
        limit: int | None = None,
        solo: bool = False,
        tasks: Tasks = None,
    ) -> Claims:
        with self._operation() as now:
            rows = self._suspect(wants, tasks, now) if solo else self._served(wants, tasks, limit, now)
            claims = [self._start(row, worker, now) for row in islice(rows, limit)]
            next_due = None if claims else self._next_due(wants, tasks, now)
            suspects = any(self._suspect(wants, tasks, now))
            return Claims(claims, next_due, suspects, self._unknown(wants, tasks, now))

    def _suspect(self, wants: Sequence[Want], tasks: Tasks, now: Millis) -> Iterator[Row]:
        """At most one."""
        every = (self._most_urgent(self._claimable(want.queue, now), tasks, now, suspects=True) for want in wants)
        return islice((row for row in every if row), 1)

    def _served(self, wants: Sequence[Want], tasks: Tasks, limit: int | None, now: Millis) -> Iterator[Row]:
        """The rows to claim, each to be taken out of its line before the next is asked for."""
        left = sum(want.limit for want in wants) if limit is None else limit
        for want in wants:
            for row in self._served_from(want.queue, tasks, min(want.limit, left), now):
                left -= 1
                yield row

    def _served_from(self, queue: str, tasks: Tasks, limit: int, now: Millis) -> Iterator[Row]:
        queues = self._claimable(queue, now)
        share = self._share_of_the_patient(queue, tasks, limit, queues, now)
        for number in range(limit):
            overdue = self._longest_overdue(queues, tasks, now) if number < share else None
            if not (row := overdue or self._most_urgent(queues, tasks, now)):
                break
            yield row

    def _share_of_the_patient(self, queue: str, tasks: Tasks, limit: int, queues: list[str], now: Millis) -> int:
        """How many of these jobs go to priorities that waited too long: never so many that they starve urgent ones."""
        if limit < 1 or not self._longest_overdue(queues, tasks, now):
            return 0
        if limit >= SHARE:
            return limit // SHARE
        self._turns[queue] += 1
        return limit if self._turns[queue] % SHARE == 0 else 0

    def _most_urgent(self, queues: list[str], tasks: Tasks, now: Millis, *, suspects: bool = False) -> Row | None:
        return next(iter(self._lines.due(queues, tasks, now, suspects=suspects)), None)

    def _longest_overdue(self, queues: list[str], tasks: Tasks, now: Millis) -> Row | None:
        """The head that has waited longest beyond the patience, behind a more urgent job that is due."""
        behind = self._lines.due(queues, tasks, now)[1:]
        overdue = [row for row in behind if now - row.run_at > self.patience]
        return min(overdue, key=lambda row: row.run_at, default=None)

    def _take_out_of_line(self, row: Row) -> None:
        self._lines.leave(row)
        if row.waits_for is not None:
            del self._waiting[row.waits_for][row.id]
            if not self._waiting[row.waits_for]:
                del self._waiting[row.waits_for]
            row.waits_for = None

    def _start(self, row: Row, worker: str, now: Millis) -> Claim:
        self._take_out_of_line(row)
        self._running[row.id] = row
        row.status = TRANSITIONS[row.status][Move.CLAIM]
        row.token += 1
        row.worker = worker
        row.claimed_at = now
        row.running_since = self.clock.monotonic()
        row.progress = None
        return claim_of(row)

    def _claimable(self, queue: str, now: Millis) -> list[str]:
        standing = self._standing(now)
        if None in standing:
            return []
        queues = self._lines.queues() if queue == EVERY_QUEUE else [queue]
        return [name for name in queues if name not in standing]

    def _next_due(self, wants: Sequence[Want], tasks: Tasks, now: Millis) -> Millis | None:
        standing = self._standing(now)
        if None in standing:
            return end_of_halt(standing[None])
        moments = [end_of_halt(halt) for queue, halt in standing.items() if is_wanted(queue, wants)]
        moments += [row.run_at for row in self._heads(wants, now) if is_known(row, tasks) and row.run_at > now]
        return min((moment for moment in moments if moment is not None and moment < UNTIL_WOKEN), default=None)

    def _unknown(self, wants: Sequence[Want], tasks: Tasks, now: Millis) -> frozenset[str]:
        """Tasks with due jobs that this claim could not take."""
        heads = (row for row in self._heads(wants, now) if row.run_at <= now)
        return frozenset(row.spec.task for row in heads if not is_known(row, tasks))

    def _heads(self, wants: Sequence[Want], now: Millis) -> list[Row]:
        queues = {name for want in wants for name in self._claimable(want.queue, now)}
        return [row for queue in queues for row in self._lines.heads(queue)]

    # -- ending runs ------------------------------------------------------------------------------

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        refuse_illegal(outcomes)
        with self._operation() as now:
            return [self._ack(outcome, now) for outcome in outcomes]

    def _ack(self, outcome: Outcome, now: Millis) -> Status | None:
        row = self._held(outcome.job_id, outcome.token)
        if row is None:
            return None
        row.steps |= {step.name: step for step in outcome.steps}
        self._end(row, outcome, now)
        for job in outcome.follow_ups:
            self._insert(job, now)
        return row.status

    def _held(self, job_id: str, token: int) -> Row | None:
        """The fence: no row for a run whose claim was taken over, released or already ended."""
        row = self._running.get(job_id)
        return row if row and row.token == token else None

    def _end(self, row: Row, outcome: Outcome, now: Millis) -> None:
        cancelled = row.cancel_requested and outcome.move in YIELDS_TO_CANCEL
        move = Move.CANCEL if cancelled else outcome.move
        del self._running[row.id]
        row.attempts += outcome.move in COUNTS_AS_ATTEMPT
        row.crashes += move is Move.CRASH
        row.result = outcome.result
        row.failure = outcome.failure or row.failure
        asked = row.reason if row.cancel_requested else None
        row.reason = last_reason(outcome, TRANSITIONS[Status.RUNNING][move], asked=asked)
        if move in IN_HISTORY:
            row.history.append(attempt_of(row, move, outcome, now))
        if move is Move.SUSPEND:
            if begins_anew(outcome):
                row.attempts = row.crashes = 0
            row.waits_for = outcome.waits_for
            self._new_waits.add(row.waits_for)
        self._move_on(row, move, outcome.delay, now)

    def _move_on(self, row: Row, move: Move, delay: Millis, now: Millis) -> None:
        crashed_too_often = move is Move.CRASH and row.crashes >= MAX_CRASHES
        status = Status.DEAD_LETTER if crashed_too_often else TRANSITIONS[Status.RUNNING][move]
        if status in FINISHED:
            self._finish(row, status, now)
            return
        row.status = status
        if move is Move.RELEASE and not delay:
            row.run_at = min(row.run_at, now)  # it was due when it was claimed, even if the clock was set back since
        else:
            row.run_at = min(now + delay, UNTIL_WOKEN)
        self._put_in_line(row)

    def _finish(self, row: Row, status: Status, now: Millis) -> None:
        self._take_out_of_line(row)
        self._keys.free(row)
        self._wake(end_of(row.id), len(self._rows), now)
        row.status = status
        row.finished_at = now
        expires_at = now + (row.spec.keep_dead if status is Status.DEAD_LETTER else row.spec.keep)
        row.expires_at = expires_at if expires_at < NEVER else None

    async def report(self, reports: Sequence[ProgressReport]) -> set[str]:
        with self._operation():
            return {report.job_id for report in reports if self._report(report)}

    def _report(self, report: ProgressReport) -> bool:
        row = self._held(report.job_id, report.token)
        if row:
            row.progress = Progress(report.fraction, report.note)
        return row is not None

    # -- durable functions --------------------------------------------------------------------------

    async def save(self, saves: Sequence[Save]) -> list[list[Inserted] | None]:
        refuse_unkeepable(job for save in saves for job in save.jobs)
        with self._operation() as now:
            return [self._save(one, now) for one in saves]

    def _save(self, save: Save, now: Millis) -> list[Inserted] | None:
        row = self._held(save.job_id, save.token)
        if row is None:
            return None
        row.steps |= {step.name: step for step in save.steps}
        return [self._insert(job, now) for job in save.jobs]

    async def steps(self, job_id: str) -> list[Step]:
        with self._operation():
            row = self._rows.get(job_id)
            return sorted(row.steps.values(), key=lambda step: step.number) if row else []

    async def wake(self, keys: Mapping[str, int]) -> dict[str, int]:
        refuse_negative(keys)
        with self._operation() as now:
            return {key: self._wake(key, number, now) for key, number in keys.items()}

    def _wake(self, key: str, number: int, now: Millis) -> int:
        waiting = self._waiting.get(key, {}).values()
        rows = sorted(waiting, key=lambda row: (row.spec.priority, row.id))[:number]
        for row in rows:
            self._take_out_of_line(row)
            row.status = TRANSITIONS[row.status][Move.WAKE]
            row.run_at = now
            self._put_in_line(row)
        return len(rows)

    def _wake_if_ended(self, now: Millis) -> None:
        """Make due what was just suspended until the end of a job that is not live."""
        waits, self._new_waits = self._new_waits, set()
        for key in filter(is_end, waits):
            awaited = self._rows.get(awaited_job(key))
            if awaited is None or awaited.status in FINISHED:
                self._wake(key, len(self._rows), now)

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        del outcome, connection
        msg = "memory:// has no transactions to complete a job in; use sqlite:// or postgresql://"
        raise UnsupportedCall(msg)

    # -- workers ----------------------------------------------------------------------------------

    async def join(self, worker: WorkerInfo, wake: Callable[[Wake], None]) -> None:
        with self._operation() as now:
            self._crew.join(worker, wake, asyncio.get_running_loop(), now)

    async def leave(self, worker: str) -> None:
        """A worker that leaves in order hands back what it still holds: nobody crashed."""
        with self._operation() as now:
            self._crew.leave(worker)
            self._confirmed.pop(worker, None)
            for row in [row for row in self._running.values() if row.worker == worker]:
                self._end(row, Outcome(row.id, row.token, Move.RELEASE), now)

    async def heartbeat(self, worker: str, held: Mapping[str, int], *, stuck: int = 0) -> Pulse:
        with self._operation() as now:
            self._crew.beat(worker, now, stuck)
            rows = {job_id: self._held(job_id, token) for job_id, token in held.items()}
            return Pulse(
                lost=frozenset(job_id for job_id, row in rows.items() if row is None),
                cancelled={job_id: row.reason for job_id, row in rows.items() if row and row.cancel_requested},
            )

    async def reap(self, after_stall: AfterStall = retry_at_once) -> Reaped:
        with self._operation() as now:
            dead = self._crew.dead(self._holders(), self.clock.monotonic(), self.lease)
            crashed = [row for row in self._running.values() if row.worker in dead]
            crashes = [self._take_over(row, TakeoverCause.CRASHED, crash_of(row), now) for row in crashed]
            ends = [(row, stall_of(row, after_stall)) for row in self._running.values() if self._stalled(row)]
            stalls = [self._take_over(row, TakeoverCause.STALLED, end, now) for row, end in ends]
            return Reaped(crashes + stalls, frozenset(dead))

    def _holders(self) -> set[str]:
        return {row.worker for row in self._running.values() if row.worker is not None}

    def _stalled(self, row: Row) -> bool:
        longest = (row.spec.timeout + self.stall_grace) / 1000
        return row.spec.timeout > 0 and self.clock.monotonic() - row.running_since >= longest

    def _take_over(self, row: Row, cause: TakeoverCause, end: Outcome, now: Millis) -> Takeover:
        self._end(row, end, now)
        worker = row.worker or ""
        self._crew.call_about_claims(worker)
        return Takeover(
            row.id, row.spec.task, row.spec.queue, worker, cause, row.status, row.attempts, row.crashes, row.failure,
            row.spec.max_attempts, end.delay,
        )  # fmt: skip

    async def prune(self, limit: int = 1000) -> int:
        with self._operation() as now:
            if not may_delete(self.clock):
                return 0
            expired = (row for row in self._rows.values() if row.expires_at is not None and row.expires_at <= now)
            rows = list(islice(expired, limit))
            for row in rows:
                del self._rows[row.id]
            pruned = len(rows) + self._keys.prune(limit - len(rows), now)
            return pruned + self._shelf.prune(limit - pruned, now)

    # -- reading ----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job]:
        with self._operation():
            return [job_of(self._rows[job_id]) for job_id in ids if job_id in self._rows]

    async def find(self, where: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        check_page(limit, cursor)
        with self._operation():
            ids = sorted((row.id for row in self._matching(where)), reverse=True)
            rest = [job_id for job_id in ids if cursor is None or job_id < cursor]
            jobs = [job_of(self._rows[job_id]) for job_id in rest[:limit]]
            return Page(jobs, cursor=jobs[-1].id if limit < len(rest) else None)

    async def count(self, where: Filter) -> int:
        with self._operation():
            return sum(1 for _ in self._matching(where))

    def _matching(self, where: Filter) -> Iterator[Row]:
        rows = (self._rows[one] for one in dict.fromkeys(where.ids) if one in self._rows)
        return (row for row in (rows if where.ids else self._rows.values()) if matches(row, where))

    async def attempts(self, job_id: str) -> list[Attempt]:
        with self._operation():
            row = self._rows.get(job_id)
            return list(row.history) if row else []

    async def timeline(self, job_id: str) -> list[TimelineEntry]:
        with self._operation():
            row = self._rows.get(job_id)
            return sorted(life_of(row, self._audit), key=lambda entry: entry.at) if row else []

    async def stats(self) -> Stats:
        with self._operation() as now:
            due = [row for row in self._rows.values() if row.status in CLAIMABLE and row.run_at <= now]
            number = Counter(row.spec.queue for row in due)
            return Stats(
                queues=self._counts(),
                due={queue: min(count, DUE_CAP) for queue, count in number.items()},
                oldest_due={q: to_datetime(min(row.run_at for row in due if row.spec.queue == q)) for q in number},
                workers=self._crew.listing(),
                halts=list(self._standing(now).values()),
                due_tasks=due_tasks(due),
            )

    def _counts(self) -> list[Counts]:
        by_queue: defaultdict[str, Counter[Status]] = defaultdict(Counter)
        for row in self._rows.values():
            by_queue[row.spec.queue][row.status] += 1
        return [Counts(queue, dict(counts)) for queue, counts in sorted(by_queue.items())]

    async def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        with self._operation():
            return list(islice(reversed(self._audit.values()), limit))

    async def diagnose(self) -> list[Finding]:
        message = "jobs are kept in memory only and are lost when this process ends"
        return [Finding(Severity.WARNING, "durability", message, "use sqlite:/// for jobs that matter")]

    # -- by hand ----------------------------------------------------------------------------------

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
        with self._operation() as now:
            chunk, after = self._chunk(where, limit, cursor)
            able = [row for row in chunk if row.status in ALLOWED[action]]
            conflicts = self._conflicts(able) if action is Action.REPLAY else {}
            able = [row for row in able if row.id not in conflicts]
            requested = tuple(row.id for row in able if row.status is Status.RUNNING)
            ids = tuple(row.id for row in able if row.status is not Status.RUNNING)
            if able and not dry_run:
                if by.audited:
                    self._write_down(by, action.value, detail_of_change(where, edit), len(able), now)
                for row in able:
                    self._change(action, row, by, edit or Edit(), now)
            return Changed(ids, requested, conflicts, after)

    def _chunk(self, where: Filter, limit: int, cursor: str | None) -> tuple[list[Row], str | None]:
        ids = sorted(row.id for row in self._matching(where) if cursor is None or row.id > cursor)
        return [self._rows[job_id] for job_id in ids[:limit]], ids[limit - 1] if limit < len(ids) else None

    def _conflicts(self, rows: Iterable[Row]) -> dict[str, str]:
        """Jobs that cannot be replayed, and who holds their key: another live job, or one replayed before them."""
        holders: dict[DedupeKey, str] = {}
        conflicts: dict[str, str] = {}
        for row in rows:
            if row.key:
                holder = holders.setdefault(row.key, self._keys.live.get(row.key, row.id))
                conflicts |= {row.id: holder} if holder != row.id else {}
        return conflicts

    def _change(self, action: Action, row: Row, by: By, edit: Edit, now: Millis) -> None:
        if by.audited:
            row.by_hand.append((by.operation, action.value))
        match action:
            case Action.CANCEL:
                self._cancel(row, by, now)
            case Action.REPLAY:
                self._replay(row, edit, now)
            case Action.DELETE:
                self._delete(row, now)
            case Action.EDIT:
                self._edit(row, edit, now)

    def _cancel(self, row: Row, by: By, now: Millis) -> None:
        row.reason = by.reason
        if row.status is Status.RUNNING:
            row.cancel_requested = True
            self._crew.call_about_claims(row.worker or "")
        else:
            self._finish(row, TRANSITIONS[row.status][Move.CANCEL], now)

    def _replay(self, row: Row, edit: Edit, now: Millis) -> None:
        if edit.from_step in row.steps:
            first = row.steps[edit.from_step].number
            row.steps = {name: step for name, step in row.steps.items() if step.number < first}
        row.status = TRANSITIONS[row.status][Move.REPLAY]
        row.attempts = row.crashes = 0
        row.failure = row.result = row.progress = row.finished_at = row.expires_at = None
        row.reason = ""
        row.cancel_requested = False
        row.run_at = now
        self._keys.take(row)
        self._put_in_line(row)

    def _delete(self, row: Row, now: Millis) -> None:
        self._take_out_of_line(row)
        self._keys.forget(row)
        self._wake(end_of(row.id), len(self._rows), now)
        del self._rows[row.id]

    def _edit(self, row: Row, edit: Edit, now: Millis) -> None:
        for name in ("payload", "priority", "queue", "max_attempts"):
            if (value := getattr(edit, name)) is not None:
                setattr(row.spec, name, value)
        if (run_at := edit.new_time(now)) is not None:
            row.run_at, row.reason = run_at, ""
        self._put_in_line(row)

    # -- halts and the audit log ------------------------------------------------------------------

    async def halt(self, halt: Halt) -> Halt:
        with self._operation() as now:
            self._halt_number += 1
            written = replace(combined(self._standing(now).get(halt.queue), halt), number=self._halt_number)
            self._halts[halt.queue] = written
            self._crew.call_about_halts()
            self._write_down(By(halt.actor, halt.reason), action_of_halt(halt), detail_of_halt(halt), 0, now)
            return written

    async def resume(self, by: By, queue: str | None = None) -> bool:
        with self._operation() as now:
            if queue not in self._standing(now):
                return False
            del self._halts[queue]
            self._crew.call_for_jobs(queue or EVERY_QUEUE)
            self._crew.call_about_halts()
            self._write_down(by, "resume", {"queue": queue}, 0, now)
            return True

    async def halts(self) -> list[Halt]:
        with self._operation() as now:
            return list(self._standing(now).values())

    async def confirm(self, worker: str, number: int) -> None:
        with self._operation():
            self._confirmed[worker] = max(number, self._confirmed.get(worker, 0))

    async def unconfirmed(self, halt: Halt) -> list[WorkerInfo]:
        with self._operation() as now:
            if all(one.number < halt.number for one in self._standing(now).values()):
                return []
            serving = [worker for worker in self._crew.listing() if serves(worker, halt)]
            return [worker for worker in serving if self._confirmed.get(worker.id, 0) < halt.number]

    def _standing(self, now: Millis) -> dict[str | None, Halt]:
        """The halt (under None) and pauses that are not over."""
        if not self._halts:
            return {}
        return {queue: halt for queue, halt in self._halts.items() if not halt.until or halt.until > to_datetime(now)}

    def _write_down(self, by: By, action: str, detail: Mapping[str, Any], count: int, now: Millis) -> None:
        key = by.operation, action
        entry = self._audit.get(key) or AuditEntry(to_datetime(now), by.actor, action, by.reason, detail, 0)
        self._audit[key] = replace(entry, count=entry.count + count)

    # -- beside jobs ------------------------------------------------------------------------------

    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        refuse_unkeepable(job for bundle in bundles for job in bundle.jobs)
        with self._operation() as now:
            keys = {write.key for bundle in bundles for write in bundle.writes}
            holds = accepted(bundles, {one.key: one.version for one in self._shelf.read(keys, now)})
            taken = [bundle for bundle, held in zip(bundles, holds, strict=True) if held]
            jobs = [job for bundle in taken for job in bundle.jobs]
            if jobs:
                self._refuse_if_halted(jobs, now)
            writes = last_writes(taken)
            for write in writes:
                self._shelf.write(write)
            for note in (bundle.note for bundle in taken if bundle.note is not None):
                self._write_down(note.by, note.action, note.detail, 0, now)
            if comes_soon(writes, now):
                self._crew.call_for_documents()
            if any(bundle.spread for bundle in taken):
                self._crew.call_about_state()
            return answers(bundles, holds, [self._insert(job, now) for job in jobs])

    async def documents(self, keys: Sequence[Key]) -> list[Document]:
        with self._operation() as now:
            return self._shelf.read(keys, now)

    async def browse(self, listing: Listing) -> list[Document]:
        with self._operation() as now:
            return self._shelf.browse(listing, now)

    async def due(self, collection: str, limit: int = 100, *, ahead: Millis = 0) -> Due:
        with self._operation() as now:
            return self._shelf.due(collection, limit, now, now + ahead)

    # -- moving to another store --------------------------------------------------------------

    async def dump(self, kind: Kind, *, after: str | None = None, limit: int = 1000) -> Chunk:
        with self._operation() as now:
            keys = sorted(key for key in self._record_keys(kind, now) if after is None or key > after)
            records = [self._record(kind, key) for key in keys[:limit]]
            return Chunk(records, cursor=keys[limit - 1] if limit < len(keys) else None)

    async def look_up(self, kind: Kind, keys: Sequence[str]) -> list[Record]:
        with self._operation() as now:
            return [self._record(kind, key) for key in self._record_keys(kind, now).intersection(keys)]

    def _record_keys(self, kind: Kind, now: Millis) -> set[str]:
        match kind:
            case Kind.AUDIT:
                return {make_key(*operation) for operation in self._audit}
            case Kind.PAUSES:
                return {make_key(queue) for queue in self._standing(now) if queue is not None}
            case Kind.KEYS:
                return {make_key(*key) for key in self._keys.kept(now)}
            case Kind.DOCUMENTS:
                return {make_key(*key) for key in self._shelf.keys(now)}
        return {row.id for row in self._rows.values() if kind_of(row.status) is kind}

    def _record(self, kind: Kind, key: str) -> Record:
        if kind in JOBS:
            return record_of(self._rows[key])
        parts = split_key(key)
        if kind is Kind.AUDIT:
            return {"key": key, **audit_record(parts[0], self._audit[parts[0], parts[1]])}
        if kind is Kind.PAUSES:
            return {"key": key, **pause_record(self._halts[parts[0]])}
        if kind is Kind.DOCUMENTS:
            return {"key": key, **document_record(*self._shelf.read([Key(*parts)], self.clock.now()))}
        job_id, until = self._keys.record((parts[0], parts[1]))
        expires_at = None if until == FOREVER else until
        return {"key": key, "task": parts[0], "dedupe_key": parts[1], "job_id": job_id, "expires_at": expires_at}

    async def load(self, kind: Kind, records: Sequence[Record]) -> dict[str, str]:
        with self._operation() as now:
            put = {
                Kind.AUDIT: self._load_audit,
                Kind.PAUSES: self._load_pause,
                Kind.KEYS: self._load_key,
                Kind.DOCUMENTS: self._load_document,
            }.get(kind, self._load_job)
            in_the_way = {record["key"]: put(record, now) for record in records}
            return {key: who for key, who in in_the_way.items() if who is not None}

    def _load_job(self, record: Record, now: Millis) -> str | None:
        del now
        row = row_of(record)
        if row.id in self._rows:
            return row.id
        if row.status not in FINISHED:
            if row.key and row.key in self._keys.live:
                return self._keys.live[row.key]
            self._keys.take(row)
        self._rows[row.id] = row
        if row.status in CLAIMABLE:
            self._put_in_line(row)
        if row.status is Status.RUNNING:
            row.running_since = self.clock.monotonic()
            self._running[row.id] = row
        return None

    def _load_audit(self, record: Record, now: Millis) -> str | None:
        del now
        key = record["operation"], record["action"]
        if key in self._audit:
            return str(record["operation"])
        self._audit[key] = AuditEntry(
            to_datetime(record["at"]),
            record["actor"],
            record["action"],
            record["reason"],
            record["detail"],
            record["n"],
        )
        self._audit = dict(sorted(self._audit.items(), key=lambda item: item[1].at))
        return None

    def _load_pause(self, record: Record, now: Millis) -> str | None:
        queue = record["queue"]
        if queue in self._standing(now):
            return self._halts[queue].actor
        until = moment(record["until"])
        since = to_datetime(record["since"])
        self._halts[queue] = Halt(record["actor"], record["reason"], since, until, queue, record["accept"])
        return None

    def _load_key(self, record: Record, now: Millis) -> str | None:
        key = record["task"], record["dedupe_key"]
        if key in self._keys.kept(now):
            return self._keys.record(key)[0]
        self._keys.put(key, record["job_id"], FOREVER if record["expires_at"] is None else record["expires_at"])
        return None

    def _load_document(self, record: Record, now: Millis) -> str | None:
        key = Key(record["collection"], record["grp"], record["id"])
        for document in self._shelf.read([key], now):
            return document.version
        same = {name: record[name] for name in ("data", "version", "due_at", "expires_at")}
        self._shelf.write(Write(key, **same))
        return None

    async def sizes(self) -> Mapping[Kind, int]:
        with self._operation() as now:
            return {kind: len(self._record_keys(kind, now)) for kind in Kind}

    async def under_way(self) -> int:
        with self._operation():
            return len(self._running)


def due_tasks(rows: Iterable[Row]) -> list[DueTask]:
    by_task: defaultdict[tuple[str, str], list[Millis]] = defaultdict(list)
    for row in rows:
        by_task[row.spec.task, row.spec.queue].append(row.run_at)
    return [
        DueTask(task, queue, min(len(times), DUE_CAP), to_datetime(min(times)))
        for (task, queue), times in sorted(by_task.items())
    ]


def crash_of(row: Row) -> Outcome:
    failure = Failure(WorkerCrashed.__name__, f"worker {row.worker} died during this job")
    return Outcome(row.id, row.token, Move.CRASH, failure=failure)


def stall_of(row: Row, after_stall: AfterStall) -> Outcome:
    run = StalledRun(row.id, row.spec.task, row.spec.queue, row.attempts + 1, row.spec.options)
    delay = after_stall(run) if run.attempt < row.spec.max_attempts else None
    move = Move.DEAD if delay is None else Move.RETRY
    failure = Failure(TimeoutError.__name__, f"ran for longer than its timeout of {row.spec.timeout / 1000:g} s")
    return Outcome(row.id, row.token, move, delay=delay or 0, failure=failure)
