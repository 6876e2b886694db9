"""The DynamoDB store, held to the suite that every store is held to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import settings

from mainspring.stores import tables
from mainspring.stores.dynamodb import DynamoStore, read
from mainspring.testing.clock import ManualClock
from tests.conformance.machine import store_machine
from tests.conformance.suite import StoreConformance
from tests.dynamodb import FreshStore, SharedStore, client

pytestmark = pytest.mark.slow  # the quick gate has the same suite in memory

PAGE = 15


class TestDynamoStore(StoreConformance):
    records_for_absent_readers = False

    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[DynamoStore]:
        """In a table that is shared with other data. The other tests of the store have tables of their own."""
        store = SharedStore(clock=clock)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def neighbour(self, store: SharedStore) -> AsyncIterator[DynamoStore]:
        place: dict[str, Any] = {"prefix": "mainspring/", "keys": "pk,sk", "shards": 2, "prune": True}
        neighbour = DynamoStore(store.table.name, clock=store.clock, client=client(), **place)
        neighbour.table.recording_age = 0.0
        yield neighbour
        await neighbour.close()

    @pytest.fixture
    def due_cap(self, store: DynamoStore, monkeypatch: pytest.MonkeyPatch) -> int:
        """Ten thousand jobs take ten seconds. So fewer, in as many pages as a hundred thousand would have."""
        monkeypatch.setattr(read, "DUE_CAP", 200)
        monkeypatch.setattr(tables, "DUE_CAP", 200)
        whole = store.table.client.call

        async def in_small_pages(operation: str, request: Any) -> dict[str, Any]:
            small = {"Limit": min(request.get("Limit", PAGE), PAGE)} if operation == "Query" else {}
            return await whole(operation, {**request, **small})

        monkeypatch.setattr(store.client, "call", in_small_pages)
        return 200


TestDynamoHistories = store_machine(lambda clock: FreshStore(clock=clock)).TestCase
TestDynamoHistories.settings = settings(max_examples=6, stateful_step_count=30, deadline=None, derandomize=True)
