"""Rules about days of the calendar, each with one or more local times: Daily, Weekly, Monthly, Yearly, Once."""

from __future__ import annotations

import re
from abc import abstractmethod
from calendar import isleap, monthrange
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Any, ClassVar, Literal

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.business import BusinessCalendar
from mainspring.features.schedules.rules.parse import (
    WEEKDAYS,
    Date,
    TimeOfDay,
    Weekday,
    calendar_date,
    choice,
    local_time,
    times_of_day,
    weekday,
    weekdays,
    whole,
)
from mainspring.features.schedules.rules.rule import WallRule, fill
from mainspring.features.schedules.rules.words import ORDINALS, ordinal

DAY = timedelta(days=1)
WEEK = timedelta(days=7)
MONDAY = date(1970, 1, 5)
YEARS_SEARCHED = 60

Adjust = Literal["next", "previous", "skip"]
ADJUSTS: tuple[Adjust, ...] = ("next", "previous", "skip")
Feb29 = Literal["feb28", "mar1", "skip"]
FEB29S: tuple[Feb29, ...] = ("feb28", "mar1", "skip")
Times = TimeOfDay | Sequence[TimeOfDay]
MonthDay = int | str
WHICH = {name: number for number, name in enumerate(ORDINALS, 1)} | {"last": -1}
MONTH_DAY = re.compile(r"(last|first|second|third|fourth|fifth|\d{1,2}(?:st|nd|rd|th))\s+(business day|day|[a-z]+)")


class DayRule(WallRule):
    """A rule that names days, each with the same times. Days that are not business days can be moved or left out."""

    __slots__ = ()
    at: tuple[time, ...]
    business: BusinessCalendar | None
    adjust: Adjust

    @abstractmethod
    def days_from(self, day: date) -> Iterator[date]:
        """Yield the rule's days from this one on, in order."""

    def next_from(self, local: datetime) -> datetime | None:
        try:
            for day in self._adjusted_from(local.date()):
                if day > local.date():
                    return datetime.combine(day, self.at[0])
                remaining = [at for at in self.at if datetime.combine(day, at) >= local]
                if remaining:
                    return datetime.combine(day, remaining[0])
        except OverflowError:  # beyond the year 9999
            pass
        return None

    def _adjusted_from(self, day: date) -> Iterator[date]:
        business = self.business
        if business is None:
            yield from self.days_from(day)
            return
        begin = business.previous_open(day - DAY) + DAY if self.adjust == "next" else day
        for raw in self.days_from(begin):
            if raw.year > day.year + YEARS_SEARCHED:
                return
            moved = self._moved(business, raw)
            if moved is not None and moved >= day:
                yield moved

    def _moved(self, business: BusinessCalendar, day: date) -> date | None:
        if self.adjust == "skip":
            return day if business.is_open(day) else None
        return business.next_open(day) if self.adjust == "next" else business.previous_open(day)


@dataclass(frozen=True, slots=True, init=False)
class Daily(DayRule):
    """Daily("09:00"), Daily(["09:00", "17:00"], every=3, starting="2026-01-01"), Daily("09:00", business=...)."""

    kind: ClassVar[str] = "daily"
    at: tuple[time, ...]
    every: int
    starting: date | None
    business: BusinessCalendar | None
    adjust: Adjust

    def __init__(
        self,
        at: Times,
        *,
        every: int = 1,
        starting: Date | None = None,
        business: BusinessCalendar | dict[str, Any] | None = None,
        adjust: str = "next",
    ) -> None:
        fill(self, at=times_of_day(at), **_counting(every, starting, "days"), **_business(business, adjust))

    def days_from(self, day: date) -> Iterator[date]:
        if self.starting is not None:
            periods = max(0, -((self.starting - day).days // self.every))
            day = self.starting + periods * self.every * DAY
        while True:
            yield day
            day += self.every * DAY


@dataclass(frozen=True, slots=True, init=False)
class Weekly(DayRule):
    """Weekly("mon", "09:00"), Weekly("mon-fri", "09:00"), Weekly("fri", "16:00", every=2, starting="2026-01-02")."""

    kind: ClassVar[str] = "weekly"
    on: tuple[str, ...]
    at: tuple[time, ...]
    every: int
    starting: date | None
    business: BusinessCalendar | None
    adjust: Adjust

    def __init__(
        self,
        on: Weekday | Iterable[Weekday],
        at: Times,
        *,
        every: int = 1,
        starting: Date | None = None,
        business: BusinessCalendar | dict[str, Any] | None = None,
        adjust: str = "next",
    ) -> None:
        days = tuple(WEEKDAYS[day] for day in weekdays(on, "on"))
        if not days:
            msg = f"on: at least one day of the week is needed, such as {WEEKDAYS[0]}"
            raise InvalidSchedule(msg)
        fill(self, on=days, at=times_of_day(at), **_counting(every, starting, "weeks"), **_business(business, adjust))

    def days_from(self, day: date) -> Iterator[date]:
        day = max(day, self.starting or day)
        numbers = weekdays(self.on, "on")
        first = (self.starting or MONDAY) - (self.starting or MONDAY).weekday() * DAY
        monday = first + (day - first).days // (7 * self.every) * self.every * WEEK
        while True:
            yield from (found for number in numbers if (found := monday + number * DAY) >= day)
            monday += self.every * WEEK


@dataclass(frozen=True, slots=True, init=False)
class Monthly(DayRule):
    """Monthly(1, "09:00"), Monthly("last", "09:00"), Monthly("2nd tue", "09:00"), Monthly("last business day", "17:00")

    Use -2 for the last day but one, a list for several days, and every=3, starting="2026-01-01" for quarters. `short`
    says when the 29th, 30th and 31st fire in shorter months: on the last day ("last") or not at all ("skip").
    """

    kind: ClassVar[str] = "monthly"
    on: tuple[int | str, ...]
    at: tuple[time, ...]
    every: int
    starting: date | None
    short: Literal["last", "skip"]
    business: BusinessCalendar | None
    adjust: Adjust

    def __init__(
        self,
        on: MonthDay | Iterable[MonthDay],
        at: Times,
        *,
        every: int = 1,
        starting: Date | None = None,
        short: str = "last",
        business: BusinessCalendar | dict[str, Any] | None = None,
        adjust: str = "next",
    ) -> None:
        fill(
            self,
            on=tuple(spec.written for spec in month_days(on)),
            at=times_of_day(at),
            short=choice(short, ("last", "skip"), "short"),
            **_counting(every, starting, "months"),
            **_business(business, adjust),
        )

    def days_from(self, day: date) -> Iterator[date]:
        day = max(day, self.starting or day)
        specs, business = month_days(self.on), self.business or BusinessCalendar()
        first = self.starting or MONDAY
        origin = first.year * 12 + first.month - 1
        month = origin + (day.year * 12 + day.month - 1 - origin) // self.every * self.every
        last = min(day.year + YEARS_SEARCHED, 9999) * 12
        while month < last + 12:
            year, number = month // 12, month % 12 + 1
            found = {spec.find(year, number, self.short == "last", business) for spec in specs}
            yield from sorted(match for match in found if match is not None and match >= day)
            month += self.every


@dataclass(frozen=True, slots=True, init=False)
class Yearly(DayRule):
    """Yearly(12, 24), Yearly(2, 29, "09:00", feb29="mar1"): a date of every year.

    `feb29` says when 29 February fires in other years: on 28 February, on 1 March, or not at all.
    """

    kind: ClassVar[str] = "yearly"
    month: int
    day: int
    at: tuple[time, ...]
    feb29: Feb29
    business: BusinessCalendar | None
    adjust: Adjust

    def __init__(
        self,
        month: int,
        day: int,
        at: Times = time(9),
        feb29: str = "feb28",
        *,
        business: BusinessCalendar | dict[str, Any] | None = None,
        adjust: str = "next",
    ) -> None:
        fill(self, month=whole(month, "month", 1, 12), at=times_of_day(at), **_business(business, adjust))
        fill(self, day=whole(day, "day", 1, monthrange(2000, month)[1]), feb29=choice(feb29, FEB29S, "feb29"))

    def days_from(self, day: date) -> Iterator[date]:
        for year in range(max(day.year - 1, 1), 10_000):
            found = self.in_year(year)
            if found is not None and found >= day:
                yield found

    def in_year(self, year: int) -> date | None:
        if (self.month, self.day) != (2, 29) or isleap(year):
            return date(year, self.month, self.day)
        return {"feb28": date(year, 2, 28), "mar1": date(year, 3, 1), "skip": None}[self.feb29]


@dataclass(frozen=True, slots=True, init=False)
class Once(WallRule):
    """Once("2026-12-24T18:00"): one local time."""

    kind: ClassVar[str] = "once"
    at: datetime

    def __init__(self, at: datetime | str) -> None:
        fill(self, at=local_time(at, "at"))

    def next_from(self, local: datetime) -> datetime | None:
        return self.at if self.at >= local else None


def _counting(count: int, starting: Date | None, unit: str) -> dict[str, object]:
    whole(count, "every", 1, 10_000)
    if count > 1 and starting is None:
        msg = f'starting: every {count} {unit} needs a first day to count from, such as starting="2026-01-01"'
        raise InvalidSchedule(msg)
    return {"every": count, "starting": None if starting is None else calendar_date(starting, "starting")}


def _business(business: BusinessCalendar | dict[str, Any] | None, adjust: str) -> dict[str, object]:
    if isinstance(business, dict):
        try:
            business = BusinessCalendar(**business)
        except TypeError as error:
            msg = f"business: {error}"
            raise InvalidSchedule(msg) from None
    if business is not None and not isinstance(business, BusinessCalendar):
        msg = f"business: {business!r} is not a BusinessCalendar or a JSON object of its arguments"
        raise InvalidSchedule(msg)
    return {"business": business, "adjust": choice(adjust, ADJUSTS, "adjust")}


# -- days of a month -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MonthDaySpec:
    """A day of a month: 15, -1, "last", "2nd tue", "last fri", "1st business day"."""

    written: int | str  # in its normal form
    which: int  # counted from the first or, if negative, from the last
    weekday: int | None = None
    business: bool = False

    def find(self, year: int, month: int, clamp: bool, business: BusinessCalendar) -> date | None:  # noqa: FBT001 - internal
        first, length = monthrange(year, month)
        days: Sequence[int]
        if self.weekday is not None:
            days = range((self.weekday - first) % 7 + 1, length + 1, 7)
        elif self.business:
            days = tuple(day for day in range(1, length + 1) if business.is_open(date(year, month, day)))
        else:
            days = range(1, length + 1)
        number = self.which if self.which < 0 else self.which - 1
        if -len(days) <= number < len(days):
            return date(year, month, days[number])
        plain = self.weekday is None and not self.business
        return date(year, month, length) if plain and clamp and self.which > 0 else None


def month_days(on: MonthDay | Iterable[MonthDay]) -> tuple[MonthDaySpec, ...]:
    several = (on,) if isinstance(on, int | str) else tuple(on)
    if not several:
        msg = "on: at least one day of the month is needed, such as 1, -1, 'last' or '2nd tue'"
        raise InvalidSchedule(msg)
    return _month_days(several)


@lru_cache(maxsize=1024)
def _month_days(several: tuple[MonthDay, ...]) -> tuple[MonthDaySpec, ...]:
    return tuple(_read_month_day(day) for day in several)


def _read_month_day(on: MonthDay) -> MonthDaySpec:
    if isinstance(on, int) and not isinstance(on, bool) and 1 <= abs(on) <= 31:
        return MonthDaySpec(on, on)
    text = on.strip().lower() if isinstance(on, str) else ""
    if text in ("last", "last day"):
        return MonthDaySpec(-1, -1)
    found = MONTH_DAY.fullmatch(text)
    if found is None or found[2] == "day":
        msg = (
            f"on: {on!r} is not a day of a month; write 1 to 31, -1, 'last', '2nd tue', 'last fri', '1st business day'"
        )
        raise InvalidSchedule(msg)
    which = WHICH.get(found[1]) or int(found[1][:-2])
    name = "last" if which < 0 else ordinal(which)
    if found[2] == "business day":
        return _checked_month_day(on, MonthDaySpec(f"{name} business day", which, business=True), 23)
    day = weekday(found[2], "on")
    return _checked_month_day(on, MonthDaySpec(f"{name} {WEEKDAYS[day]}", which, weekday=day), 5)


def _checked_month_day(on: MonthDay, spec: MonthDaySpec, most: int) -> MonthDaySpec:
    if 1 <= abs(spec.which) <= most:
        return spec
    msg = f"on: no month has a {on!r}"
    raise InvalidSchedule(msg)
