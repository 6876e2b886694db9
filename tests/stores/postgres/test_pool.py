"""Connections come back, or are closed, whoever ends first."""

from __future__ import annotations

import asyncio

from mainspring.stores.postgres import PostgresStore
from tests.postgres import dsn
from tests.worker.working import member


async def test_what_was_in_use_when_the_store_was_closed_is_closed_afterwards(store: PostgresStore) -> None:
    async with store._pool.use() as connection:
        await store.close()
    assert connection.closed
    assert await store.version() > 0  # it may be used again


def test_a_listener_of_a_loop_that_has_ended_keeps_nobody_waiting(schema: str) -> None:
    store = PostgresStore(dsn(), schema_name=schema)
    ended = asyncio.new_event_loop()
    try:
        ended.run_until_complete(store.join(member("w1"), lambda _: None))
        listener = store._listeners["w1"]
        asyncio.run(asyncio.wait_for(store.close(), 60))
        ended.run_until_complete(listener.stop())
    finally:
        ended.close()
