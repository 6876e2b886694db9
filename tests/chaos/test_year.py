"""A year of schedules: processes die, clocks are set, new tzdata arrives. See tests/features/schedules/year.py."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos.conftest import STORES, Chaos, long_only
from tests.features.schedules.year import live
from tests.features.schedules.year_oracle import check_all

pytestmark = [pytest.mark.chaos, long_only]
START = datetime(2026, 1, 1, 5, 7, tzinfo=UTC)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", STORES)
async def test_each_occurrence_of_a_year_fires_once_or_the_ledger_says_why_not(
    kind: str, number: int, chaos: Chaos, tmp_path: Path
) -> None:
    world = await live(kind, tmp_path, chaos.seed + number, start=START, days=365, changes_after=180)
    assert "\n".join(check_all(await world.records())) == ""
