"""Write what a process has counted, and close its connections, when it ends without closing its store.

Two hooks do that. When an event loop ends that has used the store, as `asyncio.run` does, the client calls `write`.
What is left when Python exits is written by the loop that serves synchronous callers, or by a new one.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
from functools import cache

from mainspring.log import get_log
from mainspring.stores.dynamodb import numbers
from mainspring.stores.dynamodb.table import Table

log = get_log("mainspring.dynamodb")

MAX_SECONDS = 3.0  # for which the end of a program is delayed if the service does not answer
RETRY_SECONDS = 1.0  # for which a call is repeated

LOST = "the process ends and could not write what it has counted last; stats and numbers over time will lack that"

open_tables: dict[int, Table] = {}  # by id, until the store is closed


def register(table: Table) -> None:
    add_hooks()
    open_tables[id(table)] = table
    table.client.before_end[id(table)] = lambda: write(table)


def forget(table: Table) -> None:
    open_tables.pop(id(table), None)
    table.client.before_end.pop(id(table), None)


@cache
def add_hooks() -> None:
    atexit.register(end_all)
    os.register_at_fork(after_in_child=forget_what_the_parent_counted)


def forget_what_the_parent_counted() -> None:
    """Leave it to the parent to write its counts; otherwise they would be written twice."""
    for table in open_tables.values():
        table.forget_counted()
        table.client.abandon_connections()


async def write(table: Table) -> None:
    """Write what is counted, in bounded time. What cannot be written is lost, and one line of the log says so."""
    if not table.has_counted():
        return
    try:
        with table.client.hurry(RETRY_SECONDS):
            async with asyncio.timeout(MAX_SECONDS):
                await write_all(table)
    except TimeoutError:
        report_loss(table, "DynamoDB did not answer in time")


async def write_all(table: Table) -> None:
    await table.finish()
    problem = await table.write_counts() or await numbers.write(table)
    if problem is not None:
        report_loss(table, problem)


def report_loss(table: Table, error: str) -> None:
    """Log that counts are lost, and drop them: a second attempt would delay the exit and log a second line."""
    table.forget_counted()
    log.warning("numbers_lost", message=LOST, error=error)


# -- the exit of Python ------------------------------------------------------------------------------------


def end_all() -> None:
    ends = time.monotonic() + MAX_SECONDS
    for table in list(open_tables.values()):
        try:
            end(table, ends)
        except Exception as error:  # noqa: BLE001 - the exit must go on
            report_loss(table, str(error) or type(error).__name__)
        table.client.abandon_connections()
        forget(table)


def end(table: Table, ends: float) -> None:
    """Write and close on the loops that still run in other threads; without one, on a new loop."""
    for loop in table.client.running_loops():
        asyncio.run_coroutine_threadsafe(close(table), loop).result(max(0.0, ends - time.monotonic()))
    if table.has_counted():
        asyncio.run(asyncio.wait_for(close(table), max(0.0, ends - time.monotonic())))


async def close(table: Table) -> None:
    await write(table)
    await table.client.close()
