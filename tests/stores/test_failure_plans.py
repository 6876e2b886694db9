"""The jobs of a failure group are found by an index, however many others there are."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from mainspring.job import Status
from mainspring.stores.protocol import Filter
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite.read import Conditions
from tests.postgres import RecycledStore, dsn

FIND = "SELECT id FROM {table} WHERE {conditions} ORDER BY id DESC LIMIT 50"
COUNT = "SELECT count(*) FROM {table} WHERE {conditions}"
ALL, DEAD = Filter(fingerprint="f0"), Filter(fingerprint="f0", statuses=(Status.DEAD_LETTER,))
FILL_SQLITE = """
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 20000)
INSERT INTO mainspring_archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token,
    started_at, finished_at, expires_at, timeout, created_at, keep, keep_dead, reason, payload, fingerprint)
SELECT printf('%012d', n), 'greet', 'default', iif(n % 50, 4, 5), 2, n, 1, 3, 0, 1, 1, 1, 9000000000000, 0, 0, 0, 0, '',
    '{}', iif(n % 10, NULL, 'f' || n % 7)
FROM number
"""


@pytest.mark.parametrize("where", [ALL, DEAD], ids=["all", "dead"])
@pytest.mark.parametrize("statement", [FIND, COUNT], ids=["find", "count"])
@pytest.mark.parametrize("analyzed", [False, True])
async def test_sqlite_uses_the_index_and_does_not_sort(
    tmp_path: Path, where: Filter, statement: str, analyzed: bool
) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    await store.open()
    await store.close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute(FILL_SQLITE)
        if analyzed:
            connection.execute("ANALYZE")
        for table in ("mainspring_jobs", "mainspring_archive"):
            conditions = Conditions(where, table)
            if conditions.impossible:
                continue
            asked = statement.format(table=table, conditions=conditions)
            steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {asked}", conditions.values)]
            assert len(steps) == 1, steps
            assert re.match(rf"SEARCH {table} USING (COVERING )?INDEX {table}_failure\w* \(fingerprint=\?", steps[0])


FILL_POSTGRES = """
INSERT INTO {s}.archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token, started_at,
                         finished_at, expires_at, drop_day, timeout, created_at, keep, keep_dead, reason, payload,
                         fingerprint)
SELECT ('00000000-0001-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'greet', 'default',
       CASE WHEN n % 50 = 0 THEN 5 ELSE 4 END, 2, n, 1, 3, 0, 1, 1, 1, 9000000000000,
       (ARRAY[0, 1000000])[n % 2 + 1], 0, 0, 0, 0, '', '{}', CASE WHEN n % 10 = 0 THEN 'f' || n % 7 END
FROM generate_series(1, 20000) AS n
"""


async def test_postgresql_uses_the_index() -> None:
    store = RecycledStore()
    await store.open()
    try:
        with psycopg.connect(dsn()) as server:
            server.execute(FILL_POSTGRES.replace("{s}", store.schema).encode())
            server.execute(f"ANALYZE {store.schema}.archive".encode())
            for conditions in ("fingerprint = 'f0'", "fingerprint = 'f0' AND status = 5::smallint"):
                for statement in (FIND, COUNT):
                    asked = statement.format(table=f"{store.schema}.archive", conditions=conditions)
                    plan = "\n".join(row[0] for row in server.execute(f"EXPLAIN {asked}".encode()))
                    assert "fingerprint" in plan
                    assert "Seq Scan" not in plan, plan
                    assert "_pkey" not in plan, plan
    finally:
        await store.close()
