"""Numbers over time. They are not part of the jobs' writes, so they are an estimate.

Each process counts in memory and adds what it has counted every few seconds, to one of several partitions, and at its
end (see last_numbers.py). A process that is killed loses the last seconds. There is an item for each period, queue and
task, with an attribute for each measure and bucket. The service deletes it when its time is over. A read adds up all
items of the wanted time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from mainspring.errors import StoreError
from mainspring.log import get_log
from mainspring.stores.dynamodb.counts import SLOTS
from mainspring.stores.dynamodb.items import NUMBERS, key, number_name, ttl
from mainspring.stores.dynamodb.table import Table, together
from mainspring.stores.dynamodb.values import Condition, Row, update
from mainspring.stores.engine.numbers import Row as Counted
from mainspring.stores.engine.numbers import spread
from mainspring.stores.numbers import (
    Counts,
    Figure,
    Line,
    NumbersQuery,
    Period,
    Span,
    answer,
    measure_and_bucket,
    slot,
)

log = get_log("mainspring.dynamodb")

Item = tuple[Period, int, str, str]  # a period, its start, a task and a queue


def settle(table: Table) -> None:
    """Write the numbers in the background if it is time. Call it after each operation."""
    if table.numbers.due():
        chore = asyncio.get_running_loop().create_task(write(table))
        table.chores.add(chore)
        chore.add_done_callback(table.chores.discard)


async def write(table: Table) -> None:
    """Write what was counted. What cannot be written is lost: it may have been written without an answer."""
    rows = table.numbers.take()
    for row in rows_by_item(rows).items():
        try:
            await add(table, *row)
        except StoreError as error:
            log.debug("numbers_not_written", error=str(error))


def rows_by_item(rows: Iterable[Counted]) -> dict[Item, dict[str, int]]:
    found: dict[Item, dict[str, int]] = {}
    for line in spread(rows):
        if line.task:  # totals are not stored here: each would be another write
            names = {number_name(*measure_and_bucket(key)): n for key, n in line.counts.items()}
            found[line.period, line.start, line.task, line.queue] = names
    return found


def write_now(table: Table, ends: float) -> None:
    """Write what was counted from code without an event loop, until this monotonic time."""
    for row in rows_by_item(table.numbers.take()).items():
        table.call_now("UpdateItem", addition(table, *row), ends)


async def add(table: Table, item: Item, values: dict[str, int]) -> None:
    await table.update(addition(table, item, values))


def addition(table: Table, item: Item, values: dict[str, int]) -> dict[str, Any]:
    """Return the request that adds the values to an item."""
    period, start, task, queue = item
    where = key(f"numbers#{period.name.lower()}#{table.counts.slot}", f"{start:014d}#{queue}#{task}")
    fixed = {"queue": queue, "job_type": task, "ttl": ttl(start + period.length + period.kept)}
    return update(where, fixed, add=values)


async def read(table: Table, query: NumbersQuery) -> list[Figure]:
    """Return the numbers, with all that this process has counted."""
    await table.finish()
    await write(table)
    parts = await together([rows_of(table, span, part) for span in query.spans for part in range(SLOTS)])
    return answer(query, [line for lines in parts for line in lines])


async def rows_of(table: Table, span: Span, part: int) -> list[Line]:
    """Return the lines of a span. Items that the service should have deleted by now do not count."""
    since = max(span.since, table.clock.now() - span.period.kept)
    partition = f"numbers#{span.period.name.lower()}#{part}"
    rows = await table.rows(partition, Condition("{name} >= {value}", "SK", f"{since:014d}"))
    return [line for row in rows for line in lines_of(span.period, row) if line.start < span.until]


def lines_of(period: Period, row: Row) -> Iterator[Line]:
    start, task, queue = int(str(row["SK"]).partition("#")[0]), str(row["job_type"]), str(row["queue"])
    counts = counts_of(row)
    for place in ((task, queue), ("", queue), ("", "")):
        yield Line(period, start, *place, counts)


def counts_of(row: Row) -> Counts:
    return {slot(*NUMBERS[name]): int(number) for name, number in row.items() if name in NUMBERS and number}
