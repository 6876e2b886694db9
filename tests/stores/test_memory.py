"""The store in memory, held to the suite that every store is held to."""

from __future__ import annotations

import pytest
from hypothesis import settings

from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from tests.conformance.machine import store_machine
from tests.conformance.suite import StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> MemoryStore:
        return MemoryStore(clock=clock)


TestMemoryHistories = pytest.mark.slow(store_machine(lambda clock: MemoryStore(clock=clock)).TestCase)
TestMemoryHistories.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)
