"""Cron expressions, parsed and matched without a library: "Cron" in docs/internals/time.md says why."""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum
from functools import lru_cache
from typing import ClassVar, NoReturn

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.rule import WallRule, fill

MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MAX_DIGITS = 9  # of a number; int() raises its own error for thousands of digits
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

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
    def fields(self) -> Fields:
        return matcher(self.expression).fields

    @property
    def continuous(self) -> bool:
        """As in Vixie's cron, a rule whose minutes or hours begin with a star recurs; others name times of day."""
        fields = self.fields
        return fields.minute.starred or fields.hour.starred

    def next_from(self, local: datetime) -> datetime | None:
        return matcher(self.expression).next_from(local)

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


# -- the fields of an expression -----------------------------------------------------------------------------


class Field(Enum):
    """A field's name in messages, its range, and the names of its values, from the least value on."""

    SECOND = "second", 0, 59, ()
    MINUTE = "minute", 0, 59, ()
    HOUR = "hour", 0, 23, ()
    DAY = "day of the month", 1, 31, ()
    MONTH = "month", 1, 12, MONTHS
    WEEKDAY = "day of the week", 0, 7, DAYS  # 0 and 7 are Sunday

    def __init__(self, label: str, least: int, most: int, names: tuple[str, ...]) -> None:
        self.label, self.least, self.most, self.names = label, least, most, names


@dataclass(frozen=True, slots=True)
class Values:
    """The values that one field allows."""

    text: str
    numbers: tuple[int, ...]  # sorted; weekdays with 0 for Sunday
    last: tuple[int, ...] = ()  # day of the month: how many days before the last one
    last_workday: bool = False  # LW
    nearest: tuple[int, ...] = ()  # 15W: the workday nearest to the 15th, in the same month
    nth: tuple[tuple[int, int], ...] = ()  # (weekday, which): FRI#2; which is -1 for the last

    @property
    def starred(self) -> bool:
        """Return whether cron treats the field as unrestricted: it begins with a star, whatever follows."""
        return self.text.startswith(("*", "?"))

    @property
    def every(self) -> bool:
        return self.text in ("*", "?")


@dataclass(frozen=True, slots=True)
class Fields:
    second: Values
    minute: Values
    hour: Values
    day: Values
    month: Values
    weekday: Values


def read_fields(expression: str) -> Fields:
    text = NICKNAMES.get(expression.strip().lower(), expression)
    if text.lstrip().startswith("@"):
        _refuse(expression, f"{text.strip()!r} is not one of {', '.join(NICKNAMES)}{_hint(text)}")
    parts = text.upper().split()
    if len(parts) not in (5, 6):
        count = f"it has {len(parts)} field{'' if len(parts) == 1 else 's'}"
        _refuse(expression, f"{count}; cron has five (minute hour day month weekday), or six with seconds first")
    parts = parts if len(parts) == 6 else ["0", *parts]
    return Fields(*(Reader(expression, field, part).read() for field, part in zip(Field, parts, strict=True)))


def _hint(nickname: str) -> str:
    if "every" in nickname:
        return "; for a fixed interval use Interval('5m')"
    return "; a schedule does not belong to one machine, so there is no reboot" if "reboot" in nickname else ""


def _refuse(expression: str, why: str) -> NoReturn:
    msg = f"cron {expression!r}: {why}"
    raise InvalidSchedule(msg)


class Reader:
    """Reads one field, term by term."""

    def __init__(self, expression: str, field: Field, text: str) -> None:
        self.expression, self.field, self.text = expression, field, text
        self.most = 6 if field is Field.WEEKDAY else field.most
        self.numbers: set[int] = set()
        self.last: set[int] = set()
        self.nearest: set[int] = set()
        self.nth: set[tuple[int, int]] = set()
        self.last_workday = False

    def read(self) -> Values:
        for term in self.text.split(","):
            special = {Field.DAY: self._special_day, Field.WEEKDAY: self._special_weekday}.get(self.field)
            if special is None or not special(term):
                self.numbers.update(self._span(term))
        return Values(
            text=self.text,
            numbers=tuple(sorted(self.numbers)),
            last=tuple(sorted(self.last)),
            last_workday=self.last_workday,
            nearest=tuple(sorted(self.nearest)),
            nth=tuple(sorted(self.nth)),
        )

    def _special_day(self, term: str) -> bool:
        """Parse `L`, `L-3`, `LW` or `15W`; return whether the term is one of these."""
        if term == "LW":
            self.last_workday = True
            return True
        if found := re.fullmatch(r"L(?:-(\d{1,9}))?", term):
            self.last.add(self._within(int(found[1] or 0), 0, 30, term))
        elif found := re.fullmatch(r"(\d{1,9})W", term):
            self.nearest.add(self._number(found[1], term))
        return found is not None

    def _special_weekday(self, term: str) -> bool:
        """Parse `FRI#2` or `FRIL`; return whether the term is one of these."""
        if found := re.fullmatch(r"(\w+)#(\d{1,9})", term):
            self.nth.add((self._number(found[1], term) % 7, self._within(int(found[2]), 1, 5, term)))
        elif found := re.fullmatch(r"(\w+)L", term):
            self.nth.add((self._number(found[1], term) % 7, -1))
        return found is not None

    def _span(self, term: str) -> range | list[int]:
        """Parse `*`, `5`, `1-5`, `*/2`, `1-9/2` or `5/10` (from 5 on)."""
        body, slash, step_text = term.partition("/")
        if body in ("*", "?"):
            first, last = self._all(body)
        elif "-" in body:
            first, last = self._range(body)
        else:
            first = self._number(body, term)
            last = max(first, self.most) if slash else first  # 7/2: no day follows 7, the second Sunday
        written = (first, last) if "-" in body else (self.field.least, self.most)
        found = range(first, last + 1, self._step(step_text, term, *written) if slash else 1)
        return [day % 7 for day in found] if self.field is Field.WEEKDAY else found

    def _all(self, body: str) -> tuple[int, int]:
        if body == "?" and self.field not in (Field.DAY, Field.WEEKDAY):
            self._refuse(f"'?' is allowed only for the day of the month or of the week, not for the {self.field.label}")
        return self.field.least, self.most

    def _range(self, body: str) -> tuple[int, int]:
        low, _, high = body.partition("-")
        first, last = self._number(low, body), self._number(high, body)
        last = 7 if self.field is Field.WEEKDAY and last == 0 < first else last  # FRI-SUN
        if last < first:
            rest = high if last == self.field.least else f"{self.field.least}-{high}"
            self._refuse(f"the {self.field.label} {body!r} ends before it begins; write {low}-{self.most},{rest}")
        return first, last

    def _step(self, text: str, term: str, first: int, last: int) -> int:
        """Return the step. Any range may have a step of 1; a longer one must reach a second value of its range."""
        label, size = self.field.label, last - first + 1
        if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS or int(text) == 0:
            self._refuse(f"the step of the {label} {term!r} is not a number above 0")
        if int(text) >= size and int(text) > 1:
            hint = f"; for an interval that long use Interval('{text}{label[0]}')" if size in (60, 24) else ""
            hint = (
                hint or f"; leave the step out, or make it at most {size - 1}" if size > 1 else "; leave the step out"
            )
            values = f"all {size} values" if size > 1 else "its only value"
            self._refuse(f"the {label} {term!r} steps over {values}, so the step does nothing{hint}")
        return int(text)

    def _number(self, text: str, term: str) -> int:
        field = self.field
        if text in field.names:
            return field.names.index(text) + field.least
        if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
            names = f" or a name such as {field.names[1]}" if field.names else ""
            self._refuse(f"the {field.label} {term!r} is not understood; use {field.least}-{field.most}{names}")
        return self._within(int(text), field.least, field.most, term)

    def _within(self, number: int, least: int, most: int, term: str) -> int:
        if not least <= number <= most:
            self._refuse(f"the {self.field.label} {term!r} is out of range; {number} is not within {least}-{most}")
        return number

    def _refuse(self, why: str) -> NoReturn:
        _refuse(self.expression, why)
