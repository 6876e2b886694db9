"""Quiet hours, in which a person gets no messages: `22:00-08:00`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time
from functools import lru_cache

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.hours import Hours
from mainspring.features.schedules.rules.parse import times_of_day, write_time


@dataclass(frozen=True, slots=True)
class QuietHours:
    start: time
    end: time  # excluded

    def __str__(self) -> str:
        return f"{write_time(self.start)}-{write_time(self.end)}"

    @property
    def others(self) -> Hours:
        """Return the hours in which messages may be sent."""
        return Hours(self.end, self.start)


@lru_cache(maxsize=1024)
def quiet_hours(text: str) -> QuietHours:
    first, dash, last = text.partition("-")
    try:
        (start,), (end,) = times_of_day(first.strip()), times_of_day(last.strip())
    except InvalidSchedule:
        dash, start, end = "", time(), time()
    if not dash:
        msg = f"{text!r} are not quiet hours; write 22:00-08:00"
        raise ValueError(msg)
    if start == end:
        msg = f"{text!r} covers the whole day; leave some time in which messages may be sent"
        raise ValueError(msg)
    return QuietHours(start, end)
