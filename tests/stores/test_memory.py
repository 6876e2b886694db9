from __future__ import annotations

import pytest

from mainspring.stores.memory import MemoryStore
from mainspring.testing.clock import ManualClock
from mainspring.testing.conformance import HeartbeatConformance, StoreConformance


class TestMemoryStore(StoreConformance, HeartbeatConformance):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> MemoryStore:
        return MemoryStore(clock=clock)
