"""What becomes of the room that deleted jobs took."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from mainspring.stores.postgres import PostgresStore, maintenance, server_checks
from mainspring.stores.protocol import Filter, Finding, Severity
from tests.conformance.scenario import put
from tests.postgres import dsn, fresh_schema
from tests.worker.working import eventually

pytestmark = pytest.mark.slow

ROWS = 3000
FILL = """
INSERT INTO {schema}.jobs (id, task, queue, priority, run_at, max_attempts, created_at, keep, keep_dead, payload)
SELECT gen_random_uuid(), 'a', 'b', 2, n, 1, 0, 0, 0, '{{}}' FROM generate_series(1, {rows}) AS n
"""
SIZES = "SELECT pg_relation_size('{schema}.jobs'), pg_indexes_size('{schema}.jobs')"


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    """A table of jobs that is empty, with indexes that were not; in a schema that no other test has filled."""
    store = PostgresStore(dsn(), schema_name=fresh_schema())
    await store.open()
    execute(store, FILL, "DELETE FROM {schema}.jobs")

    def emptied() -> bool:  # once no other transaction may want to see the rows
        execute(store, "VACUUM {schema}.jobs")
        return sizes(store)[0] == 0

    await eventually(emptied)
    yield store
    await store.close()
    execute(store, "DROP SCHEMA {schema} CASCADE")


def execute(store: PostgresStore, *statements: str) -> None:
    with psycopg.connect(dsn(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.format(schema=store.schema, rows=ROWS).encode())


def sizes(store: PostgresStore) -> tuple[int, int]:
    with psycopg.connect(dsn()) as connection:
        row = connection.execute(SIZES.format(schema=store.schema).encode()).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])


async def find(store: PostgresStore, check: str) -> Finding:
    return next(finding for finding in await store.diagnose() if finding.check == check)


async def test_maintenance_gives_back_the_room_of_an_empty_table(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sizes(store)[1]
    monkeypatch.setattr(maintenance, "LARGE_INDEXES", before + 1)
    await store.prune()
    assert sizes(store)[1] == before
    monkeypatch.setattr(maintenance, "LARGE_INDEXES", before - 1)
    with psycopg.connect(dsn()) as connection:  # while the table is in use nothing happens, and nothing waits
        connection.execute(f"SELECT 1 FROM {store.schema}.jobs".encode())
        await store.prune()
    assert sizes(store)[1] == before
    await store.prune()
    assert sizes(store)[1] < before / 2
    assert (await find(store, "doubles")).severity is Severity.OK


async def test_jobs_that_are_there_stay(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "LARGE_INDEXES", 0)
    job_id = await put(store)
    await store.prune()
    assert [job.id for job in (await store.find(Filter())).jobs] == [job_id]


async def test_doctor_says_how_to_make_an_index_smaller(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await find(store, "indexes")).severity is Severity.OK
    monkeypatch.setattr(server_checks, "LARGE_INDEX_BYTES", 50_000)
    finding = await find(store, "indexes")
    assert finding.severity is Severity.WARNING
    assert "jobs_waiting (0 MB for 0 rows)" in finding.message
    commands = [word for word in finding.advice.partition(": ")[2].split("; ") if word]
    assert f"REINDEX INDEX CONCURRENTLY {store.schema}.jobs_waiting" in commands
    execute(store, *commands)
    assert (await find(store, "indexes")).severity is Severity.OK
