"""A rate that has more jobs than it lets start: a real worker delivers all of it and no more, on virtual time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from mainspring import Mainspring, Rate
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.clock import ManualClock
from mainspring.worker import Worker
from tests.postgres import dsn, fresh_schema

pytestmark = pytest.mark.slow

RATE = 50  # jobs a second
SECONDS = 4
LATE = 0.09  # seconds between two looks for due jobs, as if it took that long to wake the worker and to claim
STORES: dict[str, Callable[[Path, ManualClock], Store]] = {
    "sqlite": lambda folder, clock: SqliteStore(folder / "jobs.db", clock=clock),
    "postgres": lambda _, clock: PostgresStore(dsn(), schema_name=fresh_schema(), clock=clock),
}


@pytest.mark.parametrize("store", STORES)
async def test_a_rate_with_a_burst_of_one_is_reached_and_kept(store: str, tmp_path: Path) -> None:
    clock, starts = ManualClock(), list[float]()
    async with Mainspring(STORES[store](tmp_path, clock)) as app:

        @app.task(limits=[Rate(RATE, per=1, burst=1)])
        async def send() -> None:
            starts.append(clock.monotonic())

        await send.enqueue_many([{}] * (2 * RATE * SECONDS))
        async with Worker(app).draining() as run_due:
            while clock.monotonic() < SECONDS:
                while (await run_due()).jobs:
                    pass
                clock.advance(LATE)
    assert len(starts) >= 0.95 * RATE * SECONDS
    assert too_many(starts) == []


def too_many(starts: list[float]) -> list[str]:
    """Windows in which more started than the docs say: burst + rate × (window + 0.2 s)."""
    found = []
    for (first, begin), (last, end) in combinations(enumerate(starts), 2):
        if last - first + 1 > 1 + RATE * (end - begin + 0.2) + 1e-6:
            found.append(f"{last - first + 1} within {end - begin:.2f} s")
    return found
