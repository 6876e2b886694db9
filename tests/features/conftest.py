"""One application on virtual time; and several over one store, as processes have them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.stores.dynamodb import DynamoStore
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.testing import Kit, manual
from tests.dynamodb import FreshStore, client
from tests.postgres import dsn, fresh_schema

START = datetime(2026, 3, 1, 12, tzinfo=UTC)  # a Sunday
NewApp = Callable[[], Mainspring]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("postgres", "dynamodb")]


@pytest.fixture
async def kit(app: Mainspring) -> AsyncIterator[Kit]:
    """The module's own application on virtual time."""
    async with manual(app, start=START) as kit:
        yield kit


@pytest.fixture(params=["memory", "sqlite", *SLOW])
async def new_app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NewApp]:
    """Another process's own application over the same jobs."""
    async with AsyncExitStack() as stack:
        make = await stores(request.param, tmp_path, stack)

        def another() -> Mainspring:
            app = Mainspring(make())
            stack.push_async_callback(app.close)
            return app

        yield another


async def stores(kind: str, directory: Path, stack: AsyncExitStack) -> Callable[[], Store]:
    if kind == "memory":
        shared = MemoryStore()
        return lambda: shared
    if kind == "sqlite":
        return lambda: SqliteStore(directory / "jobs.db")
    if kind == "postgres":
        schema = fresh_schema()
        return lambda: PostgresStore(dsn(), schema_name=schema)
    table = FreshStore()
    await table.open()
    stack.push_async_callback(table.close)
    return lambda: DynamoStore(table.table.name, client=client(), shards=2)
