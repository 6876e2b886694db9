"""Times as people read them: "2026-05-01 09:30:00 UTC (in 3 d)", "2 min ago"."""

from __future__ import annotations

from datetime import UTC, datetime

UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def show_relative(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return ""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    shown = show_length(float(int(abs(seconds))))
    return f"in {shown}" if seconds > 0 else f"{shown} ago"


def show_length(seconds: float) -> str:
    """One unit is enough to act on: 12 ms, 1.5 s, 3 min, 2 h, 3 d."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    unit, size = next((unit, size) for unit, size in UNITS if seconds >= size)
    return f"{int(seconds // size)} {unit}"


def show_moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def show_exactly(moment: datetime) -> str:
    """For tables whose column says UTC, and where milliseconds tell what came first."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03}"


def show_both(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else f"{show_moment(moment)} ({show_relative(moment, now)})"
