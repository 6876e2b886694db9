"""Recurrence rules of iCalendar (RFC 5545), expanded by python-dateutil on wall time."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from mainspring.errors import InvalidSchedule, MissingExtra
from mainspring.features.schedules.rules.parse import local_time
from mainspring.features.schedules.rules.rule import WallRule, fill

if TYPE_CHECKING:
    from dateutil.rrule import rrule

RRULE_SYNTAX = re.compile(r"[A-Z]+=[^=;]+(;[A-Z]+=[^=;]+)*")
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
STEPS = {
    "WEEKLY": timedelta(weeks=1),
    "DAILY": timedelta(days=1),
    "HOURLY": timedelta(hours=1),
    "MINUTELY": timedelta(minutes=1),
    "SECONDLY": timedelta(seconds=1),
}
IMPLIED_PARTS = {"YEARLY": ("BYMONTH", "BYMONTHDAY"), "MONTHLY": ("BYMONTHDAY",), "WEEKLY": ("BYDAY",)}
DAY_CHOOSING_PARTS = ("BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYEASTER")
TIME_PARTS = ("BYHOUR", "BYMINUTE", "BYSECOND")
MAX_KNOWN_TIMES = 10_000  # that an `Expansion` keeps
DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


@dataclass(frozen=True, slots=True, init=False)
class RRule(WallRule):
    """RRule("FREQ=MONTHLY;BYDAY=-1FR", start="2026-01-01T09:00"). Needs `pip install 'mainspring[calendar]'`.

    `start` is the DTSTART: the first local time that can occur. Intervals are counted from it.
    """

    kind: ClassVar[str] = "rrule"
    rule: str
    start: datetime

    def __init__(self, rule: str, start: datetime | str) -> None:
        text = "".join(str(rule).upper().split()).removeprefix("RRULE:").rstrip(";")
        fill(self, rule=text, start=local_time(start, "start"))
        _check(rule, text)
        given = parts(text)
        if not _has_position(given) or not _has_days(given, self.start) or self.next_from(self.start) is None:
            msg = f"RRULE {rule!r}: it never occurs"
            raise InvalidSchedule(msg)

    @property
    def continuous(self) -> bool:
        return parts(self.rule)["FREQ"] in ("HOURLY", "MINUTELY", "SECONDLY")

    def next_from(self, local: datetime) -> datetime | None:
        return expansion(self.rule, self.start).next_from(local)

    def exact(self) -> str:
        return f"rrule {self.rule} from {self.start.isoformat()}"


def parts(rule: str) -> dict[str, str]:
    return dict(part.split("=") for part in rule.split(";"))


def _check(given: str, text: str) -> None:
    why = ""
    if not RRULE_SYNTAX.fullmatch(text):
        why = "it is not of the form FREQ=DAILY;INTERVAL=2"
    elif parts(text).get("FREQ") not in FREQUENCIES:
        why = f"FREQ must be one of {', '.join(FREQUENCIES)}"
    elif "DTSTART" in parts(text):
        why = "give the first time separately: start='2026-01-01T09:00'"
    elif parts(text).get("UNTIL", "").endswith("Z"):
        why = "UNTIL is local time here, without the Z; or leave it out and give the schedule an end"
    elif not re.fullmatch(r"([+-]?\d{1,3}(,|$))*", parts(text).get("BYSETPOS", "1")):
        why = "BYSETPOS is one or more whole numbers, as in BYSETPOS=1,-1"
    elif parts(text).get("WKST", "MO") not in DAYS:
        why = f"WKST must be one of {', '.join(DAYS)}"
    elif not all(re.fullmatch(r"0*[1-9]\d{0,5}", parts(text).get(name, "1")) for name in ("INTERVAL", "COUNT")):
        why = "INTERVAL and COUNT are whole numbers above 0"
    if why:
        msg = f"RRULE {given!r}: {why}"
        raise InvalidSchedule(msg)


def _has_position(given: dict[str, str]) -> bool:
    """Return whether BYSETPOS can match within its day, hour or minute. If not, dateutil would search for ever."""
    within = {"DAILY": TIME_PARTS, "HOURLY": TIME_PARTS[1:], "MINUTELY": TIME_PARTS[2:], "SECONDLY": ()}
    if "BYSETPOS" not in given or given["FREQ"] not in within:
        return True
    size = prod(len(set(given[name].split(","))) for name in within[given["FREQ"]] if name in given)
    return any(1 <= abs(int(number)) <= size for number in given["BYSETPOS"].split(","))


def _has_days(given: dict[str, str], start: datetime) -> bool:
    """Return whether any year has the days that a rule names, whatever its interval.

    For days that do not exist, dateutil would search until the year 10,000. The calendar repeats after 400 years, so
    the search starts in 9600. Only yearly and monthly rules use the number in `-1FR`, the last Friday of the period.
    Other rules ignore it, so it is removed.
    """
    named = _with_implied_parts(given, start)
    chosen = {name: named[name] for name in ("BYMONTH", *DAY_CHOOSING_PARTS) if name in named}
    if not chosen:
        return True
    frequency = given["FREQ"] if given["FREQ"] == "MONTHLY" else "YEARLY"
    if frequency != given["FREQ"]:
        chosen["BYDAY"] = re.sub(r"[+-]?\d+", "", chosen.get("BYDAY", ",".join(DAYS)))
    days = ";".join([f"FREQ={frequency}", *(f"{name}={value}" for name, value in chosen.items())])
    return next(iter(_parse(days, start.replace(year=9600, month=1, day=1))), None) is not None


def _with_implied_parts(given: dict[str, str], start: datetime) -> dict[str, str]:
    """Add the days of the start to a rule that names none, so that it has the same times from another start."""
    implied = {"BYMONTH": str(start.month), "BYMONTHDAY": str(start.day), "BYDAY": DAYS[start.weekday()]}
    if not given.keys().isdisjoint(DAY_CHOOSING_PARTS):
        return dict(given)
    return {**{name: implied[name] for name in IMPLIED_PARTS.get(given["FREQ"], ())}, **given}


class Expansion:
    """The times of one rule, expanded as far as needed.

    dateutil expands from the start only, which is slow if that is long ago. So a rule without COUNT is given a later
    start, by a whole number of intervals, just before the time in question. It has the same times from there on.
    """

    def __init__(self, text: str, start: datetime) -> None:
        self._parts = parts(text)
        self._start = start
        self._count = int(self._parts["COUNT"]) if "COUNT" in self._parts else None
        named = _with_implied_parts(self._parts, start)
        self._explicit = ";".join(f"{name}={value}" for name, value in named.items() if name != "COUNT")
        self._known: list[datetime] = []
        self._lock = Lock()
        self._begin(start)

    def next_from(self, local: datetime) -> datetime | None:
        with self._lock:
            return self._next_from(max(local, self._start))

    def _next_from(self, local: datetime) -> datetime | None:
        if self._count is None and not self._window_has(local):
            self._begin(local)
        while not self._known or self._known[-1] < local:
            following = next(self._times, None)
            if following is None:
                return None
            self._known.append(following)
            if self._count is None and len(self._known) > MAX_KNOWN_TIMES:
                del self._known[: MAX_KNOWN_TIMES // 2]
                self._from = self._known[0]
        return self._known[bisect_left(self._known, local)]

    def _window_has(self, local: datetime) -> bool:
        return self._from <= local <= (self._known[-1] if self._known else self._from) + timedelta(days=32)

    def _begin(self, local: datetime) -> None:
        """Begin to expand just before `local`, or from the start if the rule has a COUNT."""
        moved = self._moved(local) if self._count is None else self._start
        times = _parse(self._explicit, self._first_day_of_week(moved))
        self._times = islice((time for time in times if time >= moved), self._count)
        self._known = []
        self._from = moved

    def _first_day_of_week(self, start: datetime) -> datetime:
        """Return the first day of the start's week, if the rule needs it.

        BYSETPOS counts within whole weeks, but dateutil begins its first week on the day of the start.
        """
        if self._parts["FREQ"] != "WEEKLY" or "BYSETPOS" not in self._parts:
            return start
        first = DAYS.index(self._parts.get("WKST", "MO"))
        return start - timedelta(days=(start.weekday() - first) % 7)

    def _moved(self, local: datetime) -> datetime:
        """Return the start moved later by whole intervals, to about two intervals before `local`."""
        frequency, interval = self._parts["FREQ"], int(self._parts.get("INTERVAL", "1"))
        if frequency in STEPS:
            step = STEPS[frequency] * interval
            return self._start + max(0, (local - self._start) // step - 2) * step
        months = interval * (12 if frequency == "YEARLY" else 1)
        apart = (local.year - self._start.year) * 12 + local.month - self._start.month
        periods = max(0, apart // months - 2)
        if periods == 0:
            return self._start
        month = self._start.year * 12 + self._start.month - 1 + periods * months
        return self._start.replace(year=month // 12, month=month % 12 + 1, day=1)


@lru_cache(maxsize=512)
def expansion(text: str, start: datetime) -> Expansion:
    return Expansion(text, start)


def _parse(text: str, start: datetime) -> rrule:
    try:
        from dateutil.rrule import rrulestr  # noqa: PLC0415 - rarely needed
    except ImportError:
        msg = "RRULE needs the package `python-dateutil`: pip install 'mainspring[calendar]'"
        raise MissingExtra(msg) from None
    try:
        parsed: Any = rrulestr(text, dtstart=start)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        msg = f"RRULE {text!r}: {error}"
        raise InvalidSchedule(msg) from None
    return parsed  # type: ignore[no-any-return]
