"""Measures the store time of reads with a million jobs: `python -m bench.reads`. It takes about three minutes.

The jobs are loaded by SQL, in the shapes that the stores write. Each read is done five times; the median counts.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import shlex
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psycopg

from bench import machine, page, table
from bench.__main__ import DOCS, WORK, kept_reads, say
from bench.result import ReadResults
from bench.server import Server
from mainspring import Mainspring
from mainspring.bulk.change import BulkChange, BulkState, to_data
from mainspring.errors import Failure
from mainspring.ids import new_id
from mainspring.job import Move, NewJob, Outcome, Status
from mainspring.stores.documents import Bundle, Write
from mainspring.stores.protocol import Action, AuditFilter, Completable, Filter, Sort, Want

if TYPE_CHECKING:
    from mainspring.stores.protocol import Store

# ruff: noqa: E501

WAITING, FINISHED = 200_000, 800_000
AUDITED = 100_000  # entries of the audit log
GROUPS = 10_000  # of failures
BULK_CHANGES = 200
TIMES = 5
GROUP = "0" * 16  # the fingerprint of a group that has many dead letters
DAY = 86_400_000

NUMBERS = {
    "periods": "periods(period, length, kept) AS (VALUES (0, 60000, 2880), (1, 3600000, 720), (2, 86400000, 731))",
    "places": "places(task, queue) AS (VALUES ('', ''), "
    + ", ".join(f"('', 'queue{n}')" for n in range(5)) + ", "
    + ", ".join(f"('task{n}', 'queue{n % 5}')" for n in range(10)) + ")",
    "lines": "lines(measure, bucket) AS (VALUES (0, 0), (1, 0), (1, 3), (2, 1), (2, 2), (2, 3), (4, 2), (7, 0), (8, 0))",
}  # fmt: skip
SQLITE_NUMBERS = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {most})"
SQLITE = [
    """INSERT INTO mainspring_jobs (id, task, queue, status, priority, run_at, attempts, max_attempts, created_at, keep,
                                    keep_dead, payload, tags, target_type, target_id, error_type)
       SELECT printf('00000000-0001-7000-8000-%012x', n), 'task' || n % 10, 'queue' || n % 5, iif(n % 50, 0, 1), n % 4,
              {now} + (n - {most} / 2) * 100, iif(n % 50, 0, 1 + n % 3), 3, {now} - {most} + n, {day}, {day},
              '{{"guest": {{"id": ' || n || '}}}}', iif(n % 10, NULL, '["vip"]'), 'guest', n % 100000,
              iif(n % 50, NULL, 'ValueError')
       FROM number""",
    """INSERT INTO mainspring_archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token,
                                       worker, started_at, finished_at, expires_at, timeout, created_at, keep,
                                       keep_dead, reason, payload, tags, target_type, target_id, error_type,
                                       fingerprint)
       SELECT printf('00000000-0000-7000-8000-%012x', n), 'task' || n % 10, 'queue' || n % 5,
              CASE WHEN n % 50 = 0 THEN 5 WHEN n % 51 = 0 THEN 6 ELSE 4 END, n % 4, {now} - {day} + n * 100,
              1 + (n % 20 = 0), 3, 0, 1, 'w' || n % 4, {now} - {day} + n * 100 - n * 37 % 1000, {now} - {day} + n * 100,
              iif(n % 3, {now} - {day} + n * 100 + 7 * {day}, {now} + {day} * (n % 7 + 1)), 0, {now} - 2 * {day} + n,
              {day}, {day}, '', '{{"guest": {{"id": ' || n || '}}}}', iif(n % 10, NULL, '["vip"]'), 'guest', n % 100000,
              iif(n % 50, NULL, 'ValueError'), iif(n % 50, NULL, printf('%016x', n / 50 % 10))
       FROM number""",
]
SQLITE_MORE = """
INSERT INTO mainspring_tags SELECT 'vip', id FROM mainspring_jobs WHERE tags IS NOT NULL
UNION ALL SELECT 'vip', id FROM mainspring_archive WHERE tags IS NOT NULL;
INSERT INTO mainspring_counts SELECT queue, status, count(*) FROM mainspring_jobs GROUP BY queue, status
UNION ALL SELECT queue, status, count(*) FROM mainspring_archive GROUP BY queue, status;
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {audited})
INSERT INTO mainspring_audit SELECT 'op' || n, iif(n > 10, 'cancel', 'edit'), n, 'ana' || n % 100, '', '{{}}', 1 FROM number;
INSERT INTO mainspring_audit_jobs SELECT printf('00000000-0001-7000-8000-%012x', 1 + substr(operation, 3) % 1000), operation, action
FROM mainspring_audit;
WITH RECURSIVE number(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM number WHERE n < 2879),
{periods}, {places}, {lines}
INSERT INTO mainspring_numbers
SELECT period, task, queue, ({now} / length - n) * length, measure, bucket, 1 + n % 7
FROM periods JOIN number ON n < kept CROSS JOIN places CROSS JOIN lines;
"""
POSTGRES = [
    """INSERT INTO mainspring.jobs (id, task, queue, status, priority, run_at, attempts, max_attempts, created_at, keep,
                                    keep_dead, payload, tags, target_type, target_id, error_type)
       SELECT ('00000000-0001-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'task' || n % 10, 'queue' || n % 5,
              CASE WHEN n % 50 = 0 THEN 1 ELSE 0 END, n % 4, {now} + (n - {most} / 2) * 100::bigint,
              CASE WHEN n % 50 = 0 THEN 1 + n % 3 ELSE 0 END, 3, {now} - {most} + n, {day}, {day},
              '{{"guest": {{"id": ' || n || '}}}}', CASE WHEN n % 10 = 0 THEN '{{vip}}'::text[] END, 'guest', n % 100000,
              CASE WHEN n % 50 = 0 THEN 'ValueError' END
       FROM generate_series(1, {most}) AS n""",
    """INSERT INTO mainspring.archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token,
                                       worker, started_at, finished_at, expires_at, drop_day, timeout, created_at, keep,
                                       keep_dead, reason, payload, tags, target_type, target_id, error_type,
                                       fingerprint)
       SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'task' || n % 10, 'queue' || n % 5,
              CASE WHEN n % 50 = 0 THEN 5 WHEN n % 51 = 0 THEN 6 ELSE 4 END, n % 4, {now} - {day} + n * 100::bigint,
              1 + (n % 20 = 0)::integer, 3, 0, 1, 'w' || n % 4, {now} - {day} + n * 100::bigint - n::bigint * 37 % 1000,
              {now} - {day} + n * 100::bigint, {now} + {day} * (n % 7 + 1)::bigint, {today} + n % 7, 0,
              {now} - 2 * {day}::bigint + n, {day}, {day}, '', '{{"guest": {{"id": ' || n || '}}}}',
              CASE WHEN n % 10 = 0 THEN '{{vip}}'::text[] END, 'guest', n % 100000,
              CASE WHEN n % 50 = 0 THEN 'ValueError' END,
              CASE WHEN n % 50 = 0 THEN lpad(to_hex(n / 50 % 10), 16, '0') END
       FROM generate_series(1, {most}) AS n""",
]
POSTGRES_MORE = """
INSERT INTO mainspring.counts SELECT queue, status, count(*) FROM mainspring.jobs GROUP BY queue, status
UNION ALL SELECT queue, status, count(*) FROM mainspring.archive GROUP BY queue, status;
INSERT INTO mainspring.audit (operation, action, at, actor, reason, detail, n)
SELECT 'op' || n, CASE WHEN n > 10 THEN 'cancel' ELSE 'edit' END, n, 'ana' || n % 100, '', '{{}}', 1
FROM generate_series(1, {audited}) AS n;
INSERT INTO mainspring.audit_jobs (job_id, operation, action)
SELECT ('00000000-0001-7000-8000-' || lpad(to_hex(1 + n % 1000), 12, '0'))::uuid, 'op' || n,
       CASE WHEN n > 10 THEN 'cancel' ELSE 'edit' END
FROM generate_series(1, {audited}) AS n;
WITH {periods}, {places}, {lines}
INSERT INTO mainspring.numbers (period, task, queue, start, measure, bucket, n)
SELECT period, task, queue, ({now} / length - n) * length, measure, bucket, 1 + n % 7
FROM periods JOIN generate_series(0, 2879) AS n ON n < kept CROSS JOIN places CROSS JOIN lines;
"""


def values(most: int) -> dict[str, int]:
    now = int(time.time() * 1000)
    return {"now": now, "day": DAY, "most": most, "today": now // DAY + 2}


def fill_sqlite(path: Path, waiting: int = WAITING, finished: int = FINISHED) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement, most in zip(SQLITE, (waiting, finished), strict=True):
            given = values(most)
            numbers = SQLITE_NUMBERS.format(**given)
            head, _, tail = statement.format(**given).partition("SELECT")
            connection.execute(f"{head} {numbers} SELECT {tail}")
        connection.executescript(more(SQLITE_MORE, waiting))


def more(script: str, waiting: int) -> str:
    return script.format(**values(0), **NUMBERS, audited=min(AUDITED, waiting))


def fill_postgres(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        today = values(0)["today"]
        for day in range(today, today + 7):
            name = f"mainspring.archive_{day}"
            make = f"CREATE TABLE {name} PARTITION OF mainspring.archive FOR VALUES FROM ({day}) TO ({day + 1})"
            connection.execute(make.encode())
        for statement, most in zip(POSTGRES, (WAITING, FINISHED), strict=True):
            connection.execute(statement.format(**values(most)).encode())
        connection.execute(more(POSTGRES_MORE, WAITING).encode())
        connection.execute(b"VACUUM ANALYZE")


# -- what the stores themselves write ---------------------------------------------------------------------


async def fill_documents(store: Store) -> None:
    """Failure groups, from jobs that fail, and bulk changes."""
    await store.insert(
        [NewJob(id=new_id(), task=f"failing{n % 10}", queue="failing", payload="{}") for n in range(GROUPS)]
    )
    claims = await store.claim("bench", [Want("failing", GROUPS)], limit=GROUPS)
    await store.ack(
        [
            Outcome(
                claim.id,
                claim.token,
                Move.DEAD,
                failure=Failure("ValueError", "no", "trace", f"{n:016x}"),
                ref=claim.ref,
            )
            for n, claim in enumerate(claims.jobs)
        ]
    )
    for _ in range(BULK_CHANGES):
        change = BulkChange(
            new_id(), Action.CANCEL, Filter(queues=("queue1",)), "ana", "", BulkState.DONE, 100, datetime.now(UTC)
        )
        await store.write([Bundle((Write(change.key, to_data(change)),))])


# -- the reads --------------------------------------------------------------------------------------------

Reads = dict[str, Callable[[], Awaitable[object]]]
"""By name: a group of reads, a colon, and what is read."""


def filters() -> dict[str, Filter]:
    now = datetime.now(UTC)
    return {
        "all": Filter(),
        "a queue": Filter(queues=("queue1",)),
        "a queue that has none": Filter(queues=("none",)),
        "a tag": Filter(tags=("vip",)),
        "a target": Filter(target_type="guest", target_id="77"),
        "dead letters": Filter(statuses=(Status.DEAD_LETTER,)),
        "waiting jobs that are due": Filter(statuses=(Status.PENDING,), due_before=now),
        "a failure group": Filter(fingerprint=GROUP),
        "a payload that none has": Filter(payload={"guest.id": -1}),
        "an error type": Filter(error_type="ValueError"),
        "changed in the last minute": Filter(changed_after=now - timedelta(minutes=1)),
        "changed in the last hour": Filter(changed_after=now - timedelta(hours=1)),
    }


def reads(app: Mainspring) -> Reads:
    return {**lists(app.store), **others(app.store), **audits(app.store), **of_application(app)}


def lists(store: Store) -> Reads:
    return {
        f"jobs by {sort}: {name}, {direction}": lambda w=where, s=sort, d=direction: store.find(  # type: ignore[misc]
            w, sort=s, descending=d == "descending"
        )
        for sort in Sort
        for name, where in filters().items()
        for direction in ("descending", "ascending")
    }


def others(store: Store) -> Reads:
    found: Reads = {"stats: all queues": store.stats}
    for name, where in filters().items():
        found[f"count up to 10,000: {name}"] = lambda w=where: store.count_up_to(w, 10_000)  # type: ignore[misc]
    for what in Completable:
        found[f"completion: {what}"] = lambda w=what: store.complete(w, "")  # type: ignore[misc]
    return found


def audits(store: Store) -> Reads:
    wanted = {
        "all": None,
        "an actor": AuditFilter(actor="ana7"),
        "an actor that is not there": AuditFilter(actor="nobody"),
        "an action": AuditFilter(action="cancel"),
        "an action of long ago": AuditFilter(action="edit"),
        "an action that is not there": AuditFilter(action="nothing"),
        "a job": AuditFilter(job=f"00000000-0001-7000-8000-{7:012x}"),
        "an operation": AuditFilter(operation="op7"),
    }
    return {f"audit log: {name}": lambda w=where: store.audit(w) for name, where in wanted.items()}  # type: ignore[misc]


def of_application(app: Mainspring) -> Reads:
    return {
        "numbers: 24 hours, by hour": app.numbers,
        "numbers: 48 hours, by minute": lambda: app.numbers(since=timedelta(hours=48), step="minute"),
        "numbers: 30 days, by hour": lambda: app.numbers(since=timedelta(days=30)),
        "numbers: 700 days, by day": lambda: app.numbers(since=timedelta(days=700), step="day"),
        "numbers: 24 hours of a task": lambda: app.numbers(task="task1"),
        "numbers: 24 hours, each queue": lambda: app.numbers(by="queue"),
        "numbers: 24 hours, each task": lambda: app.numbers(by="task"),
        "failure groups: list": app.failures.list,
        "failure groups: list of a task": lambda: app.failures.list(task="failing7"),
        "failure groups: list of a task that is not there": lambda: app.failures.list(task="nothing"),
        "failure groups: list of a state": lambda: app.failures.list(state="open"),
        "failure groups: list of a rare state": lambda: app.failures.list(state="resolved"),
        "failure groups: list of the last hour": lambda: app.failures.list(
            since=datetime.now(UTC) - timedelta(hours=1)
        ),
        "failure groups: one": lambda: app.failures.get(GROUP),
        "bulk changes: list": app.bulk.list,
        **counts_of_bulk_changes(app),
    }


def counts_of_bulk_changes(app: Mainspring) -> Reads:
    """What `app.bulk.start` counts before it answers."""
    return {
        f"bulk changes: count to {action}, {name}": lambda a=action, w=where: app.bulk.count(a, w)  # type: ignore[misc]
        for action in (Action.CANCEL, Action.RETRY, Action.DELETE)
        for name, where in filters().items()
    }


class StoreTime:
    """Adds up the time that the calls of a store take, in milliseconds. What the caller makes of an answer is extra."""

    def __init__(self, store: Store) -> None:
        self.taken = 0.0
        self._within = False  # a call of the store: those that it makes itself are part of it
        for name, method in inspect.getmembers(store, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                setattr(store, name, self._timed(method))

    def _timed(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **options: Any) -> Any:
            if self._within:
                return await method(*args, **options)
            began, self._within = time.perf_counter(), True
            try:
                return await method(*args, **options)
            finally:
                self.taken += 1000 * (time.perf_counter() - began)
                self._within = False

        return call


async def measure(url: str) -> dict[str, float]:
    """The median of each read, in milliseconds."""
    app = Mainspring(url)
    await app.store.open()
    await fill_documents(app.store)
    await app.failures.list()  # adds up the failures
    store_time = StoreTime(app.store)
    try:
        return {name: await median_of(read, store_time) for name, read in reads(app).items()}
    finally:
        await app.close()


async def median_of(read: Callable[[], Awaitable[object]], store_time: StoreTime) -> float:
    taken = []
    for _ in range(TIMES):
        before = store_time.taken
        await read()
        taken.append(store_time.taken - before)
    return median(taken)


async def create(url: str) -> None:
    app = Mainspring(url)
    await app.store.open()
    await app.close()


def main() -> None:
    options = parse()
    path = kept_reads()
    if not options.no_run:
        WORK.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="reads-", dir=WORK) as folder:
            run(Path(folder)).save(path)
    if not path.exists():
        raise SystemExit("no results are kept here: run it without --no-run")
    results = ReadResults.load(path)
    print(table.as_text(table.reads(results)), table.as_text(table.all_reads(results)), sep="\n\n")
    if options.write_docs:
        page.write({}, DOCS, results)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.reads", description=__doc__)
    parser.add_argument("--write-docs", action="store_true", help="write the section of docs/benchmarks.md")
    parser.add_argument("--no-run", action="store_true", help="use the results of the last run")
    return parser.parse_args()


def run(folder: Path) -> ReadResults:
    command = shlex.join(["python", "-m", "bench.reads", *sys.argv[1:]])
    results = ReadResults(f"{datetime.now(UTC):%Y-%m-%d}", command, machine.describe(folder, sqlite=True))
    say("SQLite: filling, then reading")
    results.figures["SQLite"] = of_sqlite(folder / "jobs.db")
    server = Server(folder / "server")
    server.start()
    try:
        results.machine["PostgreSQL"] = server.settings()["server_version"]
        say("PostgreSQL: filling, then reading")
        results.figures["PostgreSQL"] = of_postgres(server)
    finally:
        server.stop()
    return results


def of_sqlite(path: Path) -> dict[str, float]:
    url = f"sqlite:///{path}"
    asyncio.run(create(url))
    fill_sqlite(path)
    return asyncio.run(measure(url))


def of_postgres(server: Server) -> dict[str, float]:
    server.create("reads")
    url = server.url("reads")
    asyncio.run(create(url))
    fill_postgres(url)
    return asyncio.run(measure(url))


if __name__ == "__main__":
    main()
