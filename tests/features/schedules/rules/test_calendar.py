"""Days of the calendar: every N days, weeks, months; business days; yearly dates; once."""

from __future__ import annotations

import sys
from datetime import date, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import InvalidSchedule, MissingExtra
from mainspring.features.schedules.rules import BusinessCalendar, Daily, Monthly, Once, Weekly, Yearly
from mainspring.features.schedules.rules import business as business_module
from mainspring.features.schedules.rules.calendar import DayRule
from mainspring.features.schedules.rules.rule import WallRule
from tests.features.schedules.rules.patience import PATIENT

START = datetime(2026, 11, 15, 15)
ENGLAND = BusinessCalendar("GB", "ENG")


def firsts(rule: WallRule, count: int = 3, start: datetime = START) -> list[str]:
    found: list[str] = []
    following = rule.next_from(start)
    while following is not None and len(found) < count:
        found.append(f"{following:%Y-%m-%d %H:%M}")
        following = rule.next_from(following + timedelta(microseconds=1))
    return found


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (Daily("09:00"), ["2026-11-16 09:00", "2026-11-17 09:00"]),
        (Daily(["17:30", "09:00"]), ["2026-11-15 17:30", "2026-11-16 09:00"]),
        (Daily("15:00"), ["2026-11-15 15:00", "2026-11-16 15:00"]),
        (Daily("09:00", every=3, starting="2026-11-01"), ["2026-11-16 09:00", "2026-11-19 09:00"]),
        (Daily("09:00", every=3, starting="2027-01-01"), ["2027-01-01 09:00", "2027-01-04 09:00"]),
        (Weekly("mon,thu", "09:00"), ["2026-11-16 09:00", "2026-11-19 09:00"]),
        (Weekly(["Friday", 0], time(9)), ["2026-11-16 09:00", "2026-11-20 09:00"]),
        (Weekly("fri-mon", "09:00"), ["2026-11-16 09:00", "2026-11-20 09:00", "2026-11-21 09:00", "2026-11-22 09:00"]),
        (Weekly("fri", "16:00", every=2, starting="2026-11-02"), ["2026-11-20 16:00", "2026-12-04 16:00"]),
        (Weekly("fri", "16:00", every=2, starting="2026-11-09"), ["2026-11-27 16:00", "2026-12-11 16:00"]),
        (Monthly(1, "09:00"), ["2026-12-01 09:00", "2027-01-01 09:00"]),
        (Monthly([15, 1], "16:00"), ["2026-11-15 16:00", "2026-12-01 16:00", "2026-12-15 16:00"]),
        (Monthly("last", "09:00"), ["2026-11-30 09:00", "2026-12-31 09:00"]),
        (Monthly(-2, "09:00"), ["2026-11-29 09:00", "2026-12-30 09:00"]),
        (Monthly(31, "09:00"), ["2026-11-30 09:00", "2026-12-31 09:00", "2027-01-31 09:00", "2027-02-28 09:00"]),
        (Monthly(31, "09:00", short="skip"), ["2026-12-31 09:00", "2027-01-31 09:00", "2027-03-31 09:00"]),
        (Monthly("2nd tue", "09:00"), ["2026-12-08 09:00", "2027-01-12 09:00"]),
        (Monthly("last Friday", "09:00"), ["2026-11-27 09:00", "2026-12-25 09:00"]),
        (Monthly("fifth mon", "09:00"), ["2026-11-30 09:00", "2027-03-29 09:00"]),
        (Monthly(1, "09:00", every=3, starting="2026-01-01"), ["2027-01-01 09:00", "2027-04-01 09:00"]),
        (Monthly("last business day", "17:00"), ["2026-11-30 17:00", "2026-12-31 17:00", "2027-01-29 17:00"]),
        (Monthly("1st business day", "09:00", business=ENGLAND), ["2026-12-01 09:00", "2027-01-04 09:00"]),
        (Monthly(25, "09:00", business=ENGLAND), ["2026-11-25 09:00", "2026-12-29 09:00"]),  # Christmas on a Friday
        (Monthly(25, "09:00", business=ENGLAND, adjust="previous"), ["2026-11-25 09:00", "2026-12-24 09:00"]),
        (Monthly(25, "09:00", business=ENGLAND, adjust="skip"), ["2026-11-25 09:00", "2027-01-25 09:00"]),
        (Daily("09:00", business=ENGLAND), ["2026-11-16 09:00", "2026-11-17 09:00"]),
        (Yearly(12, 24), ["2026-12-24 09:00", "2027-12-24 09:00"]),
        (Yearly(11, 15, "15:00"), ["2026-11-15 15:00", "2027-11-15 15:00"]),
        (Yearly(2, 29), ["2027-02-28 09:00", "2028-02-29 09:00", "2029-02-28 09:00"]),
        (Yearly(2, 29, feb29="mar1"), ["2027-03-01 09:00", "2028-02-29 09:00", "2029-03-01 09:00"]),
        (Yearly(2, 29, feb29="skip"), ["2028-02-29 09:00", "2032-02-29 09:00"]),
        (Yearly(1, 1, business=ENGLAND, adjust="previous"), ["2026-12-31 09:00", "2027-12-31 09:00"]),
        (Yearly(12, 25, business=ENGLAND, adjust="skip"), []),
        (Once("2026-12-24T18:00"), ["2026-12-24 18:00"]),
        (Once("2026-11-15T14:59:59"), []),
    ],
    ids=lambda value: repr(value) if isinstance(value, WallRule) else "",
)  # fmt: skip
def test_each_rule_has_the_expected_next_times(rule: WallRule, wanted: list[str]) -> None:
    assert firsts(rule, max(1, len(wanted))) == wanted


def test_leap_days_follow_the_rule_for_2100() -> None:
    assert firsts(Yearly(2, 29), 1, datetime(2100, 1, 1)) == ["2100-02-28 09:00"]
    assert firsts(Yearly(2, 29, feb29="skip"), 1, datetime(2096, 3, 1)) == ["2104-02-29 09:00"]


def test_the_calendar_ends_with_the_year_9999() -> None:
    late = datetime(9999, 12, 31, 10)
    rules = [
        Daily("09:00"),
        Weekly("mon", "09:00"),
        Monthly(1, "09:00"),
        Yearly(1, 1),
        Daily("09:00", business=ENGLAND),
    ]
    assert [rule.next_from(late) for rule in rules] == [None] * len(rules)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Daily("25:00"), "at: '25:00' is not a time of day"),
        (lambda: Daily("09:00+02:00"), "without an offset"),
        (lambda: Daily([]), "at least one time"),
        (
            lambda: Daily(9),  # type: ignore[arg-type]
            "neither one value nor a list",
        ),
        (lambda: Daily("09:00", every=3), 'starting="2026-01-01"'),
        (lambda: Daily("09:00", every=0), "every: 0 is not a whole number from 1"),
        (lambda: Daily("09:00", every=2, starting="soon"), "starting: 'soon' is not a date"),
        (lambda: Weekly("someday", "09:00"), "on: 'someday' is not a day of the week"),
        (lambda: Weekly((), "09:00"), "at least one day of the week"),
        (lambda: Monthly(0, "09:00"), "on: 0 is not a day of a month"),
        (lambda: Monthly("6th mon", "09:00"), "no month has a '6th mon'"),
        (lambda: Monthly("2nd day", "09:00"), "is not a day of a month"),
        (lambda: Monthly(1, "09:00", short="never"), "short: 'never' is not one of last, skip"),
        (lambda: Yearly(13, 1), "month: 13 is not a whole number from 1 to 12"),
        (lambda: Yearly(2, 30), "day: 30 is not a whole number from 1 to 29"),
        (lambda: Yearly(2, 29, feb29="feb27"), "did you mean feb28"),
        (lambda: Once("2026-12-24T18:00Z"), "has an offset"),
        (lambda: Once("tomorrow"), "is not a time"),
        (lambda: Daily("09:00", business={"land": "GB"}), "business: .*land"),
        (
            lambda: Daily("09:00", business="GB"),  # type: ignore[arg-type]
            "is not a BusinessCalendar",
        ),
        (lambda: Daily("09:00", business=ENGLAND, adjust="nearest"), "adjust: 'nearest' is not one of"),
        (lambda: BusinessCalendar("XX"), "no holidays are known for 'XX'"),
        (lambda: BusinessCalendar("GB", "ZZ"), "no holidays are known for 'GB' 'ZZ'"),
        (lambda: BusinessCalendar(market="NOWHERE"), "no holidays are known for 'NOWHERE'"),
        (lambda: BusinessCalendar("GB", market="XNYS"), "either a country, .* or a market"),
        (lambda: BusinessCalendar(weekend="mon-sun"), "must be a business day"),
    ],
)
def test_invalid_rules_are_refused_with_the_reason(make: Any, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        make()


def test_closed_and_open_days_of_a_calendar_override_its_weekend() -> None:
    office = BusinessCalendar(closed=["2026-12-24"], open=["2026-12-26"], weekend="fri,sat")
    assert not office.is_open(date(2026, 12, 24))
    assert not office.is_open(date(2026, 12, 25))
    assert office.is_open(date(2026, 12, 26))  # a Saturday, but open
    assert office.is_open(date(2026, 12, 27))
    assert office.next_open(date(2026, 12, 24)) == date(2026, 12, 26)


def test_a_calendar_that_never_opens_is_an_error() -> None:
    closed = BusinessCalendar(closed=[date(2026, 1, 1) + timedelta(days=offset) for offset in range(800)])
    with pytest.raises(InvalidSchedule, match="no business day within a year"):
        Daily("09:00", business=closed).next_from(datetime(2026, 6, 1))


def test_a_market_has_holidays_too() -> None:
    assert not BusinessCalendar(market="XNYS").is_open(date(2026, 11, 26))  # Thanksgiving


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    business_module._holidays.cache_clear()
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mainspring\[calendar\]'"):
        BusinessCalendar("FR")
    assert BusinessCalendar().is_open(date(2026, 11, 16))  # weekends need no library


DAYS = st.dates(date(2020, 1, 1), date(2030, 12, 31))
CLOSED = st.lists(st.dates(date(2024, 1, 1), date(2024, 3, 31)), max_size=20)


@st.composite
def day_rules(draw: st.DrawFn) -> DayRule:
    at = draw(
        st.lists(st.times(), min_size=1, max_size=3).map(
            lambda some: [clock_time.replace(microsecond=0) for clock_time in some]
        )
    )
    business = draw(st.none() | CLOSED.map(lambda closed: BusinessCalendar(closed=closed)))
    common: dict[str, Any] = {"business": business, "adjust": draw(st.sampled_from(["next", "previous", "skip"]))}
    counted = common | {"every": draw(st.integers(1, 5)), "starting": draw(DAYS)}
    on = st.integers(1, 31) | st.integers(-31, -1) | st.sampled_from(["last fri", "2nd tue", "3rd business day"])
    return draw(
        st.sampled_from(
            [
                Daily(at, **counted),
                Weekly(draw(st.sets(st.integers(0, 6), min_size=1)), at, **counted),
                Monthly(draw(on), at, **counted),
                Yearly(draw(st.integers(1, 12)), draw(st.integers(1, 28)), at, **common),
                Yearly(2, 29, at, draw(st.sampled_from(["feb28", "mar1", "skip"])), **common),
            ]
        )
    )


@pytest.mark.slow
@settings(PATIENT, max_examples=100)
@given(rule=day_rules(), start=st.datetimes(datetime(2023, 12, 1), datetime(2024, 4, 30)))
def test_times_come_in_order_each_once_and_on_days_that_the_rule_has(rule: DayRule, start: datetime) -> None:
    found: list[datetime] = []
    following = rule.next_from(start)
    while following is not None and len(found) < 5:
        found.append(following)
        assert rule.next_from(following) == following
        following = rule.next_from(following + timedelta(microseconds=1))
    assert found == sorted(set(found))
    assert all(moment >= start and moment.time() in rule.at for moment in found)
    if rule.business is not None:
        assert all(rule.business.is_open(moment.date()) for moment in found)
    assert_nothing_between(rule, start, found)


def assert_nothing_between(rule: DayRule, start: datetime, found: list[datetime]) -> None:
    """Asked again from every midnight in between (up to a year of them), the answer is the same."""
    for sooner, later in zip([start, *found], found, strict=False):
        day = datetime.combine(sooner.date() + timedelta(days=1), time())
        while day <= later and day < sooner + timedelta(days=400):
            assert rule.next_from(day) == later
            day += timedelta(days=7)
