"""What a schedule will do, and what a change would do to it."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

from mainspring.features.schedules.rules import Interval, Schedule, TzData, compare_schedules, preview_schedule, remarks
from tests.features.schedules.rules.test_tz import ZONEINFO


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_the_preview_shows_the_next_fires_in_three_zones() -> None:
    rows = preview_schedule(
        Schedule("0 9 * * *", "Europe/Berlin"), at("2026-03-27T12:00"), 3, reader="America/New_York"
    )
    assert [row.local.isoformat() for row in rows] == [
        "2026-03-28T09:00:00+01:00",
        "2026-03-29T09:00:00+02:00",
        "2026-03-30T09:00:00+02:00",
    ]
    assert [f"{row.utc:%H:%M}" for row in rows] == ["08:00", "07:00", "07:00"]
    assert [f"{row.reader:%H:%M %Z}" for row in rows] == ["04:00 EDT", "03:00 EDT", "03:00 EDT"]
    assert [row.notes for row in rows] == [(), ("clocks go forward 1 hour that day (02:00 to 03:00)",), ()]


def test_times_that_are_skipped_or_come_twice_are_marked() -> None:
    (moved,) = preview_schedule(Schedule("30 2 * * *", "Europe/Berlin"), at("2026-03-28T12:00"), 1)
    assert moved.notes[1] == "02:30 does not exist that day, so it runs at 03:30"
    (twice, again) = preview_schedule(
        Schedule("30 1 * * *", "Australia/Lord_Howe", fold="both"), at("2026-04-04T00:00"), 2
    )
    assert twice.notes == (
        "clocks go back 30 minutes that day (02:00 to 01:30)",
        "01:30 comes twice that day; this is the first",
    )
    assert again.notes[1] == "01:30 comes twice that day; this is the second"


def test_a_schedule_that_ends_shows_no_more() -> None:
    assert preview_schedule(Schedule("once 2026-12-24T18:00"), at("2027-01-01T00:00")) == []
    assert len(preview_schedule(Schedule("once 2026-12-24T18:00"), at("2026-01-01T00:00"))) == 1


def test_decided_occurrences_are_left_out_and_overdue_ones_come_first() -> None:
    berlin, new_york = Schedule("0 9 * * *", "Europe/Berlin"), Schedule("0 9 * * *", "America/New_York")
    last, now = berlin.next_after(at("2026-11-16T00:00")), at("2026-11-16T10:00")
    assert [f"{row.utc:%d %H:%M}" for row in preview_schedule(new_york, now, 2)] == ["16 14:00", "17 14:00"]
    assert [f"{row.utc:%d %H:%M}" for row in preview_schedule(new_york, now, 2, since=last)] == ["17 14:00", "18 14:00"]
    late = [f"{row.utc:%d %H:%M}" for row in preview_schedule(berlin, now, 2, since=at("2026-11-14T12:00"))]
    assert late == ["16 08:00", "17 08:00"]
    changes = compare_schedules(berlin, new_york, now, at("2026-11-18T00:00"), since_before=last, since_after=last)
    assert [(change.kind, change.after and change.after.key) for change in changes] == [
        ("moved", "2026-11-17T09:00:00")
    ]


def test_an_interval_from_the_last_finish_is_shown_as_if_runs_took_no_time() -> None:
    rows = preview_schedule(Schedule(Interval("1h", after="finish")), at("2026-01-01T00:30"), 2)
    assert [f"{row.utc:%H:%M}" for row in rows] == ["01:30", "02:30"]


def test_a_comparison_shows_occurrences_that_an_edit_adds_and_removes() -> None:
    before, after = Schedule("0 9 * * *", "Europe/Berlin"), Schedule("0 9 * * MON-FRI", "Europe/Berlin")
    changes = compare_schedules(before, after, at("2026-11-16T00:00"), at("2026-11-23T00:00"))
    assert [(change.kind, change.before and change.before.key) for change in changes] == [
        ("removed", "2026-11-21T09:00:00"),
        ("removed", "2026-11-22T09:00:00"),
    ]
    assert [
        change.kind for change in compare_schedules(after, before, at("2026-11-16T00:00"), at("2026-11-23T00:00"))
    ] == ["added"] * 2


def test_a_move_to_another_zone_moves_each_time() -> None:
    before, after = Schedule("0 9 * * *", "Europe/Berlin"), Schedule("0 9 * * *", "Europe/London")
    (change,) = compare_schedules(before, after, at("2026-11-16T00:00"), at("2026-11-17T00:00"))
    assert change.kind == "moved"
    assert change.before is not None
    assert change.after is not None
    assert [change.before.utc.hour, change.after.utc.hour] == [8, 9]


def test_a_comparison_shows_occurrences_that_a_new_tzdata_moves(tmp_path: Path) -> None:
    """As if Berlin gave up summer time."""
    (tmp_path / "Europe").mkdir()
    shutil.copy(ZONEINFO / "Africa" / "Lagos", tmp_path / "Europe" / "Berlin")
    schedule = Schedule("0 9 * * *", "Europe/Berlin")
    changes = compare_schedules(
        schedule, schedule, at("2026-03-27T00:00"), at("2026-03-31T00:00"), tzdata_after=TzData(tmp_path)
    )
    assert [(change.kind, change.after and change.after.key) for change in changes] == [
        ("moved", "2026-03-29T09:00:00"),
        ("moved", "2026-03-30T09:00:00"),
    ]


def test_nothing_changes_if_nothing_is_different() -> None:
    schedule = Schedule("*/5 * * * *", "Europe/Berlin")
    assert compare_schedules(schedule, schedule, at("2026-10-25T00:00"), at("2026-10-25T04:00")) == []


# -- days on which clocks change ------------------------------------------------------------------------------


def told(schedule: Schedule) -> list[tuple[str, str]]:
    return [(day.isoformat(), text) for day, text in remarks(schedule, at("2026-01-01T00:00"), at("2027-01-01T00:00"))]


def test_remarks_explain_times_that_clocks_skip_or_repeat() -> None:
    skipped, twice = "2026-03-29", "2026-10-25"
    assert told(Schedule("30 2 * * *", "Europe/Berlin")) == [
        (skipped, "02:30 does not exist that day, so it runs at 03:30"),
        (twice, "02:30 comes twice that day; this is the first"),
    ]
    assert told(Schedule("30 2 * * *", "Europe/Berlin", gap="skip", fold="second")) == [
        (skipped, "02:30 does not exist that day and is left out"),
        (twice, "02:30 comes twice that day; this is the second"),
    ]


def test_rules_that_follow_the_clock_and_other_times_have_no_remarks() -> None:
    assert told(Schedule("*/30 * * * *", "Europe/Berlin")) == []
    assert told(Schedule("0 9 * * *", "Europe/Berlin")) == []
    assert told(Schedule("30 2 * * *", "Asia/Tokyo")) == []
