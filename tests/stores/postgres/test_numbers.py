"""Numbers over time in PostgreSQL: folding beside other workers, open transactions and lost connections."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from mainspring.errors import StoreUnavailable
from mainspring.stores.numbers import Measure, NumbersQuery, Period, Span
from mainspring.stores.postgres import PostgresStore, numbers
from tests.conformance.scenario import new_job, put, put_many
from tests.stores.postgres.several import Stores

pytestmark = pytest.mark.slow

FOREVER = 1 << 52
ALL = NumbersQuery((Span(Period.DAY, 0, FOREVER),))


async def enqueued(store: PostgresStore, query: NumbersQuery = ALL) -> int:
    return sum(figure.total(Measure.ENQUEUED) for figure in await store.numbers(query))


def in_table(stores: Stores) -> int:
    (number,) = stores.ask("SELECT sum(n)::bigint FROM {s}.numbers WHERE period = 2 AND task = '' AND queue = ''")
    return int(number or 0)


async def test_what_commits_late_is_counted_once(stores: Stores) -> None:
    store = await stores.another()
    await put(store)
    connection = await psycopg.AsyncConnection.connect(stores.dsn)
    async with connection:
        await store.insert([new_job() for _ in range(3)], connection=connection)
        await put(store)
        await store.prune()  # folds around the open transaction
        assert (await enqueued(store), in_table(stores)) == (2, 2)
    assert (await enqueued(store), in_table(stores)) == (5, 2)
    for _ in range(2):
        await store.prune()
        assert (await enqueued(store), in_table(stores)) == (5, 5)


async def test_a_transaction_of_the_caller_that_is_rolled_back_leaves_no_trace(stores: Stores) -> None:
    store = await stores.another()
    connection = await psycopg.AsyncConnection.connect(stores.dsn)
    async with connection:
        await store.insert([new_job()], connection=connection)
        await connection.rollback()
    await store.prune()
    assert await enqueued(store) == 0


async def test_a_fold_that_is_cut_off_has_counted_nothing(stores: Stores) -> None:
    store = await stores.another()
    await put_many(store, 5)

    async def cut_off(transaction: Any) -> None:
        await numbers.fold(transaction)
        raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        await store._run(cut_off)
    assert (await enqueued(store), in_table(stores)) == (5, 0)
    await store.prune()
    assert (await enqueued(store), in_table(stores)) == (5, 5)


async def test_only_one_worker_folds_at_a_time(stores: Stores) -> None:
    first, second = await stores.another(), await stores.another()
    await put_many(first, 5)

    async def beside(transaction: Any) -> None:
        assert await numbers.fold(transaction) is not None
        assert await second._run(numbers.fold) is None
        assert await enqueued(second) == 5

    await first._run(beside)
    assert in_table(stores) == 5


async def test_numbers_are_exact_among_many_writers_folders_and_lost_connections(stores: Stores) -> None:
    """Writers commit and roll back, workers fold, and the server ends all connections now and then."""
    chance = random.Random(7)
    shared = [await stores.another() for _ in range(4)]
    ids: set[str] = set()
    going = True

    async def write(store: PostgresStore, name: str) -> None:
        for _ in range(40):
            jobs = [new_job(task=name) for _ in range(chance.randint(1, 3))]
            if chance.random() < 0.2:
                await lend(store, jobs, keep=chance.random() < 0.5)
                continue
            await store.insert(jobs)
            ids.update(job.id for job in jobs)

    async def lend(store: PostgresStore, jobs: Sequence[Any], *, keep: bool) -> None:
        with suppress(psycopg.OperationalError, StoreUnavailable):
            async with await psycopg.AsyncConnection.connect(stores.dsn) as connection:
                await store.insert(jobs, connection=connection)
                await asyncio.sleep(0.01)
                if not keep:
                    await connection.rollback()
            if keep:
                ids.update(job.id for job in jobs)

    async def fold(store: PostgresStore) -> None:
        while going:
            with suppress(StoreUnavailable):
                await store.prune()

    folders = [asyncio.create_task(fold(store)) for store in shared[:2]]
    writers = asyncio.gather(*(write(store, f"t{number}") for number, store in enumerate(shared)))
    for _ in range(3):
        await asyncio.sleep(0.1)
        await asyncio.to_thread(stores.terminate)
    await writers
    going = False
    await asyncio.gather(*folders)
    by_task = NumbersQuery(ALL.spans, by="task")
    assert (await enqueued(shared[0]), await enqueued(shared[0], by_task)) == (len(ids), len(ids))
    await shared[0].prune()
    assert in_table(stores) == await enqueued(shared[0]) == len(ids)


async def test_after_a_restored_dump_the_numbers_go_on(stores: Stores) -> None:
    store = await stores.another()
    await put_many(store, 2)
    await store.prune()
    stores.ask("UPDATE {s}.feed SET folded = '99999999:99999999:', folded_in = 'another database'")
    await put(store)  # between the restore and the first fold: this one is not counted
    assert await enqueued(store) == 2
    await store.prune()
    await put(store)
    assert await enqueued(store) == 3
    await store.prune()
    assert await enqueued(store) == in_table(stores) == 3


FILL = """
INSERT INTO {s}.numbers (period, task, queue, start, measure, bucket, n)
SELECT period, task, CASE WHEN task = '' THEN '' ELSE 'default' END, start * 60000, measure, 0, 1
FROM generate_series(0, 2) AS period, unnest(ARRAY['', 'a', 'b', 'c']) AS task,
     generate_series(1, 2000) AS start, generate_series(0, 4) AS measure
"""


@pytest.mark.parametrize("analyzed", [True, False])
async def test_a_read_seeks_its_lines(stores: Stores, analyzed: bool) -> None:
    store = await stores.another()
    stores.ask(FILL)
    if analyzed:
        stores.ask("ANALYZE {s}.numbers")
    given = {"periods": "{0}", "tasks": "{a}", "queues": "{default}", "sinces": "{60000}", "untils": "{600000}"}
    assert node_types(stores, numbers.READ, given) & {"Index Scan", "Index Only Scan", "Bitmap Index Scan"}
    found = await store.numbers(NumbersQuery((Span(Period.MINUTE, 60_000, 600_000),), task="a"))
    assert sum(sum(figure.counts.values()) for figure in found) == 9 * 5
    assert "Seq Scan" not in node_types(stores, numbers.ALL_PLACES, {"periods": "{0}"})
    nothing = {"since": "1000000000", "late": []}
    assert "Seq Scan" not in node_types(stores, numbers.NOT_FOLDED, nothing, freely="off")


def node_types(stores: Stores, statement: str, given: dict[str, Any], freely: str = "on") -> set[str]:
    with stores.connect() as connection:
        connection.execute(f"SET enable_seqscan = {freely}".encode())
        query = f"EXPLAIN (FORMAT JSON) {statement}".replace("{s}", stores.schema).encode()
        text = json.dumps(connection.execute(query, given).fetchall())
    return {part.split('"')[0] for part in text.split('"Node Type": "')[1:]}
