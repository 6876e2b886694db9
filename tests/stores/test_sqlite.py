"""The SQLite store, held to the suite that every store is held to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.clock import ManualClock
from mainspring.testing.conformance import HeartbeatConformance, StoreConformance
from mainspring.testing.conformance.ending import Ending
from mainspring.testing.conformance.takeover import TakingOver
from mainspring.testing.machine import store_machine
from tests.stores.sqlite.forgetful import ForgetfulStore
from tests.stores.sqlite.template import fresh_database

pytestmark = pytest.mark.slow  # the quick gate has the same suite in memory


class TestSqliteStore(StoreConformance, HeartbeatConformance):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[SqliteStore]:
        store = SqliteStore(fresh_database(), clock=clock)
        await store.open()
        yield store
        await store.close()


class TestSqliteStoreWithoutRefs(Ending, TakingOver):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[SqliteStore]:
        store = ForgetfulStore(fresh_database(), clock=clock)
        await store.open()
        yield store
        await store.close()


TestSqliteHistories = store_machine(lambda clock: SqliteStore(fresh_database(), clock=clock)).TestCase
TestSqliteHistories.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
