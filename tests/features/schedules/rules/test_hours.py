"""Parts of the day, through changes of clocks."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.features.schedules.rules import PACKAGED
from mainspring.features.schedules.rules.hours import Hours


def quarter(number: int) -> time:
    return time(number % 96 // 4, number % 4 * 15)


DAY = Hours(time(8), time(22))
NIGHT = Hours(time(22), time(6))
OFFICE = Hours(time(9), time(17), (0, 1, 2, 3, 4))


def opening(hours: Hours, tz: str, local: str) -> str:
    """Both as local times; a `+` after the first is its second pass, when clocks go back."""
    at = datetime.fromisoformat(local.rstrip("+")).replace(tzinfo=ZoneInfo(tz), fold=local.endswith("+"))
    found = hours.opening(PACKAGED.get(tz), at.astimezone(UTC).replace(tzinfo=None))
    there = found.replace(tzinfo=UTC).astimezone(ZoneInfo(tz))
    return there.strftime("%Y-%m-%d %H:%M") + ("+" if there.fold else "")


@pytest.mark.parametrize(
    ("hours", "tz", "local", "expected"),
    [
        (DAY, "UTC", "2026-03-02 07:59", "2026-03-02 08:00"),
        (DAY, "UTC", "2026-03-02 08:00", "2026-03-02 08:00"),
        (DAY, "UTC", "2026-03-02 21:59", "2026-03-02 21:59"),
        (DAY, "UTC", "2026-03-02 22:00", "2026-03-03 08:00"),
        (NIGHT, "UTC", "2026-03-02 05:59", "2026-03-02 05:59"),
        (NIGHT, "UTC", "2026-03-02 06:00", "2026-03-02 22:00"),
        (NIGHT, "UTC", "2026-03-02 23:00", "2026-03-02 23:00"),
        (OFFICE, "UTC", "2026-03-06 17:00", "2026-03-09 09:00"),  # over the weekend
        (OFFICE, "UTC", "2026-03-06 16:59", "2026-03-06 16:59"),
        (Hours(time(22), time(6), (4,)), "UTC", "2026-03-07 05:00", "2026-03-07 05:00"),  # Friday's night
        (Hours(time(22), time(6), (5,)), "UTC", "2026-03-07 05:00", "2026-03-07 22:00"),
        # clocks go forward on 29 March in London: the night is an hour shorter
        (DAY, "Europe/London", "2026-03-28 23:00", "2026-03-29 08:00"),
        (Hours(time(1, 30), time(5)), "Europe/London", "2026-03-29 00:30", "2026-03-29 02:00"),  # 01:30 is skipped
        (Hours(time(5), time(1, 30)), "Europe/London", "2026-03-29 02:15", "2026-03-29 05:00"),
        (Hours(time(5), time(1, 30)), "Europe/London", "2026-03-29 00:45", "2026-03-29 00:45"),
        (Hours(time(6), time(2, 30)), "Europe/Berlin", "2026-03-29 03:10", "2026-03-29 06:00"),  # quiet 02:30-06:00
        (Hours(time(1, 30), time(2)), "Europe/London", "2026-03-29 00:30", "2026-03-30 01:30"),  # nothing is left of it
        # and back on 25 October: from 02:00 to 01:00
        (Hours(time(1, 30), time(5)), "Europe/London", "2026-10-25 01:15", "2026-10-25 01:30"),
        (Hours(time(1, 30), time(5)), "Europe/London", "2026-10-25 01:15+", "2026-10-25 01:15+"),  # it has begun
        (Hours(time(5), time(1, 30)), "Europe/London", "2026-10-25 01:15+", "2026-10-25 05:00"),  # over at the first
        (DAY, "America/New_York", "2026-11-01 23:00", "2026-11-02 08:00"),
        (DAY, "Pacific/Apia", "2011-12-29 23:00", "2011-12-31 08:00"),  # there was no 30 December
        (Hours(time(20), time(8)), "Pacific/Apia", "2011-12-31 01:00", "2011-12-31 01:00"),
        (Hours(time(20), time(8)), "Pacific/Apia", "2011-12-31 08:00", "2011-12-31 20:00"),
        (Hours(time(8), time()), "Pacific/Apia", "2011-12-31 00:00", "2011-12-31 08:00"),
    ],
)  # fmt: skip
def test_opening_returns_the_expected_moment(hours: Hours, tz: str, local: str, expected: str) -> None:
    assert opening(hours, tz, local) == expected


SPRINGS = [
    ("Europe/Berlin", datetime(2026, 3, 29)),
    ("Australia/Lord_Howe", datetime(2026, 10, 4)),
    ("America/Sao_Paulo", datetime(2018, 11, 4)),  # midnight is skipped
    ("Pacific/Apia", datetime(2011, 12, 29)),
]


@pytest.mark.parametrize(("key", "day"), SPRINGS)
@settings(max_examples=60, deadline=None)
@given(minutes=st.integers(-600, 4000), start=st.integers(0, 95), length=st.integers(1, 95))
def test_when_clocks_go_forward_the_wall_decides(
    key: str, day: datetime, minutes: int, start: int, length: int
) -> None:
    """Tried minute by minute, with nothing but what the clocks on the wall show."""
    begin, end = quarter(start), quarter(start + length)
    utc = (day.replace(tzinfo=ZoneInfo(key)).astimezone(UTC) + timedelta(minutes=minutes)).replace(tzinfo=None)
    wanted = utc
    while not within(begin, end, wanted.replace(tzinfo=UTC).astimezone(ZoneInfo(key)).time()):
        wanted += timedelta(minutes=1)
    assert Hours(begin, end).opening(PACKAGED.get(key), utc) == wanted


def within(start: time, end: time, at: time) -> bool:
    return start <= at < end if start < end else at >= start or at < end


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["Europe/London", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"]),
    st.datetimes(datetime(2011, 1, 1), datetime(2030, 1, 1)),
    st.integers(0, 95),
    st.integers(1, 95),
    st.sets(st.integers(0, 6), min_size=1),
)
def test_the_opening_is_the_first_moment_within_the_hours(
    key: str, utc: datetime, start: int, length: int, days: set[int]
) -> None:
    zone, hours = PACKAGED.get(key), Hours(quarter(start), quarter(start + length), tuple(sorted(days)))
    found = hours.opening(zone, utc)
    assert found >= utc
    assert hours.opening(zone, found) == found
    if found > utc:
        middle = utc + (found - utc) / 2
        assert hours.opening(zone, middle) == found
        assert hours.opening(zone, found - timedelta(seconds=1)) == found
