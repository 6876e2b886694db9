"""Each filter of the audit log is answered by an index: no read sorts, or reads the log from end to end."""

from __future__ import annotations

import json
import sqlite3
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from mainspring.ids import new_id
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import AuditFilter, AuditSpot
from mainspring.stores.sqlite import read
from tests.postgres import RecycledStore, dsn
from tests.stores.sqlite.template import fresh_database
from tests.stores.test_list_plans import explain, nodes

pytestmark = pytest.mark.slow

ENTRIES = 20_000
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FILTERS = {
    "all": AuditFilter(),
    "a job": AuditFilter(job=new_id()),
    "an actor": AuditFilter(actor="ana"),
    "a rare actor": AuditFilter(actor="bo"),
    "an action": AuditFilter(action="retry"),
    "a rare action": AuditFilter(action="halt"),
    "an operation": AuditFilter(operation="op-7"),
    "a bulk change": AuditFilter(operation="op-7", action="retry"),
    "since": AuditFilter(since=NOON),
    "until": AuditFilter(until=NOON),
    "an action between times": AuditFilter(action="halt", since=NOON, until=NOON),
}
AFTER: list[AuditSpot | None] = [None, (10_000, "op-10000", "retry")]
each_filter = pytest.mark.parametrize("where", FILTERS.values(), ids=FILTERS)
each_page = pytest.mark.parametrize("after", AFTER, ids=["first page", "next page"])

FILL_SQLITE = f"""
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {ENTRIES})
INSERT INTO mainspring_audit (operation, action, at, actor, reason, detail, n)
SELECT 'op-' || n, iif(n % 1000, 'retry', 'halt'), n, iif(n % 1000, 'ana', 'bo'), '', '{{}}', 1 FROM number
"""
FILL_POSTGRES = """
INSERT INTO {s}.audit (operation, action, at, actor, reason, detail, n)
SELECT 'op-' || n, CASE WHEN n % 1000 = 0 THEN 'halt' ELSE 'retry' END, n,
       CASE WHEN n % 1000 = 0 THEN 'bo' ELSE 'ana' END, '', '{}', 1 FROM generate_series(1, {n}) AS n
"""


@pytest.fixture(scope="module", params=[False, True], ids=["no statistics", "statistics"])
def database(request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(fresh_database())) as connection:
        connection.execute(FILL_SQLITE)
        if request.param:
            connection.execute("ANALYZE")
        yield connection


@each_filter
@each_page
def test_sqlite_uses_an_index(database: sqlite3.Connection, where: AuditFilter, after: AuditSpot | None) -> None:
    statements: list[str] = []
    database.set_trace_callback(statements.append)
    read.audit(database, where, 50, after)
    database.set_trace_callback(None)
    (statement,) = statements
    steps = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {statement}")]
    is_small = where.job is not None or where.operation is not None  # few entries, which may be sorted
    whole = "SCAN mainspring_audit USING INDEX mainspring_audit_at"  # in the order of the list, up to its limit
    assert [step for step in steps if "SCAN" in step and not (step == whole and where == AuditFilter())] == []
    assert is_small or [step for step in steps if "B-TREE" in step] == []


@each_filter
@each_page
async def test_postgresql_uses_an_index(where: AuditFilter, after: AuditSpot | None) -> None:
    store, asked = RecycledStore(), list[tuple[str, Any]]()
    whole = Transaction.rows

    async def rows(self: Transaction, template: str, **parameters: Any) -> list[tuple[Any, ...]]:
        asked.append((template, parameters))
        return await whole(self, template, **parameters)

    await store.open()
    try:
        with psycopg.connect(dsn(), autocommit=True) as server, pytest.MonkeyPatch.context() as patch:
            server.execute(FILL_POSTGRES.replace("{s}", store.schema).replace("{n}", str(ENTRIES)).encode())
            server.execute(f"ANALYZE {store.schema}.audit".encode())
            patch.setattr(Transaction, "rows", rows)
            cursor = None if after is None else b64encode(json.dumps(after).encode()).decode()
            await store.audit(where, limit=50, cursor=cursor)
            (plan,) = [explain(server, store.schema, *given) for given in asked if ".audit WHERE" in given[0]]
    finally:
        await store.close()
    kinds = [node["Node Type"] for node in nodes(plan)]
    is_small = where.job is not None or where.operation is not None
    assert "Seq Scan" not in kinds
    assert is_small or {"Sort", "Bitmap Heap Scan"}.isdisjoint(kinds)
