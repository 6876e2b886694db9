"""What a store must do. Everything else in Mainspring is built on these methods.

Rules that hold for each of them:

- The store's clock decides. No caller passes "now".
- Batched first: a single job is a batch of one.
- Every write about a claimed job carries its token; the store refuses it unless the job is running
  under that very token. So a worker that lost its claim can write nothing in that job's name.
- Filters are data, never SQL.
- A method either took effect as a whole or raises; `insert` may be repeated with the same ids.
- `StoreUnavailable` means "not now": callers may try again. Other `StoreError`s will not pass by themselves.
- Methods may be awaited from any thread's event loop. `heartbeat` is called from a thread of its own.
- A suspended job waits for a time, for its key to be woken (`wake`), or for whichever comes first. Every method that
  finishes or deletes a job wakes the jobs that wait for its `end_of`. A job that is suspended, or inserted, to wait for
  the end of a job that is not live is due at once; stores with transactions decide that in the same commit. For other
  keys, the caller that suspends checks once more afterwards whether the event has happened, and the caller of `wake`
  calls it after the event was written: so one of the two sees the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Flag, StrEnum, auto
from typing import Any, Protocol, runtime_checkable

from mainspring.clock import Clock, Millis
from mainspring.errors import ConfigurationError
from mainspring.ids import new_id
from mainspring.job import (
    Attempt,
    Claim,
    Counts,
    Failure,
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
from mainspring.stores.documents import Bundle, Document, Due, Key, Listing
from mainspring.stores.records import Chunk, Kind, Record

EVERY_QUEUE = "*"


@dataclass(frozen=True, slots=True)
class Want:
    """Up to `limit` jobs of one queue. Wants are served in the order given."""

    queue: str
    limit: int


@dataclass(slots=True)
class Claims:
    jobs: list[Claim]
    next_due: Millis | None = None  # if nothing was claimed: when it is worth asking again, unless woken before
    suspects: bool = False  # a crash suspect is due in these queues; ask again with solo=True when idle
    unknown: frozenset[str] = frozenset()  # tasks, not among those asked for, of due jobs that this claim passed over


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int = 1
    tasks: tuple[str, ...] = ()
    version: str = ""
    started_at: datetime | None = None
    seen_at: datetime | None = None  # last sign of life; filled in by the store
    alive: bool = True
    polling: bool = False  # it cannot hear of new jobs and looks for them now and then; filled in by the store
    heartbeat: float = 1.0  # seconds between its heartbeats
    stuck: int = 0  # slots whose job was told to stop and does not end, as of the last heartbeat


class Wake(Flag):
    JOBS = auto()  # something may be due
    CANCELLATIONS = auto()  # a running job may have been cancelled, or a claim lost
    DOCUMENTS = auto()  # a document may come due soon
    HALTS = auto()  # a halt or pause was set or ended
    STATE = auto()  # a document that workers keep in memory has changed, see Bundle.spread
    ALL = JOBS | CANCELLATIONS | DOCUMENTS | HALTS | STATE


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a heartbeat brings back."""

    lost: frozenset[str] = frozenset()  # held jobs whose claim is no longer ours
    cancelled: Mapping[str, str] = field(default_factory=dict)  # held job -> reason


class TakeoverCause(StrEnum):
    CRASHED = "crashed"  # its worker died, or gave no sign of life for the lease
    STALLED = "stalled"  # it overran its timeout and grace although its worker is alive


@dataclass(frozen=True, slots=True)
class Takeover:
    """A claim that was taken from its worker."""

    job_id: str
    task: str
    queue: str
    worker: str
    cause: TakeoverCause
    status: Status  # PENDING, FAILED, DEAD_LETTER, or CANCELLED where that had been asked for
    attempts: int
    crashes: int
    failure: Failure | None = None
    max_attempts: int = 0
    delay: Millis = 0  # until it is tried again


@dataclass(frozen=True, slots=True)
class StalledRun:
    """A run that overran its timeout and grace, as its task's retry policy needs to know it."""

    job_id: str
    task: str
    queue: str
    attempt: int  # from 1
    options: str | None  # JSON, see `NewJob`


AfterStall = Callable[[StalledRun], Millis | None]
"""How long a stalled job with attempts left waits for the next one; None: it becomes a dead letter."""


def retry_at_once(_run: StalledRun) -> Millis:
    return 0


@dataclass(frozen=True, slots=True)
class Reaped:
    """What `reap` found."""

    takeovers: list[Takeover] = field(default_factory=list)
    dead: frozenset[str] = frozenset()  # workers found dead by this call: what they had begun may be half done


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs. Every field that is set must match; a tuple matches any of its values."""

    ids: tuple[str, ...] = ()
    statuses: tuple[Status, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    target_type: str | None = None
    target_id: str | None = None
    tags: tuple[str, ...] = ()  # all of them
    dedupe_key: str | None = None
    worker: str | None = None
    error_type: str | None = None
    created_after: datetime | None = None  # inclusive
    created_before: datetime | None = None  # exclusive, as are the others
    due_after: datetime | None = None
    due_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)  # "guest.id" -> equal JSON value

    def __post_init__(self) -> None:
        for name in ("ids", "statuses", "queues", "tasks", "tags"):
            given = getattr(self, name)
            if isinstance(given, str):  # each of its letters would be looked for
                msg = f"{name} of a Filter are several: write {name}=({given!r},)"
                raise ConfigurationError(msg)
            if not isinstance(given, tuple):
                object.__setattr__(self, name, tuple(given))
        if unknown := [status for status in self.statuses if status not in frozenset(Status)]:
            msg = f"{unknown[0]!r} is no status; use some of {', '.join(Status)}"
            raise ConfigurationError(msg)
        self._check_texts()
        for path, value in self.payload.items():
            check_searched(path, "the path of a payload filter")
            _check_searched_value(path, value)

    def _check_texts(self) -> None:
        for name in ("ids", "queues", "tasks", "tags"):
            for text in getattr(self, name):
                check_searched(text, f"one of a Filter's {name}")
        for name in ("target_type", "target_id", "dedupe_key", "worker", "error_type"):
            if (text := getattr(self, name)) is not None:
                check_searched(text, f"{name} of a Filter")


def _check_searched_value(path: str, value: Any) -> None:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        check_searched(text, "it")
        problem = "NUL cannot be looked for" if "\\u0000" in text else ""
    except (TypeError, ValueError, RecursionError, ConfigurationError) as error:
        problem = str(error)
    if problem:
        msg = f"a Filter cannot look for that value at {path!r} of a payload: {problem}; give a value that JSON has"
        raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class Page:
    jobs: list[Job]
    cursor: str | None  # pass it to get the next page; None: this was the last


@dataclass(frozen=True, slots=True)
class By:
    """Who changes something by hand, and why: the audit log's half of every such call."""

    actor: str
    reason: str = ""
    operation: str = field(default_factory=new_id)  # chunks of one operation make one entry
    audited: bool = True  # False: nobody's hand, as when an enqueue replaces the job that waits; leaves no entry

    def __post_init__(self) -> None:
        check_searched(self.actor, "actor")
        check_searched(self.reason, "reason")


@dataclass(frozen=True, slots=True)
class Edit:
    """New values for a waiting job; None leaves a field as it is. With a new time, its old `reason` is over."""

    payload: str | None = None
    priority: int | None = None
    queue: str | None = None
    run_at: Millis | None = None
    delay: Millis | None = None  # run_at as the store's now plus this
    max_attempts: int | None = None
    from_step: str | None = None  # REPLAY only: forget this step and those after it

    def new_time(self, now: Millis) -> Millis | None:
        return self.run_at if self.delay is None else now + self.delay


class Action(StrEnum):
    """What can be done to jobs by filter."""

    CANCEL = "cancel"  # waiting or suspended: at once; running: asked for, see Pulse.cancelled
    REPLAY = "retry"  # failed, dead or cancelled: run now with a full budget of attempts; steps are kept
    DELETE = "delete"  # any but running
    EDIT = "edit"  # waiting only


@dataclass(frozen=True, slots=True)
class Changed:
    """One chunk's worth of a change by filter."""

    ids: tuple[str, ...]  # changed at once (or, in a dry run, would be)
    requested: tuple[str, ...] = ()  # running jobs that were asked to cancel
    conflicts: Mapping[str, str] = field(
        default_factory=dict
    )  # not replayed: job -> live job that holds its dedupe key
    cursor: str | None = None  # where the next chunk begins; None: all done


COPIER = "copy"
"""The actor of the halts that `mainspring copy` sets, whose reasons say how far it has come."""


@dataclass(frozen=True, slots=True)
class Halt:
    """The whole system stands still, or (with a queue) one queue is paused."""

    actor: str
    reason: str
    since: datetime
    until: datetime | None = None  # ends by itself then
    queue: str | None = None
    accept: bool = True  # new jobs are accepted for later, or refused with SystemHalted
    number: int = field(default=0, compare=False)  # grows with each halt of a store; filled in by the store

    def __post_init__(self) -> None:
        check_searched(self.actor, "actor")
        check_searched(self.reason, "reason")

    @property
    def guards_copy(self) -> bool:
        """Whether jobs could run twice without it: they were copied to another store, or are being copied."""
        return self.actor == COPIER and not self.reason.startswith("copied from ")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    at: datetime
    actor: str
    action: str
    reason: str
    detail: Mapping[str, Any]  # the filter or edit, as data
    count: int  # jobs changed


@dataclass(frozen=True, slots=True)
class DueTask:
    """The due jobs of one task in one queue, as far as the store has looked."""

    task: str
    queue: str
    due: int  # capped at DUE_CAP
    oldest_due: datetime


@dataclass(frozen=True, slots=True)
class Stats:
    queues: list[Counts]
    due: Mapping[str, int]  # per queue, waiting jobs whose time has come; capped at DUE_CAP
    oldest_due: Mapping[str, datetime]
    workers: list[WorkerInfo]
    halts: list[Halt]
    estimated: bool = False
    measures: Mapping[str, float] = field(default_factory=dict)  # of the process that asks; see Measured
    due_tasks: list[DueTask] = field(default_factory=list)  # every job set aside, and the first DUE_LOOK of each level

    @property
    def unknown_tasks(self) -> list[DueTask]:
        """Due jobs that cannot run: live workers serve their queue, but none of these knows their task."""
        alive = [worker for worker in self.workers if worker.alive]
        serving = {
            one.queue: [worker.tasks for worker in alive if {one.queue, EVERY_QUEUE}.intersection(worker.queues)]
            for one in self.due_tasks
        }
        return [
            one
            for one in self.due_tasks
            if serving[one.queue] and all(tasks and one.task not in tasks for tasks in serving[one.queue])
        ]


DUE_CAP = 10_000  # due jobs that are counted: beyond it, counting would take too long
DUE_LOOK = 1000  # due jobs of one priority of one queue whose tasks `stats` reads


def shown_due(number: int) -> str:
    """A number of due jobs as text: 10,000+ if there may be more."""
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

    Entering gives the database's own connection object, or what the caller gave. Leaving writes the outcome and
    commits, or rolls everything back: on an exception, or, raising `ClaimLost`, if the claim is no longer held.
    """


@runtime_checkable
class Store(Protocol):
    """One place where jobs live."""

    clock: Clock
    url: str  # safe to show: no secrets
    lease: float  # seconds without a sign of life after which a worker counts as dead
    stall_grace: Millis  # beyond a job's timeout
    transactional: bool  # whether `completion` and `insert(connection=…)` are given

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    # -- a job's way --------------------------------------------------------------------------
    async def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        """Make jobs durable; with `connection`, as part of the caller's own transaction.

        An id that exists already is the same insert repeated, and answered as created.
        Raises SystemHalted, inserting nothing, while the system is halted without accept.
        """

    async def claim(
        self,
        worker: str,
        wants: Sequence[Want],
        *,
        limit: int | None = None,
        solo: bool = False,
        tasks: frozenset[str] | None = None,
    ) -> Claims:
        """Take due jobs, at most `limit` in all: by priority, then by due time; none while halted or paused.

        Suspended ones too, whose time has come.

        With `tasks`, only jobs of these tasks. Jobs of other tasks stay due, unchanged, for workers that know them.
        What a claim costs must not grow with their number: a store may set each of them aside once, and after that no
        claim reads it again. If a claim found nothing because it was setting jobs aside, its `next_due` is now.

        A level whose head has waited longer than a patience takes a share of each claim, so that low priorities
        never starve. Suspects (jobs whose worker died) are only given out with `solo`, one at a time and
        nothing beside it.
        """

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        """Write down how runs ended; per outcome the job's new status, or None: the claim was lost.

        A lost claim changes nothing and inserts no follow-ups; the batch's other outcomes are written all the same.
        """

    async def report(self, reports: Sequence[ProgressReport]) -> set[str]:
        """Write progress; returns the ids whose claim still held."""

    async def save(self, saves: Sequence[Save]) -> list[list[Inserted] | None]:
        """Write steps of running jobs and insert their jobs; None: the claim was lost, and nothing of that is written.

        A step of the same name is replaced. May be repeated. Jobs are taken even if a halt refuses new ones.
        """

    async def steps(self, job_id: str) -> list[Step]:
        """By their numbers."""

    async def wake(self, keys: Mapping[str, int]) -> dict[str, int]:
        """Of the jobs that are suspended until a key is called, so many become due now: by priority, then the oldest.

        Per key how many that were. Less than none is a `ConfigurationError`.
        """

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        """A transaction that ends with the outcome, which is asked for when the block is left.

        With `connection` it is one on the caller's own connection, which entering then gives.
        """

    # -- workers ------------------------------------------------------------------------------
    async def join(self, worker: WorkerInfo, wake: Callable[[Wake], None]) -> None:
        """Register a worker. `wake` is called on this event loop whenever it should look."""

    async def leave(self, worker: str) -> None: ...

    async def heartbeat(self, worker: str, held: Mapping[str, int], *, stuck: int = 0) -> Pulse:
        """Extend the worker's lease; return which of its claims (id -> token) are lost or to be cancelled.

        `stuck` is the number of its stuck slots; the store shows it as `WorkerInfo.stuck` until the next heartbeat.
        """

    async def reap(self, after_stall: AfterStall = retry_at_once) -> Reaped:
        """Take over the jobs of dead workers and the stalled ones. Any worker may call it, at any time.

        A worker is dead when its store can prove it, or when the caller has seen no heartbeat of it for `lease` seconds
        of the caller's own monotonic clock: machines' clocks are never compared. Its jobs count a crash. A job is
        stalled when the caller has seen it run, by that clock too, for its timeout plus `stall_grace`: that counts as
        an attempt, and `after_stall` says when the next one is due.

        A dead worker is reported by at least one of its callers, whether it held jobs or not.
        """

    async def prune(self, limit: int = 1000) -> int:
        """Delete up to `limit` jobs (and dedupe records, and documents) whose time is over; returns how many."""

    # -- reading: always works, halted or not ------------------------------------------------------
    async def get(self, ids: Sequence[str]) -> list[Job]: ...
    async def find(self, where: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Newest first."""

    async def count(self, where: Filter) -> int: ...
    async def attempts(self, job_id: str) -> list[Attempt]: ...
    async def timeline(self, job_id: str) -> list[TimelineEntry]: ...
    async def stats(self) -> Stats: ...
    async def audit(self, *, limit: int = 100) -> list[AuditEntry]: ...
    async def diagnose(self) -> list[Finding]: ...

    # -- by hand ------------------------------------------------------------------------------
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
        """Apply an action to one chunk of the matching jobs; if it did anything, write it into the audit log.

        Unless `by` says that nobody did it: then it is in no log, and in no job's timeline.
        """

    async def halt(self, halt: Halt) -> Halt:
        """Halt the system or, with `halt.queue`, pause one queue; return the halt with its number.

        Nothing is claimed after this returns. Workers may still hold jobs that they claimed before: they are woken
        (`Wake.HALTS`), stop starting them, and `confirm`.
        """

    async def resume(self, by: By, queue: str | None = None) -> bool:
        """End a halt or pause; False if there was none."""

    async def halts(self) -> list[Halt]:
        """Halts and pauses in force. A halt that has returned is among them: this never reads an older state."""

    async def confirm(self, worker: str, number: int) -> None:
        """Record that the worker starts nothing that a halt with this number, or a lower one, stops."""

    async def unconfirmed(self, halt: Halt) -> list[WorkerInfo]:
        """Return the live workers of the halted queues that have not confirmed the halt; none if it is over.

        A store may also wake those workers again, in case they missed the first wake-up.
        """

    # -- beside jobs, see documents.py ---------------------------------------------------------------------
    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        """Write each bundle if it finds the versions that it expects; else None, and nothing of that bundle.

        May be repeated with the same bundles. Raises SystemHalted, writing nothing, if their jobs are refused.
        """

    async def documents(self, keys: Sequence[Key]) -> list[Document]:
        """Those that are there, in any order."""

    async def browse(self, listing: Listing) -> list[Document]:
        """By group and id, in the order of their characters' numbers."""

    async def due(self, collection: str, limit: int = 100, *, ahead: Millis = 0) -> Due:
        """Those whose time has come or, with `ahead`, will come within so long; the longest overdue first."""

    # -- moving to another store, see records.py; none of it minds a halt --------------------------------
    async def dump(self, kind: Kind, *, after: str | None = None, limit: int = 1000) -> Chunk:
        """Records of one kind, up to `limit` and some megabytes, in an order of the store's own; then from a cursor."""

    async def look_up(self, kind: Kind, keys: Sequence[str]) -> list[Record]:
        """Those of these records that are here, in any order."""

    async def load(self, kind: Kind, records: Sequence[Record]) -> dict[str, str]:
        """Put records in as they are, all or nothing; whatever is here already stays as it is.

        Returns the keys of those that were not put in, with who was in the way: a job that is here already is so
        itself; else it is the live job that holds the dedupe key, or whose record or operation it is.
        """

    async def sizes(self) -> Mapping[Kind, int]:
        """About how many records there are of each kind."""

    async def under_way(self) -> int:
        """How many runs, or transactions in which callers enqueue, can change something although all is halted."""


@runtime_checkable
class Migrating(Protocol):
    """A store whose tables can be made and brought up to date by hand, before any program opens it."""

    async def version(self) -> int:
        """Of the tables; 0: there are none of ours. Makes nothing."""

    async def migrate(self) -> list[str]:
        """Run what is missing; the names of what was run."""


@runtime_checkable
class Immediate(Protocol):
    """A store that can do without an event loop what small programs do most."""

    def insert_now(self, jobs: Sequence[NewJob]) -> list[Inserted] | None:
        """As `insert`, in the caller's thread, from any thread. None: not now; nothing was done that `insert` minds."""


@runtime_checkable
class Locking(Protocol):
    """A store that only one process can write to at a time."""

    async def wait_to_write(self) -> None:
        """Return when this process could write; nothing is written."""


@runtime_checkable
class Measured(Protocol):
    """A store that counts what it meets with on its way: calls, refusals, waits."""

    def measures(self) -> Mapping[str, float]:
        """Of this process, since it opened the store. `throttling` is 1 while the service refuses calls for now."""


@runtime_checkable
class Timekeeping(Protocol):
    """A store that lets the processes of one machine agree on what time it is."""

    def keep_time(self, doubted_until: Millis) -> tuple[Millis | None, Millis]:
        """Write down what time it is, unless that is not decided, and until when retention doubts it.

        The latter is by the clock of elapsed time. Returns both as they were written last by any process: the time
        (None: there is none yet) and the doubt (0: there is none, or it was another machine's).
        """


@runtime_checkable
class Planned(Protocol):
    """A store whose table can be made in several ways, also by those who make it from a template."""

    def plan_table(self, *, read_units: int | None, write_units: int | None, recovery: bool) -> None:
        """How `migrate` makes it: with provisioned units or, where None, paid by request; perhaps recoverable."""

    def template(self, form: str) -> str:
        """The same for CloudFormation or Terraform."""
