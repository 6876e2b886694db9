"""Jobs in a dictionary: for tests and for trying things out. They are gone when the process ends.

`MemoryStore` is what the other stores are measured against, so it is written for the reader first. Only waiting jobs
are not kept the plain way: `_Lines` has a heap per queue, priority and suspicion, so that a claim costs the same
however many jobs wait.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import datetime
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any

from mainspring.clock import Clock, Millis, SystemClock, to_datetime, to_millis
from mainspring.errors import ConfigurationError, IllegalMove, SystemHalted, UnsupportedCall, WorkerCrashed
from mainspring.ids import new_id
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
    Priority,
    Progress,
    ProgressReport,
    Save,
    Status,
    Step,
    TimelineEntry,
    end_of,
    statuses_that_allow,
)
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
from mainspring.stores.protocol import (
    DUE_CAP,
    EVERY_QUEUE,
    Action,
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
    Severity,
    Stats,
    Takeover,
    TakeoverCause,
    Wake,
    Want,
    WorkerInfo,
)
from mainspring.stores.records import JOBS, Chunk, Kind, Record, job_record, kind_of, make_key, split_key
from mainspring.stores.rules import begins_anew, last_reason, refuse_negative
from mainspring.stores.shelf import Shelf

COUNTS_AS_ATTEMPT = frozenset({Move.DONE, Move.RETRY, Move.DEAD, Move.CANCEL})
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

NEVER: Millis = 2**62  # an expiry that does not come

_Key = tuple[str, str]  # a task and a dedupe key of it
_Operation = tuple[str, str]  # an operation by hand and its action


@dataclass(slots=True)
class _Row:
    """A job as it is kept."""

    spec: NewJob  # as inserted, with edits applied
    run_at: Millis
    created_at: Millis
    status: Status = Status.PENDING
    token: int = 0
    attempts: int = 0
    crashes: int = 0
    worker: str | None = None
    claimed_at: Millis = 0
    running_since: float = 0.0  # the monotonic clock
    finished_at: Millis | None = None
    expires_at: Millis | None = None
    progress: Progress | None = None
    result: str | None = None
    failure: Failure | None = None
    reason: str = ""
    cancel_requested: bool = False
    waits_for: str | None = None
    history: list[Attempt] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)
    by_hand: list[_Operation] = field(default_factory=list)
    place: int = 0  # grows whenever the job joins or leaves a line, which makes its older heap entries void

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def key(self) -> _Key | None:
        return None if self.spec.dedupe_key is None else (self.spec.task, self.spec.dedupe_key)


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
        self.clock: Clock = clock or SystemClock()
        self.lease = lease
        self.stall_grace = stall_grace
        self.patience = patience
        self._lock = threading.Lock()
        self._rows: dict[str, _Row] = {}
        self._running: dict[str, _Row] = {}
        self._lines = _Lines()
        self._waiting: defaultdict[str, dict[str, _Row]] = defaultdict(dict)  # suspended jobs by what they wait for
        self._keys = _Keys()
        self._crew = _Crew()
        self._halts: dict[str | None, Halt] = {}
        self._audit: dict[_Operation, AuditEntry] = {}
        self._turns: Counter[str] = Counter()
        self._shelf = Shelf()

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close: the jobs stay for as long as this object does."""

    @contextmanager
    def _operation(self) -> Iterator[Millis]:
        """The work of one method: alone, at one moment, and followed by the wake-ups that it caused."""
        with self._lock:
            yield self.clock.now()
            self._crew.ring()

    # -- inserting --------------------------------------------------------------------------------

    async def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        if connection is not None:
            msg = (
                "memory:// has no transactions to join; insert without a connection, or use sqlite:// or postgresql://"
            )
            raise ConfigurationError(msg)
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
        row = _Row(replace(job), _first_run(job, now), now, waits_for=job.waits_for)
        if job.waits_for is not None:
            row.status = Status.SUSPENDED
        if row.key and (holder := self._keys.holder(row.key, now)):
            return Inserted(holder, created=False)
        self._rows[row.id] = row
        self._keys.take(row)
        self._keys.keep(row, now)
        self._put_in_line(row)
        return Inserted(row.id, created=True)

    def _put_in_line(self, row: _Row) -> None:
        """Wakes for jobs of the future too: a worker may have planned to sleep for longer."""
        self._lines.join(row)
        if row.waits_for is not None:
            self._waiting[row.waits_for][row.id] = row
        self._crew.call_for_jobs(row.spec.queue)

    # -- claiming ---------------------------------------------------------------------------------

    async def claim(
        self, worker: str, wants: Sequence[Want], *, limit: int | None = None, solo: bool = False
    ) -> Claims:
        with self._operation() as now:
            rows = self._suspect(wants, now) if solo else self._served(wants, limit, now)
            claims = [self._start(row, worker, now) for row in islice(rows, limit)]
            next_due = None if claims else self._next_due(wants, now)
            return Claims(claims, next_due, suspects=any(self._suspect(wants, now)))

    def _suspect(self, wants: Sequence[Want], now: Millis) -> Iterator[_Row]:
        """At most one."""
        every = (self._most_urgent(self._claimable(want.queue, now), now, suspects=True) for want in wants)
        return islice((row for row in every if row), 1)

    def _served(self, wants: Sequence[Want], limit: int | None, now: Millis) -> Iterator[_Row]:
        """The rows to claim, each to be taken out of its line before the next is asked for."""
        left = sum(want.limit for want in wants) if limit is None else limit
        for want in wants:
            for row in self._served_from(want.queue, min(want.limit, left), now):
                left -= 1
                yield row

    def _served_from(self, queue: str, limit: int, now: Millis) -> Iterator[_Row]:
        queues = self._claimable(queue, now)
        share = self._share_of_the_patient(queue, limit, queues, now)
        for number in range(limit):
            overdue = self._longest_overdue(queues, now) if number < share else None
            if not (row := overdue or self._most_urgent(queues, now)):
                break
            yield row

    def _share_of_the_patient(self, queue: str, limit: int, queues: list[str], now: Millis) -> int:
        """How many of these jobs go to priorities that waited too long: never so many that they starve urgent ones."""
        if limit < 1 or not self._longest_overdue(queues, now):
            return 0
        if limit >= SHARE:
            return limit // SHARE
        self._turns[queue] += 1
        return limit if self._turns[queue] % SHARE == 0 else 0

    def _most_urgent(self, queues: list[str], now: Millis, *, suspects: bool = False) -> _Row | None:
        heads = (self._lines.head(queues, priority, suspects=suspects) for priority in Priority)
        return next((row for row in heads if row and row.run_at <= now), None)

    def _longest_overdue(self, queues: list[str], now: Millis) -> _Row | None:
        """The head that has waited longest beyond the patience, behind a more urgent job that is due."""
        heads = [self._lines.head(queues, priority) for priority in Priority]
        due = [row for row in heads if row and row.run_at <= now]
        overdue = [row for row in due[1:] if now - row.run_at > self.patience]
        return min(overdue, key=lambda row: row.run_at, default=None)

    def _take_out_of_line(self, row: _Row) -> None:
        self._lines.leave(row)
        if row.waits_for is not None:
            del self._waiting[row.waits_for][row.id]
            if not self._waiting[row.waits_for]:
                del self._waiting[row.waits_for]
            row.waits_for = None

    def _start(self, row: _Row, worker: str, now: Millis) -> Claim:
        self._take_out_of_line(row)
        self._running[row.id] = row
        row.status = TRANSITIONS[row.status][Move.CLAIM]
        row.token += 1
        row.worker = worker
        row.claimed_at = now
        row.running_since = self.clock.monotonic()
        row.progress = None
        return _claim(row)

    def _claimable(self, queue: str, now: Millis) -> list[str]:
        standing = self._standing(now)
        if None in standing:
            return []
        queues = self._lines.queues() if queue == EVERY_QUEUE else [queue]
        return [name for name in queues if name not in standing]

    def _next_due(self, wants: Sequence[Want], now: Millis) -> Millis | None:
        standing = self._standing(now)
        if None in standing:
            return _end_of(standing[None])
        moments = [_end_of(halt) for queue, halt in standing.items() if _wanted(queue, wants)]
        for queue in {name for want in wants for name in self._claimable(want.queue, now)}:
            moments += [moment for moment in self._lines.head_times(queue) if moment > now]
        return min((moment for moment in moments if moment is not None and moment < UNTIL_WOKEN), default=None)

    # -- ending runs ------------------------------------------------------------------------------

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        for outcome in outcomes:
            if outcome.move not in TRANSITIONS[Status.RUNNING]:
                msg = f"a run cannot end with {outcome.move.value!r} (job {outcome.job_id})"
                raise IllegalMove(msg)
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

    def _held(self, job_id: str, token: int) -> _Row | None:
        """The fence: no row for a run whose claim was taken over, released or already ended."""
        row = self._running.get(job_id)
        return row if row and row.token == token else None

    def _end(self, row: _Row, outcome: Outcome, now: Millis) -> None:
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
            row.history.append(_attempt(row, move, outcome, now))
        if move is Move.SUSPEND:
            if begins_anew(outcome):
                row.attempts = row.crashes = 0
            row.waits_for = outcome.waits_for
        self._move_on(row, move, outcome.delay, now)

    def _move_on(self, row: _Row, move: Move, delay: Millis, now: Millis) -> None:
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

    def _finish(self, row: _Row, status: Status, now: Millis) -> None:
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

    def completion(self, outcome: Callable[[], Outcome]) -> Completion:
        del outcome
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
            for row in [row for row in self._running.values() if row.worker == worker]:
                self._end(row, Outcome(row.id, row.token, Move.RELEASE), now)

    async def heartbeat(self, worker: str, held: Mapping[str, int]) -> Pulse:
        with self._operation() as now:
            self._crew.beat(worker, now)
            rows = {job_id: self._held(job_id, token) for job_id, token in held.items()}
            return Pulse(
                lost=frozenset(job_id for job_id, row in rows.items() if row is None),
                cancelled={job_id: row.reason for job_id, row in rows.items() if row and row.cancel_requested},
            )

    async def reap(self) -> list[Takeover]:
        with self._operation() as now:
            dead = self._crew.dead(self._holders(), self.clock.monotonic(), self.lease)
            crashed = [row for row in self._running.values() if row.worker in dead]
            crashes = [self._take_over(row, TakeoverCause.CRASHED, now) for row in crashed]
            stalled = [row for row in self._running.values() if self._stalled(row)]
            return crashes + [self._take_over(row, TakeoverCause.STALLED, now) for row in stalled]

    def _holders(self) -> set[str]:
        return {row.worker for row in self._running.values() if row.worker is not None}

    def _stalled(self, row: _Row) -> bool:
        longest = (row.spec.timeout + self.stall_grace) / 1000
        return row.spec.timeout > 0 and self.clock.monotonic() - row.running_since >= longest

    def _take_over(self, row: _Row, cause: TakeoverCause, now: Millis) -> Takeover:
        end = _crash(row) if cause is TakeoverCause.CRASHED else _stall(row)
        self._end(row, end, now)
        worker = row.worker or ""
        self._crew.call_about_claims(worker)
        return Takeover(
            row.id, row.spec.task, row.spec.queue, worker, cause, row.status, row.attempts, row.crashes, row.failure,
            row.spec.max_attempts,
        )  # fmt: skip

    async def prune(self, limit: int = 1000) -> int:
        with self._operation() as now:
            expired = (row for row in self._rows.values() if row.expires_at is not None and row.expires_at <= now)
            rows = list(islice(expired, limit))
            for row in rows:
                del self._rows[row.id]
            pruned = len(rows) + self._keys.prune(limit - len(rows), now)
            return pruned + self._shelf.prune(limit - pruned, now)

    # -- reading ----------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str]) -> list[Job]:
        with self._operation():
            return [_job(self._rows[job_id]) for job_id in ids if job_id in self._rows]

    async def find(self, where: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        with self._operation():
            ids = sorted((row.id for row in self._matching(where)), reverse=True)
            rest = [job_id for job_id in ids if cursor is None or job_id < cursor]
            jobs = [_job(self._rows[job_id]) for job_id in rest[:limit]]
            return Page(jobs, cursor=jobs[-1].id if limit < len(rest) else None)

    async def count(self, where: Filter) -> int:
        with self._operation():
            return sum(1 for _ in self._matching(where))

    def _matching(self, where: Filter) -> Iterator[_Row]:
        rows = (self._rows[one] for one in dict.fromkeys(where.ids) if one in self._rows)
        return (row for row in (rows if where.ids else self._rows.values()) if _matches(row, where))

    async def attempts(self, job_id: str) -> list[Attempt]:
        with self._operation():
            row = self._rows.get(job_id)
            return list(row.history) if row else []

    async def timeline(self, job_id: str) -> list[TimelineEntry]:
        with self._operation():
            row = self._rows.get(job_id)
            return sorted(_life(row, self._audit), key=lambda entry: entry.at) if row else []

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
        with self._operation() as now:
            chunk, after = self._chunk(where, limit, cursor)
            able = [row for row in chunk if row.status in ALLOWED[action]]
            conflicts = self._conflicts(able) if action is Action.REPLAY else {}
            able = [row for row in able if row.id not in conflicts]
            requested = tuple(row.id for row in able if row.status is Status.RUNNING)
            ids = tuple(row.id for row in able if row.status is not Status.RUNNING)
            if able and not dry_run:
                detail = {"filter": _as_data(where)} | ({"edit": _as_data(edit)} if edit else {})
                if by.audited:
                    self._write_down(by, action.value, detail, len(able), now)
                for row in able:
                    self._change(action, row, by, edit or Edit(), now)
            return Changed(ids, requested, conflicts, after)

    def _chunk(self, where: Filter, limit: int, cursor: str | None) -> tuple[list[_Row], str | None]:
        ids = sorted(row.id for row in self._matching(where) if cursor is None or row.id > cursor)
        return [self._rows[job_id] for job_id in ids[:limit]], ids[limit - 1] if limit < len(ids) else None

    def _conflicts(self, rows: Iterable[_Row]) -> dict[str, str]:
        """Jobs that cannot be replayed, and who holds their key: another live job, or one replayed before them."""
        holders: dict[_Key, str] = {}
        conflicts: dict[str, str] = {}
        for row in rows:
            if row.key:
                holder = holders.setdefault(row.key, self._keys.live.get(row.key, row.id))
                conflicts |= {row.id: holder} if holder != row.id else {}
        return conflicts

    def _change(self, action: Action, row: _Row, by: By, edit: Edit, now: Millis) -> None:
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

    def _cancel(self, row: _Row, by: By, now: Millis) -> None:
        row.reason = by.reason
        if row.status is Status.RUNNING:
            row.cancel_requested = True
            self._crew.call_about_claims(row.worker or "")
        else:
            self._finish(row, TRANSITIONS[row.status][Move.CANCEL], now)

    def _replay(self, row: _Row, edit: Edit, now: Millis) -> None:
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

    def _delete(self, row: _Row, now: Millis) -> None:
        self._take_out_of_line(row)
        self._keys.free(row)
        self._wake(end_of(row.id), len(self._rows), now)
        del self._rows[row.id]

    def _edit(self, row: _Row, edit: Edit, now: Millis) -> None:
        for name in ("payload", "priority", "queue", "max_attempts"):
            if (value := getattr(edit, name)) is not None:
                setattr(row.spec, name, value)
        if (run_at := edit.new_time(now)) is not None:
            row.run_at, row.reason = run_at, ""
        self._put_in_line(row)

    # -- halts and the audit log ------------------------------------------------------------------

    async def halt(self, halt: Halt) -> None:
        with self._operation() as now:
            self._halts[halt.queue] = halt
            detail = {"queue": halt.queue, "until": halt.until and halt.until.isoformat(), "accept": halt.accept}
            self._write_down(By(halt.actor, halt.reason, new_id()), "halt", detail, 0, now)

    async def resume(self, by: By, queue: str | None = None) -> bool:
        with self._operation() as now:
            if queue not in self._standing(now):
                return False
            del self._halts[queue]
            self._crew.call_for_jobs(queue or EVERY_QUEUE)
            self._write_down(by, "resume", {"queue": queue}, 0, now)
            return True

    async def halts(self) -> list[Halt]:
        with self._operation() as now:
            return list(self._standing(now).values())

    def _standing(self, now: Millis) -> dict[str | None, Halt]:
        """The halt (under None) and pauses that are not over."""
        return {queue: halt for queue, halt in self._halts.items() if not halt.until or halt.until > to_datetime(now)}

    def _write_down(self, by: By, action: str, detail: Mapping[str, Any], count: int, now: Millis) -> None:
        key = by.operation, action
        entry = self._audit.get(key) or AuditEntry(to_datetime(now), by.actor, action, by.reason, detail, 0)
        self._audit[key] = replace(entry, count=entry.count + count)

    # -- beside jobs ------------------------------------------------------------------------------

    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
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
            return _job_record(self._rows[key])
        parts = split_key(key)
        if kind is Kind.AUDIT:
            return {"key": key, **_audit_record(parts[0], self._audit[parts[0], parts[1]])}
        if kind is Kind.PAUSES:
            return {"key": key, **_pause_record(self._halts[parts[0]])}
        if kind is Kind.DOCUMENTS:
            return {"key": key, **_document_record(*self._shelf.read([Key(*parts)], self.clock.now()))}
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
        row = _row(record)
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
        until = _moment(record["until"])
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


class _Lines:
    """Waiting jobs, by queue, priority and whether they are suspects; the earliest due at the head.

    A job that leaves is not searched for: its entry is void from then on, and goes when it comes to the head.
    """

    def __init__(self) -> None:
        self._heaps: dict[str, dict[tuple[int, bool], list[tuple[Millis, str, int, _Row]]]] = {}
        self._places = count(1)  # for all rows: a job that was deleted may come back while its old entry is here

    def join(self, row: _Row) -> None:
        row.place = next(self._places)
        levels = self._heaps.setdefault(row.spec.queue, {})
        heap = levels.setdefault((row.spec.priority, row.crashes > 0), [])
        heappush(heap, (row.run_at, row.id, row.place, row))

    def leave(self, row: _Row) -> None:
        row.place = next(self._places)

    def queues(self) -> list[str]:
        return list(self._heaps)

    def head(self, queues: Iterable[str], priority: int, *, suspects: bool = False) -> _Row | None:
        """The earliest due of one level across these queues."""
        heads = [row for queue in queues if (row := self._head(queue, (priority, suspects)))]
        return min(heads, key=lambda row: (row.run_at, row.id), default=None)

    def head_times(self, queue: str) -> list[Millis]:
        levels = list(self._heaps.get(queue, ()))
        return [row.run_at for level in levels if (row := self._head(queue, level))]

    def _head(self, queue: str, level: tuple[int, bool]) -> _Row | None:
        heap = self._heaps.get(queue, {}).get(level)
        while heap:
            _, _, place, row = heap[0]
            if row.place == place:
                return row
            heappop(heap)
        if heap is not None:
            self._forget(queue, level)
        return None

    def _forget(self, queue: str, level: tuple[int, bool]) -> None:
        del self._heaps[queue][level]
        if not self._heaps[queue]:
            del self._heaps[queue]


class _Keys:
    """Who holds which dedupe key: live jobs, and records kept beyond their jobs' lives."""

    def __init__(self) -> None:
        self.live: dict[_Key, str] = {}
        self._kept: dict[_Key, tuple[str, Millis]] = {}

    def holder(self, key: _Key, now: Millis) -> str | None:
        if key in self.live:
            return self.live[key]
        job_id, until = self._kept.get(key, (None, 0))
        return job_id if until == FOREVER or until > now else None

    def take(self, row: _Row) -> None:
        if row.key:
            self.live[row.key] = row.id

    def keep(self, row: _Row, now: Millis) -> None:
        length = row.spec.dedupe_for
        if row.key and length is not None:
            self._kept[row.key] = (row.id, FOREVER if length == FOREVER else now + length)

    def kept(self, now: Millis) -> set[_Key]:
        """Those whose record is not over."""
        return {key for key, (_, until) in self._kept.items() if until == FOREVER or until > now}

    def record(self, key: _Key) -> tuple[str, Millis]:
        return self._kept[key]

    def put(self, key: _Key, job_id: str, until: Millis) -> None:
        self._kept[key] = (job_id, until)

    def free(self, row: _Row) -> None:
        if row.key and self.live.get(row.key) == row.id:
            del self.live[row.key]

    def prune(self, limit: int, now: Millis) -> int:
        expired = (key for key, (_, until) in self._kept.items() if until != FOREVER and until <= now)
        keys = list(islice(expired, limit))
        for key in keys:
            del self._kept[key]
        return len(keys)


@dataclass(slots=True)
class _Member:
    info: WorkerInfo
    wake: Callable[[Wake], None]
    loop: asyncio.AbstractEventLoop
    seen_at: Millis
    beats: int = 0
    alive: bool = True


class _Crew:
    """Workers: who has joined, who has fallen silent, and whom to wake when the operation is over."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._watch: dict[str, tuple[int, float]] = {}  # the beats a worker had when it was last seen to beat
        self._queues: set[str] = set()
        self._losers: set[str] = set()
        self._documents = False

    def join(
        self, info: WorkerInfo, wake: Callable[[Wake], None], loop: asyncio.AbstractEventLoop, now: Millis
    ) -> None:
        beats = self._members[info.id].beats + 1 if info.id in self._members else 0
        self._members[info.id] = _Member(info, wake, loop, now, beats)

    def leave(self, worker: str) -> None:
        self._members.pop(worker, None)
        self._watch.pop(worker, None)

    def beat(self, worker: str, now: Millis) -> None:
        if member := self._members.get(worker):
            member.beats += 1
            member.seen_at = now
            member.alive = True

    def listing(self) -> list[WorkerInfo]:
        present = [member for member in self._members.values() if member.alive]
        return [replace(member.info, seen_at=to_datetime(member.seen_at), alive=True) for member in present]

    def dead(self, holders: set[str], monotonic: float, lease: float) -> set[str]:
        """Those whose beats have not changed for the lease; holders of jobs are watched even if they never joined."""
        watched = holders | {worker for worker, member in self._members.items() if member.alive}
        self._watch = {worker: self._look(worker, monotonic) for worker in watched}
        dead = {worker for worker, (_, since) in self._watch.items() if monotonic - since >= lease}
        for worker in dead:
            self._bury(worker)
        return dead

    def _look(self, worker: str, monotonic: float) -> tuple[int, float]:
        member = self._members.get(worker)
        beats = member.beats if member else -1
        before = self._watch.get(worker)
        return before if before and before[0] == beats else (beats, monotonic)

    def _bury(self, worker: str) -> None:
        """Not listed any more, but remembered: it is back with its next heartbeat."""
        del self._watch[worker]
        if member := self._members.get(worker):
            member.alive = False

    def call_for_jobs(self, queue: str) -> None:
        self._queues.add(queue)

    def call_about_claims(self, worker: str) -> None:
        self._losers.add(worker)

    def call_for_documents(self) -> None:
        self._documents = True

    def ring(self) -> None:
        for worker, member in self._members.items():
            wake = Wake.DOCUMENTS if self._documents else Wake(0)
            if worker in self._losers:
                wake |= Wake.CANCELLATIONS
            if self._serves(member, self._queues):
                wake |= Wake.JOBS
            if wake:
                with suppress(RuntimeError):  # its loop is closed: nobody there to be woken
                    member.loop.call_soon_threadsafe(member.wake, wake)
        self._queues.clear()
        self._losers.clear()
        self._documents = False

    @staticmethod
    def _serves(member: _Member, queues: set[str]) -> bool:
        serves_all = EVERY_QUEUE in member.info.queues or EVERY_QUEUE in queues
        return bool(queues) and (serves_all or not queues.isdisjoint(member.info.queues))


def _first_run(job: NewJob, now: Millis) -> Millis:
    if job.run_at is not None:
        return job.run_at
    return UNTIL_WOKEN if job.waits_for is not None and not job.delay else now + job.delay


# -- as readers and workers see a row -------------------------------------------------------------


def _claim(row: _Row) -> Claim:
    spec = row.spec
    return Claim(
        id=row.id,
        token=row.token,
        task=spec.task,
        queue=spec.queue,
        payload=spec.payload,
        priority=spec.priority,
        attempts=row.attempts,
        max_attempts=spec.max_attempts,
        crashes=row.crashes,
        timeout=spec.timeout,
        run_at=row.run_at,
        created_at=row.created_at,
        dedupe_key=spec.dedupe_key,
        target=spec.target,
        tags=spec.tags,
        options=spec.options,
    )


def _job(row: _Row) -> Job:
    spec = row.spec
    return Job(
        id=row.id,
        task=spec.task,
        queue=spec.queue,
        status=row.status,
        priority=Priority(spec.priority),
        payload=json.loads(spec.payload),
        run_at=to_datetime(row.run_at),
        created_at=to_datetime(row.created_at),
        started_at=to_datetime(row.claimed_at) if row.claimed_at else None,
        finished_at=_moment(row.finished_at),
        expires_at=_moment(row.expires_at),
        attempts=row.attempts,
        max_attempts=spec.max_attempts,
        crashes=row.crashes,
        token=row.token,
        worker=row.worker,
        timeout=spec.timeout / 1000 if spec.timeout else None,
        dedupe_key=spec.dedupe_key,
        target=spec.target,
        tags=tuple(spec.tags),
        progress=row.progress,
        result=None if row.result is None else json.loads(row.result),
        failure=row.failure,
        reason=row.reason,
        cancel_requested=row.cancel_requested,
        waits_for=row.waits_for,
        options=json.loads(spec.options or "{}"),
    )


def _attempt(row: _Row, move: Move, outcome: Outcome, now: Millis) -> Attempt:
    return Attempt(
        number=len(row.history) + 1,
        worker=row.worker or "",
        started_at=to_datetime(outcome.started_at or row.claimed_at),
        finished_at=to_datetime(outcome.finished_at or now),
        move=move,
        failure=outcome.failure,
    )


def _life(row: _Row, audit: Mapping[_Operation, AuditEntry]) -> Iterator[TimelineEntry]:
    yield TimelineEntry(to_datetime(row.created_at), "created")
    for run in row.history:
        yield TimelineEntry(run.started_at, "claimed", who=run.worker)
        detail = f"{run.failure.type}: {run.failure.message}" if run.failure else ""
        yield TimelineEntry(run.finished_at, run.move.value, detail, run.worker)
    if row.status is Status.RUNNING:
        yield TimelineEntry(to_datetime(row.claimed_at), "claimed", who=row.worker or "")
    for step in row.steps.values():
        yield TimelineEntry(to_datetime(step.finished_at), step.kind, step.name)
    for entry in (audit[operation] for operation in dict.fromkeys(row.by_hand) if operation in audit):
        yield TimelineEntry(entry.at, entry.action, entry.reason, entry.actor)


def _moment(millis: Millis | None) -> datetime | None:
    return None if millis is None else to_datetime(millis)


# -- as records ---------------------------------------------------------------------------------------


def _job_record(row: _Row) -> Record:
    spec, live = row.spec, row.status not in FINISHED
    target_type, target_id = spec.target or (None, None)
    success = row.history[-1] if row.status is Status.COMPLETED else None
    values = (
        row.id, spec.task, spec.queue, row.status.value, int(spec.priority), row.run_at, row.created_at, row.attempts,
        spec.max_attempts, row.crashes, row.token, row.worker,
        to_millis(success.started_at) if success else row.claimed_at or None, row.finished_at, row.expires_at,
        spec.timeout, spec.keep, spec.keep_dead, row.cancel_requested and live, spec.dedupe_key, target_type, target_id,
        list(spec.tags), spec.options, row.reason, row.progress and float(row.progress.fraction),
        row.progress and row.progress.note, row.failure and row.failure.type, row.failure and row.failure.message,
        spec.payload, None if live else row.result, row.waits_for,
    )  # fmt: skip
    runs = [_run_record(run) for run in row.history if run is not success]
    steps = [list(astuple(step)) for step in sorted(row.steps.values(), key=lambda step: step.number)]
    return job_record(values, runs, steps, [list(operation) for operation in dict.fromkeys(row.by_hand)])


def _run_record(run: Attempt) -> list[Any]:
    failure = run.failure or Failure("", "")
    began, ended = to_millis(run.started_at), to_millis(run.finished_at)
    why = (failure.type or None, failure.message or None, failure.traceback or None)
    return [run.number, run.worker, began, ended, run.move.value, *why]


def _row(record: Record) -> _Row:
    target = None if record["target_type"] is None else (record["target_type"], record["target_id"])
    same = ("id", "task", "payload", "queue", "priority", "max_attempts", "timeout", "dedupe_key", "keep", "keep_dead")
    spec = NewJob(
        **{name: record[name] for name in same}, target=target, tags=tuple(record["tags"]), options=record["options"]
    )
    row = _Row(
        spec,
        status=Status(record["status"]),
        claimed_at=record["started_at"] or 0,
        progress=None if record["progress"] is None else Progress(record["progress"], record["note"] or ""),
        cancel_requested=record["cancel"],
        history=[_run(run) for run in record["runs"]],
        steps={step.name: step for step in (Step(*values) for values in record["steps"])},
        by_hand=[(operation, action) for operation, action in record["by_hand"]],
        **{name: record[name] for name in ("run_at", "created_at", "token", "attempts", "crashes", "worker")},
        **{name: record[name] for name in ("finished_at", "expires_at", "result", "reason", "waits_for")},
    )
    if record["error_type"] is not None:
        tracebacks = [run.failure.traceback for run in row.history if run.failure]
        row.failure = Failure(record["error_type"], record["error"] or "", tracebacks[-1] if tracebacks else "")
    if row.status is Status.COMPLETED:
        began, ended = to_datetime(row.claimed_at), to_datetime(row.finished_at or 0)
        row.history.append(Attempt(len(row.history) + 1, row.worker or "", began, ended, Move.DONE))
    return row


def _run(run: Sequence[Any]) -> Attempt:
    number, worker, began, ended, move, error_type, error, traceback = run
    failure = None if error_type is None else Failure(error_type, error or "", traceback or "")
    return Attempt(number, worker, to_datetime(began), to_datetime(ended), Move(move), failure)


def _audit_record(operation: str, entry: AuditEntry) -> Record:
    same = {"action": entry.action, "actor": entry.actor, "reason": entry.reason, "n": entry.count}
    return {"operation": operation, "at": to_millis(entry.at), "detail": dict(entry.detail), **same}


def _document_record(document: Document) -> Record:
    collection, group, name = document.key
    same = {"version": document.version, "due_at": document.due_at, "expires_at": document.expires_at}
    return {"collection": collection, "grp": group, "id": name, **same, "data": document.data}


def _pause_record(halt: Halt) -> Record:
    same = {"queue": halt.queue, "actor": halt.actor, "reason": halt.reason, "accept": halt.accept}
    return {"since": to_millis(halt.since), "until": _end_of(halt), **same}


# -- how runs end that their workers do not end ---------------------------------------------------


def _crash(row: _Row) -> Outcome:
    failure = Failure(WorkerCrashed.__name__, f"worker {row.worker} died during this job")
    return Outcome(row.id, row.token, Move.CRASH, failure=failure)


def _stall(row: _Row) -> Outcome:
    move = Move.DEAD if row.attempts + 1 >= row.spec.max_attempts else Move.RETRY
    failure = Failure(TimeoutError.__name__, f"ran for longer than its timeout of {row.spec.timeout / 1000:g} s")
    return Outcome(row.id, row.token, move, failure=failure)


# -- filters --------------------------------------------------------------------------------------


def _matches(row: _Row, where: Filter) -> bool:
    spec = row.spec
    target_type, target_id = spec.target or (None, None)
    return (
        _among(where.ids, row.id)
        and _among(where.statuses, row.status)
        and _among(where.queues, spec.queue)
        and _among(where.tasks, spec.task)
        and where.target_type in (None, target_type)
        and where.target_id in (None, target_id)
        and set(where.tags) <= set(spec.tags)
        and where.dedupe_key in (None, spec.dedupe_key)
        and where.worker in (None, row.worker)
        and where.error_type in (None, row.failure and row.failure.type)
        and _within(row.created_at, where.created_after, where.created_before)
        and _within(row.run_at, where.due_after, where.due_before)
        and _within(row.finished_at, where.finished_after, where.finished_before)
        and _carries(spec.payload, where.payload)
    )


def _among(wanted: tuple[str, ...], value: str) -> bool:
    return not wanted or value in wanted


def _within(millis: Millis | None, after: datetime | None, before: datetime | None) -> bool:
    if millis is None:
        return after is None and before is None
    moment = to_datetime(millis)
    return (after is None or after <= moment) and (before is None or moment < before)


def _carries(payload: str, wanted: Mapping[str, Any]) -> bool:
    if not wanted:
        return True
    data = json.loads(payload)
    return all(_equal(_at(data, path.split(".")), value) for path, value in wanted.items())


def _at(data: Any, path: list[str]) -> Any:
    """The value at the end of the path, or an object that equals nothing."""
    for name in path:
        if not isinstance(data, dict) or name not in data:
            return object()
        data = data[name]
    return data


def _equal(found: Any, wanted: Any) -> bool:
    """As JSON values: there true is not 1."""
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def _as_data(record: Filter | Edit) -> dict[str, Any]:
    """What is set in it, as JSON would have it."""
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    written = {name: dict(value) if name == "payload" and value and not isinstance(value, str) else value
               for name, value in values.items() if value not in (None, (), {})}  # fmt: skip
    return dict(json.loads(json.dumps(written, default=str)))


# -- halts ----------------------------------------------------------------------------------------


def _end_of(halt: Halt) -> Millis | None:
    return None if halt.until is None else to_millis(halt.until)


def _wanted(queue: str | None, wants: Sequence[Want]) -> bool:
    return any(want.queue in (queue, EVERY_QUEUE) for want in wants)
