"""Retention removes no more at a time than it is told to, whatever plan the server chooses."""

from __future__ import annotations

import psycopg

from mainspring.stores.documents import Bundle, Key, Write
from mainspring.stores.postgres import PostgresStore
from tests.postgres import dsn, fresh_schema


async def test_the_limit_holds_if_the_server_expects_a_single_row() -> None:
    """Then it joins by a nested loop, which evaluates a subquery once for each row that there really is."""
    store = PostgresStore(dsn(), schema_name=fresh_schema())
    await store.open()
    await store.write([Bundle((Write(Key("things", "", "kept"), "{}"),))])
    with psycopg.connect(dsn(), autocommit=True) as connection:
        connection.execute(f"VACUUM (ANALYZE) {store.schema}.documents".encode())
    past = store.clock.now() - 60_000
    names = [Key("things", "", f"{number}") for number in range(6)]
    await store.write([Bundle((Write(name, "{}", expires_at=past),)) for name in names])
    assert [await store.prune(2) for _ in range(4)] == [2, 2, 2, 0]
    await store.close()
