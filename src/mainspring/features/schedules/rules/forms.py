"""The forms in which a rule can be given: a text, as on the command line or in `@app.every(…)`, and JSON data.

A text may also be English, in the words that description.py writes. Errors say what is wrong and what is accepted.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from typing import Any, TypeVar

from mainspring.errors import InvalidSchedule, MissingExtra
from mainspring.features.schedules.rules.business import BusinessCalendar
from mainspring.features.schedules.rules.calendar import Daily, Monthly, Once, Weekly, Yearly
from mainspring.features.schedules.rules.cron import Cron
from mainspring.features.schedules.rules.interval import Interval
from mainspring.features.schedules.rules.parse import FULL_WEEKDAYS, calendar_date, did_you_mean, is_length, local_time
from mainspring.features.schedules.rules.rrule import RRule
from mainspring.features.schedules.rules.rule import Rule
from mainspring.features.schedules.rules.words import FULL_MONTHS

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
    read = FORM_READERS.get(word.lower())
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


FORM_READERS: dict[str, Callable[[str], Rule]] = {
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


# -- English -------------------------------------------------------------------------------------------------

DAY_NAMES = "|".join(FULL_WEEKDAYS)
MONTH_NAMES = "|".join(FULL_MONTHS)
TIME = r"\d\d:\d\d(?::\d\d)?"
TIMES = rf"at (?P<at>{TIME}(?:(?:, | and ){TIME})*)"
DATE = rf"\d{{1,2}} (?:{MONTH_NAMES}) \d{{1,4}}"
MOMENT = rf"{TIME} on {DATE}"
STARTING = rf"(?: from (?P<starting>{DATE}))?"
WEEKDAY_LIST = rf"(?:{DAY_NAMES})(?: to (?:{DAY_NAMES})|(?:(?:, | and )(?:{DAY_NAMES}))*)"
CALENDAR = r"(?: in (?P<country>\w+)(?: \((?P<subdivision>[\w-]+)\))?| of (?P<market>\w+))?"
BUSINESS = rf"(?:, (?:if that is a|or the (?P<adjust>next|previous)) (?P<business>business day){CALENDAR})?"
MONTH_DAY = (
    rf"the (?:\d{{1,2}}(?:st|nd|rd|th) to )?(?:last|\d{{1,2}}(?:st|nd|rd|th))(?: (?:day|business day|{DAY_NAMES}))?"
)
SHORTER_MONTHS = r"(?: \((?:(?P<clamp>the last day of)|not in) shorter months\))?"
FEB29 = {"28 February in other years": "feb28", "1 March in other years": "mar1"}


def read_words(text: str) -> Rule | None:
    """Return the rule that these words describe, or None if description.py does not write such words."""
    for pattern, make in SENTENCE_READERS.items():
        found = re.fullmatch(pattern, text)
        if found is not None:
            return make(found.groupdict())
    return None


def read_moment(text: str) -> datetime:
    """Parse `18:00 on 24 December 2026`, as `long_moment` writes it."""
    clock, _, day = text.partition(" on ")
    return local_time(f"{_date(day)}T{clock}", "at")


def _date(text: str) -> date:
    day, month, year = text.split(" ")
    return calendar_date(f"{year:0>4}-{FULL_MONTHS.index(month) + 1:02}-{day:0>2}", "date")


def _several(text: str) -> list[str]:
    return re.split(", | and ", text)


def _options(found: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that all rules about days have in common."""
    options: dict[str, Any] = {"at": _several(found["at"])}
    if found.get("starting"):
        options |= {"starting": _date(found["starting"])}
    if found.get("count"):
        options |= {"every": int(found["count"])}
    if found.get("business"):
        calendar = BusinessCalendar(found["country"], found["subdivision"], market=found["market"])
        options |= {"business": calendar, "adjust": found.get("adjust") or "skip"}
    return options


def _interval_in_words(found: dict[str, Any]) -> Rule:
    return Interval(found["interval"], anchor=f"{found['anchor']}+00:00")


def _business_days_in_words(found: dict[str, Any]) -> Rule:
    return Daily(**{**_options(found), "adjust": "next"})


def _weekly_in_words(found: dict[str, Any]) -> Rule:
    return Weekly(found["days"].replace(" to ", "-").replace(" and ", ","), **_options(found))


def _monthly_in_words(found: dict[str, Any]) -> Rule:
    options = _options(found) | ({"short": "skip"} if found["shorter"] and not found["clamp"] else {})
    return Monthly([_month_day(day) for day in _several(found["on"])], **options)


def _month_day(text: str) -> int | str:
    """Parse `the 15th`, `the 2nd to last day`, `the 2nd Tuesday` or `the last business day`."""
    text = text.removeprefix("the ")
    if found := re.fullmatch(r"(\d+)\w\w to last day", text):
        return -int(found[1])
    if found := re.fullmatch(r"(\d+)\w\w", text):
        return int(found[1])
    return text


def _yearly_in_words(found: dict[str, Any]) -> Rule:
    day, month = found["day"].split(" ")
    feb29 = "skip" if found["leap"] else FEB29.get(found["other"] or "", "feb28")
    return Yearly(FULL_MONTHS.index(month) + 1, int(day), feb29=feb29, **_options(found))


SENTENCE_READERS: dict[str, Callable[[dict[str, Any]], Rule]] = {
    r"every (?P<interval>.*), counted from (?P<anchor>[\d-]+ [\d:]+) UTC": _interval_in_words,
    r"(?P<interval>.*) after the last run has ended": lambda found: Interval(found["interval"], after="finish"),
    rf"{TIMES} every (?:(?P<count>\d+) days|day){STARTING}{BUSINESS}": lambda found: Daily(**_options(found)),
    rf"{TIMES} every (?P<business>business day){CALENDAR}{STARTING}": _business_days_in_words,
    (
        rf"{TIMES} (?:every |on |)(?P<days>{WEEKDAY_LIST})"
        rf"(?: every (?P<count>\d+) weeks)?{STARTING}{BUSINESS}"
    ): _weekly_in_words,
    (
        rf"{TIMES} on (?P<on>{MONTH_DAY}(?:(?:, | and ){MONTH_DAY})*) of every (?:(?P<count>\d+) months|month)"
        rf"{STARTING}(?P<shorter>{SHORTER_MONTHS}){BUSINESS}"
    ): _monthly_in_words,
    (
        rf"{TIMES} on (?P<day>\d{{1,2}} (?:{MONTH_NAMES}))"
        rf"(?: every year|(?P<leap> in leap years)| \((?P<other>{'|'.join(FEB29)})\)){BUSINESS}"
    ): _yearly_in_words,
    rf"once, at (?P<moment>{MOMENT})": lambda found: Once(read_moment(found["moment"])),
}


# -- JSON data -----------------------------------------------------------------------------------------------

KINDS: dict[str, type[Rule]] = {
    rule.kind: rule for rule in (Cron, Interval, Daily, Weekly, Monthly, Yearly, Once, RRule)
}

Built = TypeVar("Built")


def rule_from_data(data: Any) -> Rule:
    """Return the rule that `Rule.to_data` wrote."""
    fields = _mapping(data, "rule")
    kind = fields.pop("kind", None)
    if kind not in KINDS:
        msg = f"rule: kind {kind!r} is not one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
        raise InvalidSchedule(msg)
    known = [field.name for field in dataclasses.fields(KINDS[kind])]  # type: ignore[arg-type]
    return build(f"rule {kind}", KINDS[kind], fields, known)


def build(what: str, make: Callable[..., Built], data: Any, known: Iterable[str]) -> Built:
    """Call a constructor with the fields of a JSON object. Errors begin with `what`."""
    fields = _mapping(data, what)
    for name in fields:
        if name not in known:
            msg = f"{what}: {name!r} is not a field; the fields are {', '.join(known)}{did_you_mean(name, known)}"
            raise InvalidSchedule(msg)
    try:
        return make(**fields)
    except InvalidSchedule as error:
        msg = f"{what}: {error}"
        raise type(error)(msg) from None
    except MissingExtra:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        msg = f"{what}: {_plainly(error)}"
        raise InvalidSchedule(msg) from None


def _plainly(error: Exception) -> str:
    """Return an error's text without the name of the Python function: `missing 1 required … argument: 'at'`."""
    text = str(error)
    return text.partition("() ")[2] or text


def _mapping(data: Any, what: str) -> dict[str, Any]:
    if isinstance(data, Mapping) and all(isinstance(name, str) for name in data):
        return dict(data)
    msg = f"{what}: {data!r} is not a JSON object"
    raise InvalidSchedule(msg)
