"""The DynamoDB store, held to the suite that every store is held to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from mainspring.stores.dynamodb import DynamoStore
from mainspring.testing.clock import ManualClock
from mainspring.testing.conformance import HeartbeatConformance, StoreConformance
from mainspring.testing.machine import store_machine
from tests.dynamodb import FreshStore

pytestmark = pytest.mark.slow  # the quick gate has the same suite in memory


class TestDynamoStore(StoreConformance, HeartbeatConformance):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[DynamoStore]:
        store = FreshStore(clock=clock)
        await store.open()
        yield store
        await store.close()


TestDynamoHistories = store_machine(lambda clock: FreshStore(clock=clock)).TestCase
TestDynamoHistories.settings = settings(max_examples=6, stateful_step_count=30, deadline=None, derandomize=True)
