"""Measures the store time of reads with a million jobs: `python -m bench.reads`. It takes about three minutes.

The jobs are loaded by SQL, in the shapes that the stores write. Each read is done five times; the slowest counts.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from bench.server import Server
from mainspring.job import Status
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import AuditFilter, Completable, Filter, Sort
from mainspring.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mainspring.stores.protocol import Store

# ruff: noqa: E501

WAITING, FINISHED = 200_000, 800_000
TIMES = 5
GOAL = 100.0  # milliseconds
DAY = 86_400_000

SQLITE_NUMBERS = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {most})"
SQLITE = [
    """INSERT INTO mainspring_jobs (id, task, queue, status, priority, run_at, attempts, max_attempts, created_at, keep,
                                    keep_dead, payload, tags, target_type, target_id, error_type)
       SELECT printf('00000000-0001-7000-8000-%012x', n), 'task' || n % 10, 'queue' || n % 5, iif(n % 50, 0, 1), n % 4,
              {now} + n * 100, iif(n % 50, 0, 1 + n % 3), 3, {now} - {most} + n, {day}, {day},
              '{{"guest": {{"id": ' || n || '}}}}', iif(n % 10, NULL, '["vip"]'), 'guest', n % 100000,
              iif(n % 50, NULL, 'ValueError')
       FROM number""",
    """INSERT INTO mainspring_archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token,
                                       worker, started_at, finished_at, expires_at, timeout, created_at, keep,
                                       keep_dead, reason, payload, tags, target_type, target_id, error_type)
       SELECT printf('00000000-0000-7000-8000-%012x', n), 'task' || n % 10, 'queue' || n % 5,
              CASE WHEN n % 50 = 0 THEN 5 WHEN n % 51 = 0 THEN 6 ELSE 4 END, n % 4, {now} - {day} + n * 100,
              1 + (n % 20 = 0), 3, 0, 1, 'w' || n % 4, {now} - {day} + n * 100 - n * 37 % 1000, {now} - {day} + n * 100,
              iif(n % 3, {now} - {day} + n * 100 + 7 * {day}, {now} + {day} * (n % 7 + 1)), 0, {now} - 2 * {day} + n,
              {day}, {day}, '', '{{"guest": {{"id": ' || n || '}}}}', iif(n % 10, NULL, '["vip"]'), 'guest', n % 100000,
              iif(n % 50, NULL, 'ValueError')
       FROM number""",
]
SQLITE_MORE = """
INSERT INTO mainspring_tags SELECT 'vip', id FROM mainspring_jobs WHERE tags IS NOT NULL
UNION ALL SELECT 'vip', id FROM mainspring_archive WHERE tags IS NOT NULL;
INSERT INTO mainspring_counts SELECT queue, status, count(*) FROM mainspring_jobs GROUP BY queue, status
UNION ALL SELECT queue, status, count(*) FROM mainspring_archive GROUP BY queue, status;
INSERT INTO mainspring_audit SELECT 'op' || n, 'cancel', n, 'ana' || n % 100, '', '{}', 1
FROM (WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 100000) SELECT n FROM number);
"""
POSTGRES = [
    """INSERT INTO mainspring.jobs (id, task, queue, status, priority, run_at, attempts, max_attempts, created_at, keep,
                                    keep_dead, payload, tags, target_type, target_id, error_type)
       SELECT ('00000000-0001-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'task' || n % 10, 'queue' || n % 5,
              CASE WHEN n % 50 = 0 THEN 1 ELSE 0 END, n % 4, {now} + n * 100::bigint,
              CASE WHEN n % 50 = 0 THEN 1 + n % 3 ELSE 0 END, 3, {now} - {most} + n, {day}, {day},
              '{{"guest": {{"id": ' || n || '}}}}', CASE WHEN n % 10 = 0 THEN '{{vip}}'::text[] END, 'guest', n % 100000,
              CASE WHEN n % 50 = 0 THEN 'ValueError' END
       FROM generate_series(1, {most}) AS n""",
    """INSERT INTO mainspring.archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token,
                                       worker, started_at, finished_at, expires_at, drop_day, timeout, created_at, keep,
                                       keep_dead, reason, payload, tags, target_type, target_id, error_type)
       SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'task' || n % 10, 'queue' || n % 5,
              CASE WHEN n % 50 = 0 THEN 5 WHEN n % 51 = 0 THEN 6 ELSE 4 END, n % 4, {now} - {day} + n * 100::bigint,
              1 + (n % 20 = 0)::integer, 3, 0, 1, 'w' || n % 4, {now} - {day} + n * 100::bigint - n::bigint * 37 % 1000,
              {now} - {day} + n * 100::bigint, {now} + {day} * (n % 7 + 1)::bigint, {today} + n % 7, 0,
              {now} - 2 * {day}::bigint + n, {day}, {day}, '', '{{"guest": {{"id": ' || n || '}}}}',
              CASE WHEN n % 10 = 0 THEN '{{vip}}'::text[] END, 'guest', n % 100000,
              CASE WHEN n % 50 = 0 THEN 'ValueError' END
       FROM generate_series(1, {most}) AS n""",
]
POSTGRES_MORE = """
INSERT INTO mainspring.counts SELECT queue, status, count(*) FROM mainspring.jobs GROUP BY queue, status
UNION ALL SELECT queue, status, count(*) FROM mainspring.archive GROUP BY queue, status;
INSERT INTO mainspring.audit (operation, action, at, actor, reason, detail, n)
SELECT 'op' || n, 'cancel', n, 'ana' || n % 100, '', '{}', 1 FROM generate_series(1, 100000) AS n;
"""


def values(most: int) -> dict[str, int]:
    now = int(time.time() * 1000)
    return {"now": now, "day": DAY, "most": most, "today": now // DAY + 2}


def fill_sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement, most in zip(SQLITE, (WAITING, FINISHED), strict=True):
            given = values(most)
            numbers = SQLITE_NUMBERS.format(**given)
            head, _, tail = statement.format(**given).partition("SELECT")
            connection.execute(f"{head} {numbers} SELECT {tail}")
        connection.executescript(SQLITE_MORE)


def fill_postgres(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        today = values(0)["today"]
        for day in range(today, today + 7):
            name = f"mainspring.archive_{day}"
            make = f"CREATE TABLE {name} PARTITION OF mainspring.archive FOR VALUES FROM ({day}) TO ({day + 1})"
            connection.execute(make.encode())
        for statement, most in zip(POSTGRES, (WAITING, FINISHED), strict=True):
            connection.execute(statement.format(**values(most)).encode())
        connection.execute(POSTGRES_MORE.encode())
        connection.execute(b"VACUUM ANALYZE")


def reads(store: Store) -> dict[str, Callable[[], Awaitable[object]]]:
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    minute_ago = datetime.now(UTC) - timedelta(minutes=1)
    filters = {
        "all": Filter(),
        "a queue": Filter(queues=("queue1",)),
        "a queue that has none": Filter(queues=("none",)),
        "a tag": Filter(tags=("vip",)),
        "a target": Filter(target_type="guest", target_id="77"),
        "dead letters": Filter(statuses=(Status.DEAD_LETTER,)),
        "a payload that none has": Filter(payload={"guest.id": -1}),
        "an error type": Filter(error_type="ValueError"),
        "changed in the last minute": Filter(changed_after=minute_ago),
        "changed in the last hour": Filter(changed_after=hour_ago),
    }
    found: dict[str, Callable[[], Awaitable[object]]] = {}
    for sort in Sort:
        for name, where in filters.items():
            for descending in (True, False):
                direction = "descending" if descending else "ascending"
                found[f"by {sort} {direction}, {name}"] = lambda w=where, s=sort, d=descending: store.find(  # type: ignore[misc]
                    w, sort=s, descending=d
                )
    for name, where in filters.items():
        found[f"count up to 10,000, {name}"] = lambda w=where: store.count_up_to(w, 10_000)  # type: ignore[misc]
    for what in Completable:
        found[f"complete a {what}"] = lambda w=what: store.complete(w, "")  # type: ignore[misc]
    found["audit log, an actor"] = lambda: store.audit(AuditFilter(actor="ana7"))
    found["audit log, an actor that is not there"] = lambda: store.audit(AuditFilter(actor="nobody"))
    found["stats"] = store.stats
    return found


async def measure(store: Store) -> dict[str, float]:
    await store.open()
    figures: dict[str, float] = {}
    for name, read in reads(store).items():
        worst = 0.0
        for _ in range(TIMES):
            began = time.perf_counter()
            await read()
            worst = max(worst, 1000 * (time.perf_counter() - began))
        figures[name] = worst
    await store.close()
    return figures


async def create(store: Store) -> None:
    await store.open()
    await store.close()


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mainspring-bench-") as folder:
        path = Path(folder) / "jobs.db"
        asyncio.run(create(SqliteStore(path)))
        fill_sqlite(path)
        figures = {"SQLite": asyncio.run(measure(SqliteStore(path)))}
        server = Server(Path(folder) / "server")
        server.start()
        try:
            server.create("reads")
            dsn = server.url("reads")
            asyncio.run(create(PostgresStore(dsn)))
            fill_postgres(dsn)
            figures["PostgreSQL"] = asyncio.run(measure(PostgresStore(dsn)))
        finally:
            server.stop()
    return tell(figures)


def tell(figures: dict[str, dict[str, float]]) -> int:
    width = max(map(len, figures["SQLite"]))
    print(f"{'milliseconds, the slowest of 5':{width}}  {'SQLite':>10}  {'PostgreSQL':>10}")
    for name in figures["SQLite"]:
        print(f"{name:{width}}  " + "  ".join(f"{store[name]:10.1f}" for store in figures.values()))
    slow = [name for store in figures.values() for name, figure in store.items() if figure > GOAL]
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
