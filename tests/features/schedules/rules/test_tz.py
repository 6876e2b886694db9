"""Wall times and instants, held against the C library for every time zone and every change of clocks."""

from __future__ import annotations

import importlib.resources
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mainspring.errors import UnknownTimeZone
from mainspring.features.schedules.rules.tz import CHANGE_MARGIN, PACKAGED, Fold, Gap, TzData, tz_names, tzdata_version

ORACLE = Path(__file__).with_name("oracle.py")
ZONEINFO = Path(str(importlib.resources.files("tzdata").joinpath("zoneinfo")))
EPOCH = datetime(1970, 1, 1)

POLICIES: list[tuple[Gap, Fold]] = [
    ("shift", "first"),
    ("skip", "second"),
    ("shift", "both"),
]  # a wall time meets only one

Change = tuple[int, int, int, list[tuple[int, list[int]]]]


@pytest.fixture(scope="module")
def oracle() -> dict[str, list[Change]]:
    """Some seconds; the other names of a time zone are left out, as their files are the same."""
    environment = os.environ | {"TZDIR": str(ZONEINFO)}
    command = [sys.executable, str(ORACLE)]
    done = subprocess.run(
        command, input=" ".join(sorted(tz_names())), env=environment, capture_output=True, text=True, check=True
    )
    answers: dict[str, list[Change]] = json.loads(done.stdout)
    return answers


def at(seconds: int) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


@pytest.mark.slow
def test_every_change_of_every_zone_is_found(oracle: dict[str, list[Change]]) -> None:
    assert len(oracle) > 300
    for key, changes in oracle.items():
        zone = PACKAGED.get(key)
        found = [change for year in range(2000, 2041) for change in zone.transitions(year)]
        ours = [(change.at, change.before.total_seconds(), change.after.total_seconds()) for change in found]
        assert ours == [(at(t), before, after) for t, before, after, _ in changes], key


@pytest.mark.slow
def test_wall_times_around_every_change_under_every_policy(oracle: dict[str, list[Change]]) -> None:
    checked = 0
    for key, changes in oracle.items():
        zone = PACKAGED.get(key)
        for _, before, after, walls in changes:
            for wall, instants in walls:
                for gap, fold in POLICIES:
                    found = [instant.utc for instant in zone.resolve(at(wall), gap, fold)]
                    wanted = wanted_instants(wall, instants, min(before, after), gap, fold)
                    assert found == [at(instant) for instant in wanted], (key, at(wall), gap, fold)
                    checked += 1
    assert checked > 250_000


def wanted_instants(wall: int, instants: list[int], offset_before_gap: int, gap: str, fold: str) -> list[int]:
    if not instants:
        return [wall - offset_before_gap] if gap == "shift" else []
    return {"first": instants[:1], "second": instants[-1:], "both": instants}[fold]


@pytest.mark.slow
def test_clock_changes_are_short_and_days_apart(oracle: dict[str, list[Change]]) -> None:
    """No change of clocks is longer than a day, and no two are within some days of each other."""
    for key, changes in oracle.items():
        times = [t for t, *_ in changes]
        assert all(later - sooner > CHANGE_MARGIN.total_seconds() for sooner, later in pairwise(times)), key
        assert all(abs(after - before) <= 86_400 for _, before, after, _ in changes), key


def test_the_changes_that_people_get_wrong_are_among_them() -> None:
    lord_howe = PACKAGED.get("Australia/Lord_Howe").transitions(2026)
    assert [abs(change.after - change.before) for change in lord_howe] == [timedelta(minutes=30)] * 2
    (_, _, samoa) = PACKAGED.get("Pacific/Apia").transitions(2011)
    assert (samoa.at, samoa.after - samoa.before) == (datetime(2011, 12, 30, 10), timedelta(days=1))
    morocco = PACKAGED.get("Africa/Casablanca").transitions(2025)
    assert [change.is_fold for change in morocco] == [True, False]  # back before Ramadan, forward after it
    assert {abs(change.after - change.before) for change in PACKAGED.get("Antarctica/Troll").transitions(2026)} == {
        timedelta(hours=2)
    }
    (kiritimati,) = PACKAGED.get("Pacific/Kiritimati").transitions(1994)
    assert kiritimati.after - kiritimati.before == timedelta(days=1)
    assert kiritimati.after == timedelta(hours=14)


def test_a_time_in_a_gap_is_read_with_the_offset_before_it() -> None:
    berlin = PACKAGED.get("Europe/Berlin")
    (found,) = berlin.resolve(datetime(2026, 3, 29, 2, 30))
    assert (found.utc, found.offset, found.shifted) == (
        datetime(2026, 3, 29, 1, 30),
        timedelta(hours=2),
        timedelta(hours=1),
    )
    assert berlin.resolve(datetime(2026, 3, 29, 2, 30), gap="skip") == ()


def test_a_time_in_a_fold_says_which_it_is() -> None:
    berlin = PACKAGED.get("Europe/Berlin")
    found = berlin.resolve(datetime(2026, 10, 25, 2, 30), fold="both")
    assert [(instant.utc, instant.fold) for instant in found] == [
        (datetime(2026, 10, 25, 0, 30), "first"),
        (datetime(2026, 10, 25, 1, 30), "second"),
    ]


def test_changes_on_a_day_are_those_of_the_local_day() -> None:
    assert len(PACKAGED.get("Europe/Berlin").changes_on(date(2026, 3, 29))) == 1
    assert PACKAGED.get("Europe/Berlin").changes_on(date(2026, 3, 30)) == ()
    assert len(PACKAGED.get("America/Havana").changes_on(date(2026, 3, 8))) == 1  # at midnight: the day begins at 01:00


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Lodnon", "did you mean Europe/London"),
        ("europe/london", "did you mean Europe/London?"),
        ("New York", "did you mean America/New_York?"),
        ("Melbourne", "did you mean Australia/Melbourne?"),
        ("+02:00", "name a place"),
        ("UTC+2", "name a place"),
        ("nowhere at all", "names look like Europe/London"),
        ("../../etc/passwd", "is not an IANA time zone"),
        (None, "is not an IANA time zone"),
    ],
)
def test_unknown_zones_are_refused_with_a_hint(name: Any, hint: str) -> None:
    with pytest.raises(UnknownTimeZone, match=hint):
        PACKAGED.get(name)


def test_every_zone_can_be_loaded() -> None:
    for key in tz_names():
        assert PACKAGED.get(key).offset(datetime(2026, 1, 1)) is not None


def test_tzdata_reports_its_version(tmp_path: Path) -> None:
    assert tzdata_version() == PACKAGED.version
    assert tzdata_version()[:2] == "20"
    shutil.copytree(ZONEINFO / "Europe", tmp_path / "Europe")
    assert str(tmp_path) in TzData(tmp_path).version
    (tmp_path / "+VERSION").write_text("2027z\n")
    assert TzData(tmp_path).version == "2027z"
    assert TzData(tmp_path).get("Europe/Paris").offset(datetime(2026, 7, 1)) == timedelta(hours=2)
    with pytest.raises(UnknownTimeZone, match="not in"):
        TzData(tmp_path).get("Asia/Tokyo")


def test_it_is_not_the_machine_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONTZPATH", "/nonexistent")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert TzData().get("Europe/Paris").resolve(datetime(2026, 7, 1, 12))[0].utc.replace(tzinfo=UTC).hour == 10
