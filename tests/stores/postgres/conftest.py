from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.stores.postgres import PostgresStore
from tests.postgres import dsn, fresh_schema
from tests.stores.postgres.several import Stores

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The quick gate starts no server."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def schema() -> str:
    return fresh_schema()


@pytest.fixture
async def stores(schema: str) -> AsyncIterator[Stores]:
    """As many of one schema as a test wants."""
    stores = Stores(dsn(), schema)
    yield stores
    await stores.close()


@pytest.fixture
async def store(stores: Stores) -> PostgresStore:
    """By the server's own clock."""
    return await stores.another()
