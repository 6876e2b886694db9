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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

from mainspring.clock import Millis, to_datetime
from mainspring.errors import ConfigurationError, InvalidCursor
from mainspring.names import check_searched
from mainspring.queue_patterns import is_among

RETENTION: Millis = 72 * 3_600_000  # how long the feed keeps an entry
STARTS_RETENTION: Millis = RETENTION + 3_600_000  # how long starts are recorded after a reader asked for them
MAX_ENTRIES = 1_000_000  # that the feed keeps; older ones are deleted earlier than RETENTION says
MAX_JOBS = 1000  # of one entry
LONGEST_TEXT = 500  # characters of an error or a reason in the feed; the job itself has the whole text


class ChangeKind(StrEnum):
    """What happened. docs/changes.md lists the data of each kind."""

    CREATED = "created"
    STARTED = "started"  # a worker claimed the job; recorded only if a reader asks for it
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
    PERSON = "person"
    OCCASION = "occasion"  # of a person
    DOCUMENT = "document"  # any other document that is written with `Write.recorded`


JOB_KINDS = frozenset(ChangeKind) - {
    ChangeKind.HALTED, ChangeKind.HALT_ENDED, ChangeKind.WORKER_JOINED, ChangeKind.WORKER_LEFT, ChangeKind.WORKER_DIED,
    ChangeKind.SCHEDULE, ChangeKind.BREAKER, ChangeKind.FAILURE_GROUP, ChangeKind.PERSON, ChangeKind.OCCASION,
    ChangeKind.DOCUMENT,
}  # fmt: skip

Data = Mapping[str, Any]
"""JSON data about a change. Its fields depend on the kind."""


Tags = Mapping[str, Sequence[str]]
"""The tags of jobs, by id."""


class Source(NamedTuple):
    """What the changes of one entry have in common besides the entry."""

    life: str
    mark: str
    at: datetime
    tags: Tags  # of the jobs of the page, if its reader has looked them up


class Change:
    """One thing that happened to one job, halt, worker or document. Treat it as immutable.

    It takes its fields from the entry when they are asked for: a reader of the whole feed makes very many changes.
    """

    __slots__ = ("_entry", "_index", "_job", "_source")

    def __init__(self, entry: Entry, index: int, job: str | JobRef | None, source: Source) -> None:
        self._entry = entry
        self._index = index
        self._job = job
        self._source = source

    @property
    def id(self) -> str:
        """The same for every reader, and whenever it is read: use it as an idempotency key."""
        return f"{self._source.life}-{self._entry.number}-{self._index}"

    @property
    def at(self) -> datetime:
        """When it happened, by the store's clock."""
        return self._source.at

    @property
    def kind(self) -> ChangeKind:
        return self._entry.kind

    @property
    def job_id(self) -> str | None:
        """The job; None: the change is not about a job, and then task and target are None too."""
        return self._job if self._job is None or isinstance(self._job, str) else self._job.id

    @property
    def task(self) -> str | None:
        return self._entry.task

    @property
    def queue(self) -> str | None:
        return self._entry.queue

    @property
    def target(self) -> tuple[str, str] | None:
        return self._job.target if isinstance(self._job, JobRef) else None

    @property
    def data(self) -> Data:
        """What else is known. Its fields depend on the kind."""
        common = self._entry.data or {}
        if self._job is None:
            return document_data(common, self._index)
        return {**common, **self._job.data} if isinstance(self._job, JobRef) and self._job.data else common

    @property
    def cursor(self) -> str:
        """The text with which to resume after this change."""
        return str(self.place)

    @property
    def place(self) -> Cursor:
        is_last = self._index >= self._entry.size - 1
        jobs = None if is_last else self._index + 1
        return Cursor(self._source.life, self._entry.number, jobs, self._source.mark)

    @property
    def entry_number(self) -> int:
        return self._entry.number

    def matches(self, where: ChangeFilter) -> bool:
        return where.wants(self._entry) and where.wants_job(self._job, self._source.tags)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Change) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Change({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"


FIELDS = ("id", "at", "kind", "job_id", "task", "queue", "target", "data", "cursor")
"""The fields of a change, as `mainspring follow --json` prints them."""


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """Selects changes. Every field that is set must match; a tuple matches any of its values."""

    kinds: tuple[ChangeKind | str, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    target_type: str | None = None
    target_id: str | None = None
    within: tuple[str, ...] = ()  # patterns of queues, as in `Filter`; changes without a queue do not match then
    tags: tuple[str, ...] = ()  # unlike other tuples: the job must have all of them

    def __post_init__(self) -> None:
        for name in ("kinds", "queues", "tasks", "jobs", "within", "tags"):
            given = getattr(self, name)
            if isinstance(given, str):  # tuple() would split it into letters
                msg = f"{name} of a ChangeFilter must be a tuple, not a string; write {name}=({str(given)!r},)"
                raise ConfigurationError(msg)
            object.__setattr__(self, name, tuple(given))
        if unknown := [kind for kind in self.kinds if kind not in frozenset(ChangeKind)]:
            msg = f"{unknown[0]!r} is not a kind of change; use any of {', '.join(ChangeKind)}"
            raise ConfigurationError(msg)
        for name in ("queues", "tasks", "jobs", "within", "tags"):
            for text in getattr(self, name):
                check_searched(text, f"one of a ChangeFilter's {name}")
        for name in ("target_type", "target_id"):
            if (text := getattr(self, name)) is not None:
                check_searched(text, f"{name} of a ChangeFilter")

    @property
    def asks_for_starts(self) -> bool:
        """Whether its readers have starts recorded. Without kinds, they see only those that others asked for."""
        return ChangeKind.STARTED in self.kinds

    @property
    def is_about_jobs(self) -> bool:
        """Whether it selects among the jobs of an entry. Otherwise an entry matches as a whole."""
        return bool(self.jobs or self.tags or self.target_type is not None or self.target_id is not None)

    def wants(self, entry: Entry) -> bool:
        """Return whether changes of this entry may match."""
        return (
            (not self.kinds or entry.kind in self.kinds)
            and (not self.queues or entry.queue in self.queues)
            and (not self.tasks or entry.task in self.tasks)
            and (not self.within or (entry.queue is not None and is_among(entry.queue, self.within)))
        )

    def wants_job(self, named: str | JobRef | None, tags: Tags) -> bool:
        """Return whether the change of this job of a wanted entry matches."""
        if named is None:
            return not self.is_about_jobs
        job = JobRef(named) if isinstance(named, str) else named
        return (
            (not self.jobs or job.id in self.jobs)
            and (not self.tags or set(self.tags).issubset(tags.get(job.id, ())))
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

    @property
    def target(self) -> tuple[str, str] | None:
        return None if self.target_type is None else (self.target_type, self.target_id or "")

    def to_list(self) -> list[Any]:
        """Return the reference for JSON, without what is not set at its end."""
        values: list[Any] = [self.id, self.target_type, self.target_id, self.data]
        while values[-1] is None:
            values.pop()
        return values


def check_where(where: object) -> None:
    if not isinstance(where, ChangeFilter):
        msg = f"where is {where!r}; give a ChangeFilter, such as ChangeFilter(kinds=('dead_lettered',))"
        raise ConfigurationError(msg)


@dataclass(slots=True)
class Entry:
    """What one write did to jobs of one task and queue, to documents of one group, or to something else."""

    kind: ChangeKind
    queue: str | None = None
    task: str | None = None
    jobs: Sequence[str | JobRef] = ()  # ids, or more; empty: the change is not about a job, see also `only_counts`
    data: Data | None = None  # common to all jobs; with IDS if it is about documents
    at: Millis = 0  # filled in by the store, as is the number
    number: int = 0
    times: Sequence[int] | None = None  # waits or durations of the jobs, see numbers.py; empty: another entry has them

    @property
    def size(self) -> int:
        """The number of its changes."""
        return len(self.jobs) or len((self.data or {}).get(IDS, (None,)))

    def jobs_json(self) -> str | None:
        return to_json(self.jobs) if self.jobs else None

    def data_json(self) -> str | None:
        return None if self.data is None else json.dumps(self.data)

    def times_json(self) -> str | None:
        return None if self.times is None else json.dumps(self.times)


IDS = "ids"
"""In the data of an entry: the documents that it is about."""


def document_data(common: Data, index: int) -> Data:
    """Return the data of one document of an entry; of an entry that is not about documents, all of its data."""
    if IDS not in common:
        return common
    return {"id" if name == IDS else name: value[index] if name == IDS else value for name, value in common.items()}


def only_counts(kind: str, jobs: object) -> bool:
    """Return whether a stored entry is not for readers: it counts starts for the numbers, without naming the jobs."""
    return kind == ChangeKind.STARTED and not jobs


def are_asked_for(starts_until: Millis, now: Millis) -> bool:
    """Return whether the request of a reader for starts is fresh. If not, the reader asks again: about once an hour."""
    return starts_until - now > RETENTION


def to_json(jobs: Sequence[Any]) -> str:
    """Return ids and references as JSON. Ids are UUIDs, so if there is nothing else, there is nothing to escape."""
    try:
        return '["' + '","'.join(jobs) + '"]'
    except TypeError:
        return json.dumps([job if isinstance(job, str) else job.to_list() for job in jobs])


def entry_of(kind: str, queue: str | None, task: str | None, jobs: str | None, data: str | None) -> Entry:
    """Make an entry from its stored form."""
    refs = [job if isinstance(job, str) else JobRef(*job) for job in json.loads(jobs)] if jobs else []
    return Entry(ChangeKind(kind), queue, task, refs, json.loads(data) if data else None)


class Cursor(NamedTuple):
    """A place in the feed: after the first `jobs` jobs of the entry with this number, or after all of that entry."""

    life: str  # identifies the feed; a restored or copied store has another one
    number: int
    jobs: int | None = None  # None: the whole entry was read
    mark: str = ""  # what else the store needs to resume here

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(self, separators=(",", ":")).encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Cursor:
        try:
            life, number, jobs, mark = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            return cls(str(life), place_of(number), None if jobs is None else place_of(jobs), str(mark))
        except (ValueError, TypeError, OverflowError, binascii.Error, RecursionError) as error:
            msg = f"{text!r} is not a cursor of a change feed; pass the `cursor` of a change, or of a stream of changes"
            raise InvalidCursor(msg) from error


def place_of(value: Any) -> int:
    """Return a number of a cursor, which may be forged. Raises ValueError if no feed can have it."""
    if not 0 <= (number := int(value)) < 2**63:
        msg = f"{number} is not a place in a feed"
        raise ValueError(msg)
    return number


def parse_cursor(text: str | None) -> Cursor | None:
    return None if text is None else Cursor.parse(text)


@dataclass(slots=True)
class ChangePage:
    """Entries of the feed after a cursor, oldest first."""

    entries: list[Entry]
    cursor: Cursor  # read on from here
    more: bool = False  # there may be more to read at once
    reset: bool = False  # the old cursor was not valid here, or too old: changes in between are lost to its reader
    marks: Mapping[int, str] = field(default_factory=dict)  # entry -> mark of its cursor, if that is not `cursor.mark`
    tags: Tags = field(default_factory=dict)  # filled in by `with_tags`

    def changes(self, where: ChangeFilter, skip: Cursor | None = None) -> Iterator[Change]:
        """Return the matching changes. `skip` is the cursor with which the page was read."""
        wanted = (entry for entry in self.entries if where.wants(entry))
        return chain.from_iterable(self._of(entry, where, skip) for entry in wanted)

    def jobs_for(self, where: ChangeFilter) -> Iterator[str | JobRef]:
        """Yield the jobs of the entries that may match."""
        return (job for entry in self.entries if where.wants(entry) for job in entry.jobs)

    def up_to(self, end: Cursor) -> ChangePage:
        """Return the page without entries after this cursor. Numbers must be in the order of the entries."""
        if self.reset or self.cursor.number < end.number:
            return self
        return replace(
            self, entries=[entry for entry in self.entries if entry.number <= end.number], cursor=end, more=False
        )

    def _of(self, entry: Entry, where: ChangeFilter, skip: Cursor | None) -> list[Change]:
        """Return the matching changes of an entry; a list, because that takes half the time of a generator."""
        done = 0 if skip is None or skip.number != entry.number else skip.jobs or 0
        mark = self.marks.get(entry.number, self.cursor.mark)
        source = Source(self.cursor.life, mark, to_datetime(entry.at), self.tags)
        changes = [
            Change(entry, index, job, source)
            for index, job in enumerate(entry.jobs[done:] or (None,) * (entry.size - done), done)
        ]
        return [change for change in changes if change.matches(where)] if where.is_about_jobs else changes


TagLookup = Callable[[list[str]], Awaitable[Tags]]
"""`Store.tags`."""


async def with_tags(page: ChangePage, where: ChangeFilter, look_up: TagLookup) -> ChangePage:
    """Return the page with the tags of its jobs, if the filter asks for tags.

    The feed does not have them: each end of a job would have to read them. A job's tags never change, so they can be
    looked up later, while the job exists. The change by which a job is deleted has its tags.
    """
    named = list(page.jobs_for(where)) if where.tags else []
    if not named:
        return page
    deleted = {job.id: job.data["tags"] for job in named if isinstance(job, JobRef) and job.data and "tags" in job.data}
    ids = {job if isinstance(job, str) else job.id for job in named} - deleted.keys()
    return replace(page, tags={**await look_up(list(ids)), **deleted})
