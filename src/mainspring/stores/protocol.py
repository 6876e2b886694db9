"""The methods that every store implements. Everything else in Mainspring is built on them.

These rules hold for all of them:

- The store's clock decides. Callers never pass "now".
- Methods take lists. A single job is a list of one.
- Every write to a claimed job carries the claim's token. The store refuses the write unless the job is running under
  that token. So a worker that lost its claim cannot change the job.
- Filters are data, never SQL.
- A method takes effect completely, or it raises. Callers may repeat `insert` with the same ids.
- `StoreUnavailable` means that the caller may try again later. Other `StoreError`s do not go away by themselves.
- Methods may be awaited from any thread's event loop. `heartbeat` is called from its own thread.
- A suspended job waits for a time, for its key to be woken (`wake`), or for whichever comes first. Every method that
  finishes or deletes a job wakes the jobs that wait for its `end_of`. A job that is suspended, or inserted, to wait for
  the end of a job that is not live is due at once; stores with transactions decide that in the same commit. For other
  keys, the caller that suspends checks once more afterwards whether the event has happened, and the caller of `wake`
  calls it after the event was written: so one of the two sees the other.
- A change by hand, a halt and a bundle may bring the document of a key (`once`, see `current_once` in documents.py). It
  is committed together with the change, at the latest with the first job that a change by filter changes. If another
  request has used the key, nothing is changed and `AlreadyDone` is raised. A call that changes nothing leaves no
  document, and may be answered as usual although the key was used.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Flag, StrEnum, auto
from typing import Any, Protocol, runtime_checkable

from mainspring.clock import Clock, Millis, check_datetime, to_millis
from mainspring.errors import ConfigurationError, Failure
from mainspring.job import (
    Attempt,
    Claim,
    Counts,
    Inserted,
    Job,
    NewJob,
    Outcome,
    ProgressReport,
    Save,
    Status,
    Step,
    TimelineEntry,
)
from mainspring.names import check_searched
from mainspring.queue_patterns import EVERY, is_among
from mainspring.stores.documents import Bundle, By, Document, Due, Key, Listing, Write
from mainspring.stores.feed import ChangePage
from mainspring.stores.numbers import Figure, NumbersQuery
from mainspring.stores.records import Kind, Record, RecordPage

EVERY_QUEUE = EVERY


@dataclass(frozen=True, slots=True)
class Want:
    """A request for up to `limit` jobs. The store serves wants in the order given."""

    queue: str  # or a pattern, see queue_patterns.py
    limit: int


@dataclass(slots=True)
class Claims:
    jobs: list[Claim]
    next_due: Millis | None = None  # if nothing was claimed: when to ask again, unless woken before
    suspects: bool = False  # a crash suspect is due in these queues; ask again with solo=True when idle
    unknown: frozenset[str] = frozenset()  # tasks of due jobs that this claim skipped: the worker does not know them


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int = 1
    tasks: tuple[str, ...] = ()
    version: str = ""  # of its code
    started_at: datetime | None = None
    seen_at: datetime | None = None  # last sign of life; filled in by the store
    alive: bool = True
    polling: bool = False  # it gets no wake-ups and polls for new jobs; filled in by the store
    heartbeat: float = 1.0  # seconds between its heartbeats
    stuck: int = 0  # slots whose job was asked to stop but still runs, as of the last heartbeat
    remote: bool = False  # it runs elsewhere: any process may speak for it, and only its heartbeats show its life


class Wake(Flag):
    JOBS = auto()  # a job may be due
    CANCELLATIONS = auto()  # a running job may have been cancelled, or a claim lost
    DOCUMENTS = auto()  # a document may come due soon
    HALTS = auto()  # a halt or pause was set or ended
    STATE = auto()  # a document that workers keep in memory has changed, see Bundle.spread
    ALL = JOBS | CANCELLATIONS | DOCUMENTS | HALTS | STATE


@dataclass(frozen=True, slots=True)
class Pulse:
    """The answer to a heartbeat."""

    lost: frozenset[str] = frozenset()  # held jobs whose claim the worker has lost
    cancelled: Mapping[str, str] = field(default_factory=dict)  # held job -> reason
    known: bool = True  # False: the store has no such worker; it must join again before it claims


class TakeoverCause(StrEnum):
    CRASHED = "crashed"  # its worker died, or sent no heartbeat for the length of the lease
    STALLED = "stalled"  # it ran longer than its timeout and grace, although its worker is alive


@dataclass(frozen=True, slots=True)
class Takeover:
    """A claim that was taken from its worker."""

    job_id: str
    task: str
    queue: str
    worker: str
    cause: TakeoverCause
    status: Status  # PENDING, RETRYING, DEAD_LETTER; or CANCELLED if a cancellation had been requested
    attempts: int
    crashes: int
    failure: Failure | None = None
    max_attempts: int = 0
    delay: Millis = 0  # until the next attempt
    claimed_at: Millis = 0  # when the run began
    timeout: Millis = 0  # of the run; 0: none


@dataclass(frozen=True, slots=True)
class StalledRun:
    """A run that lasted longer than its timeout and grace: what the task's retry policy needs to know about it."""

    job_id: str
    task: str
    queue: str
    attempt: int  # from 1
    options: str | None  # JSON, see `NewJob`


AfterStall = Callable[[StalledRun], Millis | None]
"""Return how long a stalled job with attempts left waits for the next one; None makes it a dead letter."""


def retry_at_once(_run: StalledRun) -> Millis:
    return 0


@dataclass(frozen=True, slots=True)
class Reaped:
    """The result of `reap`."""

    takeovers: list[Takeover] = field(default_factory=list)
    dead: frozenset[str] = frozenset()  # workers found dead by this call: their work may be half done


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects jobs. Every field that is set must match; a tuple matches any of its values."""

    ids: tuple[str, ...] = ()
    statuses: tuple[Status, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    target_type: str | None = None
    target_id: str | None = None
    tags: tuple[str, ...] = ()  # unlike other tuples: the job must have all of them
    dedupe_key: str | None = None
    worker: str | None = None
    error_type: str | None = None
    fingerprint: str | None = None  # of the last failure: jobs of one failure group
    created_after: datetime | None = None  # inclusive
    created_before: datetime | None = None  # exclusive; the same holds for due_* and finished_*
    due_after: datetime | None = None
    due_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    changed_after: datetime | None = None  # inclusive; see Job.updated_at
    changed_before: datetime | None = None  # exclusive: jobs that have not changed since
    operation: str | None = None  # changed by this operation of the audit log; not on DynamoDB
    payload: Mapping[str, Any] = field(default_factory=dict)  # "guest.id" -> equal JSON value
    within: tuple[str, ...] = ()  # besides `queues`: one of these patterns must fit the queue, see queue_patterns.py

    def __post_init__(self) -> None:
        for name in ("ids", "statuses", "queues", "tasks", "tags", "within"):
            given = getattr(self, name)
            if isinstance(given, str):  # tuple() would split it into letters
                msg = f"{name} of a Filter must be a tuple, not a string; write {name}=({given!r},)"
                raise ConfigurationError(msg)
            if not isinstance(given, tuple):
                object.__setattr__(self, name, tuple(given))
        if unknown := [status for status in self.statuses if status not in frozenset(Status)]:
            msg = f"{unknown[0]!r} is not a status; use any of {', '.join(Status)}"
            raise ConfigurationError(msg)
        self._check_texts()
        self._check_times()
        for path, value in self.payload.items():
            check_searched(path, "the path of a payload filter")
            _check_searched_value(path, value)

    def _check_texts(self) -> None:
        for name in ("ids", "queues", "tasks", "tags", "within"):
            for text in getattr(self, name):
                check_searched(text, f"one of a Filter's {name}")
        for name in ("target_type", "target_id", "dedupe_key", "worker", "error_type", "fingerprint", "operation"):
            if (text := getattr(self, name)) is not None:
                check_searched(text, f"{name} of a Filter")

    def _check_times(self) -> None:
        for field_name in ("created", "due", "finished", "changed"):
            for name in (f"{field_name}_after", f"{field_name}_before"):
                if (moment := getattr(self, name)) is not None:
                    check_datetime(moment, f"{name} of a Filter")


def _check_searched_value(path: str, value: Any) -> None:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        check_searched(text, "it")
        problem = "it has a NUL character" if "\\u0000" in text else ""
    except (TypeError, ValueError, RecursionError, ConfigurationError) as error:
        problem = str(error)
    if problem:
        msg = f"a Filter cannot search for this value at {path!r} of a payload: {problem}; give a JSON value"
        raise ConfigurationError(msg)


class Sort(StrEnum):
    """What a list of jobs is sorted by. Jobs that are equal in it are in the order of their ids."""

    CREATED = "created"
    DUE = "due"  # only waiting and suspended jobs
    FINISHED = "finished"  # only finished jobs
    DURATION = "duration"  # of the last run; only finished jobs; runs under 0.1 s count as equally long
    ATTEMPTS = "attempts"


@dataclass(frozen=True, slots=True)
class Page:
    jobs: list[Job]
    cursor: str | None  # pass it to get the next page; None: this was the last
    partial: bool = False  # the read stopped before the page was full, because few of many rows matched; go on


@dataclass(frozen=True, slots=True)
class CappedCount:
    """A number of jobs that was not counted further than needed."""

    value: int
    exact: bool  # False: there may be more

    def __str__(self) -> str:
        return f"{self.value:,}{'' if self.exact else '+'}"


class Completable(StrEnum):
    """What can be completed from the values in a store."""

    QUEUE = "queue"
    TASK = "task"
    TAG = "tag"
    ERROR_TYPE = "error_type"
    PAYLOAD_KEY = "payload_key"  # with dots, as in Filter.payload


@dataclass(frozen=True, slots=True)
class Edit:
    """New values for a waiting job. None leaves a field as it is. A new time also clears the job's `reason`."""

    payload: str | None = None
    priority: int | None = None
    queue: str | None = None
    run_at: Millis | None = None
    delay: Millis | None = None  # sets run_at to the store's now plus this
    max_attempts: int | None = None
    from_step: str | None = None  # RETRY only: delete this step and all later ones

    def new_time(self, now: Millis) -> Millis | None:
        return self.run_at if self.delay is None else now + self.delay


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A stored text of a job, and another that means the same."""

    job_id: str
    column: str  # payload, options or result; output of a step
    old: str
    new: str
    step: str | None = None  # the step's name


class Action(StrEnum):
    """The changes that can be applied to all jobs that match a filter."""

    CANCEL = "cancel"  # waiting or suspended jobs end at once; running ones are asked to stop, see Pulse.cancelled
    RETRY = "retry"  # retrying, dead or cancelled jobs run now with a full budget of attempts and keep their steps
    DELETE = "delete"  # jobs of every status but running
    EDIT = "edit"  # waiting jobs only


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of a change by filter, for one page of jobs."""

    ids: tuple[str, ...]  # changed at once; in a dry run: would be changed
    requested: tuple[str, ...] = ()  # running jobs that were asked to cancel
    conflicts: Mapping[str, str] = field(default_factory=dict)  # not retried: job -> live job that holds its dedupe key
    stale: tuple[str, ...] = ()  # not changed: their revision is not the expected one
    cursor: str | None = None  # where the next page begins; None: this was the last


@dataclass(slots=True)
class ChangeResult:
    """What a change by filter did, or would do in a dry run."""

    changed: int = 0
    requested: int = 0  # running jobs that were asked to stop
    conflicts: dict[str, str] = field(
        default_factory=dict
    )  # not retried: job -> the live job that holds its dedupe key

    @property
    def count(self) -> int:
        return self.changed + self.requested


COPIER = "copy"
"""The actor of the halts that `mainspring copy` sets. Their reasons record its progress."""


@dataclass(frozen=True, slots=True)
class Halt:
    """A halt of the whole system or, with `queue`, the pause of one queue."""

    actor: str
    reason: str
    since: datetime
    until: datetime | None = None  # when it ends by itself
    queue: str | None = None
    accept: bool = True  # True: new jobs are accepted for later; False: rejected with SystemHalted
    number: int = field(default=0, compare=False)  # grows with each halt of a store; filled in by the store
    once: Write | None = field(default=None, compare=False, repr=False)  # as By.once, for the call of `Store.halt`

    def __post_init__(self) -> None:
        check_searched(self.actor, "actor")
        check_searched(self.reason, "reason")

    @property
    def protects_copy(self) -> bool:
        """Whether ending this halt could make jobs run twice: they were, or are being, copied to another store."""
        return self.actor == COPIER and not self.reason.startswith("copied from ")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    at: datetime
    actor: str
    action: str
    reason: str
    detail: Mapping[str, Any]  # the filter or edit, as data
    count: int  # jobs changed
    operation: str = ""  # the same for all pages of a change, and noted with its jobs

    @property
    def cursor(self) -> str:
        """Pass it to `audit` to get the entries after this one, which are older."""
        return base64.urlsafe_b64encode(json.dumps(self.spot).encode()).decode().rstrip("=")

    @property
    def spot(self) -> AuditSpot:
        return to_millis(self.at), self.operation, self.action


AuditSpot = tuple[Millis, str, str]
"""The place of an entry in the audit log: its time, operation and action."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Selects entries of the audit log. Every field that is set must match."""

    actor: str | None = None
    action: str | None = None
    since: datetime | None = None  # inclusive
    until: datetime | None = None  # exclusive
    job: str | None = None  # the id of a job that was changed, or deleted by hand
    operation: str | None = None

    def __post_init__(self) -> None:
        for name in ("actor", "action", "job", "operation"):
            if (text := getattr(self, name)) is not None:
                check_searched(text, f"{name} of an AuditFilter")
        for name in ("since", "until"):
            if (moment := getattr(self, name)) is not None:
                check_datetime(moment, f"{name} of an AuditFilter")


AUDIT_RETENTION: Millis = 400 * 86_400_000
"""How long entries of the audit log are kept, unless a worker is told otherwise."""


@dataclass(frozen=True, slots=True)
class DueTask:
    """The due jobs of one task in one queue, among those that the store has read."""

    task: str
    queue: str
    due: int  # capped at DUE_CAP
    oldest_due: datetime


@dataclass(frozen=True, slots=True)
class Stats:
    queues: list[Counts]
    due: Mapping[str, int]  # per queue, the number of due jobs; capped at DUE_CAP
    oldest_due: Mapping[str, datetime]
    workers: list[WorkerInfo]
    halts: list[Halt]
    estimated: bool = False
    measures: Mapping[str, float] = field(default_factory=dict)  # of the calling process; see Measured
    oldest_dead: Mapping[str, datetime] = field(default_factory=dict)  # per queue: when its oldest dead letter failed
    stalled: int = 0  # jobs that run longer than their timeout and grace now; workers take them over within seconds
    due_tasks: list[DueTask] = field(default_factory=list)  # all jobs set aside, and the first DUE_LOOK of each level

    @property
    def stuck(self) -> int:
        """The number of stuck slots of all live workers."""
        return sum(worker.stuck for worker in self.workers if worker.alive)

    @property
    def unknown_tasks(self) -> list[DueTask]:
        """The due jobs that cannot run: live workers serve their queue, but none of them knows the task."""
        alive = [worker for worker in self.workers if worker.alive]
        serving = {
            line.queue: [worker.tasks for worker in alive if is_among(line.queue, worker.queues)]
            for line in self.due_tasks
        }
        return [
            line
            for line in self.due_tasks
            if serving[line.queue] and all(tasks and line.task not in tasks for tasks in serving[line.queue])
        ]


DUE_CAP = 10_000  # due jobs that are counted; to count more would take too long
DUE_LOOK = 1000  # `stats` reads the tasks of this many due jobs for each queue and priority


def shown_due(number: int) -> str:
    """Return a number of due jobs as text; "10,000+" if there may be more."""
    return f"{number:,}{'+' if number >= DUE_CAP else ''}"


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `mainspring doctor`."""

    severity: Severity
    check: str
    message: str
    advice: str = ""


class Completion(AbstractAsyncContextManager[Any], AbstractContextManager[Any], Protocol):
    """A transaction on the store's own database that ends with the job's outcome.

    Entering the block returns the database's connection object, or the connection that the caller passed. Leaving it
    writes the outcome and commits. On an exception everything is rolled back. If the worker has lost the claim,
    everything is rolled back too, and leaving raises `ClaimLost`.
    """


@runtime_checkable
class Store(Protocol):
    """Where jobs and documents are stored."""

    clock: Clock
    url: str  # safe to show: no secrets
    lease: float  # seconds without a heartbeat after which a worker counts as dead
    stall_grace: Millis  # how long a run may overrun its timeout before it counts as stalled
    poll: float  # longest seconds between two looks for jobs of an idle worker; 0 if the store wakes its workers
    transactional: bool  # whether it supports `completion` and `insert(connection=…)`

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    # -- the life of a job --------------------------------------------------------------------------
    async def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        """Insert jobs durably; with `connection`, as part of the caller's own transaction.

        A job whose id exists already is a repeated insert: it is reported as created, and nothing is inserted.
        Raises SystemHalted and inserts nothing while a halt rejects new jobs.
        """

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
        """Claim due jobs, at most `limit` in all: by priority, then by due time; none while halted or paused.

        Suspended jobs whose time has come are claimed too. Of several queues with due jobs of one priority, the queue
        whose first job has waited longest is served first, as far as there is room, and then the next one: to merge
        them by due time, a store would have to read the first jobs of all queues for each claim.

        With `tasks`, claim only jobs of these tasks. Jobs of other tasks stay due, unchanged, for workers that know
        them. The cost of a claim must not grow with their number: a store may set each of them aside once, and later
        claims do not read it again. If a claim found nothing because it was setting jobs aside, its `next_due` is now.

        `version` is that of the worker's code. It is stored with the job and, when the run fails, in its history.

        To keep low priorities from starving, a priority level whose first job has waited longer than the store's
        patience gets a share of each claim. Suspects (jobs whose worker died) are claimed only with `solo`: one at a
        time, by due time alone, and no other job with it.
        """

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        """Write the outcomes of runs; return each job's new status, or None if the claim was lost.

        An outcome whose claim was lost changes nothing and inserts no follow-ups. The other outcomes are written.
        """

    async def report(self, reports: Sequence[ProgressReport]) -> set[str]:
        """Write progress; return the ids of the jobs whose claim is still held."""

    async def save(self, saves: Sequence[Save]) -> list[list[Inserted] | None]:
        """Write steps of running jobs and insert the jobs they spawn; return the inserted jobs of each save.

        The answer is None, and nothing is written, where the claim was lost. A step of the same name is replaced.
        Callers may repeat it. The jobs are inserted even while a halt rejects new ones.
        """

    async def steps(self, job_id: str) -> list[Step]:
        """Return the steps of a job, ordered by number."""

    async def wake(self, keys: Mapping[str, int]) -> dict[str, int]:
        """Wake up to `n` jobs waiting for each key (key -> n); return the number woken per key.

        Jobs of higher priority are woken first, then older ones. A negative number raises `ConfigurationError`.
        """

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        """Return a transaction that ends with the job's outcome. `outcome` is called when the block is left.

        With `connection`, the transaction runs on the caller's own connection, and entering returns that connection.
        """

    # -- workers ------------------------------------------------------------------------------
    async def join(self, worker: WorkerInfo, wake: Callable[[Wake], None] | None) -> None:
        """Register a worker. The store calls `wake` on this event loop whenever the worker should look for changes.

        To join again is a heartbeat, and replaces `wake`. A remote worker (`WorkerInfo.remote`) is not tied to this
        process: any process may join it again, send its heartbeats and write for it, and it outlives all of them. Only
        its silence shows that it is dead; then `reap` removes it, and `Pulse.known` tells it to join again. With `wake`
        None, this process is no longer told what a remote worker should look for.
        """

    async def leave(self, worker: str) -> None: ...

    async def heartbeat(self, worker: str, held: Mapping[str, int], *, stuck: int = 0) -> Pulse:
        """Extend the worker's lease; return which of its claims (id -> token) are lost or to be cancelled.

        `stuck` is the number of its stuck slots; the store shows it as `WorkerInfo.stuck` until the next heartbeat.
        Any process may send the heartbeats of a remote worker.
        """

    async def reap(self, after_stall: AfterStall = retry_at_once) -> Reaped:
        """Take over the jobs of dead workers, and stalled jobs. Any worker may call it, at any time.

        A worker is dead when the store can prove it, or when the caller has seen no heartbeat from it for `lease`
        seconds. A job is stalled when the caller has seen it run for its timeout plus `stall_grace`. The caller
        measures both by its own monotonic clock: clocks of different machines are never compared. The jobs of a dead
        worker count a crash. A stalled job counts an attempt, and `after_stall` decides when the next one is due.

        At least one caller gets each dead worker reported, even if the worker held no jobs.
        """

    async def prune(self, limit: int = 1000, *, keep_audit: Millis = AUDIT_RETENTION) -> int:
        """Delete up to `limit` expired jobs (and dedupe records, and documents); return how many were deleted.

        Old entries of the audit log, and of the change feed, are deleted too. They count only if there may be more of
        them, so that the caller goes on.
        """

    # -- reading: always works, halted or not ------------------------------------------------------
    async def get(self, ids: Sequence[str], *, within: Sequence[str] = ()) -> list[Job]:
        """Return the jobs with these ids that exist; with `within`, only those of these queues, see `Filter.within`."""

    async def tags(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the tags of the jobs with these ids that exist and have tags."""

    async def find(
        self,
        where: Filter,
        *,
        sort: Sort = Sort.CREATED,
        descending: bool = True,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Return one page of the matching jobs, sorted. Only `get` returns the tracebacks of failures.

        A page takes bounded time: after many rows that do not match, it ends early (`Page.partial`). The cursor fits
        only the same filter and sort. For the jobs in the order of their creation, the id of a job is a cursor too.
        """

    async def count(self, where: Filter) -> int: ...
    async def count_up_to(self, where: Filter, cap: int) -> CappedCount:
        """Count the matching jobs in bounded time: stop at `cap`, or after many rows that do not match."""

    async def dead_letters(
        self, fingerprints: Sequence[str], cap: int, *, within: Sequence[str] = ()
    ) -> dict[str, dict[str, int]]:
        """Count the dead letters of failure groups: fingerprint -> queue -> number, without zeros.

        Of each group, the oldest `cap` are counted; with `within`, only those of these queues, see `Filter.within`.
        """

    async def complete(
        self,
        what: Completable,
        prefix: str,
        *,
        limit: int = 20,
        task: str | None = None,
        within: Sequence[str] = (),
    ) -> list[str]:
        """Return values that begin with the prefix, sorted. All queues; the others may be of the newest jobs only.

        With `within`, only values of jobs in these queues, see `Filter.within`.
        """

    async def attempts(self, job_id: str) -> list[Attempt]: ...
    async def timeline(self, job_id: str) -> list[TimelineEntry]: ...
    async def stats(self, within: Sequence[str] = ()) -> Stats:
        """Return how the system is now. With `within`, only what is about these queues, and about all workers."""

    async def changes(
        self, after: str | None = None, *, limit: int = 500, starts: bool = False, until: str | None = None
    ) -> ChangePage:
        """Return up to `limit` entries of the change feed after a cursor, see feed.py.

        Without a cursor, return no entries and the cursor of now. If the cursor is of another feed, or so old that
        entries after it may have been deleted, return no entries, the cursor of now, and `reset`. An entry appears in
        the feed if and only if the change that it describes was committed. Each entry is returned once to a reader
        that passes on its cursor, and entries of one job in the order of their commits.

        Claims are in the feed only on request. With `starts`, they are recorded from before the page is read until at
        least RETENTION later, whichever process claims. Otherwise claims are only counted, for the numbers over time.
        A claim that is under way in another process when the first reader asks may be only counted.

        `until` is the cursor of a page without `more`, which was read after the page that ended at `after`. Then the
        last page ends exactly where that one ended: two readers with different histories are at the same place.
        """

    async def numbers(self, query: NumbersQuery) -> list[Figure]:
        """Return what happened to jobs over time, see numbers.py. Each place and period appears once.

        Everything that was committed is included at once, and nothing twice. A store without transactions may lag and
        lose some when a process is killed.
        """

    def watching(self, notice: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Call `notice` on this event loop whenever the change feed may have grown, until the block is left."""

    async def audit(
        self, where: AuditFilter | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> list[AuditEntry]:
        """Return entries of the audit log, newest first; with a cursor those after it, see `AuditEntry.cursor`."""

    async def diagnose(self) -> list[Finding]: ...

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
        """Apply an action to one page of the matching jobs; if it changed anything, write it into the audit log.

        An operation changes a job once: a page that is repeated, because a process died, skips the jobs that the same
        action of `by.operation` has changed, whatever became of them since. With `by.audited` False, the change appears
        neither in the audit log nor in the timelines of the jobs, and a repeated page does not skip jobs. With
        `by.list_for`, the ids of the changed jobs are written in the same commit as their changes, see affected.py.

        With `by.only_while`, nothing is changed once another process has written that document. The SQL stores lock it
        for the change. DynamoDB reads it before the page: a process that is paused between that and the writes of the
        page changes the page late.

        With `expect`, a job is changed only if that is its `revision` at the moment of the change. The answer names the
        others as `stale`. Of two changes that expect the same revision, one takes effect.
        """

    async def halt(self, halt: Halt) -> Halt:
        """Halt the system or, with `halt.queue`, pause one queue; return the halt with its number.

        No job is claimed after this returns. Workers may still hold jobs that they claimed before: the store wakes the
        workers (`Wake.HALTS`), and they stop starting jobs and call `confirm`.
        """

    async def resume(self, by: By, queue: str | None = None) -> bool:
        """End a halt or pause; False if there was none."""

    async def halts(self) -> list[Halt]:
        """Return the halts and pauses in force. The read is never stale: a halt that has returned is included."""

    async def confirm(self, worker: str, number: int) -> None:
        """Record that the worker no longer starts jobs stopped by the halt with this number, or by an earlier one."""

    async def unconfirmed(self, halt: Halt) -> list[WorkerInfo]:
        """Return the live workers of the halted queues that have not confirmed the halt; none if it has ended.

        Remote workers need not confirm: what they hold counts as started, and no store gives them more.

        A store may also wake those workers again, in case they missed the first wake-up.
        """

    # -- documents, see documents.py ---------------------------------------------------------------------
    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        """Write each bundle whose expected versions match; return the jobs that it inserted.

        The answer is None, and nothing of the bundle is written, if a version does not match. Callers may repeat it
        with the same bundles. Raises SystemHalted and writes nothing if a halt rejects the jobs.
        """

    async def documents(self, keys: Sequence[Key]) -> list[Document]:
        """Return the documents that exist, in any order."""

    async def browse(self, listing: Listing) -> list[Document]:
        """Return documents ordered by group and id, compared by Unicode code points."""

    async def due(self, collection: str, limit: int = 100, *, ahead: Millis = 0) -> Due:
        """Return documents that are due or, with `ahead`, become due within that time; the longest overdue first."""

    # -- moving to another store, see records.py; these methods work during a halt --------------------------------
    async def dump(self, kind: Kind, *, after: str | None = None, limit: int = 1000) -> RecordPage:
        """Return records of one kind from the cursor `after` on, up to `limit` and some megabytes.

        Each store has its own order of records.
        """

    async def look_up(self, kind: Kind, keys: Sequence[str]) -> list[Record]:
        """Return the records with these keys that exist in this store, in any order."""

    async def load(self, kind: Kind, records: Sequence[Record]) -> dict[str, str]:
        """Insert records unchanged, all or nothing; existing ones stay as they are.

        Return the keys of the records that were not inserted, each with what was in the way. For a job that exists
        already, that is the job itself. Otherwise it is the live job that holds the dedupe key, or the owner of the
        existing record, for example its operation.
        """

    async def rewrite(self, texts: Sequence[Rewrite]) -> int:
        """Replace texts, each only if it is still the old one; return how many were replaced.

        For data that is stored in another form and means the same. The job may have any status, and is not changed in
        the sense of the feed, the audit log or `updated_at`. A store may leave out a job that is being written.
        """

    async def sizes(self) -> Mapping[Kind, int]:
        """Return the approximate number of records of each kind."""

    async def under_way(self) -> int:
        """Return how many runs, and open transactions of callers, can still change something during a halt."""


@runtime_checkable
class Migrating(Protocol):
    """A store whose tables can be created and migrated by hand, before any program opens it."""

    async def version(self) -> int:
        """Return the version of the tables, 0 if there are none. Creates nothing."""

    async def migrate(self) -> list[str]:
        """Run the missing migrations; return their names."""


@runtime_checkable
class Immediate(Protocol):
    """A store that can insert jobs without an event loop, which is what small programs do most."""

    def insert_now(self, jobs: Sequence[NewJob]) -> list[Inserted] | None:
        """Insert jobs like `insert`, in the calling thread, from any thread.

        None means that it cannot be done now. Call `insert` then: it is safe to repeat the same jobs.
        """


@runtime_checkable
class Locking(Protocol):
    """A store that only one process can write to at a time."""

    async def wait_to_write(self) -> None:
        """Wait until this process can write. Writes nothing."""


@runtime_checkable
class Measured(Protocol):
    """A store that keeps metrics: calls, refusals, waits."""

    def measures(self) -> Mapping[str, float]:
        """Return the metrics of this process since it opened the store.

        `throttling` is 1 while the service refuses calls temporarily.
        """


@runtime_checkable
class Timekeeping(Protocol):
    """A store that lets the processes of one machine agree on the time."""

    def keep_time(self, doubted_until: Millis) -> tuple[Millis | None, Millis]:
        """Record the time and until when retention must distrust it, unless a jump of the clock is still undecided.

        `doubted_until` is elapsed time, not wall-clock time. Return both values as any process recorded them last: the
        time (None if there is none yet), and the end of the doubt (0 if there is none, or it is of another machine).
        """


@runtime_checkable
class Planned(Protocol):
    """A store whose table can be created in several ways, also from a template."""

    def plan_table(self, *, read_units: int | None, write_units: int | None, recovery: bool) -> None:
        """Set how `migrate` creates the table: provisioned units (None: pay per request), point-in-time recovery."""

    def template(self, form: str) -> str:
        """Return a template that creates the same table, for CloudFormation or Terraform."""
