from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.clock import duration, to_datetime, to_millis
from mainspring.errors import ConfigurationError


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
def test_what_is_no_length_of_time_is_refused(length: Any) -> None:
    with pytest.raises(ConfigurationError, match="no length of time; give a timedelta, or a number of seconds"):
        duration(length)
