"""The change feed: what happened to jobs, halts, workers and documents, in order, for readers in any process.

A store writes the entries of the feed in the same commit as the changes themselves. An entry lists all jobs of one task
and queue to which the same thing happened in one write. So a batch of a thousand acks adds a few entries, and the feed
costs little even though nothing may ever read it.

Order: two changes of one job are read in the order in which they were committed. Changes of different jobs may be read
in another order than they were committed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from mainspring.clock import Millis, to_datetime
from mainspring.errors import ConfigurationError
from mainspring.names import check_searched

RETENTION: Millis = 72 * 3_600_000  # how long the feed keeps an entry
MAX_ENTRIES = 1_000_000  # that the feed keeps; older ones are deleted earlier than RETENTION says
MAX_JOBS = 1000  # of one entry
LONGEST_TEXT = 500  # characters of an error or a reason in the feed; the job itself has the whole text


class ChangeKind(StrEnum):
    """What happened. docs/changes.md lists the data of each kind."""

    CREATED = "created"
    STARTED = "started"  # a worker claimed the job
    PROGRESSED = "progressed"
    RETRYING = "retrying"  # the attempt failed, and the job waits for the next one
    SNOOZED = "snoozed"
    RELEASED = "released"  # its worker handed it back unfinished
    STALLED = "stalled"  # it was taken from its worker, which died or let it run for too long
    SUSPENDED = "suspended"
    RESUMED = "resumed"  # what a suspended job waited for has happened
    COMPLETED = "completed"
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"
    CANCEL_REQUESTED = "cancel_requested"  # a running job was asked to stop
    RETRIED = "retried"  # by hand
    EDITED = "edited"
    DELETED = "deleted"  # by hand; what retention deletes is not in the feed
    HALTED = "halted"  # the whole system, or one queue
    HALT_ENDED = "halt_ended"
    WORKER_JOINED = "worker_joined"
    WORKER_LEFT = "worker_left"
    WORKER_DIED = "worker_died"
    SCHEDULE = "schedule"  # a schedule was written or deleted
    BREAKER = "breaker"
    FAILURE_GROUP = "failure_group"  # a failure group is new, or its state has changed
    DOCUMENT = "document"  # any other document that is written with `Write.recorded`


JOB_KINDS = frozenset(ChangeKind) - {
    ChangeKind.HALTED, ChangeKind.HALT_ENDED, ChangeKind.WORKER_JOINED, ChangeKind.WORKER_LEFT, ChangeKind.WORKER_DIED,
    ChangeKind.SCHEDULE, ChangeKind.BREAKER, ChangeKind.FAILURE_GROUP, ChangeKind.DOCUMENT,
}  # fmt: skip

Data = Mapping[str, Any]
"""JSON data about a change. Its fields depend on the kind."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened to one job, halt, worker or document."""

    id: str  # the same for every reader, and whenever it is read: use it as an idempotency key
    at: datetime  # by the store's clock
    kind: ChangeKind
    job_id: str | None  # None: the change is not about a job; then task and target are None too
    task: str | None
    queue: str | None
    target: tuple[str, str] | None
    data: Data
    cursor: str  # resume after this change


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """Selects changes. Every field that is set must match; a tuple matches any of its values."""

    kinds: tuple[ChangeKind | str, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    target_type: str | None = None
    target_id: str | None = None

    def __post_init__(self) -> None:
        for name in ("kinds", "queues", "tasks", "jobs"):
            given = getattr(self, name)
            if isinstance(given, str):  # tuple() would split it into letters
                msg = f"{name} of a ChangeFilter must be a tuple, not a string; write {name}=({str(given)!r},)"
                raise ConfigurationError(msg)
            object.__setattr__(self, name, tuple(given))
        if unknown := [kind for kind in self.kinds if kind not in frozenset(ChangeKind)]:
            msg = f"{unknown[0]!r} is not a kind of change; use any of {', '.join(ChangeKind)}"
            raise ConfigurationError(msg)
        for name in ("queues", "tasks", "jobs"):
            for text in getattr(self, name):
                check_searched(text, f"one of a ChangeFilter's {name}")
        for name in ("target_type", "target_id"):
            if (text := getattr(self, name)) is not None:
                check_searched(text, f"{name} of a ChangeFilter")

    def wants(self, entry: Entry) -> bool:
        """Return whether changes of this entry may match."""
        return (
            (not self.kinds or entry.kind in self.kinds)
            and (not self.queues or entry.queue in self.queues)
            and (not self.tasks or entry.task in self.tasks)
        )

    def wants_job(self, job: JobRef | None) -> bool:
        """Return whether the change of this job of a wanted entry matches."""
        if job is None:
            return not self.jobs and self.target_type is None and self.target_id is None
        return (
            (not self.jobs or job.id in self.jobs)
            and (self.target_type is None or job.target_type == self.target_type)
            and (self.target_id is None or job.target_id == self.target_id)
        )


EVERY_CHANGE = ChangeFilter()


class JobRef(NamedTuple):
    """A job in an entry of the feed, if there is more to say about it than its id."""

    id: str
    target_type: str | None = None
    target_id: str | None = None
    data: Data | None = None  # besides the data of the entry

    def to_list(self) -> list[Any]:
        """Return the reference for JSON, without what is not set at its end."""
        values: list[Any] = [self.id, self.target_type, self.target_id, self.data]
        while values[-1] is None:
            values.pop()
        return values


@dataclass(slots=True)
class Entry:
    """What one write did to jobs of one task and queue, or to something else."""

    kind: ChangeKind
    queue: str | None = None
    task: str | None = None
    jobs: Sequence[str | JobRef] = ()  # ids, or more; empty: the change is not about a job
    data: Data | None = None  # common to all jobs
    at: Millis = 0  # filled in by the store, as is the number
    number: int = 0
    times: Sequence[int] | None = None  # waits or durations of the jobs, see numbers.py; empty: another entry has them

    def jobs_json(self) -> str | None:
        return json.dumps([job if isinstance(job, str) else job.to_list() for job in self.jobs]) if self.jobs else None

    def data_json(self) -> str | None:
        return None if self.data is None else json.dumps(self.data)

    def times_json(self) -> str | None:
        return None if self.times is None else json.dumps(self.times)


def entry_of(kind: str, queue: str | None, task: str | None, jobs: str | None, data: str | None) -> Entry:
    """Make an entry from its stored form."""
    refs = [job if isinstance(job, str) else JobRef(*job) for job in json.loads(jobs)] if jobs else []
    return Entry(ChangeKind(kind), queue, task, refs, json.loads(data) if data else None)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the feed: after the first `jobs` jobs of the entry with this number, or after all of that entry."""

    life: str  # identifies the feed; a restored or copied store has another one
    number: int
    jobs: int | None = None  # None: the whole entry was read
    mark: str = ""  # what else the store needs to resume here

    def __str__(self) -> str:
        values = [self.life, self.number, self.jobs, self.mark]
        return base64.urlsafe_b64encode(json.dumps(values, separators=(",", ":")).encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Cursor:
        try:
            life, number, jobs, mark = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            return cls(str(life), int(number), None if jobs is None else int(jobs), str(mark))
        except (ValueError, TypeError, binascii.Error, RecursionError) as error:
            msg = f"{text!r} is not a cursor of a change feed; pass the `cursor` of a change, or of a stream of changes"
            raise ConfigurationError(msg) from error


@dataclass(slots=True)
class ChangePage:
    """Entries of the feed after a cursor, oldest first."""

    entries: list[Entry]
    cursor: Cursor  # read on from here
    more: bool = False  # there may be more to read at once
    reset: bool = False  # the old cursor was not valid here, or too old: changes in between are lost to its reader
    marks: Mapping[int, str] = field(default_factory=dict)  # entry -> mark of its cursor, if that is not `cursor.mark`

    def changes(self, where: ChangeFilter, skip: Cursor | None = None) -> Iterator[Change]:
        """Yield the matching changes. `skip` is the cursor with which the page was read."""
        for entry in self.entries:
            if where.wants(entry):
                done = 0 if skip is None or skip.number != entry.number else skip.jobs or 0
                yield from self._of(entry, where, done)

    def _of(self, entry: Entry, where: ChangeFilter, done: int) -> Iterator[Change]:
        last = len(entry.jobs) - 1
        for index, named in enumerate(entry.jobs or (None,)):
            job = JobRef(named) if isinstance(named, str) else named
            if index >= done and where.wants_job(job):
                at = Cursor(self.cursor.life, entry.number, None if index >= last else index + 1, self._mark(entry))
                yield to_change(entry, job, index, at)

    def _mark(self, entry: Entry) -> str:
        return self.marks.get(entry.number, self.cursor.mark)


def to_change(entry: Entry, job: JobRef | None, index: int, cursor: Cursor) -> Change:
    data = entry.data or {}
    if job is not None and job.data:
        data = {**data, **job.data}
    return Change(
        id=f"{cursor.life}-{entry.number}-{index}",
        at=to_datetime(entry.at),
        kind=entry.kind,
        job_id=None if job is None else job.id,
        task=entry.task,
        queue=entry.queue,
        target=None if job is None or job.target_type is None else (job.target_type, job.target_id or ""),
        data=data,
        cursor=str(cursor),
    )
