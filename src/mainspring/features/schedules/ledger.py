"""The ledger: for each occurrence of a schedule or an occasion, whether it fired, or why it did not.

An entry is a document of its own, in the same write as the job that it is about. Each schedule and each person has a
ledger.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Self

from mainspring.clock import Millis, check_moment, to_millis
from mainspring.json_text import from_json, to_json
from mainspring.stores.documents import Document, Key, Listing, Write


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
