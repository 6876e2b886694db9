"""Describes a recurrence rule in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, time

from mainspring.features.schedules.rules.parse import FULL_WEEKDAYS, write_time
from mainspring.features.schedules.rules.words import FULL_MONTHS, day_of_year, every, listing, long_date, ordinal

UNITS = {
    "YEARLY": "year",
    "MONTHLY": "month",
    "WEEKLY": "week",
    "DAILY": "day",
    "HOURLY": "hour",
    "MINUTELY": "minute",
    "SECONDLY": "second",
}
CODES = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


def describe_rrule(parts: Mapping[str, str], start: datetime) -> str:
    """Return `every 2 weeks on Monday and Friday at 09:00, 10 times from 1 January 2026`."""
    frequency = every(int(parts.get("INTERVAL", "1")), UNITS[parts["FREQ"]])
    pieces = [frequency, *_days(parts, start), *_clock(parts, start)]
    return " ".join(pieces) + _choice(parts) + _limits(parts, start)


def _days(parts: Mapping[str, str], start: datetime) -> list[str]:
    found = [say(parts[name]) for name, say in DAY_PARTS.items() if name in parts]
    if found or any(name in parts for name in ("BYWEEKNO", "BYYEARDAY")):
        return found + _months(parts)
    if parts["FREQ"] == "YEARLY" and "BYMONTH" not in parts:
        return [f"on {day_of_year(start.month, start.day)}"]
    if parts["FREQ"] in ("YEARLY", "MONTHLY"):
        return [f"on the {ordinal(start.day)}", *_months(parts)]
    return [f"on {FULL_WEEKDAYS[start.weekday()]}", *_months(parts)] if parts["FREQ"] == "WEEKLY" else _months(parts)


def _months(parts: Mapping[str, str]) -> list[str]:
    if "BYMONTH" not in parts:
        return []
    return [f"in {listing(FULL_MONTHS[int(number) - 1] for number in parts['BYMONTH'].split(','))}"]


def _clock(parts: Mapping[str, str], start: datetime) -> list[str]:
    frequency = parts["FREQ"]
    hours = _numbers(parts.get("BYHOUR", str(start.hour)))
    minutes = _numbers(parts.get("BYMINUTE", str(start.minute)))
    seconds = _numbers(parts.get("BYSECOND", str(start.second)))
    if frequency in ("YEARLY", "MONTHLY", "WEEKLY", "DAILY"):
        spelled = [time(h, m, s) for h in hours for m in minutes for s in seconds]
        return [f"at {listing(write_time(at) for at in spelled)}"]
    said = [f"at {listing(map(str, minutes))} minutes past"] if frequency == "HOURLY" and minutes != [0] else []
    said += [f"at {listing(map(str, seconds))} seconds past"] if frequency != "SECONDLY" and seconds != [0] else []
    said += [f"in minutes {listing(map(str, minutes))}"] if frequency != "HOURLY" and "BYMINUTE" in parts else []
    said += [f"in the hours from {listing(f'{hour:02}:00' for hour in hours)}"] if "BYHOUR" in parts else []
    return [" and ".join(said)] if said else []


def _choice(parts: Mapping[str, str]) -> str:
    if "BYSETPOS" not in parts:
        return ""
    return f" (of these only {listing(_position(int(number)) for number in parts['BYSETPOS'].split(','))})"


def _limits(parts: Mapping[str, str], start: datetime) -> str:
    since = f" from {long_date(start.date())}"
    if "COUNT" in parts:
        count = int(parts["COUNT"])
        return f", {count} time{'' if count == 1 else 's'}{since}"
    if "UNTIL" in parts:
        last = datetime.fromisoformat(parts["UNTIL"])
        return f",{since} until {long_date(last.date())}"
    return f",{since}"


def _weekdays(value: str) -> str:
    return f"on {listing(_weekday(code) for code in value.split(','))}"


def _weekday(code: str) -> str:
    found = re.fullmatch(r"([+-]?\d+)?(\w\w)", code)
    if found is None:
        return code
    name = FULL_WEEKDAYS[CODES.index(found[2])]
    return name if found[1] is None else f"{_position(int(found[1]))} {name}"


def _position(number: int) -> str:
    """Return `the 2nd`, `the last`, or `the 2nd to last`."""
    if number > 0:
        return f"the {ordinal(number)}"
    return "the last" if number == -1 else f"the {ordinal(-number)} to last"


def _positions(value: str, unit: str) -> str:
    return f"on {listing(_position(int(number)) for number in value.split(','))}{unit}"


def _numbers(value: str) -> list[int]:
    return sorted(int(number) for number in value.split(","))


DAY_PARTS: dict[str, Callable[[str], str]] = {
    "BYDAY": _weekdays,
    "BYMONTHDAY": lambda value: _positions(value, " day of the month" if "-" in value else ""),
    "BYYEARDAY": lambda value: _positions(value, " day of the year"),
    "BYWEEKNO": lambda value: f"in week {listing(value.split(','))}",
    "BYEASTER": lambda value: f"{value} days after Easter Sunday",
}
