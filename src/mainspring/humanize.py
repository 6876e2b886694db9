"""Times formatted for people: "2026-05-01 09:30:00 UTC (in 3 d)", "2 min ago"."""

from __future__ import annotations

from datetime import UTC, datetime

UNITS = (("s", 1, 60), ("min", 60, 60), ("h", 3600, 24))  # name, length in seconds, number that makes the next unit
DAY = 86_400


def show_relative(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return ""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    shown = show_length(float(round(abs(seconds))))
    return f"in {shown}" if seconds > 0 else f"{shown} ago"


def show_length(seconds: float) -> str:
    """Return a length of time in one unit, with two digits: 12 ms, 1.5 s, 3 min, 2.5 h, 3 d."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size, most in UNITS:
        if (number := two_digits(seconds / size)) < most:
            return f"{number:g} {unit}"
    return f"{two_digits(seconds / DAY):g} d"


def two_digits(number: float) -> float:
    return round(number, 1) if number < 10 else round(number)


def show_moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def show_exactly(moment: datetime) -> str:
    """Return a moment with milliseconds, which show what came first, for table columns that are headed UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03}"


def show_both(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else f"{show_moment(moment)} ({show_relative(moment, now)})"
