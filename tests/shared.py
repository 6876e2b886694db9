"""Stores and applications as several processes have them: each its own, over the same data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.clock import ManualClock
from tests.postgres import dsn, fresh_schema

Make = Callable[[], Store]
KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]


def stores(kind: str, folder: Path, clock: ManualClock) -> Make:
    """Makes another process's own store."""
    if kind == "sqlite":
        return lambda: SqliteStore(folder / "jobs.db", clock=clock)
    schema = fresh_schema()
    return lambda: PostgresStore(dsn(), schema_name=schema, clock=clock)


@asynccontextmanager
async def applications(
    make: Make, number: int, set_up: Callable[[Mainspring], object]
) -> AsyncIterator[list[Mainspring]]:
    made = [Mainspring(make()) for _ in range(number)]
    for app in made:
        set_up(app)
    yield made
    for app in made:
        await app.close()
