from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.clock import ManualClock
from tests.stores.sqlite.template import fresh_database


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database on the disk, with our schema and no job."""
    return fresh_database(tmp_path)


@pytest.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock=clock, busy_timeout=0.05)
    await store.open()
    yield store
    await store.close()
