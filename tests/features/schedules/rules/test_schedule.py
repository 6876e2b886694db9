"""Schedules: the right instants, through changes of clocks, time zones and tzdata."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import InvalidSchedule, UnknownTimeZone
from mainspring.features.schedules.rules import (
    PACKAGED,
    Cron,
    Daily,
    Interval,
    Monthly,
    Occurrence,
    Once,
    RRule,
    Schedule,
    SchedulePause,
    TzData,
    Weekly,
    Yearly,
)
from mainspring.features.schedules.rules.rule import Rule
from tests.features.schedules.rules.patience import PATIENT
from tests.features.schedules.rules.test_tz import ZONEINFO

AUTUMN = datetime(2026, 11, 15, 15, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def utc(schedule: Schedule, low: str, high: str) -> list[str]:
    return [f"{occurrence.utc:%Y-%m-%dT%H:%M}" for occurrence in schedule.between(at(low), at(high))]


def first(schedule: Schedule, after: str) -> Occurrence:
    found = schedule.next_after(at(after))
    assert found is not None
    return found


# -- worked examples ------------------------------------------------------------------------------


def test_a_birthday_in_new_york_is_at_nine_there() -> None:
    found = first(Schedule(Yearly(12, 30), "America/New_York"), "2025-12-30T10:00")
    assert found.utc == at("2025-12-30T14:00")
    assert (found.nominal, found.offset) == (datetime(2025, 12, 30, 9), timedelta(hours=-5))
    assert first(Schedule(Yearly(6, 30), "America/New_York"), "2025-06-30T10:00").utc == at("2025-06-30T13:00")


def test_a_birthday_in_melbourne_is_the_day_before_in_utc() -> None:
    found = first(Schedule(Yearly(12, 30), "Australia/Melbourne"), "2025-12-29T10:00")
    assert found.utc == at("2025-12-29T22:00")
    assert first(Schedule(Yearly(6, 30), "Australia/Melbourne"), "2025-06-29T10:00").utc == at("2025-06-29T23:00")


def test_a_birthday_next_to_a_clock_change_is_at_nine_local_time() -> None:
    assert first(Schedule(Yearly(3, 10), "America/New_York"), "2025-03-09T00:00").utc == at("2025-03-10T13:00")
    assert first(Schedule(Yearly(3, 9), "America/New_York"), "2025-03-08T00:00").utc == at("2025-03-09T13:00")
    assert first(Schedule(Yearly(3, 8), "America/New_York"), "2025-03-08T00:00").utc == at("2025-03-08T14:00")


def test_yearly_rules_follow_the_most_extreme_zones() -> None:
    """24 December begins 26 hours earlier on Kiritimati than on Baker Island."""
    found = {
        tz: first(Schedule(Yearly(12, 24), tz), "2026-12-20T00:00").utc for tz in ("Pacific/Kiritimati", "Etc/GMT+12")
    }
    assert found == {"Pacific/Kiritimati": at("2026-12-23T19:00"), "Etc/GMT+12": at("2026-12-24T21:00")}


# -- changes of clocks ----------------------------------------------------------------------------

SPRING = "2026-03-29T00:00", "2026-03-29T03:00"  # UTC; Berlin's clocks go from 02:00 to 03:00 at 01:00 UTC
FALL = "2026-10-24T23:00", "2026-10-25T03:00"  # and from 03:00 to 02:00 at 01:00 UTC


@pytest.mark.parametrize(
    ("rule", "options", "spring", "fall"),
    [
        ("30 2 * * *", {}, ["01:30"], ["00:30"]),
        ("30 2 * * *", {"gap": "skip", "fold": "second"}, [], ["01:30"]),
        ("30 2 * * *", {"fold": "both"}, ["01:30"], ["00:30", "01:30"]),
        ("0 * * * *", {}, ["00:00", "01:00", "02:00"], ["23:00", "00:00", "01:00", "02:00"]),
        ("30 * * * *", {"fold": "second"}, ["00:30", "01:30", "02:30"], ["23:30", "00:30", "01:30", "02:30"]),
        ("*/30 2 * * *", {}, [], ["00:00", "00:30", "01:00", "01:30"]),
        ("0,30 2 * * *", {}, ["01:00", "01:30"], ["00:00", "00:30"]),
        ("0 2,3 * * *", {}, ["01:00"], ["00:00", "02:00"]),
        ("every 60m", {}, ["00:00", "01:00", "02:00"], ["23:00", "00:00", "01:00", "02:00"]),
        ("daily 02:30", {}, ["01:30"], ["00:30"]),
    ],
)
def test_each_policy_fires_as_expected_when_clocks_change(
    rule: str, options: dict[str, Any], spring: list[str], fall: list[str]
) -> None:
    schedule = Schedule(rule, "Europe/Berlin", **options)
    assert [moment[11:] for moment in utc(schedule, *SPRING)] == spring
    assert [moment[11:] for moment in utc(schedule, *FALL)] == fall


def test_five_minutes_go_on_through_the_repeated_hour() -> None:
    for tz in ("Europe/Berlin", "Australia/Lord_Howe", "America/New_York", "Antarctica/Troll"):
        for change in PACKAGED.get(tz).transitions(2026):
            around = change.at.replace(tzinfo=UTC)
            found = list(Schedule("*/5 * * * *", tz).between(around - timedelta(hours=6), around + timedelta(hours=6)))
            assert [occurrence.utc for occurrence in found] == [
                around + timedelta(minutes=5 * step) for step in range(-72, 72)
            ]
            assert len({occurrence.key for occurrence in found}) == len(found)


def test_an_hourly_recurrence_goes_on_too() -> None:
    schedule = Schedule(RRule("FREQ=HOURLY", "2026-01-01T00:00"), "Europe/Berlin")
    assert [moment[11:] for moment in utc(schedule, *FALL)] == ["23:00", "00:00", "01:00", "02:00"]


def test_moved_and_repeated_occurrences_are_marked() -> None:
    moved = first(Schedule("30 2 * * *", "Europe/Berlin"), SPRING[0])
    assert (moved.nominal, moved.shifted) == (datetime(2026, 3, 29, 2, 30), timedelta(hours=1))
    assert moved.local.isoformat() == "2026-03-29T03:30:00+02:00"
    assert moved.key == "2026-03-29T02:30:00"
    twice = list(Schedule("30 2 * * *", "Europe/Berlin", fold="both").between(at(FALL[0]), at(FALL[1])))
    assert [(occurrence.fold, occurrence.key) for occurrence in twice] == [
        ("first", "2026-10-25T02:30:00"),
        ("second", "2026-10-25T02:30:00/2"),
    ]
    assert {occurrence.nominal for occurrence in twice} == {datetime(2026, 10, 25, 2, 30)}


def test_the_day_that_samoa_did_not_have() -> None:
    """There was no 30 December 2011. A daily time is not doubled by it, a date of that day is kept a day later."""
    days = Schedule("0 9 * * *", "Pacific/Apia").between(at("2011-12-28T00:00"), at("2012-01-01T12:00"))
    assert [occurrence.nominal.day for occurrence in days] == [28, 29, 31, 1]
    (birthday,) = Schedule(Yearly(12, 30), "Pacific/Apia").between(at("2011-12-01T00:00"), at("2012-02-01T00:00"))
    assert birthday.key == "2011-12-30T09:00:00"
    assert birthday.local.isoformat() == "2011-12-31T09:00:00+14:00"
    skipped = Schedule(Yearly(12, 30), "Pacific/Apia", gap="skip")
    assert first(skipped, "2011-12-01T00:00").nominal == datetime(2012, 12, 30, 9)


def test_a_midnight_that_does_not_exist_is_moved_to_one_o_clock() -> None:
    """Havana's clocks go from 00:00 to 01:00."""
    found = first(Schedule("@daily", "America/Havana"), "2026-03-08T00:00")
    assert (found.nominal, found.local.hour) == (datetime(2026, 3, 8), 1)


RULES: list[Rule] = [
    Cron("30 2 * * *"),
    Cron("*/40 * * * *"),
    Cron("15 0,2,3 * * 0,6"),
    Interval("7h"),
    Daily(["02:30", "00:00", "03:15"]),
    Weekly("sun", "02:00"),
    Monthly("last sun", "02:30"),
    Yearly(3, 29, "02:30"),
    Yearly(2, 29, "00:30"),
    RRule("FREQ=WEEKLY;BYDAY=SU;BYHOUR=2;BYMINUTE=0,30", "2020-01-01T00:00"),
]
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "America/Havana",
    "UTC",
]


@pytest.mark.slow
@settings(PATIENT, max_examples=120)
@given(
    rule=st.sampled_from(RULES),
    tz=st.sampled_from(ZONES),
    gap=st.sampled_from(["shift", "skip"]),
    fold=st.sampled_from(["first", "second", "both"]),
    after=st.datetimes(datetime(2011, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
)
def test_occurrences_of_any_schedule_are_ordered_and_unique(
    rule: Rule, tz: str, gap: str, fold: str, after: datetime
) -> None:
    schedule = Schedule(rule, tz, gap=gap, fold=fold)
    found: list[Occurrence] = []
    following = schedule.next_after(after)
    while following is not None and len(found) < 6:
        found.append(following)
        assert schedule.next_after(following.utc - timedelta(microseconds=1)) == following
        assert schedule.following(following) == schedule.next_after(following.utc)
        following = schedule.next_after(following.utc)
    assert found
    assert found[0].utc > after
    assert all(sooner.utc < later.utc for sooner, later in pairwise(found))
    assert len({occurrence.key for occurrence in found}) == len(found)
    for occurrence in found:
        assert Occurrence.from_data(occurrence.to_data()) == occurrence
        assert occurrence.local.replace(tzinfo=None) == occurrence.nominal + occurrence.shifted
        assert gap == "shift" or not occurrence.shifted


# -- start, end, pause, jitter --------------------------------------------------------------------


def test_start_is_within_and_end_is_not() -> None:
    schedule = Schedule("0 9 * * *", "Europe/Berlin", start="2026-07-02T09:00", end=at("2026-07-04T07:00"))
    assert utc(schedule, "2026-01-01T00:00", "2027-01-01T00:00") == ["2026-07-02T07:00", "2026-07-03T07:00"]
    interval = Schedule("every 7h", start=at("2026-07-01T01:00"))
    assert first(interval, "2026-01-01T00:00").utc == at("2026-07-01T03:00")


def test_a_pause_is_left_out() -> None:
    schedule = Schedule("0 9 * * *", pause=SchedulePause(at("2026-07-02T00:00"), at("2026-07-04T09:00")))
    assert utc(schedule, "2026-07-01T00:00", "2026-07-05T00:00") == ["2026-07-01T09:00", "2026-07-04T09:00"]
    assert first(schedule, "2026-07-01T12:00").utc == at("2026-07-04T09:00")
    assert schedule.paused(at("2026-07-02T00:00")).next_after(at("2026-07-01T12:00")) is None
    resumed = schedule.paused(at("2026-07-02T00:00")).resumed(at("2026-07-08T10:00"))
    assert first(resumed, "2026-07-01T12:00").utc == at("2026-07-09T09:00")
    assert resumed.resumed(at("2026-08-01T00:00")) == resumed


def test_jitter_is_the_same_everywhere_and_spread_out() -> None:
    schedule = Schedule("0 9 * * *", jitter="10m")
    found = list(schedule.between(at("2026-01-01T00:00"), at("2027-01-01T00:00")))
    delays = [schedule.run_at(occurrence, "reports") - occurrence.utc for occurrence in found]
    assert delays == [
        Schedule.from_data(schedule.to_data()).run_at(occurrence, "reports") - occurrence.utc for occurrence in found
    ]
    assert delays != [schedule.run_at(occurrence, "others") - occurrence.utc for occurrence in found]
    assert all(timedelta() <= delay < timedelta(minutes=10) for delay in delays)
    assert 30 < sum(delay < timedelta(minutes=2) for delay in delays) < 120
    assert delays[0] == timedelta(seconds=51, microseconds=972318)  # for ever: releases must agree too


def test_an_interval_after_finish_counts_from_the_last_finish() -> None:
    schedule = Schedule(Interval("10m", after="finish"))
    assert first(schedule, "2026-07-01T12:03").utc == at("2026-07-01T12:13")
    assert first(schedule.paused(at("2026-07-01T12:00"), at("2026-07-02T00:00")), "2026-07-01T12:03").utc == at(
        "2026-07-02T00:00"
    )


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Schedule("0 9 * * *", "Europe/Lodnon"), "did you mean Europe/London"),
        (lambda: Schedule("0 9 * *"), "is not a schedule. The forms are:\n"),
        (lambda: Schedule(5),  # type: ignore[arg-type]
         "rule: 5 is not a rule; use Cron"),
        (lambda: Schedule("0 9 * * *", gap="jump"), "gap: 'jump' is not one of shift, skip"),
        (lambda: Schedule("0 9 * * *", misfire="lates"), "did you mean latest"),
        (lambda: Schedule("0 9 * * *", jitter="-5s"), "jitter: '-5s' is not a length of time"),
        (lambda: Schedule("0 9 * * *", jitter=timedelta(-1)), "from 0 to 100 years"),
        (lambda: Schedule("0 9 * * *", start="2026-02-01T00:00", end="2026-01-01T00:00"), "ends .* before it starts"),
        (lambda: Schedule("0 9 * * *").next_after(datetime(2026, 1, 1)), "has no offset"),
        (lambda: SchedulePause(at("2026-02-01T00:00"), at("2026-01-01T00:00")), "ends .* before it begins"),
        (lambda: Interval("50ms"), "shorter than"),
        (lambda: Interval("5 parsecs"), "is not a length of time"),
        (lambda: Interval("1h", anchor="2026-01-01T00:00"), "anchor: .* has no offset"),
        (lambda: Interval("1h", anchor=AUTUMN, after="finish"), "has none"),
    ],
)  # fmt: skip
def test_invalid_schedules_are_refused_with_the_reason(make: Callable[[], object], why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        make()


def test_nothing_comes_after_the_last() -> None:
    assert Schedule(Once("2026-11-15T14:00")).next_after(AUTUMN) is None
    assert Schedule("0 9 * * *").next_after(datetime(9998, 12, 31, 12, tzinfo=UTC)) is None


# -- a new tzdata ---------------------------------------------------------------------------------


@pytest.fixture
def changed_zones(tmp_path: Path) -> Callable[[str, str], TzData]:
    """A tzdata in which one time zone has the rules of another."""

    def change(tz: str, rules: str) -> TzData:
        (tmp_path / tz).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ZONEINFO / rules, tmp_path / tz)
        return TzData(tmp_path)

    return change


def test_a_time_that_moves_ahead_of_the_clock_does_not_fire_again(changed_zones: Callable[[str, str], TzData]) -> None:
    schedule = Schedule("0 9 * * *", "Europe/Paris")
    fired = first(schedule, "2026-11-15T00:00")
    later = changed_zones("Europe/Paris", "Europe/London")  # 09:00 is an hour later there
    assert schedule.next_after(fired.utc, tzdata=later).nominal == fired.nominal  # type: ignore[union-attr]
    following = schedule.following(fired, tzdata=later)
    assert following is not None
    assert (following.nominal.day, following.utc) == (16, at("2026-11-16T09:00"))


def test_a_time_that_falls_behind_the_clock_is_not_lost(changed_zones: Callable[[str, str], TzData]) -> None:
    schedule = Schedule("0 9,10 * * *", "Europe/Paris")
    fired = first(schedule, "2026-11-15T00:00")
    sooner = changed_zones("Europe/Paris", "Europe/Athens")
    following = schedule.following(fired, tzdata=sooner)
    assert following is not None
    assert (following.nominal.hour, following.utc) == (10, fired.utc)  # it is due at once
    decision = schedule.decide(fired, fired.utc + timedelta(minutes=5), tzdata=sooner)
    assert [fire.occurrence.key for fire in decision.fires] == ["2026-11-15T10:00:00"]


def test_a_move_from_auckland_to_los_angeles_on_the_day_fires_once() -> None:
    greeted = first(Schedule(Yearly(11, 15), "Pacific/Auckland"), "2026-11-01T00:00")
    following = Schedule(Yearly(11, 15), "America/Los_Angeles").following(greeted)
    assert following is not None
    assert following.nominal.year == 2027


def test_an_interval_cron_keeps_its_pace_when_the_zone_changes(changed_zones: Callable[[str, str], TzData]) -> None:
    schedule = Schedule("*/5 * * * *", "Europe/Paris")
    fired = first(schedule, "2026-11-15T12:00")
    following = schedule.following(fired, tzdata=changed_zones("Europe/Paris", "Asia/Tokyo"))
    assert following is not None
    assert following.utc == fired.utc + timedelta(minutes=5)


def test_a_zone_missing_from_a_new_tzdata_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownTimeZone, match="not in"):
        Schedule("0 9 * * *", "Europe/Paris").next_after(AUTUMN, tzdata=TzData(tmp_path))
