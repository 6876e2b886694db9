"""What became of each occurrence of a schedule: fired, coalesced, or skipped and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from mainspring.clock import to_millis
from mainspring.json_text import from_json, to_json
from mainspring.schedule import Drop, Fire, Occurrence, Reason
from mainspring.stores.documents import Document, Key, Write

COLLECTION = "ledger"
KEPT = timedelta(days=90)


class Became(StrEnum):
    FIRED = "fired"
    COALESCED = "coalesced"  # a newer one was fired in its place
    SKIPPED = "skipped"
    TRIGGERED = "triggered"  # by hand, beside its times


@dataclass(frozen=True, slots=True)
class Entry:
    """About one occurrence, or about several in a row to which the same happened."""

    became: Became
    at: datetime  # when that was decided
    nominal: str  # the (first) occurrence's own local time
    utc: datetime  # and instant
    key: str
    reason: str = ""  # of one that was skipped: overlap, paused, too_late, …
    why: str = ""
    job_id: str | None = None
    lateness: float = 0.0  # seconds
    late: bool = False
    coalesced: int = 0  # so many before it were not fired for it
    count: int = 1
    last: datetime | None = None  # of several: the last one's instant
    exact: bool = True  # else there were more
    halted: bool = False  # by a halt it was late, not fired, or its job waits; `why` says by whose

    def write(self, schedule: str) -> Write:
        data = {name: getattr(self, name) for name in self.__slots__}
        name = f"{self.utc:%Y-%m-%dT%H:%M:%S.%fZ} {self.key}"  # so that they are in the order of time
        return Write(Key(COLLECTION, schedule, name), to_json(data), expires_at=to_millis(self.at + KEPT))

    @classmethod
    def from_document(cls, document: Document) -> Entry:
        stored: dict[str, Any] = from_json(document.data)
        data = {name: stored[name] for name in cls.__slots__ if name in stored}  # a newer version may say more
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
    """Under the job's id: two may be triggered at the same moment."""
    entry = _entry(Became.TRIGGERED, occurrence, occurrence.utc)
    return replace(entry, key=job_id, why=f"by {actor}", job_id=job_id)


def _entry(became: Became, occurrence: Occurrence, now: datetime) -> Entry:
    return Entry(became, now, occurrence.nominal.isoformat(), occurrence.utc, occurrence.key)
