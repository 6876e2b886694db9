"""Parses a rule as text, as on the command line or in `@app.every(…)`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.calendar import Daily, Monthly, Once, Weekly, Yearly
from mainspring.features.schedules.rules.cron import Cron
from mainspring.features.schedules.rules.data import rule_from_data
from mainspring.features.schedules.rules.english import read_words
from mainspring.features.schedules.rules.interval import Interval
from mainspring.features.schedules.rules.parse import is_length
from mainspring.features.schedules.rules.rrule import RRule
from mainspring.features.schedules.rules.rule import Rule

FORMS = """\
*/5 * * * *              cron, five or six fields, or @daily and the like
15m                      a fixed interval: 90s, 1h30m, 15 minutes
every 90s                a fixed interval; `every 10m after finish` counts from the end of the last run
daily 09:00,17:00        local times of each day
weekly mon-fri 09:00     local times of days of the week
monthly last fri 09:00   local times of a day of the month: 1, -1, last, 2nd tue, last business day
yearly 12-24 09:00       local times of a date
once 2026-12-24T18:00    one local time
at 09:00 every day       the words in which a schedule describes itself"""

EXACT = re.compile(r".* \((?P<form>(?:cron|rrule|rule) .*)\)")


def rule_from_text(text: str) -> Rule:
    """Parse a rule in one of the forms in FORMS."""
    if found := EXACT.fullmatch(text.strip()):
        text = found["form"]
    word, _, rest = text.strip().partition(" ")
    read = READERS.get(word.lower())
    try:
        if is_length(text):
            return Interval(text)
        if (described := read_words(" ".join(text.split()))) is not None:
            return described
        if read is None:
            return _cron(text)
        return read(rest.strip())
    except InvalidSchedule as error:
        msg = f"{text!r}: {error}"
        raise InvalidSchedule(msg) from None


def _cron(text: str) -> Rule:
    if len(text.split()) < 5 and not text.lstrip().startswith("@"):
        msg = f"{text!r} is not a schedule. The forms are:\n{FORMS}"
        raise InvalidSchedule(msg)
    return Cron(text)


def _rrule(rest: str) -> Rule:
    rule, _, start = rest.partition(" from ")
    if not start:
        msg = "a rule and its first local time are needed, as in 'rrule FREQ=WEEKLY;BYDAY=MO from 2026-01-05T09:00'"
        raise InvalidSchedule(msg)
    return RRule(rule, start.strip())


def _data(rest: str) -> Rule:
    try:
        return rule_from_data(json.loads(rest))
    except ValueError as error:
        msg = f"this is not JSON: {error}"
        raise InvalidSchedule(msg) from None


def _every(rest: str) -> Rule:
    interval, after, which = rest.partition(" after ")
    return Interval(interval, after=which.strip() if after else "start")


def _daily(rest: str) -> Rule:
    return Daily(_times(rest))


def _weekly(rest: str) -> Rule:
    days, at = _split(rest, "weekly mon 09:00")
    return Weekly(days, _times(at))


def _monthly(rest: str) -> Rule:
    day, at = _split(rest, "monthly last 09:00")
    return Monthly(int(day) if day.lstrip("-").isdecimal() else day, _times(at))


def _yearly(rest: str) -> Rule:
    day, at = _split(rest, "yearly 12-24 09:00")
    month, dash, number = day.partition("-")
    if not (dash and month.isdecimal() and number.isdecimal()):
        msg = f"{day!r} is not a date of a year; write 12-24 for 24 December"
        raise InvalidSchedule(msg)
    return Yearly(int(month), int(number), _times(at))


def _split(rest: str, example: str) -> tuple[str, str]:
    days, space, at = rest.rpartition(" ")
    if not space:
        msg = f"a day and a time are needed, as in {example!r}"
        raise InvalidSchedule(msg)
    return days.strip(), at


def _times(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


READERS: dict[str, Callable[[str], Rule]] = {
    "every": _every,
    "daily": _daily,
    "weekly": _weekly,
    "monthly": _monthly,
    "yearly": _yearly,
    "once": Once,
    "cron": Cron,
    "rrule": _rrule,
    "rule": _data,
}
