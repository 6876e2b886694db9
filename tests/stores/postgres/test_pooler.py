"""Behind a pooler in transaction mode, where no connection stays ours from one transaction to the next."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mainspring import Context, Mainspring
from mainspring.errors import StoreError
from mainspring.job import Status
from mainspring.stores.postgres import PostgresStore, insertion, listen
from mainspring.stores.postgres.pool import Pool
from mainspring.stores.protocol import Filter
from mainspring.testing.clock import ManualClock
from tests.conformance.halts import HaltTests
from tests.conformance.heartbeats import HeartbeatTests
from tests.postgres import RecycledStore, dsn
from tests.stores.postgres.pooling import HOW_MANY, Pooler, pooled
from tests.stores.postgres.several import Stores
from tests.worker.working import all_logs, ended, eventually, fields_of, working

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("MAINSPRING_TEST_PG" in os.environ, reason="the pooler knows only our own server"),
]

LEFTOVERS = """
SELECT 'prepared ' || name FROM pg_prepared_statements
UNION ALL SELECT 'listens to ' || pg_listening_channels()
UNION ALL SELECT 'locks ' || objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
UNION ALL SELECT 'sets ' || name FROM pg_settings WHERE source = 'session' AND setting <> reset_val
UNION ALL SELECT 'has ' || relname FROM pg_class WHERE relpersistence = 't'
"""


@pytest.fixture
async def pooler(tmp_path: Path) -> AsyncIterator[Pooler]:
    async with pooled(dsn(), tmp_path) as pooler:
        yield pooler


async def leftovers(pooler: Pooler) -> list[str]:
    """What was left on the server's connections. Each is asked, since each statement gets the next."""
    connection = await psycopg.AsyncConnection.connect(pooler.dsn, autocommit=True, prepare_threshold=None)
    async with connection:
        return [row[0] for _ in range(HOW_MANY) async for row in await connection.execute(LEFTOVERS)]


class PooledStore(RecycledStore):
    """Its tables were made elsewhere; only the test itself uses a direct connection."""

    def __init__(self, pooler: Pooler, **options: Any) -> None:
        super().__init__(**options)
        self._pool.dsn = pooler.dsn


class TestConformance(HaltTests, HeartbeatTests):
    """The parts of the suite with the most locks and settings."""

    @pytest.fixture
    async def store(self, pooler: Pooler, clock: ManualClock) -> AsyncIterator[PostgresStore]:
        store = PooledStore(pooler, clock=clock, listen_dsn=dsn())
        await store.open()
        yield store
        assert pooler.transactions > HOW_MANY
        assert await leftovers(pooler) == []
        await store.close()


# -- a worker -------------------------------------------------------------------------------------


def build(store: PostgresStore) -> tuple[Mainspring, Any]:
    app = Mainspring(store)

    @app.task()
    async def plain() -> int:
        return 1

    @app.task()
    async def transacting(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("SELECT 1")

    @app.task()
    def transacting_in_a_thread(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("SELECT 1")

    return app, (plain, transacting, transacting_in_a_thread)


async def test_a_worker_behind_a_pooler_listens_on_a_direct_connection(
    pooler: Pooler, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresStore(pooler.dsn, schema_name=schema, listen_dsn=dsn())
    app, tasks = build(store)
    with all_logs(caplog):
        async with working(app) as worker:
            await eventually(lambda: store._listeners[worker.id].listening)
            jobs = [await task.enqueue() for _ in range(12) for task in tasks]  # after five a statement is prepared
            assert {job.status for job in await ended(app, *(job.id for job in jobs))} == {"completed"}
            await tasks[0].enqueue_many([{}] * insertion.COPY_THRESHOLD)  # by COPY
            await eventually(lambda: has_completed(app, len(jobs) + insertion.COPY_THRESHOLD))
            assert not (await app.stats()).workers[0].polling
    assert not fields_of(caplog, "not_listening")
    assert fields_of(caplog, "pooler_noticed") == [{"store": store.url, "prepare": "off"}]
    assert await leftovers(pooler) == []
    await app.close()


async def has_completed(app: Mainspring, number: int) -> bool:
    return await app.store.count(Filter(statuses=(Status.COMPLETED,))) == number


async def test_a_worker_without_a_direct_connection_polls_and_logs_it_once(
    pooler: Pooler, schema: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "ECHO_TIMEOUT", 0.3)
    monkeypatch.setattr(listen, "POLL_INTERVAL", 0.05)
    app, (plain, *_) = build(PostgresStore(pooler.dsn, schema_name=schema))
    with all_logs(caplog):
        async with working(app):
            await eventually(lambda: fields_of(caplog, "not_listening"))
            jobs = [await plain.enqueue() for _ in range(3)]
            await ended(app, *(job.id for job in jobs))
            await eventually(lambda: polling(app))
    (told,) = fields_of(caplog, "not_listening")
    assert "No notification passes this pooler: give workers a direct connection (listen=" in told["error"]
    await app.close()


async def polling(app: Mainspring) -> bool:
    return [worker.polling for worker in (await app.stats()).workers] == [True]


async def test_a_pooler_that_keeps_connections_lets_us_listen(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    """In session mode: the process is not the one we are told of, but it is ours alone."""
    listener = listen.Listener(PretendingLinks(stores.dsn), stores.schema, ["*"], lambda _: None)
    with all_logs(caplog):
        await eventually(lambda: listener.listening)
    await listener.stop()
    assert not fields_of(caplog, "not_listening")


class PretendingLinks(Pool):
    """To be a pooler: what is asked for the number of its process says another."""

    async def connect(self) -> Any:
        connection = await super().connect()
        await connection.execute("CREATE FUNCTION pg_temp.pg_backend_pid() RETURNS int LANGUAGE sql RETURN 7")
        await connection.execute("SET search_path = pg_temp, pg_catalog")
        return connection


async def test_prepared_statements_behind_a_pooler_are_an_error_with_advice(pooler: Pooler, schema: str) -> None:
    store = PostgresStore(pooler.dsn, schema_name=schema, listen_dsn=dsn(), prepare=True)

    async def work() -> None:
        for _ in range(10 * HOW_MANY):
            await store.halts()

    with pytest.raises(StoreError, match=r"does not keep prepared statements: .*; write prepare=off"):
        await work()
    await store.close()


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing(pooler: Pooler, schema: str) -> None:
    store = PostgresStore(pooler.dsn, schema_name=schema)
    await store.open()
    connections = [await psycopg.AsyncConnection.connect(pooler.dsn) for _ in range(HOW_MANY)]
    for connection in connections:
        await connection.execute("SELECT pg_advisory_xact_lock(7)" if connection is connections[0] else "SELECT 1")
    waiting = asyncio.create_task(store.halts())  # there is no connection left for it
    for connection in connections:
        await connection.close()
    assert await waiting == []
    assert await leftovers(pooler) == []
    await store.close()
