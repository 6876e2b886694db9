"""Several programs on one table, each with a client of its own that can be made to fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mainspring.stores.dynamodb import DynamoStore
from mainspring.testing.clock import ManualClock
from tests.dynamodb import FreshStore
from tests.stores.dynamodb.faults import FaultyClient


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[FreshStore]:
    store = FreshStore(clock=clock, client=FaultyClient())
    await store.open()
    yield store
    client_of(store).plan = lambda *_: None
    await store.close()


class Programs:
    """Other programs on the table of the first."""

    def __init__(self, first: FreshStore) -> None:
        self.first = first
        self.others: list[DynamoStore] = []

    async def another(self, *, budget: float = 15.0, **settings: Any) -> DynamoStore:
        given = {"clock": self.first.clock, "prune": True, **settings}
        store = DynamoStore(self.first.table.name, client=FaultyClient(budget=budget), **given)
        await store.open()
        self.others.append(store)
        return store


@pytest.fixture
async def programs(store: FreshStore) -> AsyncIterator[Programs]:
    programs = Programs(store)
    yield programs
    for other in programs.others:
        client_of(other).plan = lambda *_: None
        await other.close()


def client_of(store: DynamoStore) -> FaultyClient:
    assert isinstance(store.client, FaultyClient)
    return store.client
