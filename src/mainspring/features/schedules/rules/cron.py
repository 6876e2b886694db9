"""Cron expressions, parsed and matched without a library: "Cron" in docs/internals/time.md says why."""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import ClassVar

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.cron_fields import Fields, Values, read_fields
from mainspring.features.schedules.rules.cron_words import describe_cron
from mainspring.features.schedules.rules.rule import WallRule, fill

SECOND = timedelta(seconds=1)
YEARS_SEARCHED = 60  # the rarest date, such as a fifth Monday in February, comes within 40 years
LENGTHS = {2: (28, 29), 4: (30,), 6: (30,), 9: (30,), 11: (30,)}  # of months; the others have 31 days


@dataclass(frozen=True, slots=True, init=False)
class Cron(WallRule):
    """A cron expression of five fields, or six with seconds first.

    Cron("*/5 * * * *")         every five minutes
    Cron("30 9 * * MON-FRI")    names, in any case
    Cron("0 9 L * *")           the last day of the month; L-2: two days before it; LW: its last workday
    Cron("0 9 15W * *")         the workday nearest to the 15th
    Cron("0 9 * * FRI#2")       the second Friday; FRIL: the last one
    Cron("@daily")              also @hourly, @weekly, @monthly, @yearly

    If both day fields are restricted, either may match. If one of them begins with a star, both must match.
    """

    kind: ClassVar[str] = "cron"
    expression: str

    def __init__(self, expression: str) -> None:
        if not isinstance(expression, str):
            msg = f"a cron expression is text, not {expression!r}"
            raise InvalidSchedule(msg)
        fill(self, expression=" ".join(expression.split()))
        matcher(self.expression)

    @property
    def continuous(self) -> bool:
        """As in Vixie's cron, a rule whose minutes or hours begin with a star recurs; others name times of day."""
        fields = matcher(self.expression).fields
        return fields.minute.starred or fields.hour.starred

    def next_from(self, local: datetime) -> datetime | None:
        return matcher(self.expression).next_from(local)

    def words(self) -> str:
        return describe_cron(matcher(self.expression).fields)

    def exact(self) -> str:
        return f"cron {self.expression}"


class Matcher:
    """A parsed expression. It caches the matching days per shape of month: its first weekday and its length."""

    def __init__(self, expression: str) -> None:
        self.fields = fields = read_fields(expression)
        self._seconds, self._minutes, self._hours = fields.second.numbers, fields.minute.numbers, fields.hour.numbers
        self._first = time(self._hours[0], self._minutes[0], self._seconds[0])
        self._months = frozenset(fields.month.numbers)
        self._shapes: dict[tuple[int, int], tuple[int, ...]] = {}
        if not any(self._days(w, n) for m in self._months for n in LENGTHS.get(m, (31,)) for w in range(7)):
            msg = f"cron {expression!r} never fires: no month that it names has such a day"
            raise InvalidSchedule(msg)

    def next_from(self, local: datetime) -> datetime | None:
        start = local if local.microsecond == 0 else local.replace(microsecond=0) + SECOND
        day = self._day_from(start.date())
        if day == start.date():
            at = self._time_from(start.hour, start.minute, start.second)
            if at is not None:
                return datetime.combine(day, at)
            day = self._day_from(day + timedelta(days=1))
        return None if day is None else datetime.combine(day, self._first)

    def _time_from(self, hour: int, minute: int, second: int) -> time | None:
        """Return the first matching time of day from this one on, or None if there is none on this day."""
        seconds, minutes, hours = self._seconds, self._minutes, self._hours
        s = bisect_left(seconds, second) if hour in hours and minute in minutes else 0
        if s == len(seconds):
            s, minute = 0, minute + 1
        m = bisect_left(minutes, minute) if hour in hours else 0
        if m == len(minutes):
            m, hour = 0, hour + 1
        h = bisect_left(hours, hour)
        if h == len(hours):
            return None
        if hours[h] != hour:
            return time(hours[h], minutes[0], seconds[0])
        return time(hour, minutes[m], seconds[s] if minutes[m] == minute else seconds[0])

    def _day_from(self, day: date) -> date | None:
        year, month, least = day.year, day.month, day.day
        while year <= min(day.year + YEARS_SEARCHED, 9999):
            if month in self._months:
                days = self._days(*monthrange(year, month))
                found = bisect_left(days, least)
                if found < len(days):
                    return date(year, month, days[found])
            year, month, least = (year, month + 1, 1) if month < 12 else (year + 1, 1, 1)
        return None

    def _days(self, first_weekday: int, length: int) -> tuple[int, ...]:
        days = self._shapes.get((first_weekday, length))
        if days is None:
            days = self._shapes[first_weekday, length] = _days(self.fields, (first_weekday + 1) % 7, length)
        return days


@lru_cache(maxsize=4096)
def matcher(expression: str) -> Matcher:
    return Matcher(expression)


def _days(fields: Fields, first: int, length: int) -> tuple[int, ...]:
    """Return the matching days of a month whose first day is the weekday `first` (Sunday is 0)."""
    by_date = _days_by_date(fields.day, first, length)
    by_weekday = _days_by_weekday(fields.weekday, first, length)
    both = fields.day.starred or fields.weekday.starred
    return tuple(sorted(by_date & by_weekday if both else by_date | by_weekday))


def _days_by_date(values: Values, first: int, length: int) -> set[int]:
    days = {day for day in values.numbers if day <= length}
    days |= {length - before for before in values.last if before < length}
    days |= {_nearest_workday(day, first, length) for day in values.nearest if day <= length}
    return days | ({_nearest_workday(length, first, length)} if values.last_workday else set())


def _days_by_weekday(values: Values, first: int, length: int) -> set[int]:
    days = {day for day in range(1, length + 1) if (first + day - 1) % 7 in values.numbers}
    for weekday, which in values.nth:
        all_such = range((weekday - first) % 7 + 1, length + 1, 7)
        if which <= len(all_such):
            days.add(all_such[which if which < 0 else which - 1])
    return days


def _nearest_workday(day: int, first: int, length: int) -> int:
    """Return the day from Monday to Friday that is nearest to this one, in the same month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day
