"""The SQLite store, held to the suite that every store is held to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.clock import ManualClock
from tests.conformance.acks import AckTests
from tests.conformance.machine import store_machine
from tests.conformance.suite import StoreConformance
from tests.conformance.takeover import TakeoverTests
from tests.stores.sqlite.forgetful import ForgetfulStore
from tests.stores.sqlite.template import fresh_database

pytestmark = pytest.mark.slow  # the quick gate has the same suite in memory


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[SqliteStore]:
        store = SqliteStore(fresh_database(), clock=clock)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def neighbour(self, store: SqliteStore) -> AsyncIterator[SqliteStore]:
        neighbour = SqliteStore(store.file.path, clock=store.clock)
        yield neighbour
        await neighbour.close()


class TestSqliteStoreWithoutRefs(AckTests, TakeoverTests):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[SqliteStore]:
        store = ForgetfulStore(fresh_database(), clock=clock)
        await store.open()
        yield store
        await store.close()


TestSqliteHistories = store_machine(lambda clock: SqliteStore(fresh_database(), clock=clock)).TestCase
TestSqliteHistories.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
