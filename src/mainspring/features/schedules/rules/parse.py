"""Parses what people and JSON write: lengths of time, times of day, dates, choices.

Each function accepts the value itself or its text. Its error says what would be accepted; `what` names the argument.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any

from mainspring.clock import shown
from mainspring.errors import InvalidSchedule

SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
UNITS = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}
LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|(?:second|minute|hour|day|week)s?\b|s|min|m|h|d|w)\s*")
WRITTEN_UNITS = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
)
MAX_LENGTH = timedelta(days=36_500)
FIRST_YEAR, END_YEAR = 2, 9999  # of times in rules; the end is excluded
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
FULL_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

Length = timedelta | float | str
TimeOfDay = time | str
Date = date | str
Weekday = int | str


def length(value: Length, what: str) -> timedelta:
    """Parse a timedelta, seconds, or text such as 90s, 15m, 1h30m, 2d, 1 hour and 30 minutes."""
    found = _length(value)
    if found is None:
        msg = f"{what}: {value!r} is not a length of time; write a timedelta, seconds, or 90s, 15m, 1h30m, 2d, 1w"
        raise InvalidSchedule(msg)
    if not timedelta() <= found <= MAX_LENGTH:
        msg = f"{what}: {value!r} is not a length from 0 to 100 years"
        raise InvalidSchedule(msg)
    return found


def _length(value: object) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return timedelta(seconds=value)
        if isinstance(value, str) and is_length(value):
            return timedelta(seconds=sum(float(n) * _seconds_in(unit) for n, unit in LENGTH.findall(_spaced(value))))
    except (OverflowError, ValueError):
        pass
    return None


def is_length(text: str) -> bool:
    return bool(text.strip()) and not LENGTH.sub("", _spaced(text))


def _spaced(text: str) -> str:
    """Return the text with `1` before a unit that stands alone, and without commas and `and`."""
    text = " ".join(re.sub(r",| and ", " ", text.strip()).split())
    return f"1 {text}" if text in UNITS else text


def _seconds_in(unit: str) -> float:
    return SECONDS[UNITS.get(unit.removesuffix("s"), unit)]


@lru_cache(maxsize=1000)
def write_length(value: timedelta) -> str:
    """Return the shortest text that `length` reads back exactly."""
    parts, rest = [], value
    for unit, size in WRITTEN_UNITS:
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    if rest:
        return f"{value / timedelta(milliseconds=1):.3f}".rstrip("0").rstrip(".") + "ms"
    return "".join(parts) or "0s"


def times_of_day(value: TimeOfDay | Sequence[TimeOfDay], what: str = "at") -> tuple[time, ...]:
    """Parse one or more times of day; return them sorted, each once."""
    several = [value] if isinstance(value, str | time) else list(_iterable(value, what))
    if not several:
        msg = f"{what}: at least one time of day is needed, such as 09:00"
        raise InvalidSchedule(msg)
    return tuple(sorted({_time_of_day(at, what) for at in several}))


def _time_of_day(value: TimeOfDay, what: str) -> time:
    found = value
    if isinstance(value, str):
        try:
            found = time.fromisoformat(value)
        except ValueError:
            found = ""
    if not isinstance(found, time) or found.tzinfo is not None or found.microsecond:
        msg = f"{what}: {value!r} is not a time of day; write 09:00 or 09:00:30, without an offset"
        raise InvalidSchedule(msg)
    return found.replace(fold=0)


def write_time(value: time) -> str:
    return value.isoformat("seconds" if value.second else "minutes")


def calendar_date(value: Date, what: str) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        msg = f"{what}: {value!r} is not a date; write 2026-12-24"
        raise InvalidSchedule(msg) from None


def local_time(value: datetime | str, what: str) -> datetime:
    """Parse a wall time without an offset. The schedule's time zone determines its instant."""
    moment = _moment(value, what)
    if moment.tzinfo is not None:
        msg = (
            f"{what}: {value!r} has an offset; write the local time only, such as 2026-12-24T18:00, "
            "and give the time zone separately"
        )
        raise InvalidSchedule(msg)
    return moment.replace(microsecond=0, fold=0)


def instant(value: datetime | str, what: str) -> datetime:
    """Parse a point in time, as UTC. Refuse one without an offset: it would depend on the machine."""
    moment = _moment(value, what)
    if moment.tzinfo is None:
        msg = f"{what}: {value!r} has no offset; write 2026-12-24T18:00Z or use an aware datetime"
        raise InvalidSchedule(msg)
    return moment.astimezone(UTC)


def bound(value: datetime | str, what: str) -> datetime:
    """Parse a point in time or, without an offset, a wall time in the schedule's time zone."""
    moment = _moment(value, what)
    return moment.replace(fold=0) if moment.tzinfo is None else moment.astimezone(UTC)


def _moment(value: datetime | str, what: str) -> datetime:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        msg = f"{what}: {shown(value)} is not a time; write 2026-12-24T18:00"
        raise InvalidSchedule(msg) from None
    if not FIRST_YEAR <= moment.year < END_YEAR:  # near the limits of datetime, arithmetic with time zones overflows
        msg = f"{what}: {value!r} must be in the years {FIRST_YEAR} to {END_YEAR - 1}"
        raise InvalidSchedule(msg)
    return moment


def weekdays(value: Weekday | Iterable[Weekday], what: str) -> tuple[int, ...]:
    """Parse days of the week (Monday is 0): one or several names or numbers, or ranges like `mon-fri`."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    several = [value] if isinstance(value, int) else list(_iterable(value, what))
    return tuple(sorted({day for span in several for day in _weekday_span(span, what)}))


def _weekday_span(value: Weekday, what: str) -> list[int]:
    first, dash, last = str(value).partition("-")
    if not dash:
        return [weekday(value, what)]
    start, end = weekday(first, what), weekday(last, what)
    return [(start + step) % 7 for step in range((end - start) % 7 + 1)]


def weekday(value: Weekday, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 7:
        return value
    if isinstance(value, str):
        name = value.strip().lower()
        for number, full in enumerate(FULL_WEEKDAYS):
            if name in (WEEKDAYS[number], full.lower()):
                return number
    msg = f"{what}: {value!r} is not a day of the week; write one of {', '.join(WEEKDAYS)}"
    raise InvalidSchedule(msg)


def choice(value: str, choices: tuple[str, ...], what: str) -> Any:
    if value in choices:
        return value
    msg = f"{what}: {value!r} is not one of {', '.join(choices)}{did_you_mean(value, choices)}"
    raise InvalidSchedule(msg)


def whole(value: object, what: str, least: int, most: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    msg = f"{what}: {value!r} is not a whole number from {least} to {most}"
    raise InvalidSchedule(msg)


def did_you_mean(value: object, choices: Iterable[str]) -> str:
    by_lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(str(value).lower(), by_lower, n=3)
    return f"; did you mean {' or '.join(by_lower[name] for name in near)}?" if near else ""


def _iterable(value: object, what: str) -> Iterable[Any]:
    if isinstance(value, Iterable):
        return value
    msg = f"{what}: {value!r} is neither one value nor a list of them"
    raise InvalidSchedule(msg)
