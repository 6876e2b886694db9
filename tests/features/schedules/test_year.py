"""Each occurrence in a time full of trouble fired once, or the ledger says why not.

`MAINSPRING_CHAOS_SEED` repeats a run. Whole years are in tests/chaos.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainspring.features.schedules.firing import Became
from tests.features.schedules.year import live
from tests.features.schedules.year_oracle import Made, Record, check_all, violations

pytestmark = pytest.mark.slow
SPRING = datetime(2026, 3, 4, 5, 7, tzinfo=UTC)  # clocks go forward in the north, back in the south
AUTUMN = datetime(2026, 10, 8, 5, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "start", "days", "changes_after"), [("sqlite", SPRING, 50, 35), ("postgres", AUTUMN, 30, 12)]
)
async def test_each_occurrence_fires_once_or_the_ledger_says_why_not(
    kind: str, start: datetime, days: int, changes_after: int, tmp_path: Path
) -> None:
    seed = int(os.environ.get("MAINSPRING_CHAOS_SEED") or random.randrange(2**32))
    print(f"MAINSPRING_CHAOS_SEED={seed}")
    world = await live(kind, tmp_path, seed, start=start, days=days, changes_after=changes_after)
    records = await world.records()
    assert "\n".join(check_all(records)) == ""
    assert {"a new tzdata", "a process started"} <= world.happened.keys()
    assert sum(len(record.jobs) for record in records.values()) > 50


# -- what the checker must find -----------------------------------------------------------------------


def fired(record: Record) -> int:
    return next(place for place, entry in enumerate(record.entries) if entry.became is Became.FIRED)


def lose_a_job(record: Record) -> Record:
    return replace(record, jobs=record.jobs[1:])


def lose_an_entry(record: Record) -> Record:
    return replace(record, entries=record.entries[1:])


def fire_twice(record: Record) -> Record:
    again = replace(record.entries[fired(record)], job_id="another")
    return replace(record, entries=[*record.entries, again], jobs=[*record.jobs, Made("another", again.utc)])


def make_a_job_of_its_own(record: Record) -> Record:
    return replace(record, jobs=[*record.jobs, Made("another", record.jobs[0].run_at)])


def make_a_job_early(record: Record) -> Record:
    first = record.jobs[0]
    return replace(record, jobs=[replace(first, run_at=first.run_at - timedelta(hours=1)), *record.jobs[1:]])


def lie_about_lateness(record: Record) -> Record:
    place = fired(record)
    entries = list(record.entries)
    entries[place] = replace(entries[place], lateness=entries[place].lateness + 61, late=True)
    return replace(record, entries=entries)


def tell_of_a_wrong_time(record: Record) -> Record:
    entries = list(record.entries)
    moved = entries[fired(record)].utc + timedelta(hours=1)
    entries[fired(record)] = replace(entries[fired(record)], utc=moved)
    return replace(record, entries=entries)


def tell_of_too_many(record: Record) -> Record:
    entries = list(record.entries)
    entries[-1] = replace(entries[-1], count=entries[-1].count + 1, last=entries[-1].last or entries[-1].utc)
    return replace(record, entries=entries)


def decide_too_early(record: Record) -> Record:
    entries = list(record.entries)
    entries[0] = replace(entries[0], at=entries[0].utc - timedelta(seconds=1))
    return replace(record, entries=entries)


def lie_about_a_halt(record: Record) -> Record:
    entries = list(record.entries)
    entries[fired(record)] = replace(entries[fired(record)], halted=not entries[fired(record)].halted)
    return replace(record, entries=entries)


PLANTED: list[Callable[[Record], Record]] = [
    lose_a_job, lose_an_entry, fire_twice, make_a_job_of_its_own, make_a_job_early, lie_about_lateness,
    tell_of_a_wrong_time, tell_of_too_many, decide_too_early, lie_about_a_halt,
]  # fmt: skip


async def test_the_checker_finds_what_is_planted(tmp_path: Path) -> None:
    world = await live("sqlite", tmp_path, seed=1, start=SPRING, days=12, changes_after=6)
    for record in (await world.records()).values():
        if not any(entry.became is Became.FIRED for entry in record.entries):
            continue
        assert violations(record) == []
        for plant in PLANTED:
            assert violations(plant(record)), f"{plant.__name__} in {record.name}"
