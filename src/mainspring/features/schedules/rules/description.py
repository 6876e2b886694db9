"""Describes rules in English. forms.py reads the words back: `rule_from_text(describe(rule)) == rule`."""

from __future__ import annotations

import contextlib
from datetime import date
from functools import singledispatch

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.business import BusinessCalendar
from mainspring.features.schedules.rules.calendar import (
    Daily,
    DayRule,
    MonthDaySpec,
    Monthly,
    Once,
    Weekly,
    Yearly,
    month_days,
)
from mainspring.features.schedules.rules.cron import Cron
from mainspring.features.schedules.rules.cron_words import describe_cron
from mainspring.features.schedules.rules.forms import rule_from_text
from mainspring.features.schedules.rules.interval import Interval
from mainspring.features.schedules.rules.parse import FULL_WEEKDAYS, weekdays
from mainspring.features.schedules.rules.rrule import RRule, parts
from mainspring.features.schedules.rules.rrule_words import describe_rrule
from mainspring.features.schedules.rules.rule import Rule
from mainspring.features.schedules.rules.words import (
    day_of_year,
    every,
    listing,
    long_date,
    long_moment,
    ordinal,
    span_of_time,
    times,
    weekday_span,
)

OTHER_YEARS = {
    "feb28": " (28 February in other years)",
    "mar1": " (1 March in other years)",
    "skip": " in leap years",
}


def describe(rule: Rule) -> str:
    """Return a rule in words that can be parsed.

    If the words do not describe the rule completely, the exact form follows in parentheses.
    """
    words = in_words(rule)
    with contextlib.suppress(InvalidSchedule):
        if rule_from_text(words) == rule:
            return words
    return f"{words} ({rule.exact()})"


@singledispatch
def in_words(rule: Rule) -> str:
    """Return a rule in words that can follow "it runs"."""
    return rule.exact()


@in_words.register
def _(rule: Cron) -> str:
    return describe_cron(rule.fields)


@in_words.register
def _(rule: RRule) -> str:
    return describe_rrule(parts(rule.rule), rule.start)


@in_words.register
def _(rule: Interval) -> str:
    length = span_of_time(rule.interval)
    if rule.from_finish:
        return f"{'1 ' if ' ' not in length else ''}{length} after the last run has ended"
    anchor = "" if rule.anchor is None else f", counted from {rule.anchor:%Y-%m-%d %H:%M:%S} UTC"
    return f"every {length}{anchor}"


@in_words.register
def _(rule: Once) -> str:
    return f"once, at {long_moment(rule.at)}"


# -- rules about days ----------------------------------------------------------------------------------------


@in_words.register
def _(rule: Daily) -> str:
    start = _start(rule.starting)
    if rule.business is not None and rule.every == 1 and rule.adjust == "next":
        return f"{times(rule.at)} every business day{rule.business.describe()}{start}"
    return f"{times(rule.at)} {every(rule.every, 'day')}{start}{_business(rule)}"


@in_words.register
def _(rule: Weekly) -> str:
    days = weekday_span(weekdays(rule.on, "on"))
    if rule.every > 1:
        days = f"on {days} {every(rule.every, 'week')}"
    elif " to " not in days:
        days = f"every {days}"
    return f"{times(rule.at)} {days}{_start(rule.starting)}{_business(rule)}"


@in_words.register
def _(rule: Monthly) -> str:
    specs = month_days(rule.on)
    days = listing(_month_day(spec, rule.business) for spec in specs)
    business = "" if all(spec.business for spec in specs) else _business(rule)
    when = f"on {days} of {every(rule.every, 'month')}{_start(rule.starting)}{_short_months(rule)}"
    return f"{times(rule.at)} {when}{business}"


@in_words.register
def _(rule: Yearly) -> str:
    which = OTHER_YEARS[rule.feb29] if (rule.month, rule.day) == (2, 29) else " every year"
    return f"{times(rule.at)} on {day_of_year(rule.month, rule.day)}{which}{_business(rule)}"


def _start(starting: date | None) -> str:
    return "" if starting is None else f" from {long_date(starting)}"


def _business(rule: DayRule) -> str:
    if rule.business is None:
        return ""
    name = f"business day{rule.business.describe()}"
    return f", if that is a {name}" if rule.adjust == "skip" else f", or the {rule.adjust} {name}"


def _month_day(spec: MonthDaySpec, business: BusinessCalendar | None) -> str:
    what = "day" if spec.weekday is None else FULL_WEEKDAYS[spec.weekday]
    if spec.business:
        what = f"business day{business.describe() if business else ''}"
    if spec.which < 0:
        return f"the {'' if spec.which == -1 else f'{ordinal(-spec.which)} to '}last {what}"
    return f"the {ordinal(spec.which)}" + ("" if what == "day" else f" {what}")


def _short_months(rule: Monthly) -> str:
    if not any(isinstance(on, int) and on > 28 for on in rule.on):
        return ""
    return " (the last day of shorter months)" if rule.short == "last" else " (not in shorter months)"
