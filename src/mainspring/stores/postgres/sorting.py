"""Sorted pages and capped counts. stores/sorting.py explains lanes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mainspring.job import Status
from mainspring.queue_patterns import is_among
from mainspring.stores.postgres.read import Conditions, counts
from mainspring.stores.postgres.rows import COLUMNS, FINISHED, LIVE, is_id, to_job
from mainspring.stores.postgres.transaction import PLAN_FREELY, Transaction
from mainspring.stores.protocol import CappedCount, Filter, Page, Sort
from mainspring.stores.sorting import (
    ALL_ROWS,
    QUICK,
    UNSELECTIVE,
    Bound,
    Found,
    Lane,
    Order,
    PageRequest,
    Spot,
    failed_statuses,
    is_answered,
    merge,
    not_a_cursor,
    shared_look,
)
from mainspring.stores.tables import CODES, RUNNING

ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"  # a job that moves between tables is seen once
LASTED = f"({FINISHED}.finished_at - {FINISHED}.started_at)"
# The condition of the index by duration
SLOW = f"{FINISHED}.started_at > 0 AND {FINISHED}.started_at <= {FINISHED}.finished_at - {QUICK}"
WAITS = f"jobs.status < {RUNNING} AND jobs.crashes = 0 AND NOT jobs.aside"
SUSPECT = f"jobs.status < {RUNNING} AND jobs.crashes > 0"
ASIDE = f"jobs.status < {RUNNING} AND jobs.crashes = 0 AND jobs.aside"


# -- pages ----------------------------------------------------------------------------------------


async def find(transaction: Transaction, request: PageRequest) -> Page:
    if request.start is not None and not is_id(str(request.start[1])):
        raise not_a_cursor(request.start[1])
    async with transaction.connection.transaction():
        await transaction.do(ONE_SNAPSHOT)
        found = [part for table in (LIVE, FINISHED) for part in await search(transaction, table, request)]
    rows, end = merge(found, request.order, request.limit)
    return request.page([to_job(row) for row in rows], end)


async def search(transaction: Transaction, table: str, request: PageRequest) -> list[Found]:
    where, order = request.where, request.order
    if Conditions(where, table).impossible or not order.takes_any(finished=table == FINISHED):
        return []
    if await is_selective(transaction, where, order, table):
        lane = exact_lane(order, table)
        beyond = lane.ranges(order, request.start)
        return [await read_rows(transaction, lane, beyond, request, few=True)] if beyond else []
    await transaction.rows(PLAN_FREELY, freely="off")
    lanes = await lanes_of(transaction, where, order, table)
    found = [await read_lane(transaction, lane, request) for lane in lanes]
    await transaction.rows(PLAN_FREELY, freely="on")
    return found


async def read_lane(transaction: Transaction, lane: Lane, request: PageRequest) -> Found:
    """Read a lane until there are enough rows, or enough were looked at."""
    beyond = lane.ranges(request.order, request.start)
    if not beyond:
        return Found(())
    if lane.complete or (request.where == Filter() and not lane.rest):
        return await read_rows(transaction, lane, beyond, request)
    until = await last_looked_at(transaction, lane, beyond, request.order)
    found = await read_rows(transaction, lane, lane.ranges(request.order, request.start, until), request)
    return found if found.until is not None else replace(found, until=until)


async def last_looked_at(transaction: Transaction, lane: Lane, beyond: Sequence[Bound], order: Order) -> Spot | None:
    """Return where the read ends because enough rows were looked at; None if there are fewer rows."""
    conditions = bounded(Conditions(Filter(), lane.table), lane, beyond)
    statement = f"""SELECT {spot_of(lane)} FROM {{s}}.{lane.table} WHERE {conditions}
                    ORDER BY {lane.sorted_by(order)} LIMIT 1 OFFSET {lane.look - 1}"""
    row = await transaction.row(statement, **conditions.values)
    return None if row is None else (row[0], row[1])


async def read_rows(
    transaction: Transaction, lane: Lane, bounds: Sequence[Bound], request: PageRequest, *, few: bool = False
) -> Found:
    """Read the next rows of a lane; with `few`, read all rows by whichever index finds them, and sort these."""
    conditions = bounded(Conditions(request.where, lane.table), lane, bounds)
    if lane.rest:
        conditions.add(lane.rest)
    found, source = "", f"{{s}}.{lane.table} WHERE {conditions}"
    if few:  # otherwise a planner that expects many matches walks all jobs in order, and may find none
        found, source = f"WITH {lane.table} AS MATERIALIZED (SELECT * FROM {source})", lane.table
    statement = f"""{found} SELECT {spot_of(lane)}, {COLUMNS[lane.table]} FROM {source}
                    ORDER BY {lane.sorted_by(request.order)} LIMIT %(limit)s"""
    read = await transaction.rows(statement, **conditions.values, limit=request.limit + 1)
    rows = [((key, tie), row) for key, tie, *row in read]
    return Found(rows, rows[-1][0] if len(rows) > request.limit else None)


def bounded(conditions: Conditions, lane: Lane, bounds: Sequence[Bound]) -> Conditions:
    conditions.add(" AND ".join(lane.terms) or "true", *lane.values)
    for bound in bounds:
        conditions.add(bound.term, *bound.values)
    return conditions


def spot_of(lane: Lane) -> str:
    return f"{lane.key}, {lane.table}.id::text"


# -- lanes ----------------------------------------------------------------------------------------


def lane(table: str, key: str | int, *terms: str, values: tuple[Any, ...] = (), rest: str = "") -> Lane:
    return Lane(table, key, terms=terms, values=values, rest=rest, mark="?::uuid")


def exact_lane(order: Order, table: str) -> Lane:
    """Return how matching rows are sorted, if they are few."""
    match order.sort:
        case Sort.DUE:
            return lane(table, "jobs.run_at", f"jobs.status < {RUNNING}")
        case Sort.FINISHED:
            return lane(table, f"{table}.finished_at")
        case Sort.DURATION:
            return lane(table, f"CASE WHEN {SLOW} THEN {LASTED} ELSE 0 END")
        case Sort.ATTEMPTS:
            return lane(table, f"{table}.attempts")
        case _:
            return lane(table, 0)


async def lanes_of(transaction: Transaction, where: Filter, order: Order, table: str) -> list[Lane]:
    """Return the lanes of a table that together have all rows of the list."""
    match order.sort:
        case Sort.DUE:
            return shared_look([lane async for lane in due_lanes(transaction, where)])
        case Sort.FINISHED:
            return [lane(table, f"{table}.finished_at")]
        case Sort.DURATION:
            return shared_look([lane(table, LASTED, SLOW), lane(table, 0, rest=f"NOT ({SLOW})")])
        case Sort.ATTEMPTS:
            return shared_look(attempt_lanes(table))
        case _:
            return created_lanes(where, table)


def created_lanes(where: Filter, table: str) -> list[Lane]:
    """Return lanes in the order of creation: of each failed status, of a failure group, or of all jobs."""
    statuses = failed_statuses(where) if table == FINISHED else []
    group = () if where.fingerprint is None else (f"{table}.fingerprint = ?",)
    values = () if where.fingerprint is None else (where.fingerprint,)
    each_status = [(*group, f"{table}.status = {CODES[status]}") for status in statuses]
    complete = is_answered(where, statuses)
    return [replace(lane(table, 0, *terms, values=values), complete=complete) for terms in each_status or (group,)]


def attempt_lanes(table: str) -> list[Lane]:
    """Nearly all rows have the usual number, and are not in the index."""
    usual = 1 if table == FINISHED else 0
    attempts = f"{table}.attempts"
    rare = lane(table, attempts, f"{attempts} <> {usual}")
    few = [replace(rare, below=usual)] if usual else []
    return [replace(rare, above=usual), lane(table, usual, rest=f"{attempts} = {usual}"), *few]


HEADS = "SELECT queue_, apart, urgent, high, normal, low FROM {s}.look(%(queues)s::text[], NULL)"


async def due_lanes(transaction: Transaction, where: Filter) -> AsyncIterator[Lane]:
    """Yield a lane for each level of each queue that has jobs, and for the few jobs that are kept apart by task."""
    for queue, apart, *heads in await transaction.rows(HEADS, queues=list(where.queues) or None):
        if where.within and not is_among(queue, where.within):
            continue
        for level, head in enumerate(heads):
            if head is not None:
                yield lane(LIVE, "jobs.run_at", WAITS, "jobs.queue = ?", f"jobs.priority = {level}", values=(queue,))
        for term, values in apart_of(apart):
            yield lane(LIVE, "jobs.run_at", term, "jobs.queue = ?", "jobs.task = ?", values=(queue, *values))


def apart_of(apart: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    lines = json.loads(apart) if isinstance(apart, str) else apart or {}
    yield from ((SUSPECT, (task,)) for task in lines.get("suspects") or {})
    aside = {(task, int(priority)) for task, priority, _ in lines.get("aside") or ()}
    yield from ((f"{ASIDE} AND jobs.priority = {priority:d}", (task,)) for task, priority in sorted(aside))


# -- filters that few rows match ----------------------------------------------------------------------


def selective_part(where: Filter, order: Order, table: str) -> Filter:
    """Return the part of a filter that an index answers, though not in the order of the list."""
    target_id = where.target_id if where.target_type else None
    part = Filter(target_type=where.target_type, target_id=target_id, operation=where.operation)
    part = replace(part, tags=where.tags, dedupe_key=where.dedupe_key)
    if order.sort is not Sort.CREATED:
        statuses = tuple(failed_statuses(where)) if table == FINISHED else ()
        part = replace(part, fingerprint=where.fingerprint, statuses=statuses)
    if table == FINISHED:
        return replace(part, finished_after=where.finished_after, changed_after=where.changed_after)
    return part if where.statuses != (Status.RUNNING,) else replace(part, statuses=where.statuses, worker=where.worker)


async def is_selective(transaction: Transaction, where: Filter, order: Order, table: str) -> bool:
    """Return whether an index finds the few rows that match, so that they can be read and sorted as a whole."""
    if where.ids:
        return True
    part = selective_part(where, order, table)
    return part != Filter() and await number_of(transaction, part, table, UNSELECTIVE + 1) <= UNSELECTIVE


async def number_of(transaction: Transaction, where: Filter, table: str, most: int) -> int:
    conditions = Conditions(where, table)
    if conditions.impossible:
        return 0
    statement = f"SELECT count(*) FROM (SELECT 1 FROM {{s}}.{table} WHERE {conditions} LIMIT %(most)s) AS found"
    number: int = await transaction.value(statement, **conditions.values, most=most)
    return number


# -- counts ---------------------------------------------------------------------------------------


async def count_up_to(transaction: Transaction, where: Filter, cap: int) -> CappedCount:
    if where == Filter(queues=where.queues, statuses=where.statuses, within=where.within):
        lines = [
            line for line in await counts(transaction, where.within) if not where.queues or line.queue in where.queues
        ]
        return CappedCount(sum(line[status] for line in lines for status in where.statuses or Status), exact=True)
    total, exact = 0, True
    async with transaction.connection.transaction():
        await transaction.do(ONE_SNAPSHOT)
        for table in (LIVE, FINISHED):
            number, complete = await count_in(transaction, where, table, cap + 1)
            total, exact = total + number, exact and complete
    return CappedCount(min(total, cap), exact and total <= cap)


async def count_in(transaction: Transaction, where: Filter, table: str, most: int) -> tuple[int, bool]:
    """Count the matching rows of a table, up to `most`; return also whether all rows were looked at."""
    if Conditions(where, table).impossible:
        return 0, True
    order = Order()
    if await is_selective(transaction, where, order, table):
        return await number_of(transaction, where, table, most), True
    number, complete = 0, True
    await transaction.rows(PLAN_FREELY, freely="off")
    for lane in created_lanes(where, table):
        until = None if lane.complete else await last_looked_at(transaction, lane, [ALL_ROWS], order)
        within = ALL_ROWS if until is None else Bound(f"{table}.id >= ?::uuid", until[1:])
        conditions = bounded(Conditions(where, table), lane, [within])
        statement = f"SELECT count(*) FROM (SELECT 1 FROM {{s}}.{table} WHERE {conditions} LIMIT %(most)s) AS found"
        number += await transaction.value(statement, **conditions.values, most=most)
        complete = complete and until is None
    await transaction.rows(PLAN_FREELY, freely="on")
    return number, complete
