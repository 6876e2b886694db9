from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.clock import (
    SETTLE_SECONDS,
    Departure,
    Millis,
    Reckoning,
    SteadyClock,
    duration,
    may_delete,
    to_datetime,
    to_millis,
)
from mainspring.errors import ConfigurationError
from mainspring.testing.clock import ManualClock


@given(st.integers(min_value=-(10**12), max_value=10**14))
def test_milliseconds_survive_the_way_there_and_back(millis: int) -> None:
    assert to_millis(to_datetime(millis)) == millis


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_a_part_of_a_millisecond_counts_as_a_whole_one(moment: datetime) -> None:
    """What is kept is never before the moment itself, or a job would start too early."""
    kept = to_datetime(to_millis(moment))
    assert timedelta() <= kept - moment < timedelta(milliseconds=1)


def test_the_zone_does_not_matter() -> None:
    moment = datetime(2026, 3, 29, 3, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert to_millis(moment) == to_millis(moment.astimezone(UTC))
    assert to_millis(moment) == to_millis(moment.astimezone(timezone(timedelta(hours=-9))))


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        to_millis(datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(("length", "millis"), [(1.5, 1500), (timedelta(days=1), 86_400_000), (0, 0), (-1, -1000)])
def test_durations_are_seconds_or_timedeltas(length: timedelta | float, millis: int) -> None:
    assert duration(length) == millis


@pytest.mark.parametrize("length", ["5m", None, float("nan"), float("inf")])
def test_invalid_durations_are_refused(length: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a length of time; give a timedelta, or a number of seconds"):
        duration(length)


# -- a steady clock -------------------------------------------------------------------------------------------

HOUR: Millis = 3_600_000


@pytest.fixture
def machine() -> ManualClock:
    return ManualClock()


@pytest.fixture
def steady(machine: ManualClock) -> SteadyClock:
    return SteadyClock(machine)


@pytest.mark.parametrize("seconds", [3600, -3600, 86_400 * 365])
def test_a_jump_that_is_taken_back_is_not_followed(machine: ManualClock, steady: SteadyClock, seconds: int) -> None:
    begin = steady.now()
    machine.shift(seconds)
    for second in range(10):
        assert steady.now() == begin + 1000 * second
        assert steady.departure == Departure(1000 * seconds, 0)
        machine.advance(1)
    machine.shift(-seconds)
    assert steady.now() == machine.now() == begin + 10_000
    assert steady.departure is None


@pytest.mark.parametrize("seconds", [3600, -3600, 2.5])
def test_a_jump_is_believed_once_the_clock_has_kept_its_new_time(
    machine: ManualClock, steady: SteadyClock, seconds: float
) -> None:
    begin = steady.now()
    machine.shift(seconds)
    assert steady.now() == begin
    machine.advance(SETTLE_SECONDS - 0.1)
    assert steady.now() == begin + SETTLE_SECONDS * 1000 - 100
    machine.advance(0.1)
    assert steady.now() == machine.now()
    assert steady.departure is None


def test_a_clock_that_goes_on_jumping_is_not_believed(machine: ManualClock, steady: SteadyClock) -> None:
    begin = steady.now()
    for number in range(1, 20):
        machine.shift(600 if number % 2 else -300)
        assert steady.now() == begin + (number - 1) * 20_000
        machine.advance(20)


def test_a_small_step_is_followed_at_once(machine: ManualClock, steady: SteadyClock) -> None:
    for step in (1.5, -1.5, 0.2):
        machine.shift(step)
        assert steady.now() == machine.now()
        machine.advance(1)


def test_a_machine_that_slept_has_not_jumped(machine: ManualClock, steady: SteadyClock) -> None:
    machine.advance(timedelta(days=3))
    assert steady.now() == machine.now()
    assert steady.departure is None


def test_a_slow_correction_between_two_reads_is_not_a_jump(machine: ManualClock, steady: SteadyClock) -> None:
    machine.advance(timedelta(days=1))
    machine.shift(-43)  # 500 millionths
    assert steady.now() == machine.now()


def test_the_offset_of_another_process_is_accepted_at_once(machine: ManualClock, steady: SteadyClock) -> None:
    machine.shift(3600)
    assert steady.now() == machine.now() - HOUR
    steady.witness = machine.now  # no time has elapsed, so that this is the offset
    assert steady.now() == machine.now()


def test_a_process_that_starts_while_the_clock_is_wrong_can_take_an_offset(machine: ManualClock) -> None:
    before = SteadyClock(machine).reckoning
    machine.advance(5)
    machine.shift(3600)
    late = SteadyClock(machine)
    assert late.now() == machine.now()
    late.start_from(before)
    assert late.now() == machine.now() - HOUR
    machine.advance(SETTLE_SECONDS)
    assert late.now() == machine.now()


def test_nothing_is_deleted_for_a_day_after_a_great_leap(machine: ManualClock, steady: SteadyClock) -> None:
    machine.shift(timedelta(days=365))
    steady.now()
    assert may_delete(steady)  # by the old time, which it still gives
    machine.advance(SETTLE_SECONDS)
    assert steady.now() == machine.now()
    assert not may_delete(steady)
    machine.advance(timedelta(days=1))
    assert may_delete(steady)


def test_it_shows_the_machine_s_time() -> None:
    clock = SteadyClock()
    assert abs(clock.now() - to_millis(datetime.now(UTC))) < 1000
    assert isinstance(clock.reckoning, Reckoning)
    assert clock.departure is None
    assert clock.elapsed() > 0
