"""Several stores of one schema, as several programs have them, and what goes on between them."""

from __future__ import annotations

from typing import Any

import psycopg

from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.listen import channel, describe
from mainspring.stores.protocol import EVERY_QUEUE, Wake
from tests.conformance.scenario import join
from tests.worker.working import eventually

TERMINATE = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s"
BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
TABLES = """
SELECT relname, heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0), seq_tup_read
FROM pg_statio_all_tables JOIN pg_stat_all_tables USING (relid, schemaname, relname) WHERE schemaname = %s
"""


class Stores:
    """All their connections carry the schema's name, so that the server can tell them from others'."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.dsn = dsn
        self.schema = schema
        self._made: list[PostgresStore] = []

    async def another(self, **options: Any) -> PostgresStore:
        store = PostgresStore(f"{self.dsn}&application_name={self.schema}", schema_name=self.schema, **options)
        self._made.append(store)
        await store.open()
        return store

    async def close(self) -> None:
        for store in self._made:
            await store.close()

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """An application's own."""
        return psycopg.connect(self.dsn, **options)

    def ask(self, statement: str, *parameters: Any) -> list[Any]:
        """The first column of what the server says; {s} is the schema."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.replace("{s}", self.schema).encode(), parameters)
            return [row[0] for row in cursor] if cursor.description else []

    def terminate(self) -> int:
        """End all connections of all stores; how many there were."""
        return len(self.ask(TERMINATE, self.schema))

    def backends(self) -> int:
        (number,) = self.ask(BACKENDS, self.schema)
        return int(number)


def read_so_far(stores: Stores) -> dict[str, tuple[int, int]]:
    """Pages touched, and rows read one after the other, of each table."""
    with stores.connect() as connection:
        return {name: (pages, rows) for name, pages, rows in connection.execute(TABLES, (stores.schema,))}


class Ear:
    """Of a worker: what it was woken for, in order."""

    def __init__(self, stores: Stores) -> None:
        self.heard: list[Wake] = []
        self._stores = stores

    def __call__(self, wake: Wake) -> None:
        self.heard.append(wake)

    async def so_far(self) -> list[Wake]:
        """What was heard before a notice that is sent now. The server keeps their order."""
        message = describe(Wake.CANCELLATIONS, [EVERY_QUEUE])
        self._stores.ask("SELECT pg_notify(%s, %s)", channel(self._stores.schema), message)
        await eventually(lambda: Wake.CANCELLATIONS in self.heard)
        heard = self.heard[: self.heard.index(Wake.CANCELLATIONS)]
        self.heard.clear()
        return heard


async def listening(
    stores: Stores, store: PostgresStore, worker: str = "w1", queues: tuple[str, ...] = (EVERY_QUEUE,)
) -> Ear:
    """A worker that has joined and listens."""
    ear = Ear(stores)
    await join(store, worker, ear, queues)
    await eventually(lambda: ear.heard)
    ear.heard.clear()
    return ear
