"""Parses rules from English, in the form that `Rule.words` writes. Each reader has one pattern."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Any

from mainspring.features.schedules.rules.business import BusinessCalendar
from mainspring.features.schedules.rules.calendar import Daily, Monthly, Once, Weekly, Yearly
from mainspring.features.schedules.rules.interval import Interval
from mainspring.features.schedules.rules.parse import FULL_WEEKDAYS, calendar_date, local_time
from mainspring.features.schedules.rules.rule import Rule
from mainspring.features.schedules.rules.words import FULL_MONTHS

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
SHORT = r"(?: \((?:(?P<clamp>the last day of)|not in) shorter months\))?"
FEB29 = {"28 February in other years": "feb28", "1 March in other years": "mar1"}


def read_words(text: str) -> Rule | None:
    """Return the rule that these words describe, or None if they are not in the form that `Rule.words` writes."""
    for pattern, make in READERS.items():
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


def _every(found: dict[str, Any]) -> Rule:
    return Interval(found["interval"], anchor=f"{found['anchor']}+00:00")


def _business_days(found: dict[str, Any]) -> Rule:
    return Daily(**{**_options(found), "adjust": "next"})


def _weekly(found: dict[str, Any]) -> Rule:
    return Weekly(found["days"].replace(" to ", "-").replace(" and ", ","), **_options(found))


def _monthly(found: dict[str, Any]) -> Rule:
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


def _yearly(found: dict[str, Any]) -> Rule:
    day, month = found["day"].split(" ")
    feb29 = "skip" if found["leap"] else FEB29.get(found["other"] or "", "feb28")
    return Yearly(FULL_MONTHS.index(month) + 1, int(day), feb29=feb29, **_options(found))


READERS: dict[str, Callable[[dict[str, Any]], Rule]] = {
    r"every (?P<interval>.*), counted from (?P<anchor>[\d-]+ [\d:]+) UTC": _every,
    r"(?P<interval>.*) after the last run has ended": lambda found: Interval(found["interval"], after="finish"),
    rf"{TIMES} every (?:(?P<count>\d+) days|day){STARTING}{BUSINESS}": lambda found: Daily(**_options(found)),
    rf"{TIMES} every (?P<business>business day){CALENDAR}{STARTING}": _business_days,
    rf"{TIMES} (?:every |on |)(?P<days>{WEEKDAY_LIST})(?: every (?P<count>\d+) weeks)?{STARTING}{BUSINESS}": _weekly,
    (
        rf"{TIMES} on (?P<on>{MONTH_DAY}(?:(?:, | and ){MONTH_DAY})*) of every (?:(?P<count>\d+) months|month)"
        rf"{STARTING}(?P<shorter>{SHORT}){BUSINESS}"
    ): _monthly,
    (
        rf"{TIMES} on (?P<day>\d{{1,2}} (?:{MONTH_NAMES}))"
        rf"(?: every year|(?P<leap> in leap years)| \((?P<other>{'|'.join(FEB29)})\)){BUSINESS}"
    ): _yearly,
    rf"once, at (?P<moment>{MOMENT})": lambda found: Once(read_moment(found["moment"])),
}
