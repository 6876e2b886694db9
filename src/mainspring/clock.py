"""Where the time comes from. The store's clock decides what is due; tests inject their own."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from mainspring.errors import ConfigurationError

Millis = int
"""A point in time (milliseconds since 1970, UTC) or a length of time, as stores keep it."""


Length = timedelta | float
"""A length of time as programs give it; a number is seconds."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


class Clock(Protocol):
    """What a store asks for the time."""

    def now(self) -> Millis:
        """Wall time."""

    def monotonic(self) -> float:
        """Seconds that only ever grow; leases are timed on this one."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> Millis:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def to_millis(moment: datetime) -> Millis:
    """Return the first whole millisecond that is not before a moment, so that nothing is due before its time.

    A naive datetime is refused: which instant it means would depend on the machine.
    """
    if moment.tzinfo is None:
        msg = f"{moment!r} has no time zone; use datetime.now(UTC) or a ZoneInfo"
        raise ValueError(msg)
    return -((EPOCH - moment) // MILLISECOND)  # exact, as a float of seconds would not be


def to_datetime(millis: Millis) -> datetime:
    return EPOCH + timedelta(milliseconds=millis)


def duration(length: Length) -> Millis:
    """Milliseconds of a timedelta or of a number of seconds."""
    seconds: Any = length.total_seconds() if isinstance(length, timedelta) else length
    if not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        msg = f"{length!r} is no length of time; give a timedelta, or a number of seconds"
        raise ConfigurationError(msg)
    return round(seconds * 1000)


def delay_of(length: Length, what: str = "delay") -> Millis:
    """A length of time from now on: a time that has passed is no delay."""
    millis = duration(length)
    if millis < 0:
        msg = (
            f"{what} is {length!r}, which is negative; give 0 for at once, or the time itself, which may be in the past"
        )
        raise ConfigurationError(msg)
    return millis
