"""What a schedule does after downtime, while a run still goes on, during a pause, and to spread load.

The code here decides which of the due occurrences to fire and which to drop, and why. It is pure, so that every process
decides the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, pairwise
from typing import Any, Literal

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.parse import Length, choice, instant, length, whole, write_length
from mainspring.features.schedules.rules.timeline import TICK, Occurrence, Timeline

Overlap = Literal["allow", "skip", "cancel_old"]
OVERLAPS: tuple[Overlap, ...] = ("allow", "skip", "cancel_old")
MISFIRES = ("latest", "all", "skip")

LATE_AFTER = timedelta(seconds=60)
"""A fire that is later than this is marked late. `Misfire.skip` drops it."""

MAX_CAUGHT_UP = 1000
MAX_COUNTED = MAX_CAUGHT_UP
"""Of more missed occurrences than this, only the newest are examined. For the others, `Drop.exact` is False."""

MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, init=False)
class Misfire:
    """What to do with occurrences that were missed.

    Misfire.latest()                 fire the newest; those before it are coalesced into it
    Misfire.latest(grace="1d")       the same, but fire nothing that is more than a day late
    Misfire.all(max_fires=24)        fire the newest 24, oldest first
    Misfire.skip()                   fire nothing that is more than a minute late
    """

    mode: Literal["latest", "all", "skip"]
    grace: timedelta | None  # None: no limit
    max_fires: int

    def __init__(self, mode: str = "latest", grace: Length | None = None, max_fires: int = 100) -> None:
        if grace is None and mode == "skip":
            grace = LATE_AFTER
        object.__setattr__(self, "mode", choice(mode, MISFIRES, "misfire"))
        object.__setattr__(self, "grace", None if grace is None else length(grace, "misfire grace"))
        object.__setattr__(self, "max_fires", whole(max_fires, "misfire max_fires", 1, MAX_CAUGHT_UP))

    @classmethod
    def latest(cls, grace: Length | None = None) -> Misfire:
        return cls("latest", grace)

    @classmethod
    def all(cls, max_fires: int = 100, grace: Length | None = None) -> Misfire:
        return cls("all", grace, max_fires)

    @classmethod
    def skip(cls, grace: Length = LATE_AFTER) -> Misfire:
        return cls("skip", grace)

    def describe(self) -> str:
        within = "" if self.grace is None else f" if it is at most {write_length(self.grace)} late"
        if self.mode == "all":
            return f"every missed one is caught up{within}, up to {self.max_fires}"
        return {"latest": f"the last missed one is caught up{within}", "skip": "missed ones are skipped"}[self.mode]

    def to_data(self) -> dict[str, Any]:
        grace = {} if self.grace is None else {"grace": write_length(self.grace)}
        return {"mode": self.mode, **grace, **({"max_fires": self.max_fires} if self.mode == "all" else {})}


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


# -- which occurrences to fire -------------------------------------------------------------------------------


class Reason(StrEnum):
    """Why an occurrence was not fired."""

    COALESCED = "coalesced"  # a newer one was fired instead
    TOO_LATE = "too_late"  # later than the misfire grace allows
    TOO_MANY = "too_many"  # more than the misfire maximum
    MISSED = "missed"  # the misfire policy is "skip"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class DueOccurrence:
    """An occurrence to fire now."""

    occurrence: Occurrence
    lateness: timedelta
    coalesced: int = 0  # how many earlier ones are dropped in favour of this one; see `Decision.drops`

    @property
    def late(self) -> bool:
        return self.lateness > LATE_AFTER


@dataclass(frozen=True, slots=True)
class Drop:
    """One or more occurrences in a row that are not fired for the same reason."""

    reason: Reason
    why: str
    first: Occurrence
    last: Occurrence
    count: int
    exact: bool = True  # False: there are at least `count`


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with the occurrences that are due."""

    fires: tuple[DueOccurrence, ...]  # oldest first
    drops: tuple[Drop, ...]
    decided: Occurrence | None  # the newest of them all; the next decision continues from it. None if none was due
    next: Occurrence | None  # the next to fire; None if there is none, or if it depends on when a run ends


@dataclass(frozen=True, slots=True)
class Stretch:
    """The occurrences of a period: the newest few, and a summary of those before."""

    newest: list[Occurrence]
    older: tuple[Occurrence, Occurrence, int, bool] | None  # first, last, count, exact


def catch_up(
    timeline: Timeline, misfire: Misfire, pauses: Sequence[SchedulePause], first: Occurrence, now: datetime
) -> tuple[list[DueOccurrence], list[Drop]]:
    """Return which occurrences from `first` until now to fire, and which to drop."""
    fires: list[DueOccurrence] = []
    drops: list[Drop] = []
    room = misfire.max_fires if misfire.mode == "all" else 1
    for reason, low, high in reversed(list(_stretches(misfire, pauses, first.utc, now))):
        stretch = _read(timeline, low, high, room - len(fires) if reason is None else 0)
        drop = _drop(stretch, reason or _surplus(misfire), misfire, now)
        new = [DueOccurrence(occurrence, now - occurrence.utc) for occurrence in stretch.newest]
        fires, drops = new + fires, [drop, *drops] if drop else drops
    return _with_coalesced(fires, drops), drops


def _with_coalesced(fires: list[DueOccurrence], drops: list[Drop]) -> list[DueOccurrence]:
    """Set how many occurrences were coalesced into the fire. A pause may split them into several drops."""
    count = sum(drop.count for drop in drops if drop.reason is Reason.COALESCED)
    return [replace(fires[0], coalesced=count), *fires[1:]] if fires and count else fires


def _stretches(
    misfire: Misfire, pauses: Sequence[SchedulePause], low: datetime, now: datetime
) -> Iterator[tuple[Reason | None, datetime, datetime]]:
    """Yield the periods since the first occurrence, each with the reason to drop what is in it, or None to fire it."""
    high = now + TICK
    cuts = {low, high}
    for pause in pauses:
        cuts |= {pause.since, high if pause.until is None else pause.until}
    if misfire.grace is not None:
        cuts.add(now - misfire.grace)
    inside = sorted(cut for cut in cuts if low <= cut <= high)
    for start, end in pairwise(inside):
        yield _fate(misfire, pauses, start, now), start, end


def _fate(misfire: Misfire, pauses: Sequence[SchedulePause], start: datetime, now: datetime) -> Reason | None:
    if any(pause.covers(start) for pause in pauses):
        return Reason.PAUSED
    if misfire.grace is not None and start < now - misfire.grace:
        return Reason.MISSED if misfire.mode == "skip" else Reason.TOO_LATE
    return None


def _surplus(misfire: Misfire) -> Reason:
    return {"latest": Reason.COALESCED, "all": Reason.TOO_MANY, "skip": Reason.MISSED}[misfire.mode]


def _read(timeline: Timeline, low: datetime, high: datetime, keep: int) -> Stretch:
    due = list(islice(timeline.between(low, high), MAX_COUNTED + 1))
    if len(due) <= MAX_COUNTED:
        older = due[: len(due) - keep] if keep < len(due) else []
        return Stretch(due[len(older) :], (older[0], older[-1], len(older), True) if older else None)
    newest: list[Occurrence] = []
    for _ in range(keep):
        latest = timeline.latest(low, newest[0].utc if newest else high)
        newest = [latest, *newest] if latest else newest
    last = timeline.latest(low, newest[0].utc if newest else high)
    return Stretch(newest, (due[0], last or due[0], MAX_COUNTED + 1 - keep, False))


def _drop(stretch: Stretch, reason: Reason, misfire: Misfire, now: datetime) -> Drop | None:
    if stretch.older is None:
        return None
    first, last, count, exact = stretch.older
    return Drop(reason, _why(reason, misfire, last, now), first, last, count, exact)


def _why(reason: Reason, misfire: Misfire, last: Occurrence, now: datetime) -> str:
    if reason is Reason.TOO_LATE and misfire.grace is not None:
        return f"{write_length(_rough(now - last.utc))} late or more, and the grace is {write_length(misfire.grace)}"
    return {
        Reason.COALESCED: "a newer one is fired in its place",
        Reason.TOO_MANY: f"only the newest {misfire.max_fires} are caught up",
        Reason.MISSED: "missed ones are not caught up",
    }.get(reason, "the schedule was paused")


def _rough(length: timedelta) -> timedelta:
    return timedelta(seconds=length // timedelta(seconds=1))
