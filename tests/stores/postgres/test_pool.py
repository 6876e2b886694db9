"""Connections come back or are closed, whether their user or the store ends first."""

from __future__ import annotations

import asyncio

from mainspring.stores.postgres import PostgresStore
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
