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
from mainspring.features.schedules.rules import RRule, Schedule
from mainspring.features.schedules.rules import rrule as module
from tests.features.schedules.rules.patience import PATIENT

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
    "FREQ=DAILY;BYMONTH=6",
    "FREQ=DAILY;BYDAY=-1FR;BYMONTHDAY=-1",
    "FREQ=HOURLY;BYMONTH=2;INTERVAL=5",
    "FREQ=MONTHLY;BYDAY=-1FR;BYMONTHDAY=24",
    "FREQ=MONTHLY;BYDAY=2TU;BYMONTHDAY=8,9",
]


@pytest.mark.slow
@settings(PATIENT, max_examples=100)
@given(
    rule=st.sampled_from(RULES),
    start=st.datetimes(datetime(2020, 1, 1), datetime(2021, 12, 31)),
    asked=st.lists(st.integers(-30, 1500), min_size=1, max_size=4),
)
def test_next_times_equal_an_expansion_from_the_start(rule: str, start: datetime, asked: list[int]) -> None:
    start = start.replace(microsecond=0, day=min(start.day, 30))  # there is no 31 June
    mine = RRule(rule, start)
    for days in asked:
        local = start + timedelta(days=days, hours=5)
        assert mine.next_from(local) == rrulestr(rule, dtstart=start).after(local, inc=True)


@pytest.mark.parametrize(
    ("rule", "start", "first"),
    [
        ("FREQ=DAILY;BYMONTH=6", "2026-03-31T09:00", "2026-06-01T09:00"),
        ("FREQ=WEEKLY;BYMONTH=2", "2026-03-31T09:00", "2027-02-02T09:00"),
        ("FREQ=HOURLY;BYMONTH=4", "2026-05-31T09:00", "2027-04-01T00:00"),
        ("FREQ=MONTHLY;BYDAY=-1FR;BYMONTHDAY=24", "2026-01-01T09:00", "2026-04-24T09:00"),
    ],
)
def test_a_rule_that_occurs_is_accepted(rule: str, start: str, first: str) -> None:
    assert RRule(rule, start).next_from(datetime.fromisoformat(start)) == datetime.fromisoformat(first)
    assert rrulestr(rule, dtstart=datetime.fromisoformat(start))[0] == datetime.fromisoformat(first)


@settings(PATIENT, max_examples=100)
@given(
    start=st.datetimes(datetime(2026, 1, 1), datetime(2026, 3, 1)).map(lambda moment: moment.replace(microsecond=0)),
    days=st.sets(st.integers(0, 6), min_size=1),
    position=st.sampled_from([1, 2, -1, -2]),
    first_day=st.integers(0, 6),
    interval=st.integers(1, 3),
    count=st.none() | st.integers(1, 5),
)
def test_positions_within_a_week_count_from_its_first_day(
    *, start: datetime, days: set[int], position: int, first_day: int, interval: int, count: int | None
) -> None:
    """Dateutil counts the first week from the start's day; a week of the calendar is tried out here."""
    if len(days) < abs(position):
        return
    wanted: list[datetime] = []
    monday = start - timedelta(days=(start.weekday() - first_day) % 7)
    while len(wanted) < (count or 5):
        week = [day for offset in range(7) if (day := monday + timedelta(days=offset)).weekday() in days]
        chosen = week[position - 1 if position > 0 else position]
        wanted += [chosen] if chosen >= start else []
        monday += timedelta(weeks=interval)
    codes = ",".join(module.DAYS[day] for day in sorted(days))
    rule = f"FREQ=WEEKLY;INTERVAL={interval};BYDAY={codes};BYSETPOS={position};WKST={module.DAYS[first_day]}"
    mine = RRule(rule + (f";COUNT={count}" if count else ""), start)
    assert times_of(mine, start, len(wanted)) == wanted
    if count:
        assert mine.next_from(wanted[-1] + timedelta(seconds=1)) is None


def times_of(rule: RRule, start: datetime, count: int) -> list[datetime]:
    found: list[datetime] = []
    while len(found) < count and (following := rule.next_from(start)) is not None:
        found.append(following)
        start = following + timedelta(seconds=1)
    return found


# -- hourly and finer, when clocks change ---------------------------------------------------------------------


def local_times(rule: str, start: str, after: str, count: int) -> list[str]:
    schedule, found = Schedule(RRule(rule, start), "Europe/Berlin"), list[str]()
    following = schedule.next_after(datetime.fromisoformat(after))
    while following is not None and len(found) < count:
        found.append(f"{following.local:%H:%M%z}"[:8])
        following = schedule.next_after(following.utc)
    return found


@pytest.mark.parametrize(
    ("rule", "spring", "autumn"),
    [
        ("FREQ=HOURLY", ["01:00+01", "03:00+02", "04:00+02"], ["02:00+02", "02:00+01", "03:00+01"]),
        ("FREQ=HOURLY;INTERVAL=2", ["04:00+02", "06:00+02"], ["02:00+02", "02:00+01", "04:00+01"]),
        ("FREQ=MINUTELY;INTERVAL=30", ["00:30+01", "01:00+01", "01:30+01", "03:00+02"], ["01:30+02", "02:00+02"]),
    ],
)
def test_hourly_and_finer_rules_follow_the_wall(rule: str, spring: list[str], autumn: list[str]) -> None:
    """As cron does: a skipped local time does not fire, one that comes twice fires twice."""
    assert local_times(rule, "2026-01-01T00:00", "2026-03-28T23:00Z", len(spring)) == spring
    first = "2026-10-24T23:00Z" if "MINUTELY" in rule else "2026-10-24T23:30Z"
    assert local_times(rule, "2026-01-01T00:00", first, len(autumn)) == autumn


def test_a_long_interval_of_hours_is_counted_on_the_wall_as_rfc_5545_does() -> None:
    """Seven hours after 23:00 is 06:00, though only six hours pass in that night."""
    assert local_times("FREQ=HOURLY;INTERVAL=7", "2026-03-28T23:00", "2026-03-28T21:00Z", 2) == ["23:00+01", "06:00+02"]


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
    for _ in range(module.MAX_KNOWN_TIMES + 100):
        found = rule.next_from(local)
        assert found == local
        local += timedelta(minutes=1)
    assert len(module.expansion(rule.rule, rule.start)._known) <= module.MAX_KNOWN_TIMES
    assert rule.next_from(datetime(2026, 1, 1)) == datetime(2026, 1, 1)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("", "it is not of the form"),
        ("every day", "it is not of the form"),
        ("FREQ=FORTNIGHTLY", "FREQ must be one of"),
        ("INTERVAL=2", "FREQ must be one of"),
        ("FREQ=DAILY;DTSTART=20260101", "give the first time separately"),
        ("FREQ=DAILY;UNTIL=20270101T000000Z", "UNTIL is local time here"),
        ("FREQ=DAILY;BYDAY=XX", "RRULE"),
        ("FREQ=DAILY;NONSENSE=1", "RRULE"),
        ("FREQ=DAILY;INTERVAL=x", "RRULE"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "it never occurs"),
        ("FREQ=DAILY;COUNT=5;BYMONTH=2;BYMONTHDAY=30", "it never occurs"),
        ("FREQ=DAILY;UNTIL=20200101T000000", "it never occurs"),
        ("FREQ=DAILY;BYSETPOS=2", "it never occurs"),
        ("FREQ=SECONDLY;BYSETPOS=-2", "it never occurs"),
        ("FREQ=WEEKLY;BYDAY=MO;BYSETPOS=x", "BYSETPOS is one or more whole numbers"),
        ("FREQ=WEEKLY;BYDAY=MO;WKST=XX", "WKST must be one of MO"),
        ("FREQ=MONTHLY;BYDAY=-1FR;BYMONTHDAY=1", "it never occurs"),
        ("FREQ=DAILY;BYMONTH=13", "it never occurs"),
    ],
)
def test_invalid_rules_are_refused_with_the_reason(rule: Any, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        RRule(rule, "2026-01-01T09:00")


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module.expansion.cache_clear()
    monkeypatch.setitem(sys.modules, "dateutil.rrule", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mainspring\[calendar\]'"):
        RRule("FREQ=DAILY", "2026-01-01T09:00")
