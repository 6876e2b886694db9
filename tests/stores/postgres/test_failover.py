"""The primary dies and a standby takes its place: no program restarts, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from mainspring import Health, Mainspring
from mainspring.errors import StoreReadOnly, StoreUnavailable
from mainspring.events import StoreBack, StoreLost
from mainspring.health import State
from mainspring.job import Status
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import Filter, Severity
from tests.conformance.scenario import put
from tests.postgres import Server, installed
from tests.worker.working import eventually, record, working

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("MAINSPRING_TEST_PG" in os.environ, reason="that server is not ours to stop"),
]

SETTINGS = ("fsync=off",)
IN_STEP = "SELECT 1 FROM pg_stat_replication WHERE application_name = 'reserve' AND sync_state = 'sync'"


@pytest.fixture
def primary() -> Iterator[Server]:
    server = Server(installed()[0], settings=SETTINGS)
    server.start()
    yield server
    server.remove()


@pytest.fixture
def standby(primary: Server) -> Iterator[Server]:
    """In step with the primary: what is committed there is written here first."""
    server = Server(installed()[0], settings=SETTINGS, copy_of=primary)
    server.start()
    ask(primary, "ALTER SYSTEM SET synchronous_standby_names = 'reserve'")
    ask(primary, "SELECT pg_reload_conf()")
    yield server
    server.remove()


def ask(server: Server, statement: str) -> list[psycopg.rows.TupleRow]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def url_of(*servers: Server) -> str:
    hosts = ",".join(str(server.directory) for server in servers)
    return f"postgresql://mainspring:s3cret@/postgres?host={hosts}&target_session_attrs=read-write"


async def test_the_standby_takes_over(primary: Server, standby: Server, schema: str) -> None:
    app = Mainspring(PostgresStore(url_of(primary, standby), schema_name=schema))
    ran: Counter[int] = Counter()
    accepted: dict[int, str] = {}
    events = record(app, StoreLost, StoreBack)

    @app.task()
    async def work(number: int) -> None:
        ran[number] += 1
        await asyncio.sleep(0.001)

    async def enqueue() -> None:
        for number in range(1_000_000):
            try:
                accepted[number] = (await work.enqueue(number=number)).id
            except StoreUnavailable:
                await asyncio.sleep(0.01)

    async def progress() -> None:
        before = len(ran)
        await eventually(lambda: len(ran) > before + 30, within=60)

    async def healthy() -> Health | None:
        health = await app.health()
        return health if health.state is State.OK else None

    await eventually(lambda: ask(primary, IN_STEP))
    async with working(app, concurrency=5):
        enqueuing = asyncio.create_task(enqueue())
        await progress()
        await eventually(healthy)
        await asyncio.to_thread(primary.stop, signal.SIGKILL)
        down = await eventually(lambda: is_down(app))
        await asyncio.to_thread(ask, standby, "SELECT pg_promote()")
        await progress()
        await eventually(healthy)
        enqueuing.cancel()
        await asyncio.gather(enqueuing, return_exceptions=True)
        await eventually(lambda: accepted.keys() <= ran.keys(), within=60)
    assert down.lost_at is not None
    assert down.error.startswith("StoreUnavailable: the database cannot be reached")
    assert "s3cret" not in repr(down)
    kinds = [type(event) for event in events]
    assert (kinds[0], kinds[-1]) == (StoreLost, StoreBack)
    assert set(ran.values()) == {1}
    done = {job.id for job in await app.store.get(list(accepted.values())) if job.status is Status.COMPLETED}
    assert done == set(accepted.values())
    assert await app.store.count(Filter(statuses=(Status.COMPLETED,))) == len(ran)
    await app.close()


async def is_down(app: Mainspring) -> Health | None:
    health = await app.health()
    return health if health.state is State.DOWN else None


async def test_a_standby_alone_says_what_it_is(primary: Server, standby: Server, schema: str) -> None:
    store = PostgresStore(primary.dsn, schema_name=schema)
    await put(store)
    await store.close()
    await eventually(lambda: ask(standby, f"SELECT to_regclass('{schema}.jobs')") != [(None,)])
    alone = PostgresStore(standby.dsn, schema_name=schema)
    with pytest.raises(StoreReadOnly, match=r"is it a standby\?: .*; with several hosts, write target_session_attrs"):
        await put(alone)
    (finding,) = [found for found in await alone.diagnose() if found.check == "replication"]
    assert (finding.severity, finding.message) == (
        Severity.ERROR,
        "this server is a standby, and does not accept writes",
    )
    await alone.close()
    waiting = PostgresStore(url_of(standby), schema_name=schema)
    with pytest.raises(StoreUnavailable):  # it may be promoted any moment
        await waiting.open()
