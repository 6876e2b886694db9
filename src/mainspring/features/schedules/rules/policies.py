"""What a schedule does after downtime, while a run still goes on, during a pause, and to spread load."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.parse import Length, choice, instant, length, whole, write_length

Overlap = Literal["allow", "skip", "cancel_old"]
OVERLAPS: tuple[Overlap, ...] = ("allow", "skip", "cancel_old")
MISFIRES = ("latest", "all", "skip")

LATE_AFTER = timedelta(seconds=60)
"""A fire that is later than this is marked late. `Misfire.skip` drops it."""

MAX_CAUGHT_UP = 1000
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, init=False)
class Misfire:
    """What to do with occurrences that were missed.

    Misfire.latest()                 fire the newest; those before it are coalesced into it
    Misfire.latest(grace="1d")       the same, but fire nothing that is more than a day late
    Misfire.all(max=24)              fire the newest 24, oldest first
    Misfire.skip()                   fire nothing that is more than a minute late
    """

    mode: Literal["latest", "all", "skip"]
    grace: timedelta | None  # None: no limit
    max: int

    def __init__(self, mode: str = "latest", grace: Length | None = None, max: int = 100) -> None:
        if grace is None and mode == "skip":
            grace = LATE_AFTER
        object.__setattr__(self, "mode", choice(mode, MISFIRES, "misfire"))
        object.__setattr__(self, "grace", None if grace is None else length(grace, "misfire grace"))
        object.__setattr__(self, "max", whole(max, "misfire max", 1, MAX_CAUGHT_UP))

    @classmethod
    def latest(cls, grace: Length | None = None) -> Misfire:
        return cls("latest", grace)

    @classmethod
    def all(cls, max: int = 100, grace: Length | None = None) -> Misfire:
        return cls("all", grace, max)

    @classmethod
    def skip(cls, grace: Length = LATE_AFTER) -> Misfire:
        return cls("skip", grace)

    def describe(self) -> str:
        within = "" if self.grace is None else f" if it is at most {write_length(self.grace)} late"
        if self.mode == "all":
            return f"every missed one is caught up{within}, up to {self.max}"
        return {"latest": f"the last missed one is caught up{within}", "skip": "missed ones are skipped"}[self.mode]

    def to_data(self) -> dict[str, Any]:
        grace = {} if self.grace is None else {"grace": write_length(self.grace)}
        return {"mode": self.mode, **grace, **({"max": self.max} if self.mode == "all" else {})}


@dataclass(frozen=True, slots=True, init=False)
class SchedulePause:
    """Nothing fires from `since` until `until`, or until resumed. What was due in between is not caught up."""

    since: datetime
    until: datetime | None

    def __init__(self, since: datetime | str, until: datetime | str | None = None) -> None:
        object.__setattr__(self, "since", instant(since, "pause since"))
        object.__setattr__(self, "until", None if until is None else instant(until, "pause until"))
        if self.until is not None and self.until < self.since:
            msg = f"the pause ends ({self.until}) before it begins ({self.since})"
            raise InvalidSchedule(msg)

    def covers(self, utc: datetime) -> bool:
        return self.since <= utc and (self.until is None or utc < self.until)

    def to_data(self) -> dict[str, Any]:
        until = {} if self.until is None else {"until": self.until.isoformat()}
        return {"since": self.since.isoformat(), **until}


def spread(most: timedelta, schedule: str, key: str) -> timedelta:
    """Return a delay from zero up to `most` that is the same in every process for one occurrence of one schedule."""
    digest = hashlib.blake2b(f"{schedule}\n{key}".encode(), digest_size=8).digest()
    return timedelta(microseconds=(most // MICROSECOND * int.from_bytes(digest)) >> 64)
