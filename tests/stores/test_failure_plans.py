"""The jobs of a failure group are found by an index, however many others there are."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from mainspring.job import Status
from mainspring.stores.postgres.failures import DEAD_LETTERS
from mainspring.stores.protocol import Filter
from mainspring.stores.sorting import Order, PageRequest
from mainspring.stores.sqlite import SqliteStore, failures, sorting
from tests.postgres import RecycledStore, dsn

pytestmark = pytest.mark.slow

FIND = "SELECT id FROM {table} WHERE {conditions} ORDER BY id DESC LIMIT 50"
COUNT = "SELECT count(*) FROM {table} WHERE {conditions}"
ALL, DEAD = Filter(fingerprint="f0"), Filter(fingerprint="f0", statuses=(Status.DEAD_LETTER,))
FILL_SQLITE = """
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 20000)
INSERT INTO mainspring_archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token,
    started_at, finished_at, expires_at, timeout, created_at, keep, keep_dead, reason, payload, fingerprint)
SELECT printf('%012d', n), 'greet', 'default', iif(n % 50, 4, 5), 2, n, 1, 3, 0, 1, 1, 1, 9000000000000, 0, 0, 0, 0, '',
    '{}', iif(n % 10, NULL, 'f' || (n % 7))
FROM number
"""


def find(connection: sqlite3.Connection, where: Filter) -> None:
    assert sorting.find(connection, PageRequest(where, Order(), 50, None)).jobs


def count(connection: sqlite3.Connection, where: Filter) -> None:
    assert sorting.count_up_to(connection, where, 1000).value


def count_dead(connection: sqlite3.Connection, where: Filter) -> None:
    (queues,) = failures.dead_letters(connection, [where.fingerprint or ""], 1000, ("default",)).values()
    assert queues["default"]


@pytest.mark.parametrize("where", [ALL, DEAD], ids=["all", "dead"])
@pytest.mark.parametrize("read", [find, count, count_dead])
@pytest.mark.parametrize("analyzed", [False, True])
async def test_sqlite_uses_the_index_and_does_not_sort(
    tmp_path: Path, where: Filter, read: Callable[[sqlite3.Connection, Filter], None], analyzed: bool
) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    await store.open()
    await store.close()
    statements: list[str] = []
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute(FILL_SQLITE)
        if analyzed:
            connection.execute("ANALYZE")
        connection.set_trace_callback(statements.append)
        read(connection, where)
        connection.set_trace_callback(None)
        plans = [[row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {asked}")] for asked in statements]
    steps = [step for plan in plans for step in plan]
    searched = [step for step in steps if re.search("mainspring_(jobs|archive)", step)]
    assert searched
    for step in searched:
        assert re.match(r"SEARCH (\w+) USING (COVERING )?INDEX \1_failure\w* \(fingerprint=\?", step), plans
    assert not [step for step in steps if "TEMP B-TREE FOR ORDER BY" in step]


FILL_POSTGRES = """
INSERT INTO {s}.archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token, started_at,
                         finished_at, expires_at, drop_day, timeout, created_at, keep, keep_dead, reason, payload,
                         fingerprint)
SELECT ('00000000-0001-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'greet', 'default',
       CASE WHEN n % 50 = 0 THEN 5 ELSE 4 END, 2, n, 1, 3, 0, 1, 1, 1, 9000000000000,
       (ARRAY[0, 1000000])[n % 2 + 1], 0, 0, 0, 0, '', '{}', CASE WHEN n % 10 = 0 THEN 'f' || (n % 7) END
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
                    assert not re.search("Seq Scan on archive_(short|forever)", plan), plan
                    assert "_pkey" not in plan, plan
            asked = DEAD_LETTERS.format(conditions="status = 5::smallint").format(s=store.schema)
            for setting in ("seqscan", "bitmapscan", "sort"):  # as `_read_by_index` reads
                server.execute(f"SET enable_{setting} = off".encode())
            given = {"fingerprints": ["f0", "f1"], "cap": 1000}
            plan = "\n".join(row[0] for row in server.execute(f"EXPLAIN {asked}".encode(), given))
            assert "fingerprint_status" in plan, plan
            assert "Seq Scan" not in plan, plan
    finally:
        await store.close()
