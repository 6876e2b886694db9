"""Writes times and dates in English."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta

from mainspring.features.schedules.rules.parse import FULL_WEEKDAYS, write_time

FULL_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
ORDINALS = ("first", "second", "third", "fourth", "fifth")
UNITS = (("week", 604_800), ("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


def listing(items: Iterable[str], conjunction: str = "and") -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    several = list(items)
    if len(several) < 2:
        return "".join(several)
    return f"{', '.join(several[:-1])} {conjunction} {several[-1]}"


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 11th."""
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def times(at: Sequence[time]) -> str:
    return f"at {listing(write_time(time) for time in at)}"


def weekday_span(days: Sequence[int]) -> str:
    """Return `Monday to Friday`, or `Tuesday and Thursday`. Monday is 0."""
    if len(days) > 2 and list(days) == list(range(days[0], days[0] + len(days))):
        return f"{FULL_WEEKDAYS[days[0]]} to {FULL_WEEKDAYS[days[-1]]}"
    return listing(FULL_WEEKDAYS[day] for day in days)


def every(count: int, unit: str) -> str:
    """Return `every day`, or `every 3 days`."""
    return f"every {unit}" if count == 1 else f"every {count} {unit}s"


def span_of_time(length: timedelta) -> str:
    """Return `5 minutes` or `1 hour and 30 minutes`; for exactly one, `minute`, as in "every minute"."""
    seconds, parts = length.total_seconds(), []
    for unit, size in UNITS:
        if unit == "week" and seconds % size:
            continue
        count = seconds / size if unit == "second" else seconds // size
        seconds -= count * size
        parts += [f"{count:g} {unit}{'' if count == 1 else 's'}"] if count else []
    return parts[0].removeprefix("1 ") if len(parts) == 1 else listing(parts)


def day_of_year(month: int, day: int) -> str:
    return f"{day} {FULL_MONTHS[month - 1]}"


def long_date(day: date) -> str:
    return f"{day_of_year(day.month, day.day)} {day.year}"


def long_moment(moment: datetime) -> str:
    return f"{write_time(moment.time().replace(microsecond=0))} on {long_date(moment.date())}"
