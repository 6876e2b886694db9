"""Recurrence rules: what dateutil expands from the very start, found without going there."""

from __future__ import annotations

import sys
import time as stopwatch
from datetime import datetime, timedelta
from typing import Any

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import InvalidSchedule, MissingExtra
from mainspring.schedule import RRule
from mainspring.schedule import rrule as module
from tests.schedule.patience import PATIENT

RULES = [
    "FREQ=DAILY",
    "FREQ=DAILY;INTERVAL=3;BYHOUR=9,17",
    "FREQ=WEEKLY",
    "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR;WKST=SU",
    "FREQ=MONTHLY",
    "FREQ=MONTHLY;BYDAY=-1FR",
    "FREQ=MONTHLY;INTERVAL=5;BYMONTHDAY=31,-2",
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
    "FREQ=YEARLY",
    "FREQ=YEARLY;BYMONTH=6",
    "FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8",
    "FREQ=YEARLY;BYWEEKNO=1;BYDAY=MO",
    "FREQ=YEARLY;BYYEARDAY=-1,100",
    "FREQ=HOURLY;INTERVAL=7",
    "FREQ=MINUTELY;INTERVAL=50;BYHOUR=8,9",
    "FREQ=DAILY;COUNT=40",
    "FREQ=WEEKLY;UNTIL=20240101T000000",
]


@pytest.mark.slow
@settings(PATIENT, max_examples=100)
@given(
    rule=st.sampled_from(RULES),
    start=st.datetimes(datetime(2020, 1, 1), datetime(2021, 12, 31)),
    asked=st.lists(st.integers(-30, 1500), min_size=1, max_size=4),
)
def test_as_expanded_from_the_start(rule: str, start: datetime, asked: list[int]) -> None:
    start = start.replace(microsecond=0, day=min(start.day, 30))  # there is no 31 June
    mine = RRule(rule, start)
    for days in asked:
        local = start + timedelta(days=days, hours=5)
        assert mine.next_from(local) == rrulestr(rule, dtstart=start).after(local, inc=True)


def test_a_leap_day_stays_one() -> None:
    rule = RRule("RRULE:freq=yearly;", "2000-02-29T09:00")
    assert rule.next_from(datetime(2093, 1, 1)) == datetime(2096, 2, 29, 9)
    assert rule.next_from(datetime(2096, 3, 1)) == datetime(2104, 2, 29, 9)


def test_an_old_start_costs_nothing() -> None:
    rule = RRule("FREQ=MINUTELY", "1970-01-01T00:00")
    began = stopwatch.perf_counter()
    assert rule.next_from(datetime(2026, 1, 1, 0, 0, 1)) == datetime(2026, 1, 1, 0, 1)
    assert stopwatch.perf_counter() - began < 1  # from the start it would be 29 million steps


def test_the_memory_of_an_expansion_is_bounded() -> None:
    rule, local = RRule("FREQ=MINUTELY", "2026-01-01T00:00"), datetime(2026, 1, 1)
    for _ in range(module.MOST_KEPT + 100):
        found = rule.next_from(local)
        assert found == local
        local += timedelta(minutes=1)
    assert len(module.expansion(rule.rule, rule.start)._known) <= module.MOST_KEPT
    assert rule.next_from(datetime(2026, 1, 1)) == datetime(2026, 1, 1)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("", "it is not of the form"),
        ("every day", "it is not of the form"),
        ("FREQ=FORTNIGHTLY", "FREQ must be one of"),
        ("INTERVAL=2", "FREQ must be one of"),
        ("FREQ=DAILY;DTSTART=20260101", "the first time is given apart"),
        ("FREQ=DAILY;UNTIL=20270101T000000Z", "UNTIL is local time here"),
        ("FREQ=DAILY;BYDAY=XX", "RRULE"),
        ("FREQ=DAILY;NONSENSE=1", "RRULE"),
        ("FREQ=DAILY;INTERVAL=x", "RRULE"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "it never occurs"),
        ("FREQ=DAILY;COUNT=5;BYMONTH=2;BYMONTHDAY=30", "it never occurs"),
        ("FREQ=DAILY;UNTIL=20200101T000000", "it never occurs"),
    ],
)
def test_what_is_refused_and_why(rule: Any, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        RRule(rule, "2026-01-01T09:00")


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module.expansion.cache_clear()
    monkeypatch.setitem(sys.modules, "dateutil.rrule", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mainspring\[calendar\]'"):
        RRule("FREQ=DAILY", "2026-01-01T09:00")
