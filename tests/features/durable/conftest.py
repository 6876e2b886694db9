"""Durable functions on each store, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import pytest

from mainspring import Mainspring, testing
from mainspring.stores.protocol import Store
from mainspring.testing.clock import ManualClock
from mainspring.testing.kit import Kit
from tests.dynamodb import FreshStore
from tests.postgres import RecycledStore

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
Make = Callable[[ManualClock], Store]


class OtherKit(Kit):
    """A kit whose jobs are kept elsewhere."""

    def __init__(self, app: Mainspring, make: Make) -> None:
        super().__init__(app, start=START)
        self.store = make(self.clock)


def sqlite(clock: ManualClock) -> Store:
    from mainspring.stores.sqlite import SqliteStore
    from tests.stores.sqlite.template import fresh_database

    return SqliteStore(fresh_database(), clock=clock)


STORES: dict[str, Make | None] = {
    "memory": None,
    "sqlite": sqlite,
    "postgres": lambda clock: RecycledStore(clock=clock),
    "dynamodb": lambda clock: FreshStore(clock=clock),
}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow if name != "memory" else ()) for name in STORES])
async def kit(request: pytest.FixtureRequest) -> AsyncIterator[Kit]:
    """With an application of its own: `kit.app`."""
    make = STORES[request.param]
    app = Mainspring("memory://")
    async with testing.manual(app, start=START) if make is None else OtherKit(app, make) as kit:
        await kit.store.open()
        yield kit


@pytest.fixture
def app(kit: Kit) -> Mainspring:
    return kit.app


@pytest.fixture
async def quick() -> AsyncIterator[Kit]:
    """In memory only: for what does not depend on the store."""
    async with testing.manual(Mainspring("memory://"), start=START) as kit:
        yield kit
