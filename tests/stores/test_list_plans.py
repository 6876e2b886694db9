"""A page of a sorted list walks an index in the order of the list: it sorts no table, and reads none from end to end.

`WALKS` has the plan of each sort. Change it there if an index changes.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mainspring.job import Status
from mainspring.stores.postgres.transaction import PLAN_FREELY, Dialect, Transaction
from mainspring.stores.protocol import Filter, Sort
from mainspring.stores.sorting import LOOK, Order, PageRequest, to_spot
from mainspring.stores.sqlite import sorting
from tests.postgres import RecycledStore, dsn
from tests.stores.sqlite.template import fresh_database

pytestmark = pytest.mark.slow

WALKS = {
    Sort.CREATED: {
        "SQLite": "jobs_1|archive USING PRIMARY KEY|SCAN mainspring_archive$|archive_failed",
        "PostgreSQL": "(jobs|archive_.*)_pkey|archive_.*_status_id_idx",
    },
    Sort.DUE: {"SQLite": "jobs_(waiting|suspect|aside)", "PostgreSQL": "jobs_(waiting|suspect|aside)"},
    Sort.FINISHED: {"SQLite": "archive_(week|finished)", "PostgreSQL": "archive_.*_finished_at_id_idx"},
    Sort.DURATION: {  # runs of less than 0.1 s are in the order of creation
        "SQLite": "archive_duration|archive USING PRIMARY KEY|SCAN mainspring_archive$|archive_failed",
        "PostgreSQL": "archive_.*_expr_id_idx|archive_.*_pkey|archive_.*_status_id_idx",
    },
    Sort.ATTEMPTS: {  # so are jobs with the usual number of attempts
        "SQLite": "(jobs|archive)_attempts|jobs_1|archive USING PRIMARY KEY|SCAN mainspring_archive$|archive_failed",
        "PostgreSQL": "jobs_attempts|archive_.*_attempts_id_idx|(jobs|archive_.*)_pkey|archive_.*_status_id_idx",
    },
}
FILTERS = {
    "all": Filter(),
    "a queue": Filter(queues=("mail",)),
    "two queues": Filter(queues=("mail", "default")),
    "a queue that has none": Filter(queues=("none",)),
    "a project": Filter(within=("p/acme/*",)),
    "some queues": Filter(within=("mail", "other/*")),
    "a task": Filter(tasks=("greet",)),
    "a usual tag": Filter(tags=("vip",)),
    "finished": Filter(statuses=(Status.COMPLETED,)),
    "dead letters": Filter(statuses=(Status.DEAD_LETTER,)),
    "an error type": Filter(error_type="ValueError"),
    "a payload": Filter(payload={"guest.id": -1}),
    "created since": Filter(created_after=datetime(2001, 1, 1, tzinfo=UTC)),
    "changed since": Filter(changed_after=datetime(1970, 1, 1, tzinfo=UTC)),
}
LISTS = [
    pytest.param(sort, descending, where, id=f"{sort} {'descending' if descending else 'ascending'}, {name}")
    for sort, descending, (name, where) in product(Sort, (True, False), FILTERS.items())
]
JOBS = 2 * LOOK + 500  # so that each filter matches more than are read and sorted as a whole
LIMIT = 20

# -- SQLite -----------------------------------------------------------------------------------------

NUMBERS = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)"
FILL_SQLITE = (
    """INSERT INTO mainspring_jobs (id, task, queue, status, priority, run_at, attempts, max_attempts, created_at, keep,
                                    keep_dead, payload, tags, error_type)
       SELECT printf('wait-%012d', n), 'greet', iif(n % 3, 'default', 'mail'), n % 2, n % 4, n / 100, n % 3, 3, n, 0, 0,
              '{"guest": {"id": 1}}', '["vip"]', iif(n % 50, NULL, 'ValueError')
       FROM number""",
    """INSERT INTO mainspring_archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes,
                                       token, started_at, finished_at, expires_at, timeout, created_at, keep, keep_dead,
                                       reason, payload, tags, error_type)
       SELECT printf('done-%012d', n), 'greet', iif(n % 3, 'default', 'mail'), 4 + n % 2, n % 4, n, n % 3, 3, 0, 1, n,
              n + n % 7 * 50, 9000000000000, 0, 0, 0, 0, '', '{"guest": {"id": 1}}', '["vip"]',
              iif(n % 50, NULL, 'ValueError')
       FROM number""",
)
THEIR_TAGS = (
    "INSERT INTO mainspring_tags SELECT 'vip', id FROM mainspring_jobs UNION SELECT 'vip', id FROM mainspring_archive"
)


@pytest.fixture(scope="module", params=[False, True], ids=["no statistics", "statistics"])
def database(request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    path: Path = fresh_database()
    with closing(sqlite3.connect(path)) as connection:
        for statement in FILL_SQLITE:
            connection.execute(f"{statement.replace('SELECT', f'{NUMBERS} SELECT', 1)}", (JOBS,))
        connection.execute(THEIR_TAGS)
        if request.param:
            connection.execute("ANALYZE")
        yield connection


@pytest.mark.parametrize(("sort", "descending", "where"), LISTS)
def test_a_page_on_sqlite_walks_an_index(
    database: sqlite3.Connection, sort: Sort, descending: bool, where: Filter
) -> None:
    for statement in pages_on_sqlite(database, where, Order(sort, descending)):
        steps = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {statement}")]
        walked = [step for step in steps if re.search("mainspring_(jobs|archive)", step)]
        assert [step for step in steps if "B-TREE" in step] == []
        assert [step for step in walked if not re.search(WALKS[sort]["SQLite"], step)] == []
        assert len(re.findall(r"[<>]=? \('?\d", statement)) == "".join(walked).count("(?,?)"), (statement, walked)


def pages_on_sqlite(connection: sqlite3.Connection, where: Filter, order: Order) -> list[str]:
    """Return the statements that read the first two pages."""
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    page = sorting.find(connection, PageRequest(where, order, LIMIT, None))
    if page.cursor:
        sorting.find(connection, PageRequest(where, order, LIMIT, to_spot(where, order, page.cursor)))
    connection.set_trace_callback(None)
    return [statement for statement in statements if "ORDER BY" in statement]


# -- PostgreSQL -------------------------------------------------------------------------------------

FILL_POSTGRES = (
    """INSERT INTO {s}.jobs (id, task, queue, status, priority, run_at, attempts, max_attempts, created_at, keep,
                             keep_dead, payload, tags, error_type)
       SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'greet',
              CASE WHEN n % 3 = 0 THEN 'mail' ELSE 'default' END, n % 2, n % 4, n / 100, n % 3, 3, n, 0, 0,
              '{"guest": {"id": 1}}', '{vip}', CASE WHEN n % 50 = 0 THEN 'ValueError' END
       FROM generate_series(1, {jobs}) AS n""",
    """INSERT INTO {s}.archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token,
                                started_at, finished_at, expires_at, drop_day, timeout, created_at, keep, keep_dead,
                                reason, payload, tags, error_type)
       SELECT ('00000000-0001-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'greet',
              CASE WHEN n % 3 = 0 THEN 'mail' ELSE 'default' END, 4 + n % 2, n % 4, n, n % 3, 3, 0, 1, n,
              n + n % 7 * 50, 9000000000000, (ARRAY[0, 1000000])[n % 2 + 1], 0, 0, 0, 0, '', '{"guest": {"id": 1}}',
              '{vip}', CASE WHEN n % 50 = 0 THEN 'ValueError' END
       FROM generate_series(1, {jobs}) AS n""",
)


Plans = dict[tuple[Sort, bool, str], list[tuple[str, dict[str, Any]]]]


@pytest.fixture(scope="module", params=[False, True], ids=["no statistics", "statistics"])
def plans(request: pytest.FixtureRequest) -> Plans:
    return asyncio.run(plans_on_postgres(analyzed=request.param))


async def plans_on_postgres(*, analyzed: bool) -> Plans:
    """Return all statements that read pages, with their plans."""
    store = RecycledStore()
    await store.open()
    try:
        with psycopg.connect(dsn(), autocommit=True) as server:
            for statement in FILL_POSTGRES:
                server.execute(statement.replace("{s}", store.schema).replace("{jobs}", str(JOBS)).encode())
            if analyzed:
                server.execute(f"ANALYZE {store.schema}.jobs, {store.schema}.archive".encode())
            return {
                (sort, descending, name): await plans_of(store, server, where, sort, descending=descending)
                for sort, descending, (name, where) in product(Sort, (True, False), FILTERS.items())
            }
    finally:
        await store.close()


async def plans_of(
    store: RecycledStore, server: psycopg.Connection[Any], where: Filter, sort: Sort, *, descending: bool
) -> list[tuple[str, dict[str, Any]]]:
    statements: list[tuple[str, Any]] = []

    async def rows(self: Transaction, template: str, **parameters: Any) -> list[tuple[Any, ...]]:
        statements.append((template, parameters))
        return await read(self, template, **parameters)

    read = Transaction.rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "rows", rows)
        page = await store.find(where, sort=sort, descending=descending, limit=LIMIT)
        if page.cursor:
            await store.find(where, sort=sort, descending=descending, limit=LIMIT, cursor=page.cursor)
    asked = [(statement, values) for statement, values in statements if "ORDER BY" in statement]
    return [(statement, explain(server, store.schema, statement, values)) for statement, values in asked]


def explain(server: psycopg.Connection[Any], schema: str, template: str, values: Any) -> dict[str, Any]:
    statement = Dialect(schema, None).statement(template)
    with server.transaction():
        server.execute(PLAN_FREELY.encode(), {"freely": "off"})
        ((plan,),) = server.execute(f"EXPLAIN (FORMAT JSON) {statement}".encode(), values).fetchall()
    found: dict[str, Any] = plan[0]["Plan"]
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("descending", [True, False], ids=["descending", "ascending"])
@pytest.mark.parametrize("sort", Sort)
def test_a_page_on_postgresql_walks_an_index(plans: Plans, sort: Sort, descending: bool, name: str) -> None:
    for statement, plan in plans[sort, descending, name]:
        kinds = [node["Node Type"] for node in nodes(plan)]
        assert {"Sort", "Incremental Sort", "Seq Scan", "Bitmap Heap Scan"}.isdisjoint(kinds), statement
        for node in nodes(plan):
            if "Index Name" in node:
                assert re.fullmatch(WALKS[sort]["PostgreSQL"], node["Index Name"]), (statement, node)
                assert "ROW(" not in node.get("Filter", ""), (statement, node)
