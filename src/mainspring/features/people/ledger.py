"""The ledger of occasions: for each date, whether a message was sent, or why it was skipped."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any

from pydantic_core import from_json, to_json

from mainspring.clock import Millis, to_millis
from mainspring.features.people.plan import Next, Plan
from mainspring.features.schedules.rules.parse import write_length
from mainspring.stores.documents import Document, Key, Write

COLLECTION = "occasion_ledger"
LEDGER_RETENTION = timedelta(days=800)
LATE_AFTER = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
REPEATED = "repeated"
OVERRULABLE_REASONS = frozenset({"too_late", "passed"})  # a later change may still send a message for that date


class Became(StrEnum):
    SENT = "sent"  # its job was inserted
    SKIPPED = "skipped"


@dataclass(slots=True)
class Entry:
    """What became of one occasion. Treat it as immutable; `Write` says why it is not frozen."""

    became: Became
    kind: str
    on: date  # the local date
    utc: datetime  # the instant of its time on that date
    at: datetime  # when this was decided
    reason: str = ""  # why it was skipped: too_late, passed, repeated
    why: str = ""  # the same in words
    job_id: str | None = None
    lateness: float = 0.0  # seconds

    @property
    def late(self) -> bool:
        return self.lateness > LATE_AFTER.total_seconds()

    def write(self, person: str) -> Write:
        """Return the write, without empty fields."""
        data: dict[str, Any] = {
            "became": self.became, "kind": self.kind, "on": self.on, "utc": self.utc, "at": self.at,
            "job_id": self.job_id, "lateness": self.lateness,
        }  # fmt: skip
        if self.reason:
            data |= {"reason": self.reason, "why": self.why}
        key = Key(COLLECTION, person, self._name)
        return Write(key, to_json(data).decode(), expires_at=_expiry(self.at))

    @property
    def _name(self) -> str:
        """Return the id of the entry. Ids sort by time.

        At most one message is sent for each date, so a date has one entry. If it was skipped first, and sent after a
        change, it has an entry for each.
        """
        before = f"{self.at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ} " if self.reason in OVERRULABLE_REASONS else ""
        return f"{self.on} {before}{self.kind}"

    @classmethod
    def from_document(cls, document: Document) -> Entry:
        stored: dict[str, Any] = from_json(document.data)
        data = {name: stored[name] for name in cls.__slots__ if name in stored}  # newer versions may have more fields
        moments = {name: datetime.fromisoformat(data[name]) for name in ("utc", "at")}
        return cls(**{**data, **moments, "on": date.fromisoformat(data["on"]), "became": Became(data["became"])})


@lru_cache(maxsize=16)
def _expiry(decided: datetime) -> Millis:
    """Return when an entry expires. Cached, because all entries of a burst have the same time."""
    return to_millis(decided + LEDGER_RETENTION)


def sent(plan: Plan, one: Next, job_id: str, now: datetime) -> Entry:
    lateness = (now - one.utc).total_seconds()
    return Entry(Became.SENT, plan.kind, one.on, one.utc, now, job_id=job_id, lateness=lateness)


def too_late(plan: Plan, one: Next, now: datetime) -> Entry:
    late = (now - one.due) // SECOND * SECOND
    why = f"{write_length(late)} late, and its grace is {plan.times.grace}"
    return Entry(Became.SKIPPED, plan.kind, one.on, one.utc, now, reason="too_late", why=why)


def passed_over(before: Plan | None, after: Plan, now: datetime) -> list[Entry]:
    """Return an entry for a message that will not be sent because its date was changed to one that has passed."""
    if before is None or before.next is None or after.gone:
        return []
    moment = after.times.in_year(before.next.on.year)
    if moment is None or (after.next is not None and after.next.on.year <= moment.on.year):
        return []
    why = f"the date was changed to {moment.on}, which had passed"
    return [Entry(Became.SKIPPED, after.kind, moment.on, moment.utc, now, reason="passed", why=why)]


def repeated(entry: Entry, job_id: str) -> Entry:
    why = "a message for this person, kind and date had been made before"
    return Entry(Became.SKIPPED, entry.kind, entry.on, entry.utc, entry.at, REPEATED, why, job_id)
