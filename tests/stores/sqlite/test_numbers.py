"""Numbers over time in SQLite: when entries are folded, and what is read."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from mainspring.stores.numbers import Measure, NumbersQuery, Period, Span
from mainspring.stores.sqlite import SqliteStore, numbers
from mainspring.stores.sqlite.transaction import FOLD_EVERY
from tests.conformance.scenario import new_job, put
from tests.stores.sqlite.template import fresh_database

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
ALL = NumbersQuery((Span(Period.DAY, 0, 1 << 52),))


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    store = SqliteStore(fresh_database())
    await store.open()
    yield store
    await store.close()


async def enqueued(store: SqliteStore) -> int:
    return sum(figure.total(Measure.ENQUEUED) for figure in await store.numbers(ALL))


def value(store: SqliteStore, statement: str) -> int:
    with closing(sqlite3.connect(store.file.path)) as connection:
        found: int = connection.execute(statement).fetchone()[0]
        return found


def folded(store: SqliteStore) -> int:
    return value(store, "SELECT folded FROM mainspring_feed")


async def test_entries_are_folded_when_there_are_many(store: SqliteStore) -> None:
    await store.insert([new_job(task=f"t{number}") for number in range(FOLD_EVERY - 10)])
    assert folded(store) == 0
    for number in range(20):
        await put(store)
        assert await enqueued(store) == FOLD_EVERY - 10 + number + 1
    assert folded(store) == FOLD_EVERY
    assert value(store, "SELECT sum(n) FROM mainspring_numbers WHERE period = 0 AND task = '' AND queue = ''") == 1024


async def test_a_transaction_of_the_caller_that_is_rolled_back_leaves_no_trace(store: SqliteStore) -> None:
    await store.insert([new_job(task=f"t{number}") for number in range(FOLD_EVERY - 1)])
    with closing(sqlite3.connect(store.file.path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        await store.insert([new_job(), new_job()], connection=connection)
        connection.execute("ROLLBACK")
    assert (await enqueued(store), folded(store)) == (FOLD_EVERY - 1, 0)
    with closing(sqlite3.connect(store.file.path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        await store.insert([new_job(), new_job()], connection=connection)
        connection.execute("COMMIT")
    assert (await enqueued(store), folded(store)) == (FOLD_EVERY + 1, FOLD_EVERY)


KILLED = """
import asyncio, os, signal, sys
from mainspring.stores.sqlite import SqliteStore, numbers
from tests.conformance.scenario import new_job

def killed(execute):
    fold(execute)
    os.kill(os.getpid(), signal.SIGKILL)

fold, numbers.fold = numbers.fold, killed

async def main():
    store = SqliteStore(sys.argv[1])
    await store.insert([new_job(task=f"t{number}") for number in range(1000)])
    print("half", flush=True)
    await store.insert([new_job(task=f"t{number}") for number in range(1000)])

asyncio.run(main())
"""


async def test_a_process_that_is_killed_while_it_folds_has_counted_nothing_of_that_transaction(
    store: SqliteStore,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(store.file.path)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (-9, "half\n")
    assert (await enqueued(store), folded(store)) == (1000, 0)
    await store.insert([new_job(task=f"t{number}") for number in range(100)])
    assert (await enqueued(store), folded(store)) == (1100, 1100)


@pytest.mark.parametrize(
    ("statement", "given", "intended"),
    [
        (numbers.READ, 5, "SEARCH mainspring_numbers USING PRIMARY KEY (period=? AND task=? AND queue=? AND start>?"),
        (numbers.FORGET, 4, "SEARCH mainspring_numbers USING PRIMARY KEY (period=? AND task=? AND queue=? AND start<?"),
        (numbers.NEXT_PLACE, 3, "SEARCH mainspring_numbers USING PRIMARY KEY (period=? AND (task,queue,start)>("),
        (numbers.NOT_FOLDED, 0, "SEARCH mainspring_changes USING INTEGER PRIMARY KEY (rowid>?)"),
        (numbers.KNOWN, 1, "SEARCH old USING PRIMARY KEY (period=? AND task=? AND queue=?)"),
    ],
)
async def test_no_statement_reads_a_whole_table(store: SqliteStore, statement: str, given: int, intended: str) -> None:
    with closing(sqlite3.connect(store.file.path)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", [1] * given)]
    assert any(line.startswith(intended) for line in plan), plan
    assert not [line for line in plan if line.startswith("SCAN mainspring_") and "mainspring_feed" not in line]


FILL = """
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 5000)
INSERT INTO mainspring_numbers SELECT 0, task, 'default', n * 60000, 0, 0, 1
FROM number CROSS JOIN (SELECT 'a' AS task UNION ALL SELECT 'b')
"""


async def test_the_next_place_is_found_without_reading_the_numbers_of_the_last_one(store: SqliteStore) -> None:
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    with closing(sqlite3.connect(store.file.path)) as connection:
        connection.execute(FILL)
        connection.set_progress_handler(count, 1)
        assert list(numbers.places(connection.execute, Period.MINUTE)) == [("a", "default"), ("b", "default")]
    assert steps < 500
