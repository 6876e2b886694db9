"""The SQLite store, held to the suite that every store is held to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.clock import ManualClock
from mainspring.testing.conformance import StoreConformance


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(tmp_path / "jobs.db", clock=clock, lease=30, stall_grace=30_000, patience=60_000)
    await made.open()
    yield made
    await made.close()


class TestSqliteConformance(StoreConformance):
    """Nothing of its own: the whole suite, on a file."""
