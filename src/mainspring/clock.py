"""Clocks, and conversions of times. The store's clock decides what is due; tests inject their own."""

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
"""A point in time (milliseconds since 1970, UTC) or a length of time in milliseconds, as stores keep it."""


Length = timedelta | float
"""A length of time as your code gives it: a timedelta or a number of seconds."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
MIN_MILLIS: Millis = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
MAX_MILLIS: Millis = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MILLISECOND + 1
FIRST_SHOWN: Millis = MIN_MILLIS + 86_400_000  # a day later, so that every time zone can show it
LAST_SHOWN: Millis = 253_402_214_400_000  # the last day of the year 9999
FIRST_YEAR, END_YEAR = 1900, 9000  # times that your code gives lie between these years
LONGEST_SECONDS = 1_000 * 366 * 86_400
MAX_SHOWN_CHARS = 80  # of a value in a message


class Clock(Protocol):
    """A source of time for a store."""

    def now(self) -> Millis:
        """Return the wall time."""

    def monotonic(self) -> float:
        """Return seconds that never go back; leases are timed with this clock."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> Millis:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


SKEW: Millis = 5_000
"""Clocks of machines may differ by this much. A stored time further ahead than this was written by a wrong clock."""

SETTLE_SECONDS = 30.0  # that a clock must keep its new time before a jump is accepted
TOLERANCE: Millis = 2_000  # smaller jumps are accepted at once: NTP steps, the resolution of virtual machines
FASTEST_SLEW = 0.001  # NTP may run a clock faster or slower by this share; twice what Linux does
GREAT_LEAP: Millis = 86_400_000  # after a jump forward by more than this, nothing is deleted for `DOUBT`
DOUBT: Millis = 86_400_000  # a deletion by a wrong clock could not be undone
MAX_STEP: Millis = 250  # if the wall clock gained less than this since the last call, it did not jump


def _boot_clock() -> Callable[[], float]:
    """Return a clock that also runs while the machine sleeps, so that a sleep is not mistaken for a clock change."""
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux: CLOCK_MONOTONIC stands still during a sleep
        return partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":  # time.monotonic() stands still during a sleep, CLOCK_MONOTONIC does not
        return partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    return time.monotonic


since_boot = _boot_clock()


@runtime_checkable
class Elapsing(Protocol):
    """A clock that also counts the time during which the machine slept."""

    def elapsed(self) -> float:
        """Return the seconds since some point in the past. Changes of the wall clock do not affect them."""


def elapsed_by(clock: Clock) -> float:
    return clock.elapsed() if isinstance(clock, Elapsing) else clock.monotonic()


@dataclass(frozen=True, slots=True)
class Departure:
    """A jump of the wall clock that is not accepted yet."""

    by: Millis  # negative: the clock went back
    since: Millis  # by the clock of elapsed time


@dataclass(frozen=True, slots=True)
class Reckoning:
    offset: Millis  # wall clock minus elapsed time, as last accepted
    looked: Millis  # when it was accepted, by the clock of elapsed time
    departure: Departure | None = None


class SteadyClock:
    """The machine's wall clock, but it follows a jump only after the clock has kept its new time for a while.

    Until then time goes on as before the jump, by the clock of elapsed time. If the clock is an hour ahead for ten
    seconds, nothing fires early, and no times an hour ahead get into the store. A jump is accepted after `settle`
    seconds, or as soon as another process of this machine has accepted it (`witness`).

    Any thread may use it. There is no lock, because a fork could leave it locked. The state is one immutable value;
    a thread that finds the state changed by another thread starts over.
    """

    def __init__(self, source: Clock | None = None, *, settle: float = SETTLE_SECONDS) -> None:
        self._wall: Callable[[], int] = time.time_ns
        self.elapsed: Callable[[], float] = since_boot
        self.monotonic: Callable[[], float] = time.monotonic
        if source is not None:
            given = source
            self._wall = lambda: given.now() * 1_000_000
            self.elapsed = self.monotonic = source.monotonic
        self._settle = round(settle * 1000)
        self.witness: Callable[[], Millis | None] = lambda: None
        """Return the offset that another process of this machine has accepted, if there is one."""
        self.doubted_until: Millis = 0  # by the clock of elapsed time; see `may_delete`
        self._last = self._wall() // 1_000_000
        self._state = Reckoning(self._last - self._elapsed_millis(), self._elapsed_millis())

    def now(self) -> Millis:
        wall = self._wall() // 1_000_000
        if 0 <= wall - self._last < MAX_STEP:  # nearly always
            self._last = wall
            return wall
        return self._look(wall)

    @property
    def departure(self) -> Departure | None:
        """How far the wall clock is from the time that `now` returns, while a jump is not accepted."""
        self.now()
        return self._state.departure

    @property
    def reckoning(self) -> Reckoning:
        return self._state

    @property
    def may_delete(self) -> bool:
        """Return whether retention may delete. It may not for a day after a great leap: the clock may be wrong."""
        return self._elapsed_millis() >= self.doubted_until

    def start_from(self, known: Reckoning) -> None:
        """Start with what another process of this machine has accepted; it saw the clock when it was right."""
        self._last, self._state = 0, Reckoning(known.offset, known.looked)

    def _look(self, wall: Millis) -> Millis:
        state, elapsed = self._state, self._elapsed_millis()
        after = self._judged(state, wall, elapsed)
        if self._state is not state:  # another thread was faster, and may have accepted the jump
            return self.now()
        self._state = after
        self._last = wall if after.departure is None else 0  # 0: check every call until the jump is decided
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
        """Return whether the clock kept its new time for long enough, here or as seen by another process."""
        lasted = 0 if before is None else elapsed - before.since
        if before is not None and lasted >= self._settle and is_near(departed - before.by, lasted):
            return True
        offset = self.witness()
        return offset is not None and is_near(departed + self._state.offset - offset, 0)

    def _elapsed_millis(self) -> Millis:
        return int(self.elapsed() * 1000)


def may_delete(clock: Clock) -> bool:
    """Return whether the clock's time is reliable enough to delete what has expired."""
    return clock.may_delete if isinstance(clock, SteadyClock) else True


def is_near(difference: Millis, within: Millis) -> bool:
    """Return whether a difference is no larger than what small clock corrections add up to in `within`."""
    return abs(difference) <= TOLERANCE + max(0, within) * FASTEST_SLEW


def to_millis(moment: datetime) -> Millis:
    """Return the first whole millisecond that is not before a moment, so that nothing is due before its time.

    Raise ValueError for a naive datetime, because its instant would depend on the machine. Raise ConfigurationError
    for a time that is in the year 0 or 10,000 in UTC, because no datetime can represent it.
    """
    if moment.tzinfo is None:
        msg = f"{moment!r} has no time zone; use datetime.now(UTC) or a ZoneInfo"
        raise ValueError(msg)
    millis = -((EPOCH - moment) // MILLISECOND)  # exact, as a float of seconds would not be
    if not MIN_MILLIS <= millis <= MAX_MILLIS:
        msg = f"{moment.isoformat()} is not within the years 1 to 9999 in UTC; give a time that is"
        raise ConfigurationError(msg)
    return millis


def to_datetime(millis: Millis) -> datetime:
    """Return the moment, or the nearest one that every time zone can show: a listing must not fail over one odd row."""
    return EPOCH + timedelta(milliseconds=max(FIRST_SHOWN, min(millis, LAST_SHOWN)))


def check_datetime(moment: Any, what: str) -> None:
    """Raise if this is not a datetime with a time zone."""
    if not isinstance(moment, datetime):
        msg = f"{what} must be a datetime with a time zone, not {shown(moment)}"
        raise ConfigurationError(msg)
    to_millis(moment)


def check_moment(moment: datetime, what: str) -> datetime:
    """Raise ConfigurationError for a time so far away that arithmetic with time zones and delays could overflow."""
    check_datetime(moment, what)
    if not FIRST_YEAR <= moment.year < END_YEAR:
        msg = (
            f"{what} is {moment.isoformat()}; give a time from the year {FIRST_YEAR} on and before the year {END_YEAR}"
        )
        raise ConfigurationError(msg)
    return moment


def duration(length: Length) -> Millis:
    """Return the milliseconds of a timedelta or of a number of seconds, up to 1,000 years either way."""
    seconds: Any = length.total_seconds() if isinstance(length, timedelta) else length
    if not isinstance(seconds, (int, float)) or seconds != seconds or abs(seconds) == math.inf:  # noqa: PLR0124 - NaN
        msg = f"{shown(length)} is not a length of time; give a timedelta, or a number of seconds"
        raise ConfigurationError(msg)
    if not -LONGEST_SECONDS <= seconds <= LONGEST_SECONDS:
        msg = f"{shown(length)} is longer than 1,000 years; give a shorter length of time"
        raise ConfigurationError(msg)
    return round(seconds * 1000)


def shown(value: object) -> str:
    """Return a value's repr for a message, shortened. Python refuses to write out integers of thousands of digits."""
    try:
        text = repr(value)
    except ValueError:
        return f"a {type(value).__name__} that is too large to be shown"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def delay_of(length: Length, what: str = "delay") -> Millis:
    """Return the milliseconds of a length of time from now on; raise ConfigurationError if it is negative."""
    millis = duration(length)
    if millis < 0:
        msg = (
            f"{what} is {length!r}, which is negative; give 0 to run at once, or give a time, which may be in the past"
        )
        raise ConfigurationError(msg)
    return millis
