"""Hours of each day, or of some days of the week: from 08:00 until 22:00, or past midnight."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from mainspring.features.schedules.rules.parse import WEEKDAYS, write_time
from mainspring.features.schedules.rules.tz import TimeZone

WEEK = 7  # days


@dataclass(frozen=True, slots=True)
class Hours:
    start: time
    end: time  # excluded; if it is not after the start, it is on the next day
    days: tuple[int, ...] = tuple(range(WEEK))  # on which the hours begin; Monday is 0

    def opening(self, tz: TimeZone, utc: datetime) -> datetime:
        """Return `utc` if it is within the hours, else the instant at which they begin next. Both are naive UTC.

        If clocks skip the start or the end, the instant of the clock change counts instead. If the start or the end
        comes twice, the first counts.
        """
        today = (utc + tz.offset(utc)).date()
        for ahead in range(-2, 2 * WEEK + 1):  # two weeks: clocks may skip the hours of a day, and even a whole day
            day = today + timedelta(days=ahead)
            start, end = self._instant(tz, day, self.start), self._closing(tz, day)
            if day.weekday() in self.days and utc < end and start < end:
                return max(utc, start)
        return utc  # unreachable: some day of every week has the hours

    def to_data(self) -> dict[str, str]:
        return {"start": write_time(self.start), "end": write_time(self.end), "days": self._days()}

    def describe(self) -> str:
        days = "" if len(self.days) == WEEK else f" on {self._days()}"
        return f"{write_time(self.start)} to {write_time(self.end)}{days}"

    def _days(self) -> str:
        return " ".join(WEEKDAYS[day] for day in self.days)

    def _closing(self, tz: TimeZone, day: date) -> datetime:
        return self._instant(tz, day if self.start < self.end else day + timedelta(days=1), self.end)

    def _instant(self, tz: TimeZone, day: date, at: time) -> datetime:
        (found,) = tz.resolve(datetime.combine(day, at))
        return tz.span(found.utc).start if found.shifted else found.utc
