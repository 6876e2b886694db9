"""The PostgreSQL store, held to the suite that every store is held to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from mainspring.stores.postgres import PostgresStore
from mainspring.testing.clock import ManualClock
from mainspring.testing.conformance import HeartbeatConformance, StoreConformance
from mainspring.testing.machine import store_machine
from tests.postgres import dsn, fresh_schema


@pytest.mark.slow
class TestPostgresStore(StoreConformance, HeartbeatConformance):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(dsn(), schema_name=fresh_schema(), clock=clock)
        await store.open()
        yield store
        await store.close()


TestPostgresHistories = store_machine(
    lambda clock: PostgresStore(dsn(), schema_name=fresh_schema(), clock=clock)
).TestCase
TestPostgresHistories.settings = settings(max_examples=25, stateful_step_count=30, deadline=None, derandomize=True)
TestPostgresHistories = pytest.mark.slow(TestPostgresHistories)
