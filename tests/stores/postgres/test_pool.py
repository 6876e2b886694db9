"""Connections come back or are closed, whether their user or the store ends first."""

from __future__ import annotations

import asyncio
import contextlib

from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.pool import MAX_CONNECTIONS
from tests.postgres import dsn
from tests.worker.working import member


async def test_a_connection_in_use_when_the_store_closes_is_closed_afterwards(store: PostgresStore) -> None:
    async with store._pool.use() as connection:
        await store.close()
    assert connection.closed
    assert await store.version() > 0  # it may be used again


def test_a_listener_of_an_ended_loop_does_not_block_close(schema: str) -> None:
    store = PostgresStore(dsn(), schema_name=schema)
    ended = asyncio.new_event_loop()
    try:
        ended.run_until_complete(store.join(member("w1"), lambda _: None))
        listener = store._listeners["w1"]
        asyncio.run(asyncio.wait_for(store.close(), 60))
        ended.run_until_complete(listener.stop())
    finally:
        ended.close()


async def test_the_pool_counts_calls_connections_and_waits(store: PostgresStore) -> None:
    await store.open()
    before = store.measures()
    async with contextlib.AsyncExitStack() as users:
        for _ in range(MAX_CONNECTIONS):
            await users.enter_async_context(store._pool.use())
        assert store.measures()["connections_in_use"] == store.measures()["connections_limit"] == MAX_CONNECTIONS
        waiting = asyncio.create_task(store.version())
        await asyncio.sleep(0)  # it runs until it has to wait
        assert store.measures()["waiting"] == 1
    await waiting
    after = store.measures()
    assert (after["waiting"], after["waits"], after["connections_in_use"]) == (0, 1, 0)
    assert after["calls"] - before["calls"] == MAX_CONNECTIONS + 1
    assert after["connections"] == MAX_CONNECTIONS
    assert (await store.stats()).measures["calls"] == after["calls"] + 1
    await store.close()
    assert (store.measures()["connections"], store.measures()["waits"]) == (0, 1)


def test_the_counts_of_an_ended_loop_are_kept(schema: str) -> None:
    store = PostgresStore(dsn(), schema_name=schema)
    for number in range(1, 4):
        asyncio.run(store.version())
        assert store.measures()["calls"] == number
    asyncio.run(store.close())
