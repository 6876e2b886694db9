"""The ledger of a schedule: for each occurrence, whether it fired, was coalesced, or was skipped and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from mainspring.clock import to_millis
from mainspring.features.schedules.rules import Drop, Fire, Occurrence, Reason
from mainspring.json_text import from_json, to_json
from mainspring.stores.documents import Document, Key, Write

COLLECTION = "ledger"
LEDGER_RETENTION = timedelta(days=90)


class Became(StrEnum):
    FIRED = "fired"
    COALESCED = "coalesced"  # a newer occurrence was fired instead
    SKIPPED = "skipped"
    TRIGGERED = "triggered"  # by a person, in addition to the schedule's own times


@dataclass(frozen=True, slots=True)
class Entry:
    """What became of one occurrence, or of several in a row with the same outcome."""

    became: Became
    at: datetime  # when that was decided
    nominal: str  # the local time that the rule names; of several, that of the first
    utc: datetime  # its instant
    key: str  # of the (first) occurrence; for a triggered one, the job's id
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

    def write(self, schedule: str) -> Write:
        data = {name: getattr(self, name) for name in self.__slots__}
        name = f"{self.utc:%Y-%m-%dT%H:%M:%S.%fZ} {self.key}"  # ids sort by time
        return Write(Key(COLLECTION, schedule, name), to_json(data), expires_at=to_millis(self.at + LEDGER_RETENTION))

    @classmethod
    def from_document(cls, document: Document) -> Entry:
        stored: dict[str, Any] = from_json(document.data)
        data = {name: stored[name] for name in cls.__slots__ if name in stored}  # newer versions may have more fields
        moments = {name: data[name] and datetime.fromisoformat(data[name]) for name in ("at", "utc", "last")}
        return cls(**{**data, **moments, "became": Became(data["became"])})


def fired(fire: Fire, job_id: str, now: datetime) -> Entry:
    return replace(
        _entry(Became.FIRED, fire.occurrence, now),
        job_id=job_id,
        lateness=fire.lateness.total_seconds(),
        late=fire.late,
        coalesced=fire.coalesced,
    )


def overlapped(fire: Fire, job_id: str, now: datetime) -> Entry:
    return skipped(fire.occurrence, now, "overlap", _in_the_way(job_id))


def skipped(occurrence: Occurrence, now: datetime, reason: str, why: str) -> Entry:
    return replace(_entry(Became.SKIPPED, occurrence, now), reason=reason, why=why)


def overlapped_in_a_row(drop: Drop, job_id: str, now: datetime) -> Entry:
    return replace(dropped(drop, now), became=Became.SKIPPED, reason="overlap", why=_in_the_way(job_id))


def _in_the_way(job_id: str) -> str:
    return f"the run before, job {job_id}, had not ended"


def dropped(drop: Drop, now: datetime) -> Entry:
    became = Became.COALESCED if drop.reason is Reason.COALESCED else Became.SKIPPED
    entry = _entry(became, drop.first, now)
    return replace(entry, reason=drop.reason, why=drop.why, count=drop.count, last=drop.last.utc, exact=drop.exact)


def triggered(occurrence: Occurrence, job_id: str, actor: str) -> Entry:
    """Return the entry of a triggered run. Its key is the job's id, as two may be triggered at the same moment."""
    entry = _entry(Became.TRIGGERED, occurrence, occurrence.utc)
    return replace(entry, key=job_id, why=f"by {actor}", job_id=job_id)


def _entry(became: Became, occurrence: Occurrence, now: datetime) -> Entry:
    return Entry(became, now, occurrence.nominal.isoformat(), occurrence.utc, occurrence.key)
