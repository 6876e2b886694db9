"""From wall times to instants in their order: as brute force finds them, whatever the time zone and the policies."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.features.schedules.rules.rule import WallRule
from mainspring.features.schedules.rules.timeline import Walk
from mainspring.features.schedules.rules.tz import FOLDS, GAPS, PACKAGED, Fold, Gap, Instant, Span, TimeZone
from tests.features.schedules.rules.patience import PATIENT

SPECIAL = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Antarctica/Troll",
    "Pacific/Kiritimati",
    "America/Havana",
    "Antarctica/Casey",
    "Asia/Pyongyang",
    "Europe/Volgograd",
    "America/Caracas",
    "Asia/Kathmandu",
    "Etc/GMT+12",
    "UTC",
]


@dataclass(frozen=True)
class Listed(WallRule):
    """Wall times as they are given."""

    kind: ClassVar[str] = "listed"
    walls: tuple[datetime, ...]

    def next_from(self, local: datetime) -> datetime | None:
        found = bisect_left(self.walls, local)
        return self.walls[found] if found < len(self.walls) else None


def brute_force(walls: tuple[datetime, ...], zone: TimeZone, gap: Gap, fold: Fold) -> list[tuple[datetime, Instant]]:
    """Each wall time by itself, sorted. Of two at one instant the one that clocks show stays."""
    found: dict[datetime, tuple[datetime, Instant]] = {}
    for wall in walls:
        for instant in zone.resolve(wall, gap, fold):
            if instant.utc not in found or not instant.shifted:
                found[instant.utc] = (wall, instant)
    return [found[utc] for utc in sorted(found)]


def walk(walls: tuple[datetime, ...], zone: TimeZone, gap: Gap, fold: Fold) -> list[tuple[datetime, Instant]]:
    way, found = Walk(Listed(walls), zone, gap, fold), []
    following = way.next_from(datetime(1990, 1, 1))
    while following is not None:
        found.append(following)
        following = way.next_from(following[1].utc + timedelta(microseconds=1))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("key", SPECIAL)
def test_the_walk_equals_brute_force_around_every_clock_change(key: str) -> None:
    zone = PACKAGED.get(key)
    walls = []
    for change in (change for year in (1994, 1995, *range(2010, 2017), 2026) for change in zone.transitions(year)):
        for edge in (change.at + change.before, change.at + change.after):
            walls += [edge + timedelta(minutes=step * 10) for step in range(-20, 20)]
            walls += [edge + timedelta(hours=step) for step in range(-27, 27)]
    walls += [datetime(year, 7, 1, 12) for year in range(1995, 2030)]
    listed = tuple(sorted(set(walls)))
    for gap in GAPS:
        for fold in FOLDS:
            assert walk(listed, zone, gap, fold) == brute_force(listed, zone, gap, fold)


@pytest.mark.slow
@settings(PATIENT, max_examples=100)
@given(
    key=st.sampled_from(SPECIAL),
    year=st.integers(1995, 2039),
    steps=st.lists(st.integers(-90_000, 90_000), min_size=1, max_size=30),
    gap=st.sampled_from(GAPS),
    fold=st.sampled_from(FOLDS),
    after=st.integers(-100_000, 100_000),
)
def test_the_walk_equals_brute_force_for_any_wall_times(
    *, key: str, year: int, steps: list[int], gap: Gap, fold: Fold, after: int
) -> None:
    zone = PACKAGED.get(key)
    changes = zone.transitions(year)
    edge = changes[0].at if changes else datetime(year, 1, 1)
    walls = tuple(sorted({edge + zone.offset(edge) + timedelta(seconds=step) for step in steps}))
    floor = edge + timedelta(seconds=after)
    wanted = [step for step in brute_force(walls, zone, gap, fold) if step[1].utc >= floor]
    assert Walk(Listed(walls), zone, gap, fold).next_from(floor) == (wanted[0] if wanted else None)


def test_a_rare_rule_is_found_without_walking_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    zone = PACKAGED.get("Europe/London")
    spans = []
    span = TimeZone.span

    def counted(self: TimeZone, utc: datetime) -> Span:
        spans.append(utc)
        return span(self, utc)

    monkeypatch.setattr(TimeZone, "span", counted)
    found = Walk(Listed((datetime(2126, 6, 1, 9),)), zone, "shift", "first").next_from(datetime(2026, 1, 1))
    assert found is not None
    assert found[1].utc == datetime(2126, 6, 1, 8)
    assert len(spans) < 6


def test_times_in_a_gap_are_sorted_among_those_after_it() -> None:
    """Clocks skip 02:00 to 03:00, so 02:15 is read as 03:15, which comes after 03:10."""
    day = datetime(2026, 3, 29)
    walls = tuple(datetime.combine(day, clock_time) for clock_time in (time(2, 15), time(3, 10), time(3, 15)))
    found = walk(walls, PACKAGED.get("Europe/Berlin"), "shift", "first")
    assert [(wall.time(), bool(instant.shifted)) for wall, instant in found] == [
        (time(3, 10), False),
        (time(3, 15), False),
    ]
