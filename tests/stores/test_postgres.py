"""The PostgreSQL store, held to the suite that every store is held to."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from zlib import crc32

import pytest
from hypothesis import settings

from mainspring.stores.postgres import PostgresStore
from mainspring.testing.clock import ManualClock
from tests.conformance.machine import store_machine
from tests.conformance.suite import StoreConformance
from tests.postgres import RecycledStore, servers

pytestmark = pytest.mark.slow  # the quick gate has the same suite in memory

IS_LONG = os.environ.get("MAINSPRING_CHAOS") == "long"
SERVERS = list(servers()) if IS_LONG else [pytest.param("", id="postgres")]


def one_of_the_servers(test: str) -> str:
    """Return the server on which this test always runs. On each of them, the suite would take twice the time."""
    names = sorted(servers())
    return names[crc32(test.encode()) % len(names)]


class TestPostgresStore(StoreConformance):
    @pytest.fixture(params=SERVERS)
    async def store(self, request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[PostgresStore]:
        store = RecycledStore(request.param or one_of_the_servers(request.node.name), clock=clock)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def neighbour(self, store: RecycledStore) -> AsyncIterator[PostgresStore]:
        neighbour = PostgresStore(store._dsn, schema_name=store.schema, clock=store.clock)
        yield neighbour
        await neighbour.close()


TestPostgresHistories = store_machine(lambda clock: RecycledStore(clock=clock)).TestCase
TestPostgresHistories.settings = settings(max_examples=25, stateful_step_count=30, deadline=None, derandomize=True)
