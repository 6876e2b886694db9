"""Decides what to write when a schedule is due: its next time, its jobs, and entries of its ledger.

The code here is pure: every process decides the same, and only one write succeeds.

Each schedule and each person has a ledger. It says for each occurrence whether it fired, or why it did not. An entry is
a document of its own, in the same write as the job that it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Generic, NamedTuple, Self, TypeVar

from mainspring.clock import Millis, check_moment, to_millis
from mainspring.features.schedules.rules import Drop, DueOccurrence, Occurrence, Reason, tzdata_version
from mainspring.features.schedules.storage import StoredSchedule
from mainspring.job import Job, NewJob
from mainspring.json_text import from_json, to_json
from mainspring.stores.documents import Bundle, Document, Key, Listing, Write

T = TypeVar("T")

RUN_CHECK_INTERVAL = timedelta(seconds=10)
"""How soon to check again whether a run has ended, if the next one starts after that."""


@dataclass(slots=True)
class Firing(Generic[T]):
    """What to write for one document that is due: the document itself, the jobs and the entries of the ledger.

    Treat it as immutable; `Write` says why it is not frozen.
    """

    after: T  # what the document contains after this write
    write: Write
    jobs: tuple[NewJob, ...] = ()
    entries: tuple[Entry, ...] = ()

    @property
    def owner(self) -> str:
        """Return the id of the schedule or person that the document and the ledger belong to."""
        return self.write.key.id

    def with_entries(self, change: Callable[[Entry, str], Entry]) -> Firing[T]:
        """Return this with changed entries. `change` also gets the queue of the jobs."""
        queue = self.jobs[0].queue if self.jobs else ""
        return replace(self, entries=tuple(change(entry, queue) for entry in self.entries))

    def bundle(self, ledger: Ledger) -> Bundle:
        owner = self.write.key.id
        return Bundle((self.write, *(entry.write(ledger, owner) for entry in self.entries)), self.jobs)


# -- what is due --------------------------------------------------------------------------------------


def needs_last_jobs(stored: StoredSchedule) -> bool:
    return bool(stored.last_jobs) and (stored.schedule.rule.from_finish or stored.schedule.overlap != "allow")


def firing_of(stored: StoredSchedule, now: datetime, last: Sequence[Job] = ()) -> Firing[StoredSchedule]:
    """Decide what to do with the occurrences that are due. `last`: the last fired jobs, if `needs_last_jobs`."""
    running = [job for job in last if not job.finished]
    if stored.schedule.rule.from_finish and last:
        if running:
            return Firing(stored, stored.write(look_at=now + RUN_CHECK_INTERVAL))
        stored = replace(stored, since=max(stored.since, *(job.finished_at or now for job in last)))
    decision = stored.schedule.decide(stored.undecided_since, now)
    busy = running[0] if running and stored.schedule.overlap == "skip" else None
    fires, overlaps = _without_overlap(stored, decision.fires, busy)
    jobs = tuple(stored.job_for(due.occurrence) for due in fires)
    entries = [
        *(_dropped_or_overlapped(drop, busy, now) for drop in decision.drops),
        *(_fired(due, job.id, now) for due, job in zip(fires, jobs, strict=True)),
        *(_overlapped(due, busy.id if busy else jobs[0].id, now) for due in overlaps),
    ]
    after = replace(
        stored,
        schedule=stored.schedule if decision.decided is None else stored.schedule.decided_until(decision.decided.utc),
        decided=decision.decided or stored.decided,
        next=decision.next,
        last_jobs=tuple(job.id for job in jobs) or stored.last_jobs,
        fires=stored.fires + len(jobs),
        tzdata=tzdata_version(),  # that `next` was found with; a process with a newer version finds it again
    )
    is_open = stored.schedule.rule.from_finish and bool(jobs)
    write = after.write(look_at=now + RUN_CHECK_INTERVAL if is_open else None)
    return Firing(after, write, jobs, tuple(entries))


def without_repeats(firing: Firing[StoredSchedule], fired: Collection[Key]) -> Firing[StoredSchedule]:
    """Return this without the entries in `fired`: those occurrences fired early, by a clock that was ahead."""
    kept = tuple(entry for entry in firing.entries if entry.document_key(SCHEDULES, firing.owner) not in fired)
    gone = {entry.job_id for entry in firing.entries if entry not in kept}
    jobs = tuple(job for job in firing.jobs if job.id not in gone)
    before = firing.after
    is_past = before.ahead is not None and before.decided is not None and before.decided.utc >= before.ahead
    after = replace(
        before,
        fires=before.fires - len(firing.jobs) + len(jobs),
        last_jobs=tuple(job_id for job_id in before.last_jobs if job_id not in gone),
        ahead=None if is_past else before.ahead,
    )
    return Firing(after, replace(after.write(), due_at=firing.write.due_at), jobs, kept)


def _without_overlap(
    stored: StoredSchedule, fires: tuple[DueOccurrence, ...], busy: Job | None
) -> tuple[tuple[DueOccurrence, ...], tuple[DueOccurrence, ...]]:
    """Return what can fire, and what overlaps with a run. Of several due at once, only the first can fire."""
    if stored.schedule.overlap != "skip":
        return fires, ()
    return ((), fires) if busy else (fires[:1], fires[1:])


# -- what the ledger says -----------------------------------------------------------------------------


def triggered(occurrence: Occurrence, job_id: str, actor: str) -> Entry:
    """Return the entry of a triggered run. Its key is the job's id, as two may be triggered at the same moment."""
    entry = _entry(Became.TRIGGERED, occurrence, occurrence.utc)
    return replace(entry, key=job_id, why=f"by {actor}", job_id=job_id)


def undecided_entries(stored: StoredSchedule, now: datetime, reason: str, why: str) -> tuple[Entry, ...]:
    """Return entries for due occurrences that did not fire before the schedule was replaced or removed."""
    if stored.disabled or stored.schedule.rule.from_finish:  # the latter has no fixed times that could be missed
        return ()
    decision = stored.schedule.decide(stored.undecided_since, now)
    paused = [drop for drop in decision.drops if drop.reason is Reason.PAUSED]
    others = [drop for drop in decision.drops if drop.reason is not Reason.PAUSED]
    return (
        *(_dropped(drop, now) for drop in paused),
        *(replace(_dropped(drop, now), became=Became.SKIPPED, reason=reason, why=why) for drop in others),
        *(_skipped(due.occurrence, now, reason, why) for due in decision.fires),
    )


def _fired(due: DueOccurrence, job_id: str, now: datetime) -> Entry:
    return replace(
        _entry(Became.FIRED, due.occurrence, now),
        job_id=job_id,
        lateness=due.lateness.total_seconds(),
        late=due.late,
        coalesced=due.coalesced,
    )


def _dropped_or_overlapped(drop: Drop, busy: Job | None, now: datetime) -> Entry:
    """Return the entry for a drop. What is coalesced into an occurrence that overlaps is skipped as well."""
    entry = _dropped(drop, now)
    if busy is None or drop.reason is not Reason.COALESCED:
        return entry
    return replace(entry, became=Became.SKIPPED, reason="overlap", why=_in_the_way(busy.id))


def _dropped(drop: Drop, now: datetime) -> Entry:
    became = Became.COALESCED if drop.reason is Reason.COALESCED else Became.SKIPPED
    entry = _entry(became, drop.first, now)
    return replace(entry, reason=drop.reason, why=drop.why, count=drop.count, last=drop.last.utc, exact=drop.exact)


def _overlapped(due: DueOccurrence, job_id: str, now: datetime) -> Entry:
    return _skipped(due.occurrence, now, "overlap", _in_the_way(job_id))


def _in_the_way(job_id: str) -> str:
    return f"the run before, job {job_id}, had not ended"


def _skipped(occurrence: Occurrence, now: datetime, reason: str, why: str) -> Entry:
    return replace(_entry(Became.SKIPPED, occurrence, now), reason=reason, why=why)


def _entry(became: Became, occurrence: Occurrence, now: datetime) -> Entry:
    return Entry(became, now, occurrence.nominal.isoformat(), occurrence.utc, occurrence.key)


# -- the ledger --------------------------------------------------------------------------------------------


class Ledger(NamedTuple):
    """Where entries are stored, and for how long."""

    collection: str
    retention: timedelta

    def page(self, owner: str, limit: int, before: datetime | None) -> Listing:
        """Select the entries of one schedule or person, newest first; with `before`, only those of earlier instants."""
        seen = None if before is None else (owner, _sortable(check_moment(before, "before").astimezone(UTC)))
        return Listing(self.collection, owner, seen, limit, backwards=True)


SCHEDULES = Ledger("ledger", timedelta(days=90))


class Became(StrEnum):
    FIRED = "fired"
    COALESCED = "coalesced"  # a newer occurrence was fired instead
    SKIPPED = "skipped"
    TRIGGERED = "triggered"  # by a person, in addition to the schedule's own times


@dataclass(slots=True)
class Entry:
    """What became of one occurrence, or of several in a row with the same outcome.

    Treat it as immutable; `Write` says why it is not frozen.
    """

    became: Became
    at: datetime  # when that was decided
    nominal: str  # the local time that the rule names; of several, that of the first
    utc: datetime  # its instant
    key: str  # identifies it among those of the same instant; for a triggered one, the job's id
    reason: str = ""  # why it was skipped: overlap, paused, too_late, …
    why: str = ""  # the same in words
    job_id: str | None = None
    lateness: float = 0.0  # seconds
    late: bool = False
    coalesced: int = 0  # how many earlier occurrences were coalesced into this one
    count: int = 1  # of occurrences
    last: datetime | None = None  # of several: the instant of the last one
    exact: bool = True  # False: there were at least `count`
    halted: bool = False  # a halt made it late, skipped it, or makes its job wait; `why` says which halt

    def document_key(self, ledger: Ledger, owner: str) -> Key:
        return Key(ledger.collection, owner, f"{_sortable(self.utc)} {self.key}")

    def write(self, ledger: Ledger, owner: str) -> Write:
        """Return the write, without the fields that have their default value."""
        data: dict[str, Any] = {
            "became": self.became, "at": self.at, "nominal": self.nominal, "utc": self.utc, "key": self.key,
        }  # fmt: skip
        for name, default in DEFAULTS:
            if (value := getattr(self, name)) != default:
                data[name] = value
        return Write(self.document_key(ledger, owner), to_json(data), expires_at=_expiry(self.at, ledger.retention))

    @classmethod
    def from_document(cls, document: Document) -> Self:
        stored: dict[str, Any] = from_json(document.data)
        data = {name: stored[name] for name in NAMES if name in stored}  # newer versions may have more fields
        data |= {name: datetime.fromisoformat(data[name]) for name in ("at", "utc", "last") if name in data}
        return cls(**data | {"became": Became(data["became"])})


NAMES = tuple(field.name for field in fields(Entry))
DEFAULTS = tuple((field.name, field.default) for field in fields(Entry) if field.default is not MISSING)


# Cached, because all entries of a burst have the same times.


@lru_cache(maxsize=256)
def _sortable(utc: datetime) -> str:
    """Return an instant as text that sorts by time, like the ids of entries."""
    return f"{utc:%Y-%m-%dT%H:%M:%S.%fZ}"


@lru_cache(maxsize=16)
def _expiry(decided: datetime, retention: timedelta) -> Millis:
    return to_millis(decided + retention)
