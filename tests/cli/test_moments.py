from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta

import pytest

from mainspring.cli.moments import parse_length, parse_when
from mainspring.humanize import show_both, show_exactly, show_length, show_moment, show_relative

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("90", 90), ("0", 0), ("15min", 900), ("15m", 900), ("2h", 7200), ("1h30m", 5400),
        ("1h 30m", 5400), ("3d", 259_200), ("2w", 1_209_600), ("250ms", 0.25), ("1.5h", 5400),
    ],
)  # fmt: skip
def test_lengths_are_parsed(text: str, seconds: float) -> None:
    assert parse_length(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "h", "2x", "2h!", "-2h", "soon", "2 hours ago", "999999999d"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_length(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-05-01T09:30", datetime(2026, 5, 1, 9, 30, tzinfo=UTC)),
        ("2026-05-01 09:30:15", datetime(2026, 5, 1, 9, 30, 15, tzinfo=UTC)),
        ("2026-05-01T09:30:00Z", datetime(2026, 5, 1, 9, 30, tzinfo=UTC)),
        ("2026-05-01T09:30+02:00", datetime(2026, 5, 1, 7, 30, tzinfo=UTC)),
        ("2026-05-01", datetime(2026, 5, 1, tzinfo=UTC)),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text: str, moment: datetime) -> None:
    assert parse_when(text).after(NOW) == parse_when(text).before(NOW) == moment


def test_a_length_counts_from_now() -> None:
    assert parse_when("2h").before(NOW) == NOW - timedelta(hours=2)
    assert parse_when("2h").after(NOW) == NOW + timedelta(hours=2)
    assert parse_when("now").after(NOW) == NOW


@pytest.mark.parametrize("text", ["tomorrow", "2026-13-01", "12:30", "0001-01-01T00:00+14:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_when(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "now"), (0.9, "now"), (-0.9, "now"), (5.4, "in 5 s"), (-5, "5 s ago"), (150, "in 2.5 min"),
        (-150, "2.5 min ago"), (7199.6, "in 2 h"), (5400, "in 1.5 h"),
        (3 * 86_400 + 5, "in 3 d"), (-400 * 86_400, "400 d ago"),
    ],
)  # fmt: skip
def test_relative_times_are_shown_in_one_unit(seconds: float, shown: str) -> None:
    assert show_relative(NOW + timedelta(seconds=seconds), NOW) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 ms"), (0.012, "12 ms"), (1.54, "1.5 s"), (2, "2 s"), (61, "1 min"), (90_000, "1 d")]
)
def test_lengths_are_shown_in_one_unit(seconds: float, shown: str) -> None:
    assert show_length(seconds) == shown


def test_absolute_times_are_shown_in_utc() -> None:
    assert show_moment(NOW) == "2026-05-01 12:00:00 UTC"
    assert show_exactly(NOW + timedelta(milliseconds=7)) == "2026-05-01 12:00:00.007"
    assert show_both(NOW + timedelta(hours=1), NOW) == "2026-05-01 13:00:00 UTC (in 1 h)"
    assert show_both(None, NOW) == show_relative(None, NOW) == ""
