"""Where the time comes from. The store's clock decides what is due; tests inject their own."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, runtime_checkable

from mainspring.errors import ConfigurationError

Millis = int
"""A point in time (milliseconds since 1970, UTC) or a length of time, as stores keep it."""


Length = timedelta | float
"""A length of time as programs give it; a number is seconds."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
MIN_MILLIS: Millis = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
MAX_MILLIS: Millis = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MILLISECOND + 1
FIRST_SHOWN: Millis = MIN_MILLIS + 86_400_000  # so that it can be shown in every zone
LAST_SHOWN: Millis = 253_402_214_400_000  # the last day of the year 9999
FIRST_YEAR, END_YEAR = 1900, 9000  # of times that programs give
LONGEST_SECONDS = 1_000 * 366 * 86_400
MOST_SHOWN = 80  # characters of a value in a message


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


SKEW: Millis = 5_000
"""Clocks of machines may differ by this. A stored time that is further ahead was written by a wrong clock."""

SETTLE = 30.0  # seconds that a clock must keep its new time before a jump is believed
TOLERANCE: Millis = 2_000  # smaller jumps are followed at once: NTP steps, the resolution of virtual machines
FASTEST_SLEW = 0.001  # NTP may run a clock faster or slower by this share; twice what Linux does
GREAT_LEAP: Millis = 86_400_000  # forward, after which nothing is deleted for a while: it could not be undone
DOUBT: Millis = 86_400_000  # how long
GLANCE: Millis = 250  # if the wall clock gained no more than this since the last look, it did not jump


def _boot_clock() -> Callable[[], float]:
    """Seconds that also pass while the machine sleeps, so that a sleep is not taken for a clock that was set."""
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux, whose CLOCK_MONOTONIC stands still then
        return partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":  # where time.monotonic() stands still and CLOCK_MONOTONIC does not
        return partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    return time.monotonic


since_boot = _boot_clock()


@runtime_checkable
class Elapsing(Protocol):
    """A clock that also counts the time during which the machine slept."""

    def elapsed(self) -> float:
        """Seconds since some point in the past, whatever the wall clock was set to."""


def elapsed_by(clock: Clock) -> float:
    return clock.elapsed() if isinstance(clock, Elapsing) else clock.monotonic()


@dataclass(frozen=True, slots=True)
class Departure:
    """The wall clock jumped, and it is not decided yet whether to believe it."""

    by: Millis  # negative: it went back
    since: Millis  # by the clock of elapsed time


@dataclass(frozen=True, slots=True)
class Reckoning:
    offset: Millis  # wall clock minus elapsed time, as last believed
    looked: Millis  # when that was, by the clock of elapsed time
    departure: Departure | None = None


class SteadyClock:
    """The machine's wall clock, which does not follow a jump until the clock has kept its new time for a while.

    Until then time goes on as before the jump, by the clock of elapsed time. So a clock that is an hour ahead for ten
    seconds fires nothing that was not due, and leaves no times in the store that lie an hour ahead. A jump is believed
    after `settle` seconds, or as soon as another process of this machine has believed it (`witness`).

    Safe to use from any thread without a lock, which a fork could leave locked: the state is one immutable value, and
    a thread that finds it changed while it looked looks again.
    """

    def __init__(self, source: Clock | None = None, *, settle: float = SETTLE) -> None:
        self._wall: Callable[[], int] = time.time_ns
        self.elapsed: Callable[[], float] = since_boot
        self.monotonic: Callable[[], float] = time.monotonic
        if source is not None:
            given = source
            self._wall = lambda: given.now() * 1_000_000
            self.elapsed = self.monotonic = source.monotonic
        self._settle = round(settle * 1000)
        self.witness: Callable[[], Millis | None] = lambda: None
        """The offset that another process of this machine believes in, if one has said so."""
        self.doubted_until: Millis = 0  # by the clock of elapsed time; see `may_delete`
        self._last = self._wall() // 1_000_000
        self._state = Reckoning(self._last - self._elapsed_millis(), self._elapsed_millis())

    def now(self) -> Millis:
        wall = self._wall() // 1_000_000
        if 0 <= wall - self._last < GLANCE:  # nearly always
            self._last = wall
            return wall
        return self._look(wall)

    @property
    def departure(self) -> Departure | None:
        """How far the wall clock is from the time that `now` gives, while it is not believed."""
        self.now()
        return self._state.departure

    @property
    def reckoning(self) -> Reckoning:
        return self._state

    @property
    def may_delete(self) -> bool:
        """Not for a day after a great leap forward: what retention removes by a wrong clock would be lost."""
        return self._elapsed_millis() >= self.doubted_until

    def start_from(self, known: Reckoning) -> None:
        """Begin with what another process of this machine believes: it saw the clock when it was right."""
        self._last, self._state = 0, Reckoning(known.offset, known.looked)

    def _look(self, wall: Millis) -> Millis:
        state, elapsed = self._state, self._elapsed_millis()
        after = self._judged(state, wall, elapsed)
        if self._state is not state:  # another thread was quicker, and may have believed what we doubt
            return self.now()
        self._state = after
        self._last = wall if after.departure is None else 0  # look closely until it is decided
        return after.offset + elapsed

    def _judged(self, state: Reckoning, wall: Millis, elapsed: Millis) -> Reckoning:
        departed, before = wall - elapsed - state.offset, state.departure
        if is_near(departed, elapsed - state.looked) or self._is_believed(departed, elapsed, before):
            if departed > GREAT_LEAP:
                self.doubted_until = max(self.doubted_until, elapsed + DOUBT)
            return Reckoning(wall - elapsed, elapsed)
        if before is not None and is_near(departed - before.by, elapsed - before.since):
            return state
        return Reckoning(state.offset, state.looked, Departure(departed, elapsed))

    def _is_believed(self, departed: Millis, elapsed: Millis, before: Departure | None) -> bool:
        """It has kept its new time for long enough, or another process of this machine has seen that it did."""
        lasted = 0 if before is None else elapsed - before.since
        if before is not None and lasted >= self._settle and is_near(departed - before.by, lasted):
            return True
        offset = self.witness()
        return offset is not None and is_near(departed + self._state.offset - offset, 0)

    def _elapsed_millis(self) -> Millis:
        return int(self.elapsed() * 1000)


def may_delete(clock: Clock) -> bool:
    """Whether the time that the clock gave last is good enough to delete what has expired by it."""
    return clock.may_delete if isinstance(clock, SteadyClock) else True


def is_near(difference: Millis, within: Millis) -> bool:
    """Whether two times differ by no more than small corrections do in that time."""
    return abs(difference) <= TOLERANCE + max(0, within) * FASTEST_SLEW


def to_millis(moment: datetime) -> Millis:
    """Return the first whole millisecond that is not before a moment, so that nothing is due before its time.

    A naive datetime is refused: which instant it means would depend on the machine. So is one that is in the year 0 or
    10,000 by UTC, which no datetime could give back.
    """
    if moment.tzinfo is None:
        msg = f"{moment!r} has no time zone; use datetime.now(UTC) or a ZoneInfo"
        raise ValueError(msg)
    millis = -((EPOCH - moment) // MILLISECOND)  # exact, as a float of seconds would not be
    if not MIN_MILLIS <= millis <= MAX_MILLIS:
        msg = f"{moment!r} is not within the years 1 to 9999 in UTC; give a time that is"
        raise ConfigurationError(msg)
    return millis


def to_datetime(millis: Millis) -> datetime:
    """Return the moment, or the nearest that can be shown in every zone: a listing must not fail over one odd row."""
    return EPOCH + timedelta(milliseconds=max(FIRST_SHOWN, min(millis, LAST_SHOWN)))


def check_moment(moment: datetime, what: str) -> datetime:
    """Refuse a time that a program cannot mean, and near which arithmetic with zones and delays would overflow."""
    if not isinstance(moment, datetime):
        msg = f"{what} is a datetime with a time zone, not {shown(moment)}"
        raise ConfigurationError(msg)
    to_millis(moment)
    if not FIRST_YEAR <= moment.year < END_YEAR:
        msg = f"{what} is {moment!r}; give a time from the year {FIRST_YEAR} on and before the year {END_YEAR}"
        raise ConfigurationError(msg)
    return moment


def duration(length: Length) -> Millis:
    """Return the milliseconds of a timedelta or of a number of seconds, up to 1,000 years either way."""
    seconds: Any = length.total_seconds() if isinstance(length, timedelta) else length
    if not isinstance(seconds, (int, float)) or seconds != seconds or abs(seconds) == math.inf:  # noqa: PLR0124 - NaN
        msg = f"{shown(length)} is no length of time; give a timedelta, or a number of seconds"
        raise ConfigurationError(msg)
    if not -LONGEST_SECONDS <= seconds <= LONGEST_SECONDS:
        msg = f"{shown(length)} is longer than 1,000 years; give a shorter length of time"
        raise ConfigurationError(msg)
    return round(seconds * 1000)


def shown(value: object) -> str:
    """Return how a value looks in a message. Python refuses to write out integers of thousands of digits."""
    try:
        text = repr(value)
    except ValueError:
        return f"a {type(value).__name__} that is too large to be shown"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def delay_of(length: Length, what: str = "delay") -> Millis:
    """A length of time from now on: a time that has passed is no delay."""
    millis = duration(length)
    if millis < 0:
        msg = (
            f"{what} is {length!r}, which is negative; give 0 for at once, or the time itself, which may be in the past"
        )
        raise ConfigurationError(msg)
    return millis
