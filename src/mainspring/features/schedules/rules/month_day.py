"""Parses a day of a month for `Monthly`: 15, -1, "last", "2nd tue", "last fri", "1st business day"."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.business import BusinessCalendar
from mainspring.features.schedules.rules.parse import FULL_WEEKDAYS, WEEKDAYS, weekday
from mainspring.features.schedules.rules.words import ORDINALS, ordinal

MonthDay = int | str
WHICH = {name: number for number, name in enumerate(ORDINALS, 1)} | {"last": -1}
SPEC = re.compile(r"(last|first|second|third|fourth|fifth|\d{1,2}(?:st|nd|rd|th))\s+(business day|day|[a-z]+)")


@dataclass(frozen=True, slots=True)
class Spec:
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

    def describe(self, business: BusinessCalendar | None) -> str:
        what = "day" if self.weekday is None else FULL_WEEKDAYS[self.weekday]
        if self.business:
            what = f"business day{business.describe() if business else ''}"
        if self.which < 0:
            return f"the {'' if self.which == -1 else f'{ordinal(-self.which)} to '}last {what}"
        return f"the {ordinal(self.which)}" + ("" if what == "day" else f" {what}")


def month_days(on: MonthDay | Iterable[MonthDay]) -> tuple[Spec, ...]:
    several = (on,) if isinstance(on, int | str) else tuple(on)
    if not several:
        msg = "on: at least one day of the month is needed, such as 1, -1, 'last' or '2nd tue'"
        raise InvalidSchedule(msg)
    return _month_days(several)


@lru_cache(maxsize=1024)
def _month_days(several: tuple[MonthDay, ...]) -> tuple[Spec, ...]:
    return tuple(_read(day) for day in several)


def _read(on: MonthDay) -> Spec:
    if isinstance(on, int) and not isinstance(on, bool) and 1 <= abs(on) <= 31:
        return Spec(on, on)
    text = on.strip().lower() if isinstance(on, str) else ""
    if text in ("last", "last day"):
        return Spec(-1, -1)
    found = SPEC.fullmatch(text)
    if found is None or found[2] == "day":
        msg = (
            f"on: {on!r} is not a day of a month; write 1 to 31, -1, 'last', '2nd tue', 'last fri', '1st business day'"
        )
        raise InvalidSchedule(msg)
    which = WHICH.get(found[1]) or int(found[1][:-2])
    name = "last" if which < 0 else ordinal(which)
    if found[2] == "business day":
        return _checked(on, Spec(f"{name} business day", which, business=True), 23)
    day = weekday(found[2], "on")
    return _checked(on, Spec(f"{name} {WEEKDAYS[day]}", which, weekday=day), 5)


def _checked(on: MonthDay, spec: Spec, most: int) -> Spec:
    if 1 <= abs(spec.which) <= most:
        return spec
    msg = f"on: no month has a {on!r}"
    raise InvalidSchedule(msg)
