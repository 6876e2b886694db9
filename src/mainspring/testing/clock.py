"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from mainspring.clock import Millis, duration, to_millis

START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """A `Clock` for tests: `clock.advance(30)`, `clock.advance(timedelta(days=365))`."""

    def __init__(self, start: datetime = START) -> None:
        self._wall = to_millis(start)
        self._elapsed: Millis = 0
        self._lock = threading.Lock()  # for moving the clock; reading one number needs no lock

    def now(self) -> Millis:
        return self._wall

    def monotonic(self) -> float:
        return self._elapsed / 1000

    def advance(self, seconds: timedelta | float) -> None:
        """Let this much time pass, on the wall clock and the monotonic clock."""
        length = duration(seconds)
        if length < 0:
            msg = "time cannot go back; to set the wall clock back, use shift()"
            raise ValueError(msg)
        with self._lock:
            self._wall += length
            self._elapsed += length

    def shift(self, seconds: timedelta | float) -> None:
        """Set the wall clock forward or back, as an operator or NTP would. The monotonic clock does not change."""
        with self._lock:
            self._wall += duration(seconds)
