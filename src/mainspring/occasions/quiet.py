"""Hours in which a person is left alone: `22:00-08:00`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time
from functools import lru_cache

from mainspring.errors import InvalidSchedule
from mainspring.schedule.hours import Hours
from mainspring.schedule.parse import times_of_day, write_time


@dataclass(frozen=True, slots=True)
class QuietHours:
    start: time
    end: time  # the first moment that is not quiet

    def __str__(self) -> str:
        return f"{write_time(self.start)}-{write_time(self.end)}"

    @property
    def others(self) -> Hours:
        """In which something may be sent."""
        return Hours(self.end, self.start)


@lru_cache(maxsize=1024)
def quiet_hours(text: str) -> QuietHours:
    first, dash, last = text.partition("-")
    try:
        (start,), (end,) = times_of_day(first.strip()), times_of_day(last.strip())
    except InvalidSchedule:
        dash, start, end = "", time(), time()
    if not dash:
        msg = f"{text!r} are no quiet hours; write 22:00-08:00"
        raise ValueError(msg)
    if start == end:
        msg = f"{text!r} would be the whole day; leave a time at which something may be sent"
        raise ValueError(msg)
    return QuietHours(start, end)
