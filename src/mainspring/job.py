"""The job: its fields, its statuses and the legal moves between them.

`TRANSITIONS` is the whole state machine. Stores implement it, the conformance suite checks each store against it, and
the diagram in docs/jobs.md is drawn from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Literal, TypeGuard

from mainspring.clock import LAST_SHOWN, Millis, to_millis
from mainspring.errors import ConfigurationError, Failure
from mainspring.names import LONGEST_NAME, check_name
from mainspring.queue_patterns import is_pattern


class Status(StrEnum):
    PENDING = "pending"  # waits to be claimed, now or at a later time
    RUNNING = "running"  # claimed by a worker
    RETRYING = "retrying"  # an attempt failed; waits for its retry
    SUSPENDED = "suspended"  # sleeps until `run_at`, or waits for the key in `waits_for`
    COMPLETED = "completed"
    DEAD_LETTER = "dead_letter"  # failed for good; kept for a person to look at and retry
    CANCELLED = "cancelled"


WAITING = frozenset({Status.PENDING, Status.RETRYING})
FINISHED = frozenset({Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED})
LIVE = frozenset(Status) - FINISHED


class Move(StrEnum):
    """What can happen to a job."""

    CLAIM = "claim"  # a worker takes it
    DONE = "done"  # the handler returned
    RETRY = "retry"  # the handler failed, or overran its timeout; it is tried again
    SNOOZE = "snooze"  # the handler raised Snooze, or it is outside delivery hours; uses no attempt
    RELEASE = "release"  # the worker hands it back unfinished; uses no attempt
    SUSPEND = "suspend"  # a durable function sleeps or waits, or something holds the job back
    WAKE = "wake"  # what it waits for has happened
    CRASH = "crash"  # the process that ran it died
    DEAD = "dead"  # out of attempts, discarded, or crashed too often
    CANCEL = "cancel"  # by its handler or by hand
    EDIT = "edit"  # payload, priority, queue or time changed by hand
    MANUAL_RETRY = "manual_retry"  # an operator retries it, with a full budget of attempts


TRANSITIONS: Mapping[Status, Mapping[Move, Status]] = {
    Status.PENDING: {
        Move.CLAIM: Status.RUNNING,
        Move.CANCEL: Status.CANCELLED,
        Move.EDIT: Status.PENDING,
    },
    Status.RETRYING: {
        Move.CLAIM: Status.RUNNING,
        Move.CANCEL: Status.CANCELLED,
        Move.EDIT: Status.RETRYING,
        Move.MANUAL_RETRY: Status.PENDING,
    },
    Status.RUNNING: {
        Move.DONE: Status.COMPLETED,
        Move.RETRY: Status.RETRYING,
        Move.SNOOZE: Status.PENDING,
        Move.RELEASE: Status.PENDING,
        Move.SUSPEND: Status.SUSPENDED,
        Move.CRASH: Status.PENDING,
        Move.DEAD: Status.DEAD_LETTER,
        Move.CANCEL: Status.CANCELLED,
    },
    Status.SUSPENDED: {
        Move.CLAIM: Status.RUNNING,  # its time has come
        Move.WAKE: Status.PENDING,
        Move.CANCEL: Status.CANCELLED,
    },
    Status.COMPLETED: {},
    Status.DEAD_LETTER: {Move.MANUAL_RETRY: Status.PENDING},
    Status.CANCELLED: {Move.MANUAL_RETRY: Status.PENDING},
}

MAX_CRASHES = 3
"""A job whose worker died this often becomes a dead letter, because the job is the likeliest cause."""


def statuses_that_allow(move: Move) -> frozenset[Status]:
    return frozenset(status for status, moves in TRANSITIONS.items() if move in moves)


CLAIMABLE = statuses_that_allow(Move.CLAIM)
"""The statuses in which a worker may claim a job, once it is due."""


def revision_of(token: int, status: Status, updated_at: Millis) -> str:
    """Return a text that changes whenever a job changes.

    A claim changes the token, and the end of a run changes the status. A change by hand sets a later time, even if it
    is made in the same millisecond as the change before it.
    """
    return f"{token}-{status}-{updated_at}"


class Priority(IntEnum):
    """The four levels of priority. Every index and the claim's loose scan depend on this number."""

    URGENT = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3

    @classmethod
    def parse(cls, value: Priority | str) -> Priority:
        if problem := cls.problem_of(value):
            raise ValueError(problem)
        return value if isinstance(value, Priority) else cls[value.upper()]

    @classmethod
    def problem_of(cls, value: object) -> str | None:
        if isinstance(value, Priority) or (isinstance(value, str) and value.upper() in cls.__members__):
            return None
        return f"{value!r} is not a priority; use one of {', '.join(p.name.lower() for p in cls)}"


PriorityName = Literal["urgent", "high", "normal", "low"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job, as its history shows it."""

    number: int
    worker: str
    started_at: datetime
    finished_at: datetime
    move: Move  # how it ended
    failure: Failure | None = None
    version: str = ""  # of the worker's code


@dataclass(frozen=True, slots=True)
class Progress:
    fraction: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as a reader sees it. Times are UTC."""

    id: str
    task: str
    queue: str
    status: Status
    priority: Priority
    payload: Any  # the decoded JSON
    run_at: datetime  # when it is due; UNTIL_WOKEN: only when something wakes it
    created_at: datetime
    started_at: datetime | None  # when it was last claimed or, once it finished, when its last run began
    finished_at: datetime | None
    updated_at: datetime  # when its status, progress or options changed last; of a finished job, when it finished
    expires_at: datetime | None  # when retention removes it
    attempts: int  # runs that ended in success or failure; snoozes, releases and crashes do not count
    max_attempts: int
    crashes: int
    token: int  # grows with each claim, never shrinks
    worker: str | None  # the worker that runs it, or ran it last
    timeout: float | None  # seconds
    dedupe_key: str | None
    target: tuple[str, str] | None  # (type, id) of the thing it is about
    tags: tuple[str, ...]
    progress: Progress | None
    result: Any
    failure: Failure | None  # the last one
    reason: str  # why it was cancelled, discarded or put off; empty once it has completed
    cancel_requested: bool
    waits_for: str | None = None  # suspended until this key is woken, see `Store.wake`
    options: Mapping[str, Any] = field(default_factory=dict)  # options for workers, see `NewJob`
    fingerprint: str | None = None  # of its last failure, also while it is retried and once it has succeeded
    version: str = ""  # of the code of the worker that ran it last

    @property
    def finished(self) -> bool:
        return self.status in FINISHED

    @property
    def revision(self) -> str:
        """A text that changes whenever the job changes. Give it as `expect` to change only what you have read."""
        return revision_of(self.token, self.status, to_millis(self.updated_at))

    @property
    def timeout_at(self) -> datetime | None:
        """When the running job reaches its timeout; None if it does not run or has no timeout."""
        if self.status is not Status.RUNNING or self.timeout is None or self.started_at is None:
            return None
        return self.started_at + timedelta(seconds=self.timeout)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that its enqueue gave it, with `using(headers=…)` or middleware."""
        given: Mapping[str, str] = self.options.get("headers", {})
        return given

    @property
    def planned_steps(self) -> tuple[str, ...]:
        """The steps that its enqueue asked for with `using(steps=…)`, or else those that its task declared."""
        plan: Sequence[Sequence[Any]] | None = self.options.get("plan")
        return tuple(self.options.get("steps", ())) if plan is None else tuple(name for name, _ in plan)

    @property
    def replay_of(self) -> str | None:
        """The id of the job that this one replays; None if it is not a replay."""
        of: str | None = self.options.get("replay", {}).get("of")
        return of

    @property
    def trace(self) -> Mapping[str, str]:
        """Its trace context, such as `traceparent`: from `using(trace=…)`, middleware, or the job that enqueued it."""
        given: Mapping[str, str] = self.options.get("trace", {})
        return given


class Level(IntEnum):
    """Who has decided an option of a job. Settings that are changed at run time override the higher numbers."""

    ENQUEUE = 0
    TASK = 1
    QUEUE = 2  # or the application, or no one


@dataclass(slots=True)
class NewJob:
    """A job on its way into a store."""

    id: str
    task: str
    payload: str  # JSON text
    queue: str = "default"
    priority: int = Priority.NORMAL
    run_at: Millis | None = None  # None: the store's now plus `delay`
    delay: Millis = 0
    max_attempts: int = 3
    timeout: Millis = 0  # 0: none
    dedupe_key: str | None = None
    dedupe_for: Millis | None = None  # None: while the job is live; FOREVER; or that long from now
    target: tuple[str, str] | None = None
    tags: tuple[str, ...] = ()
    keep: Millis = 7 * 86_400_000  # how long a completed or cancelled job stays readable
    keep_dead: Millis = 30 * 86_400_000
    options: str | None = None  # JSON: this job's own options for the worker, such as its retry policy or isolation
    waits_for: str | None = None  # starts as suspended, until this key is woken, or until run_at or delay if given
    timeout_level: Level = Level.ENQUEUE  # not stored: who has decided `timeout`
    attempts_level: Level = Level.ENQUEUE  # not stored: who has decided `max_attempts`


class FreshJobs(list[NewJob]):
    """Jobs that were just made from checked options and payloads. No other code could change them since."""


def check_queue(name: str) -> str:
    """Raise ConfigurationError for an invalid queue name. Some stores would take an empty name for all queues."""
    if not name or is_pattern(name):
        msg = f"{name!r} is not a name for a queue; give 1 to {LONGEST_NAME} characters, but no star at the end"
        raise ConfigurationError(msg)
    return check_name(name, "the queue")


def check_prepared(what: str, jobs: Iterable[Any]) -> None:
    """Raise ConfigurationError unless all are prepared jobs. A common mistake is to pass the task itself."""
    for job in jobs:
        if not isinstance(job, NewJob):
            msg = f"{what} takes prepared jobs, made with task.prepare(…), not {job!r}"
            raise ConfigurationError(msg)


FOREVER: Millis = -1
"""A value for `dedupe_for`: the key is held for ever."""

KEEP_FOREVER: Millis = 2**62
"""A value for `keep` or `keep_dead`: retention never removes the job."""


@dataclass(slots=True)
class Inserted:
    """The result for a `NewJob`: its id if it was created, else the id of the job that already holds its dedupe key."""

    id: str
    created: bool


@dataclass(slots=True)
class Claim:
    """A job that a worker has claimed. Every write about it carries the token."""

    id: str
    token: int
    task: str
    queue: str
    payload: str
    priority: int
    attempts: int
    max_attempts: int
    crashes: int
    timeout: Millis
    run_at: Millis
    created_at: Millis
    dedupe_key: str | None = None
    target: tuple[str, str] | None = None
    tags: tuple[str, ...] = ()
    options: str | None = None
    fingerprint: str | None = None  # of its last failure
    ref: Any = None  # only the store reads it, to find the job again; the outcome carries it back

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.attempts + 1


@dataclass(slots=True)
class Outcome:
    """How a run ended: all that a store needs to record it.

    `move` is one of DONE, RETRY, SNOOZE, RELEASE, SUSPEND, CRASH, DEAD, CANCEL. DONE, RETRY, DEAD and CANCEL count as
    an attempt. CRASH counts as a crash; the store turns the job's `MAX_CRASHES`th crash into DEAD. SUSPEND resets
    attempts and crashes, so that each stretch of a durable function has the full budget. If the job is `blocked`, it
    has not run: SUSPEND keeps them, and its claim does not count as a start in the numbers.
    """

    job_id: str
    token: int
    move: Move
    started_at: Millis = 0  # by the worker's clock; only for display
    finished_at: Millis = 0
    delay: Millis = 0  # RETRY, SNOOZE, RELEASE, SUSPEND: run again after this long, by the store's clock
    result: str | None = None  # JSON text
    failure: Failure | None = None
    reason: str = ""
    follow_ups: tuple[NewJob, ...] = ()  # inserted in the same commit, or not at all
    ref: Any = None  # copied from the claim; without it the store searches for the job
    waits_for: str | None = None  # SUSPEND: run as soon as this key is woken, even before `delay` is over
    steps: tuple[Step, ...] = ()  # written in the same commit
    recovers: str | None = None  # DONE: the fingerprint of the job's last failure
    is_followed: bool = False  # DONE: the job's options have `on_end`, so this is not a plain success
    timed_out: bool = False  # its timeout ended the run; a TimeoutError of the handler itself is just an error
    blocked: bool = False  # something held the job back, such as a limit or a halt, and its handler was not called
    inserted: Sequence[Inserted] = ()  # set by the store: what became of each follow-up


RetryReason = Literal["error", "timeout", "crash"]
"""Why a job is tried again."""


def retry_reason(outcome: Outcome) -> RetryReason:
    """Return why a run is retried. The handler's own `TimeoutError`, say of a service it calls, is just an error."""
    if outcome.move is Move.CRASH:
        return "crash"
    return "timeout" if outcome.timed_out else "error"


UNTIL_WOKEN: Millis = LAST_SHOWN
"""A value for `delay` or `run_at` of a job that runs only when woken: the last day of the year 9999."""


ENDS = "job:"


def end_of(job_id: str) -> str:
    """Return the key that is woken when this job has finished, in whatever way, or is deleted."""
    return f"{ENDS}{job_id}"


def is_end(key: str | None) -> TypeGuard[str]:
    """Return whether a `waits_for` key stands for the end of a job."""
    return key is not None and key.startswith(ENDS)


def awaited_job(key: str) -> str:
    """Return the id of the job whose end this key stands for."""
    return key.removeprefix(ENDS)


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded step of a durable function, so that its next run does not repeat it."""

    name: str  # unique within the job
    number: int  # in the order in which the function called them, from 1
    kind: str = "step"
    output: str | None = None  # JSON text
    started_at: Millis = 0  # by the worker's clock; only for display
    finished_at: Millis = 0


@dataclass(slots=True)
class Save:
    """Steps of a run to be written, with the jobs that they spawn. Fenced by the token, like an outcome."""

    job_id: str
    token: int
    steps: tuple[Step, ...]
    jobs: tuple[NewJob, ...] = ()  # inserted in the same commit, or not at all
    ref: Any = None  # copied from the claim; without it the store searches for the job


@dataclass(slots=True)
class ProgressReport:
    """Progress to be written. Fenced like an outcome: the store ignores a run that lost its claim."""

    job_id: str
    token: int
    fraction: float
    note: str


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of a job's timeline."""

    at: datetime
    what: str  # created, claimed, a Move, or an operator's action
    detail: str = ""
    actor: str = ""  # a worker's id, or the operator's name in the audit log


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs a queue has in each status."""

    queue: str
    by_status: Mapping[Status, int] = field(default_factory=dict)

    def __getitem__(self, status: Status) -> int:
        return self.by_status.get(status, 0)
