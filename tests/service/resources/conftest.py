"""Applications over each store, with their service."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mainspring import Mainspring
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from tests.postgres import RecycledStore
from tests.service.resources.client import Client, serving

KINDS = ["memory", pytest.param("postgres", marks=pytest.mark.slow)]  # a store in memory runs the code of SQLite


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Store:
    return MemoryStore(clock=clock) if request.param == "memory" else RecycledStore(clock=clock)


@pytest.fixture
async def app(store: Store) -> AsyncIterator[Mainspring]:
    app = Mainspring(store)

    @app.task(max_attempts=1)
    def greet(name: str) -> str:
        if name == "Nobody":
            msg = "nobody is here"
            raise LookupError(msg)
        return f"hello {name}"

    async with app:
        yield app


@pytest.fixture
async def client(app: Mainspring) -> AsyncIterator[Client]:
    async with serving(app) as client:
        yield client


async def fail(app: Mainspring, number: int) -> list[str]:
    """Let some jobs become dead letters; return their ids."""
    handles = [await app.tasks["greet"].enqueue(name="Nobody") for _ in range(number)]
    await app.worker().drain()
    return [handle.id for handle in handles]
