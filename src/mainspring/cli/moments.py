"""Times as people write and read them: `2h`, `3d`, ISO 8601; "in 3 d", "2 min ago"."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any

from mainspring.humanize import show_both, show_exactly, show_length, show_moment, show_relative

__all__ = [
    "When",
    "add_range_options",
    "add_since_option",
    "parse_length",
    "parse_moment",
    "parse_seconds",
    "parse_when",
    "show_both",
    "show_exactly",
    "show_length",
    "show_moment",
    "show_relative",
]

SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
LENGTH = re.compile(r"(?:(\d+(?:\.\d+)?)\s*(ms|sec|s|min|m|h|d|w)\s*)")
NUMBER = re.compile(r"\d+(\.\d+)?")
LONGEST = timedelta(days=36_500)


# -- options --------------------------------------------------------------------------------------


def add_range_options(parser: Any, what: str) -> None:
    """Add `--since` and `--until` to a parser or a group of options: `what` happened in that time."""
    ago = "a time, today, or 2h for two hours ago"
    parser.add_argument("--since", type=parse_when, metavar="WHEN", help=f"{what} since then: {ago}")
    parser.add_argument("--until", type=parse_when, metavar="WHEN", help=f"{what} before: {ago}")


def add_since_option(parser: Any) -> None:
    """Add `--since` for a command that shows coming times."""
    begin = "begin then, not now: a time, or 2h for two hours ago"
    parser.add_argument("--since", type=parse_when, metavar="WHEN", help=begin)


# -- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class When:
    """A point in time, or a distance from the store's current time, which is not known while parsing."""

    moment: datetime | None = None
    distance: timedelta = timedelta()
    is_today: bool = False  # the beginning of the day, in the time zone that the command uses

    def before(self, now: datetime, zone: tzinfo = UTC) -> datetime:
        """Return the time; a distance counts back from now: `--since 2h`."""
        return self._fixed(now, zone) or now - self.distance

    def after(self, now: datetime) -> datetime:
        """Return the time; a distance counts forward from now: `--in 2h`."""
        return self._fixed(now, UTC) or now + self.distance

    def _fixed(self, now: datetime, zone: tzinfo) -> datetime | None:
        if not self.is_today:
            return self.moment
        return datetime.combine(now.astimezone(zone).date(), time(), zone).astimezone(UTC)


def parse_when(text: str) -> When:
    """Parse ISO 8601 (UTC without an offset, like all times shown here), `now`, `today`, or a length such as 2h.

    `today` is midnight.
    """
    if text == "now":
        return When()
    if text == "today":
        return When(is_today=True)
    if LENGTH.match(text) or NUMBER.fullmatch(text):
        return When(distance=parse_length(text))
    return When(moment=parse_moment(text))


def parse_moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        examples = "2026-05-01T09:30, 2026-05-01T09:30+02:00, today, or a length such as 90s, 2h or 3d"
        msg = f"{text!r} is not a time; write {examples}"
        raise ArgumentTypeError(msg) from None


def parse_length(text: str) -> timedelta:
    """Parse `90s`, `1h30m`, `3d`; a bare number is seconds."""
    if NUMBER.fullmatch(text):
        text += "s"
    parts = LENGTH.findall(text)
    if not parts or LENGTH.sub("", text).strip():
        msg = f"{text!r} is not a length of time; write 90s, 15min, 2h, 1h30m, 3d or 2w"
        raise ArgumentTypeError(msg)
    seconds = sum(float(number) * SECONDS[unit] for number, unit in parts)
    if seconds > LONGEST.total_seconds():
        msg = f"{text!r} is longer than a hundred years; give a shorter length of time"
        raise ArgumentTypeError(msg)
    return timedelta(seconds=seconds)


def parse_seconds(text: str) -> float:
    return parse_length(text).total_seconds()
