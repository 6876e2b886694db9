from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mainspring.clock import Clock, to_datetime
from mainspring.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_it_is_a_clock_that_starts_with_the_year_2026(clock: ManualClock) -> None:
    as_stores_see_it: Clock = clock
    assert to_datetime(as_stores_see_it.now()) == datetime(2026, 1, 1, tzinfo=UTC)
    assert as_stores_see_it.monotonic() == 0


def test_a_clock_starts_at_the_given_time() -> None:
    start = datetime(2024, 2, 29, 12, tzinfo=UTC)
    assert to_datetime(ManualClock(start).now()) == start


def test_a_clock_stands_still_until_it_is_advanced(clock: ManualClock) -> None:
    assert (clock.now(), clock.monotonic()) == (clock.now(), clock.monotonic())


@pytest.mark.parametrize("length", [90, 90.0, timedelta(minutes=1, seconds=30)])
def test_time_passes_on_both_clocks(clock: ManualClock, length: timedelta | float) -> None:
    before = clock.now()
    clock.advance(length)
    assert (clock.now() - before, clock.monotonic()) == (90_000, 90.0)


def test_many_small_steps_add_up(clock: ManualClock) -> None:
    for _ in range(1000):
        clock.advance(seconds=0.1)
    assert clock.monotonic() == 100


def test_time_does_not_run_backwards(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="shift"):
        clock.advance(-1)


@pytest.mark.parametrize("jump", [3600, -3600, timedelta(days=-1)])
def test_setting_the_wall_clock_lets_no_time_pass(clock: ManualClock, jump: timedelta | float) -> None:
    before = clock.now()
    clock.shift(jump)
    assert clock.now() != before
    assert clock.monotonic() == 0


def test_a_naive_start_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        ManualClock(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
