"""Cron: what is read, what is refused, what matches; and what two other implementations make of it."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter  # type: ignore[import-untyped]
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules import PACKAGED, Cron, Schedule
from mainspring.features.schedules.rules.cron import matcher
from tests.features.schedules.rules.patience import PATIENT

START = datetime(2026, 11, 15, 15)


def firsts(expression: str, count: int = 3, start: datetime = START) -> list[str]:
    rule = Cron(expression)
    found: list[str] = []
    following = rule.next_from(start)
    while following is not None and len(found) < count:
        found.append(f"{following:%Y-%m-%d %H:%M}" + (f":{following:%S}" if following.second else ""))
        following = rule.next_from(following + timedelta(seconds=1))
    return found


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("*/20 * * * *", ["2026-11-15 15:00", "2026-11-15 15:20", "2026-11-15 15:40"]),
        ("30 9 * * mon-fri", ["2026-11-16 09:30", "2026-11-17 09:30", "2026-11-18 09:30"]),
        ("*/25 0 0 1 1 *", ["2027-01-01 00:00", "2027-01-01 00:00:25", "2027-01-01 00:00:50"]),
        ("0 9 L * *", ["2026-11-30 09:00", "2026-12-31 09:00", "2027-01-31 09:00"]),
        ("0 9 L-2 2 *", ["2027-02-26 09:00", "2028-02-27 09:00", "2029-02-26 09:00"]),
        ("0 9 LW * *", ["2026-11-30 09:00", "2026-12-31 09:00", "2027-01-29 09:00"]),
        ("0 9 15W * *", ["2026-11-16 09:00", "2026-12-15 09:00", "2027-01-15 09:00"]),
        ("0 9 1W * *", ["2026-12-01 09:00", "2027-01-01 09:00", "2027-02-01 09:00"]),
        ("0 9 1W 8 *", ["2027-08-02 09:00", "2028-08-01 09:00", "2029-08-01 09:00"]),  # 1 August 2027 is a Sunday
        ("0 9 31W 1,10 *", ["2027-01-29 09:00", "2027-10-29 09:00", "2028-01-31 09:00"]),  # Sundays, both in 2027
        ("0 9 * * FRI#2", ["2026-12-11 09:00", "2027-01-08 09:00", "2027-02-12 09:00"]),
        ("0 9 * * 5L", ["2026-11-27 09:00", "2026-12-25 09:00", "2027-01-29 09:00"]),
        ("0 9 * 2 MON#5", ["2044-02-29 09:00", "2072-02-29 09:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"]),
        ("0 9 13 * FRI", ["2026-11-20 09:00", "2026-11-27 09:00", "2026-12-04 09:00"]),  # either
        ("0 9 */2 * FRI", ["2026-11-27 09:00", "2026-12-11 09:00", "2026-12-25 09:00"]),  # both: one has a star
        ("0 9 ? * 7", ["2026-11-22 09:00", "2026-11-29 09:00", "2026-12-06 09:00"]),
        ("0 9 * * FRI-SUN", ["2026-11-20 09:00", "2026-11-21 09:00", "2026-11-22 09:00"]),
        ("5/20 * * * *", ["2026-11-15 15:05", "2026-11-15 15:25", "2026-11-15 15:45"]),
        ("0 9 * * 7/2", ["2026-11-22 09:00", "2026-11-29 09:00", "2026-12-06 09:00"]),  # Sunday, and none after it
        ("0 9 * * 1,7/2", ["2026-11-16 09:00", "2026-11-22 09:00", "2026-11-23 09:00"]),
        ("0 9 * * 7/1", ["2026-11-22 09:00", "2026-11-29 09:00", "2026-12-06 09:00"]),
        ("0 9 * * 5/2", ["2026-11-20 09:00", "2026-11-27 09:00", "2026-12-04 09:00"]),
        ("5-5/1 9 * * *", ["2026-11-16 09:05", "2026-11-17 09:05", "2026-11-18 09:05"]),
        ("0-10/10 9 * * *", ["2026-11-16 09:00", "2026-11-16 09:10", "2026-11-17 09:00"]),
        ("@weekly", ["2026-11-22 00:00", "2026-11-29 00:00", "2026-12-06 00:00"]),
        ("@Yearly", ["2027-01-01 00:00", "2028-01-01 00:00", "2029-01-01 00:00"]),
    ],
)
def test_each_expression_matches_the_expected_times(expression: str, wanted: list[str]) -> None:
    assert firsts(expression, len(wanted)) == wanted


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "it has 0 fields"),
        ("* * * *", "it has 4 fields; cron has five"),
        ("* * * * * * *", "it has 7 fields"),
        ("60 * * * *", "the minute '60' is out of range"),
        ("* 24 * * *", "the hour '24' is out of range"),
        ("* * 0 * *", "the day of the month '0' is out of range"),
        ("* * * 13 *", "the month '13'"),
        ("* * * FOO *", "a name such as FEB"),
        ("* * * * 8", "the day of the week '8' is out of range"),
        ("* * * * FRI#6", "6 is not within 1-5"),
        ("* * * * L", "the day of the week 'L' is not understood"),
        ("* 22-4 * * *", "ends before it begins; write 22-23,0-4"),
        ("* * * * FRI-MON", "write FRI-6,0-MON"),
        ("*/90 * * * *", r"use Interval\('90m'\)"),
        ("* */24 * * *", r"use Interval\('24h'\)"),
        ("0-10/20 * * * *", "steps over all 11 values, so .* leave the step out, or make it at most 10"),
        ("0-10/11 * * * *", "steps over all 11 values"),
        ("0 8-17/12 * * *", "steps over all 10 values"),
        ("0 9 * * MON-FRI/5", "steps over all 5 values"),
        ("5-5/2 * * * *", "steps over its only value, so the step does nothing; leave the step out"),
        ("*/0 * * * *", "is not a number above 0"),
        ("*/x * * * *", "is not a number above 0"),
        ("1,,2 * * * *", "the minute '' is not understood"),
        ("1-2-3 * * * *", "not understood"),
        ("٣ * * * *", "not understood"),
        ("? * * * *", "is allowed only for the day"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("0 0 L-30 2 *", "never fires"),
        ("@reboot", "there is no reboot"),
        ("@every 5m", r"use Interval\('5m'\)"),
    ],
)  # fmt: skip
def test_invalid_expressions_are_refused_with_the_reason(expression: str, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        Cron(expression)


@pytest.mark.parametrize("field", ["{} * * * *", "*/{} * * * *", "0 0 L-{} * *", "0 0 {}W * *", "0 0 * * FRI#{}"])
def test_numbers_that_python_cannot_read_are_refused(field: str) -> None:
    with pytest.raises(InvalidSchedule):
        Cron(field.format("9" * 5000))


def test_the_hints_in_errors_are_themselves_right() -> None:
    assert firsts("0 22-23,0-4 * * *")[0] == "2026-11-15 22:00"
    assert [day[8:10] for day in firsts("0 9 * * FRI-6,0-MON", 4)] == ["16", "20", "21", "22"]


def test_equal_expressions_are_equal_rules() -> None:
    assert Cron(" 0  9 * * *") == Cron("0 9 * * *")
    assert len({Cron("0 9 * * *"), Cron("0 9 * * *"), Cron("0 10 * * *")}) == 2
    with pytest.raises(AttributeError):
        Cron("0 9 * * *").expression = "@daily"  # type: ignore[misc]


@given(first=st.integers(0, 7), last=st.integers(0, 7) | st.none(), step=st.integers(1, 6))
def test_days_of_the_week_with_a_step_are_those_that_the_numbers_name(first: int, last: int | None, step: int) -> None:
    """Without an end the week ends on Saturday; both 0 and 7 are Sunday."""
    end = max(first, 6) if last is None else last
    try:
        rule = Cron(f"0 0 * * {first}{'' if last is None else f'-{last}'}/{step}")
    except InvalidSchedule:
        assert last is not None
        assert end < first or (step > 1 and step > end - first) or (last == 0 < first)
        return
    end = 7 if last == 0 < first else end  # FRI-0
    named = {day % 7 for day in range(first, end + 1, step)}
    week = [datetime(2026, 11, 15) + timedelta(days=day) for day in range(7)]  # from a Sunday
    assert {day for day, midnight in enumerate(week) if rule.next_from(midnight) == midnight} == named


@pytest.mark.slow
@settings(PATIENT, max_examples=100)
@given(
    fields=st.tuples(
        st.sampled_from(["0", "*/10", "7,33", "59"]),
        st.sampled_from(["*", "0", "*/7", "3-5", "58,59"]),
        st.sampled_from(["*", "2", "*/5", "22-23", "0"]),
        st.sampled_from(["*", "31", "L", "15W", "1-3", "*/10"]),
        st.sampled_from(["*", "2", "1,12", "4-9"]),
        st.sampled_from(["*", "MON", "FRI#2", "SUNL", "1-5"]),
    ),
    start=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
)
def test_the_next_one_is_the_first_that_matches(fields: tuple[str, ...], start: datetime) -> None:
    """Found again by trying every second, in the few minutes before it and after the start."""
    try:
        rule = Cron(" ".join(fields))
    except InvalidSchedule:
        return
    found = rule.next_from(start)
    assert found is not None
    assert found >= start
    assert rule.next_from(found) == found
    near = max(start, found - timedelta(minutes=3))
    seconds = [near.replace(microsecond=0) + timedelta(seconds=step) for step in range(181)]
    assert not [second for second in seconds if start <= second < found and rule.next_from(second) == second]


# -- beside others --------------------------------------------------------------------------------

ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo"]


def some_expression(dice: random.Random) -> str:
    """Without what the others do not know: W, L-n, names with L."""

    def numbers(least: int, most: int) -> str:
        kind = dice.random()
        first = dice.randint(least, most)
        if kind < 0.35:
            return str(first)
        if kind < 0.6:
            return f"*/{dice.randint(2, max(2, (most - least) // 2))}"
        if kind < 0.8:
            return f"{first}-{dice.randint(first, most)}"
        return ",".join(str(number) for number in sorted({dice.randint(least, most) for _ in range(3)}))

    return " ".join(
        "*" if dice.random() < share else numbers(least, most)
        for share, least, most in [(0.2, 0, 59), (0.3, 0, 23), (0.6, 1, 28), (0.7, 1, 12), (0.6, 0, 6)]
    )


def ours(expression: str, tz: str, after: datetime, count: int) -> list[datetime]:
    schedule = Schedule(Cron(expression), tz)
    found: list[datetime] = []
    following = schedule.next_after(after)
    while following is not None and len(found) < count:
        found.append(following.utc)
        following = schedule.next_after(following.utc)
    return found


def of_croniter(expression: str, tz: str, after: datetime, count: int) -> list[datetime]:
    them = croniter(expression, after.astimezone(ZoneInfo(tz)))
    return [them.get_next(datetime).astimezone(UTC) for _ in range(count)]


def some_instant(dice: random.Random) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=dice.randrange(5 * 365 * 86_400))


STAR_WITH_STEP = "`*/2` in one field of the days beside the other: croniter takes either, Vixie's cron wants both"
ONE_VALUE_RANGE = "`2-2`: croniter takes it for every value"
FIRES_TWICE = "a time of day that comes twice fires twice (croniter)"
AT_THE_GAPS_END = "what a gap skips fires at its end, as in Debian; croniter even adds such a fire to `*/28 * * * *`"
BY_ITS_LENGTH = "what a gap skips we shift by its length, as RFC 5545 has it"
NO_MIDNIGHT = "cronsim loses the first hour of a day whose midnight is skipped"
HALF_AN_HOUR = "cronsim steps by whole hours from a change of half an hour, and loses first halves of hours that day"


def known_deviation(expression: str) -> str | None:
    """How croniter reads an expression otherwise than cron does, whatever the time zone."""
    _, _, day, _, weekday = expression.split()
    if re.search(r"\b(\d+)-\1\b", expression):
        return ONE_VALUE_RANGE
    if (day.startswith("*/") and weekday != "*") or (weekday.startswith("*/") and day != "*"):
        return STAR_WITH_STEP
    return None


@pytest.mark.slow
def test_wall_times_are_those_of_croniter() -> None:
    dice, deviations = random.Random(7), Counter[str | None]()
    for _ in range(1200):
        expression, after = some_expression(dice), some_instant(dice)
        if ours(expression, "UTC", after, 4) != of_croniter(expression, "UTC", after, 4):
            deviations[known_deviation(expression)] += 1
            assert known_deviation(expression), (expression, after)
    assert set(deviations) == {STAR_WITH_STEP, ONE_VALUE_RANGE}


@pytest.mark.slow
def test_wall_times_are_those_of_cronsim() -> None:
    dice = random.Random(8)
    for _ in range(1200):
        expression, after = some_expression(dice), some_instant(dice)
        theirs = [moment.replace(tzinfo=UTC) for moment in islice(CronSim(expression, after.replace(tzinfo=None)), 4)]
        assert ours(expression, "UTC", after, 4) == theirs, (expression, after)


@pytest.mark.slow
def test_instants_around_changes_of_clocks_are_those_of_croniter_but_for_known_deviations() -> None:
    dice, seen = random.Random(10), Counter[str]()
    for _ in range(1000):
        expression, tz = some_expression(dice), dice.choice(ZONES)
        if known_deviation(expression) is None:
            after = near_a_change(dice, tz)
            seen.update(deviations(expression, tz, after, of_croniter(expression, tz, after, 12)))
    assert set(seen) == {FIRES_TWICE, AT_THE_GAPS_END, BY_ITS_LENGTH}


@pytest.mark.slow
def test_instants_around_changes_of_clocks_are_those_of_cronsim_but_for_known_deviations() -> None:
    dice, seen = random.Random(9), Counter[str]()
    for _ in range(2500):
        expression, tz = some_expression(dice), dice.choice(ZONES)
        after = near_a_change(dice, tz)
        simulated = CronSim(expression, after.astimezone(ZoneInfo(tz)))
        seen.update(deviations(expression, tz, after, [moment.astimezone(UTC) for moment in islice(simulated, 12)]))
    assert set(seen) == {AT_THE_GAPS_END, BY_ITS_LENGTH, HALF_AN_HOUR, NO_MIDNIGHT}


def near_a_change(dice: random.Random, tz: str) -> datetime:
    changes = [change.at for year in (2015, 2016, 2024) for change in PACKAGED.get(tz).transitions(year)]
    return dice.choice(changes).replace(tzinfo=UTC) + timedelta(seconds=dice.randrange(-2 * 86_400, 86_400))


def deviations(expression: str, tz: str, after: datetime, theirs: list[datetime]) -> Iterator[str]:
    """Why the two differ, for each instant that only one of them has."""
    mine = {
        occurrence.utc: occurrence
        for occurrence in Schedule(Cron(expression), tz).between(after + timedelta(seconds=1), theirs[-1])
    }
    gaps = {
        change.at.replace(tzinfo=UTC): change
        for year in (2015, 2016, 2024)
        for change in PACKAGED.get(tz).transitions(year)
    }
    for utc in sorted(mine.keys() ^ set(theirs[:-1])):
        since = min((utc - gap for gap in gaps if gap <= utc), default=timedelta.max)
        if utc in mine and mine[utc].shifted:
            yield BY_ITS_LENGTH
        elif utc in mine and since < timedelta(days=1) and tz == "Australia/Lord_Howe":
            yield HALF_AN_HOUR
        elif utc in mine and since < timedelta(hours=1) and tz == "America/Sao_Paulo":
            yield NO_MIDNIGHT
        elif utc not in mine and utc in gaps:
            yield AT_THE_GAPS_END
        else:
            assert utc not in mine, (expression, tz, after, utc)
            assert utc.astimezone(ZoneInfo(tz)).fold, (expression, tz, after, utc)
            assert not Cron(expression).continuous, (expression, tz, after, utc)
            yield FIRES_TWICE


BERLIN, HOWE = "Europe/Berlin", "Australia/Lord_Howe"


@pytest.mark.parametrize(
    ("what", "expression", "tz", "after", "theirs", "mine"),
    [
        (FIRES_TWICE, "30 2 * * *", BERLIN, "2026-10-24T12Z", ["25T00:30", "25T01:30"], ["25T00:30", "26T01:30"]),
        (AT_THE_GAPS_END, "30 2 * * *", BERLIN, "2026-03-28T12Z", ["29T01:00", "30T00:30"], ["29T01:30", "30T00:30"]),
        (AT_THE_GAPS_END, "*/28 * * * *", HOWE, "2015-10-03T15Z", ["03T15:26", "03T15:30"], ["03T15:26", "03T15:56"]),
        (ONE_VALUE_RANGE, "0 9 * * 2-2", "UTC", "2026-11-15T15Z", ["16T09:00", "17T09:00"], ["17T09:00", "24T09:00"]),
        (STAR_WITH_STEP, "0 9 */2 * 1", "UTC", "2026-11-15T15Z", ["16T09:00", "17T09:00"], ["23T09:00", "07T09:00"]),
    ],
)  # fmt: skip
def test_known_differences_from_croniter_are_as_listed(
    *, what: str, expression: str, tz: str, after: str, theirs: list[str], mine: list[str]
) -> None:
    since = datetime.fromisoformat(after)
    assert [f"{moment:%dT%H:%M}" for moment in of_croniter(expression, tz, since, len(theirs))] == theirs, what
    assert [f"{moment:%dT%H:%M}" for moment in ours(expression, tz, since, len(mine))] == mine, what


def test_a_matcher_is_made_once() -> None:
    assert matcher("0 9 * * *") is matcher("0 9 * * *")
