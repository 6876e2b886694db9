"""What `describe` prints can be read back: it is the same rule."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules import (
    BusinessCalendar,
    Cron,
    Daily,
    Interval,
    Monthly,
    Once,
    RRule,
    Rule,
    Schedule,
    Weekly,
    Yearly,
    describe,
    in_words,
    rule_from_text,
)
from tests.features.schedules.rules.patience import PATIENT

times = st.lists(
    st.times().map(lambda at: at.replace(microsecond=0)) | st.sampled_from([time(9), time(17, 30)]),
    min_size=1,
    max_size=4,
)
days = st.dates(date(1990, 1, 1), date(2090, 1, 1))
calendars = st.sampled_from(
    [
        None, None, BusinessCalendar(), BusinessCalendar("GB", "ENG"), BusinessCalendar("DE"),
        BusinessCalendar(market="XNYS"), BusinessCalendar(weekend="fri,sat"), BusinessCalendar(closed=["2026-12-24"]),
        BusinessCalendar("GB", open=["2026-12-25"]),
    ]
)  # fmt: skip
moved = st.fixed_dictionaries({"business": calendars, "adjust": st.sampled_from(["next", "previous", "skip"])})
counted: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"every": st.integers(1, 40), "starting": days}
) | st.just({})
month_days = st.sampled_from([1, 2, 15, 28, 29, 31, -1, -2, -31, "last", "2nd tue", "last fri", "5th mon"])
business_days = st.sampled_from(["1st business day", "last business day", "3rd business day"])
intervals = (
    st.integers(1, 10**7).map(lambda n: timedelta(seconds=n))
    | st.integers(100, 10**8).map(lambda n: timedelta(milliseconds=n))
    | st.integers(100_000, 10**9).map(lambda n: timedelta(microseconds=n))
    | st.sampled_from([timedelta(minutes=15), timedelta(hours=1), timedelta(days=1), timedelta(weeks=2)])
)
moments = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1))
FIELDS = (
    st.sampled_from(["*", "0", "*/15", "5,7", "1-40", "7/9"]),
    st.sampled_from(["*", "0", "*/6", "5,7,22", "9-17", "*/5"]),
    st.sampled_from(["*", "?", "1", "L", "L-2", "LW", "15W", "1,15", "*/3", "1-9", "L,15W,1"]),
    st.sampled_from(["*", "1", "1,6", "*/3", "2-5", "2/5"]),
    st.sampled_from(["*", "?", "1", "1-5", "FRI#1", "SUNL", "*/2", "0,6", "MON,FRI#2"]),
)
CLOSED = Daily("09:00", business=BusinessCalendar(closed=["2026-12-24"]))
RRULES = ("FREQ=DAILY", "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR;COUNT=10", "FREQ=MONTHLY;BYDAY=-1FR", "FREQ=HOURLY")


def weekly(on: set[int], at: list[time], counting: dict[str, Any], business: dict[str, Any]) -> Rule:
    return Weekly(on, at, **counting, **business)


def monthly(on: list[Any], at: list[time], short: str, counting: dict[str, Any], business: dict[str, Any]) -> Rule:
    return Monthly(on, at, short=short, **counting, **business)


def cron(fields: tuple[str, ...]) -> Rule | None:
    try:
        return Cron(" ".join(fields))
    except InvalidSchedule:
        return None


rules = st.one_of(
    st.builds(Interval, intervals),
    st.builds(Interval, intervals, after=st.just("finish")),
    st.builds(Interval, intervals, anchor=moments.map(lambda at: at.replace(tzinfo=UTC))),
    st.builds(lambda at, counting, business: Daily(at, **counting, **business), times, counted, moved),
    st.builds(weekly, st.sets(st.integers(0, 6), min_size=1), times, counted, moved),
    st.builds(
        monthly, st.lists(month_days | business_days, min_size=1, max_size=4, unique=True), times,
        st.sampled_from(["last", "skip"]), counted, moved,
    ),
    st.builds(
        lambda day, at, feb29, business: Yearly(day.month, day.day, at, feb29, **business),
        days | st.just(date(2024, 2, 29)), times, st.sampled_from(["feb28", "mar1", "skip"]), moved,
    ),
    st.builds(Once, moments),
    st.builds(RRule, st.sampled_from(RRULES), moments.map(lambda at: at.replace(microsecond=0))),
    st.builds(cron, st.tuples(*FIELDS)).filter(lambda rule: rule is not None),
)  # fmt: skip


@settings(PATIENT, max_examples=200)
@given(rule=rules)
def test_the_description_of_a_rule_is_read_back_as_that_rule(rule: Rule) -> None:
    described = describe(rule)
    assert rule_from_text(described) == rule
    assert described.startswith(in_words(rule))


@settings(PATIENT, max_examples=100)
@given(
    rule=rules,
    tz=st.sampled_from(["UTC", "Europe/London", "America/Argentina/Buenos_Aires", "Etc/GMT+5"]),
    bounds=st.tuples(st.none() | moments, st.none() | moments),
    aware=st.booleans(),
)
def test_the_description_of_a_schedule_is_read_back_with_its_zone_and_bounds(
    rule: Rule, tz: str, bounds: tuple[datetime | None, datetime | None], aware: bool
) -> None:
    start, end = (bound and (bound.replace(tzinfo=UTC) if aware else bound) for bound in bounds)
    try:
        schedule = Schedule(rule, tz, start=start, end=end)
    except InvalidSchedule:  # it ends before it starts
        return
    again = Schedule(schedule.describe())
    assert (again.rule, again.start, again.end) == (schedule.rule, schedule.start, schedule.end)
    assert again.describe() == schedule.describe()
    after = datetime(2026, 3, 1, tzinfo=UTC)
    assert again.next_after(after) is None or again.next_after(after).utc == schedule.next_after(after).utc  # type: ignore[union-attr]
    assert again.tz == schedule.tz


@pytest.mark.parametrize(
    "rule",
    [
        Interval("15m"), Interval("90s"), Interval("1h30m"), Interval("10m", after="finish"), Interval("1d"),
        Daily("09:00"),
        Interval("5m", anchor="2026-01-01T12:00Z"), Daily(["09:00", "17:30"], every=3, starting="2026-01-01"),
        Daily("09:00", starting="2026-01-01"), Daily("09:00", business=BusinessCalendar("GB", "ENG")),
        Weekly("mon-fri", "09:00"), Weekly("tue,thu", "09:00"), Weekly("fri", "16:00", every=2, starting="2026-01-02"),
        Monthly([1, 15], "09:00"), Monthly(31, "09:00", short="skip"), Monthly("2nd tue", "09:00"),
        Monthly(-2, "09:00"),
        Monthly("last business day", "17:00"), Monthly(1, "09:00", business=BusinessCalendar("GB", "ENG")),
        Yearly(12, 24), Yearly(2, 29, feb29="mar1"), Once("2026-12-24T18:00"),
    ],
    ids=in_words,
)  # fmt: skip
def test_words_say_all_of_what_is_usual(rule: Rule) -> None:
    assert describe(rule) == in_words(rule)


@pytest.mark.parametrize(
    ("rule", "described"),
    [
        (Cron("*/5 * * * *"), "every 5 minutes (cron */5 * * * *)"),
        (
            RRule("FREQ=DAILY", "2026-01-01T12:00"),
            "every day at 12:00, from 1 January 2026 (rrule FREQ=DAILY from 2026-01-01T12:00:00)",
        ),
        (
            CLOSED,
            f"at 09:00 every business day (rule {json.dumps(CLOSED.to_data())})",
        ),
    ],
)
def test_parts_without_words_are_described_in_their_exact_form(rule: Rule, described: str) -> None:
    assert describe(rule) == described


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("15m", Interval("15m")),
        ("1h30m", Interval(5400)),
        ("90 seconds", Interval(90)),
        ("every 15 minutes", Interval("15m")),
        ("every 1 hour and 30 minutes", Interval("90m")),
        ("every hour", Interval("1h")),
        ("every 10 minutes after finish", Interval("10m", after="finish")),
        ("cron 0 9 * * *", Cron("0 9 * * *")),
        ("rrule FREQ=DAILY from 2026-01-01T09:00", RRule("FREQ=DAILY", "2026-01-01T09:00")),
        (timedelta(minutes=15), Interval("15m")),
    ],
)
def test_other_phrases_are_understood(text: str | timedelta, rule: Rule) -> None:
    assert Schedule(text).rule == rule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fifteen minutes", "'fifteen minutes' is not a schedule. The forms are:"),
        ("15 moons", "'15 moons' is not a schedule"),
        ("rrule FREQ=DAILY", "a rule and its first local time are needed"),
        ("rule {", "this is not JSON"),
        ("at 25:00 every day", "'25:00' is not a time of day"),
        ("once, at 18:00 on 31 February 2026", "'2026-02-31' is not a date"),
        ("at 09:00 every day, until 09:00 on 31 June 2026", "'2026-06-31' is not a date"),
        ("at 09:00 every day, Nowhere/City time", "Nowhere/City"),
        (timedelta(), "shorter than the minimum of 0.1 s"),
        (15, "15 is not a rule; use .* a timedelta, or a text such as"),
    ],
)
def test_text_that_is_not_understood_is_refused_with_the_reason(text: Any, said: str) -> None:
    with pytest.raises(InvalidSchedule, match=said):
        Schedule(text)


def test_a_zone_in_the_words_and_another_beside_them_is_a_contradiction() -> None:
    words = "at 09:00 every day, Europe/London time"
    assert Schedule(words).tz == Schedule(words, "Europe/London").tz == "Europe/London"
    with pytest.raises(InvalidSchedule, match=r"tz: .* already contains one; leave out tz='Asia/Tokyo'"):
        Schedule(words, "Asia/Tokyo")
