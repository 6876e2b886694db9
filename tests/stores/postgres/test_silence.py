"""A worker that falls silent in the middle of a transaction blocks nothing for longer than its lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring.errors import StoreUnavailable
from mainspring.stores.postgres import PostgresStore, insertion, maintenance
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Halt, Takeover, TakeoverCause
from tests.conformance.scenario import join, new_job, put, running
from tests.stores.postgres.several import Stores
from tests.worker.working import eventually

LEASE = 1.0
IN_THE_MIDDLE = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND state = 'idle in transaction'"


@asynccontextmanager
async def silent(
    store: PostgresStore, work: Callable[[Transaction], Awaitable[Any]]
) -> AsyncIterator[asyncio.Task[None]]:
    """It has done that, and neither commits nor goes away."""
    done, end = asyncio.Event(), asyncio.Event()

    async def stop_in_the_middle(transaction: Transaction) -> None:
        await work(transaction)
        done.set()
        await end.wait()
        await transaction.value("SELECT 1")

    task = asyncio.create_task(store._run(stop_in_the_middle))
    beginning = asyncio.create_task(done.wait())
    await asyncio.wait([beginning, task], return_when=asyncio.FIRST_COMPLETED)
    if not done.is_set():
        await task  # it raises why
    yield task
    end.set()
    with pytest.raises(StoreUnavailable, match="idle-in-transaction timeout"):
        await task


async def taken_over(store: PostgresStore) -> list[Takeover]:
    return (await store.reap()).takeovers


@pytest.fixture
async def frozen(stores: Stores) -> PostgresStore:
    return await stores.another(lease=LEASE)


async def test_a_silent_enqueue_does_not_block_a_halt(stores: Stores, frozen: PostgresStore) -> None:
    """A halt waits for all enqueues under way, and other enqueues wait for the halt."""
    store = await stores.another(lease=LEASE)
    async with silent(frozen, lambda transaction: insertion.insert(transaction, [new_job(dedupe_key="a")])):
        async with asyncio.timeout(10):
            await store.halt(Halt("test", "", datetime.now(UTC)))
        await put(store, dedupe_key="a")


async def test_a_silent_heartbeat_does_not_prevent_the_takeover(stores: Stores) -> None:
    """Its row cannot be removed; its jobs are taken over all the same."""
    frozen, store = await stores.another(lease=4 * LEASE), await stores.another(lease=LEASE)
    await join(frozen, "w1")
    held = await running(frozen, worker="w1")
    beat = {"id": "w1", "polling": False, "stuck": 0, "lock": None, "lock_server": None}
    async with silent(frozen, lambda transaction: transaction.do(maintenance.BEAT, **beat)):
        (takeover,) = await eventually(lambda: taken_over(store))
        assert stores.ask(IN_THE_MIDDLE, stores.schema), "it still holds its row"
        await eventually(lambda: not stores.ask(IN_THE_MIDDLE, stores.schema))
    assert (takeover.job_id, takeover.cause) == (held.id, TakeoverCause.CRASHED)
