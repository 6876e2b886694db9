"""Rules about days of the calendar, each with one or more local times: Daily, Weekly, Monthly, Yearly, Once."""

from __future__ import annotations

from abc import abstractmethod
from calendar import isleap, monthrange
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, ClassVar, Literal

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.business import BusinessCalendar
from mainspring.features.schedules.rules.month_day import MonthDay, month_days
from mainspring.features.schedules.rules.parse import (
    WEEKDAYS,
    Date,
    TimeOfDay,
    Weekday,
    calendar_date,
    choice,
    local_time,
    times_of_day,
    weekdays,
    whole,
)
from mainspring.features.schedules.rules.rule import WallRule, fill
from mainspring.features.schedules.rules.words import (
    day_of_year,
    every,
    listing,
    long_date,
    long_moment,
    times,
    weekday_span,
)

DAY = timedelta(days=1)
WEEK = timedelta(days=7)
MONDAY = date(1970, 1, 5)
YEARS_SEARCHED = 60

Adjust = Literal["next", "previous", "skip"]
ADJUSTS: tuple[Adjust, ...] = ("next", "previous", "skip")
Feb29 = Literal["feb28", "mar1", "skip"]
FEB29S: tuple[Feb29, ...] = ("feb28", "mar1", "skip")
Times = TimeOfDay | Sequence[TimeOfDay]


class DayRule(WallRule):
    """A rule that names days, each with the same times. Days that are not business days can be moved or left out."""

    __slots__ = ()
    at: tuple[time, ...]
    business: BusinessCalendar | None
    adjust: Adjust

    @abstractmethod
    def days_from(self, day: date) -> Iterator[date]:
        """Yield the rule's days from this one on, in order."""

    @abstractmethod
    def describe_days(self) -> str: ...

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

    def words(self) -> str:
        return f"{times(self.at)} {self.describe_days()}{self.describe_business()}"

    def describe_business(self) -> str:
        if self.business is None:
            return ""
        name = f"business day{self.business.describe()}"
        if self.adjust == "skip":
            return f", if that is a {name}"
        return f", or the {self.adjust} {name}"


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

    def describe_days(self) -> str:
        return every(self.every, "day") + _describe_start(self.starting)

    def words(self) -> str:
        if self.business is None or self.every > 1 or self.adjust != "next":
            return DayRule.words(self)
        return f"{times(self.at)} every business day{self.business.describe()}{_describe_start(self.starting)}"


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

    def describe_days(self) -> str:
        days = weekday_span(weekdays(self.on, "on"))
        if self.every > 1:
            return f"on {days} {every(self.every, 'week')}{_describe_start(self.starting)}"
        return f"{days if ' to ' in days else f'every {days}'}{_describe_start(self.starting)}"


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

    def describe_days(self) -> str:
        days = listing(spec.describe(self.business) for spec in month_days(self.on))
        return f"on {days} of {every(self.every, 'month')}{_describe_start(self.starting)}{self._short()}"

    def describe_business(self) -> str:
        already = all(spec.business for spec in month_days(self.on))
        return "" if already else DayRule.describe_business(self)

    def _short(self) -> str:
        late = [on for on in self.on if isinstance(on, int) and on > 28]
        if not late:
            return ""
        return " (the last day of shorter months)" if self.short == "last" else " (not in shorter months)"


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

    def describe_days(self) -> str:
        other_years = {
            "feb28": " (28 February in other years)",
            "mar1": " (1 March in other years)",
            "skip": " in leap years",
        }
        leap = other_years[self.feb29] if (self.month, self.day) == (2, 29) else " every year"
        return f"on {day_of_year(self.month, self.day)}{leap}"


@dataclass(frozen=True, slots=True, init=False)
class Once(WallRule):
    """Once("2026-12-24T18:00"): one local time."""

    kind: ClassVar[str] = "once"
    at: datetime

    def __init__(self, at: datetime | str) -> None:
        fill(self, at=local_time(at, "at"))

    def next_from(self, local: datetime) -> datetime | None:
        return self.at if self.at >= local else None

    def words(self) -> str:
        return f"once, at {long_moment(self.at)}"


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


def _describe_start(starting: date | None) -> str:
    return "" if starting is None else f" from {long_date(starting)}"
