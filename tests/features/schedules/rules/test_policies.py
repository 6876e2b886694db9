"""What is fired, coalesced and dropped after any downtime: each occurrence once, or with a reason."""

from __future__ import annotations

import shutil
import time as stopwatch
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.features.schedules.rules import (
    PACKAGED,
    Decision,
    Interval,
    Misfire,
    Occurrence,
    Reason,
    Schedule,
    SchedulePause,
    TzData,
    Yearly,
)
from mainspring.features.schedules.rules.policies import MAX_COUNTED
from tests.features.schedules.rules.patience import PATIENT
from tests.features.schedules.rules.test_tz import ZONEINFO

MONDAY = datetime(2026, 11, 16, tzinfo=UTC)


def hours(count: float) -> datetime:
    return MONDAY + timedelta(hours=count)


def fired(decision: Decision) -> list[float]:
    return [(fire.occurrence.utc - MONDAY) / timedelta(hours=1) for fire in decision.fires]


def dropped(decision: Decision) -> list[tuple[Reason, float, float, int]]:
    hour = timedelta(hours=1)
    return [
        (drop.reason, (drop.first.utc - MONDAY) / hour, (drop.last.utc - MONDAY) / hour, drop.count)
        for drop in decision.drops
    ]


def test_a_decision_before_the_first_occurrence_fires_nothing() -> None:
    decision = Schedule("0 9 * * *").decide(hours(0), hours(8.9))
    assert (decision.fires, decision.drops, decision.decided) == ((), (), None)
    assert decision.next is not None
    assert decision.next.utc == hours(9)


def test_one_is_due_and_on_time() -> None:
    decision = Schedule("0 * * * *").decide(hours(0), hours(1) + timedelta(milliseconds=5))
    (fire,) = decision.fires
    assert (fire.occurrence.utc, fire.lateness, fire.late) == (hours(1), timedelta(milliseconds=5), False)
    assert decision.decided == fire.occurrence
    assert decision.next is not None
    assert decision.next.utc == hours(2)


def test_an_occurrence_at_this_very_moment_is_due_and_one_at_since_is_not() -> None:
    assert fired(Schedule("0 * * * *").decide(hours(1), hours(2))) == [2]


@pytest.mark.parametrize(
    ("misfire", "fires", "drops"),
    [
        (Misfire.latest(), [5], [(Reason.COALESCED, 1, 4, 4)]),
        (Misfire.latest(grace="3h"), [5], [(Reason.TOO_LATE, 1, 2, 2), (Reason.COALESCED, 3, 4, 2)]),
        (Misfire.latest(grace="10m"), [], [(Reason.TOO_LATE, 1, 5, 5)]),
        (Misfire.all(), [1, 2, 3, 4, 5], []),
        (Misfire.all(max_fires=2), [4, 5], [(Reason.TOO_MANY, 1, 3, 3)]),
        (Misfire.all(grace="2h"), [4, 5], [(Reason.TOO_LATE, 1, 3, 3)]),
        (Misfire.skip(), [], [(Reason.MISSED, 1, 5, 5)]),
        (Misfire.skip(grace="1h"), [5], [(Reason.MISSED, 1, 4, 4)]),
    ],
)
def test_each_misfire_policy_decides_about_missed_occurrences(
    misfire: Misfire, fires: list[float], drops: list[tuple[Reason, float, float, int]]
) -> None:
    decision = Schedule("0 * * * *", misfire=misfire).decide(hours(0.5), hours(5.5))
    assert (fired(decision), dropped(decision)) == (fires, drops)
    assert all(fire.late for fire in decision.fires)
    assert decision.decided is not None
    assert decision.decided.utc == hours(5)


def test_an_occurrence_exactly_as_late_as_the_grace_fires() -> None:
    schedule = Schedule("0 * * * *", misfire=Misfire.latest(grace="1h"))
    assert fired(schedule.decide(hours(0.5), hours(2) - timedelta(microseconds=1))) == [1]
    assert fired(Schedule("0 1 * * *", misfire=Misfire.latest(grace="1h")).decide(hours(0.5), hours(2))) == [1]
    assert fired(Schedule("0 1 * * *", misfire=Misfire.latest(grace="1h")).decide(hours(0.5), hours(2.01))) == []


def test_after_a_move_grace_counts_from_where_the_local_time_is_now() -> None:
    new_york, berlin = Schedule("0 9 * * *", "America/New_York"), Schedule("0 9 * * *", "Europe/Berlin")
    last = new_york.next_after(hours(-24))
    assert last is not None
    (fire,) = berlin.decide(last, hours(9)).fires  # 10:00 in Berlin
    assert (fire.occurrence.utc, fire.lateness) == (hours(8), timedelta(hours=1))
    strict = Schedule("0 9 * * *", "Europe/Berlin", misfire=Misfire.latest(grace="30m"))
    assert [drop.reason for drop in strict.decide(last, hours(9)).drops] == [Reason.TOO_LATE]


def test_a_fire_says_what_it_stands_for() -> None:
    (fire,) = Schedule("0 * * * *").decide(hours(0.5), hours(5.5)).fires
    assert fire.coalesced == 4


def test_a_fire_stands_for_those_before_a_pause_too() -> None:
    schedule = Schedule("0 * * * *", pause=SchedulePause(hours(2), hours(4)))
    decision = schedule.decide(hours(-0.5), hours(5.5))
    assert (fired(decision), decision.fires[0].coalesced) == ([5], 3)
    assert dropped(decision) == [(Reason.COALESCED, 0, 1, 2), (Reason.PAUSED, 2, 3, 2), (Reason.COALESCED, 4, 4, 1)]


def test_occurrences_during_a_pause_are_not_caught_up() -> None:
    schedule = Schedule("0 * * * *", misfire=Misfire.all(), pause=SchedulePause(hours(2), hours(4)))
    decision = schedule.decide(hours(0.5), hours(5.5))
    assert (fired(decision), dropped(decision)) == ([1, 4, 5], [(Reason.PAUSED, 2, 3, 2)])


def test_a_pause_without_end_has_no_next() -> None:
    schedule = Schedule("0 * * * *").paused(hours(2))
    decision = schedule.decide(hours(0.5), hours(5.5))
    assert (fired(decision), dropped(decision), decision.next) == ([1], [(Reason.PAUSED, 2, 5, 4)], None)
    again = schedule.resumed(hours(6.5)).decide(decision.decided or hours(0), hours(7.5))
    assert (fired(again), dropped(again)) == ([7], [(Reason.PAUSED, 6, 6, 1)])


def test_drops_have_reasons_in_words() -> None:
    decision = Schedule("0 * * * *", misfire=Misfire.latest(grace="2h")).decide(hours(0.5), hours(5.5))
    assert [drop.why for drop in decision.drops] == [
        "2h30m late or more, and the grace is 2h",
        "a newer one is fired in its place",
    ]


def test_an_interval_from_the_last_finish_fires_once_however_late() -> None:
    schedule = Schedule(Interval("1h", after="finish"), misfire=Misfire.skip())
    decision = schedule.decide(hours(0), hours(50))
    assert (fired(decision), decision.drops, decision.next) == ([1], (), None)
    paused = schedule.paused(hours(40), hours(60)).decide(hours(0), hours(50))
    assert (paused.fires, paused.decided) == ((), None)


def test_years_of_seconds_are_planned_in_a_moment() -> None:
    schedule = Schedule("* * * * * *", "Europe/Berlin", misfire=Misfire.all(max_fires=10))
    began = stopwatch.perf_counter()
    decision = schedule.decide(MONDAY, MONDAY + timedelta(days=3650))
    assert stopwatch.perf_counter() - began < 5
    last = MONDAY + timedelta(days=3650)
    assert [fire.occurrence.utc for fire in decision.fires] == [last - timedelta(seconds=9 - age) for age in range(10)]
    (drop,) = decision.drops
    assert (drop.count, drop.exact) == (MAX_COUNTED - 9, False)
    assert drop.first.utc == MONDAY + timedelta(seconds=1)
    assert drop.last.utc == last - timedelta(seconds=10)


# -- whatever happens, each occurrence once -------------------------------------------------------

MISFIRES = [
    Misfire.latest(),
    Misfire.latest("3h"),
    Misfire.all(3),
    Misfire.all(50, "1d"),
    Misfire.skip(),
    Misfire.skip("2h"),
]


@pytest.mark.slow
@settings(PATIENT, max_examples=100)
@given(
    rule=st.sampled_from(["30 2 * * *", "0 */3 * * *", "15 0,2,3 * * *", "every 5h", "daily 00:00,02:30"]),
    tz=st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "America/Havana"]),
    fold=st.sampled_from(["first", "second", "both"]),
    misfire=st.sampled_from(MISFIRES),
    begin=st.sampled_from([datetime(2026, 3, 25, tzinfo=UTC), datetime(2026, 10, 20, tzinfo=UTC)]),
    outages=st.lists(st.integers(1, 4 * 86_400), min_size=1, max_size=12),
    pause=st.none() | st.tuples(st.integers(0, 10 * 86_400), st.integers(0, 5 * 86_400)),
)
def test_each_occurrence_is_fired_once_or_explained(
    *,
    rule: str,
    tz: str,
    fold: str,
    misfire: Misfire,
    begin: datetime,
    outages: list[int],
    pause: tuple[int, int] | None,
) -> None:
    schedule = Schedule(rule, tz, fold=fold, misfire=misfire)
    if pause is not None:
        since = begin + timedelta(seconds=pause[0])
        schedule = schedule.paused(since, since + timedelta(seconds=pause[1]))
    unpaused = Schedule(rule, tz, fold=fold)
    decided: list[str] = []
    cursor: datetime | Occurrence = begin
    now = begin
    for outage in outages:
        now += timedelta(seconds=outage)
        decision = schedule.decide(cursor, now)
        decided += [key for group in keys(unpaused, decision) for key in group]
        coalesced = sum(drop.count for drop in decision.drops if drop.reason is Reason.COALESCED)
        assert sum(fire.coalesced for fire in decision.fires) == coalesced
        cursor = decision.decided or cursor
        assert decision.next is None or decision.next.utc > now
    wanted = [
        occurrence.key
        for occurrence in unpaused.between(begin + timedelta(microseconds=1), now + timedelta(microseconds=1))
    ]
    assert decided == wanted


def keys(unpaused: Schedule, decision: Decision) -> list[list[str]]:
    """What a decision decided, in order, with drops spelled out."""
    parts = [(fire.occurrence.utc, [fire.occurrence.key]) for fire in decision.fires]
    for drop in decision.drops:
        spelled = [
            occurrence.key for occurrence in unpaused.between(drop.first.utc, drop.last.utc + timedelta(microseconds=1))
        ]
        assert len(spelled) == drop.count
        parts.append((drop.first.utc, spelled))
    return [part for _, part in sorted(parts)]


PLACES = ["Europe/Berlin", "Europe/London", "Europe/Athens", "Africa/Lagos", "Europe/Moscow"]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TzData]:
    """Versions of tzdata in which Berlin has the rules of somewhere else."""
    found = {"Europe/Berlin": PACKAGED}
    for rules in PLACES[1:]:
        root: Path = tmp_path_factory.mktemp("tzdata")
        (root / "Europe").mkdir()
        shutil.copy(ZONEINFO / rules, root / "Europe" / "Berlin")
        found[rules] = TzData(root)
    return found


@pytest.mark.slow
@settings(PATIENT, max_examples=100)
@given(
    rule=st.sampled_from(["30 2 * * *", "0 9 * * *", "15 0,2,9,10,11 * * *", "daily 00:00,23:30"]),
    begin=st.sampled_from([datetime(2026, 3, 26, tzinfo=UTC), datetime(2026, 10, 22, tzinfo=UTC)]),
    steps=st.lists(st.tuples(st.integers(600, 100_000), st.sampled_from(PLACES)), min_size=1, max_size=10),
)
def test_nominal_times_neither_repeat_nor_vanish_when_tzdata_changes(
    versions: dict[str, TzData], rule: str, begin: datetime, steps: list[tuple[int, str]]
) -> None:
    schedule = Schedule(rule, "Europe/Berlin", misfire=Misfire.all(1000))
    nominal: list[datetime] = []
    cursor: datetime | Occurrence = begin
    now = begin
    for step, rules in steps:
        now += timedelta(seconds=step)
        decision = schedule.decide(cursor, now, tzdata=versions[rules])
        nominal += [fire.occurrence.nominal for fire in decision.fires]
        cursor = decision.decided or cursor
    assert len(nominal) == len(set(nominal))
    if nominal:
        assert sorted(nominal) == walls_between(schedule, min(nominal), max(nominal))


def walls_between(schedule: Schedule, low: datetime, high: datetime) -> list[datetime]:
    """The rule's own wall times. No two of them coincide, whatever is skipped."""
    found, following = [], schedule.rule.next_from(low)  # type: ignore[attr-defined]
    while following is not None and following <= high:
        found.append(following)
        following = schedule.rule.next_from(following + timedelta(seconds=1))  # type: ignore[attr-defined]
    return found


def test_a_birthday_missed_by_a_long_outage_is_too_late() -> None:
    schedule = Schedule(Yearly(11, 16), "Asia/Tokyo", misfire=Misfire.latest(grace="1d"))
    assert len(schedule.decide(hours(-100), hours(20)).fires) == 1
    late = schedule.decide(hours(-100), hours(30))
    assert [drop.reason for drop in late.drops] == [Reason.TOO_LATE]
