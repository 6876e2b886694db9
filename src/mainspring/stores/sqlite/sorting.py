"""Sorted pages and capped counts. stores/sorting.py explains lanes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from mainspring.job import Status
from mainspring.queue_patterns import is_among
from mainspring.stores.protocol import CappedCount, Filter, Page, Sort
from mainspring.stores.sorting import (
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
    shared_look,
)
from mainspring.stores.sqlite.claims import ALL_ASIDE, ALL_SUSPECT, ALL_WAITING, PRIORITIES, each
from mainspring.stores.sqlite.read import IN_FAILED, Conditions, number_of
from mainspring.stores.sqlite.rows import COLUMNS, FINISHED, KEPT_A_WEEK, KEPT_OTHERWISE, LIVE, to_job
from mainspring.stores.tables import CODES, RUNNING, STATUSES

LASTED = f"{FINISHED}.finished_at - {FINISHED}.started_at"
# In another form than LASTED: SQLite would take it for the range to read, and not the bound of the page.
SLOW = f"{FINISHED}.started_at > 0 AND {FINISHED}.started_at <= {FINISHED}.finished_at - {QUICK}"


# -- pages ----------------------------------------------------------------------------------------


def find(connection: sqlite3.Connection, request: PageRequest) -> Page:
    found: list[Found] = []
    where, order = request.where, request.order
    for table in (LIVE, FINISHED):
        conditions = Conditions(where, table)
        if conditions.impossible or not order.takes_any(finished=table == FINISHED):
            continue
        if is_selective(connection, where, order, table):
            found.append(read_lane(connection, exact_lane(order, table), conditions, request))
        else:
            plain = Conditions(where, table, correlated=True)
            lanes = lanes_of(connection, where, order, table)
            found += [read_lane(connection, lane, plain, request) for lane in lanes]
    rows, end = merge(found, order, request.limit)
    return request.page([to_job(row) for row in rows], end)


def source(lane: Lane) -> str:
    return f"{lane.table} {f'INDEXED BY {lane.index}' if lane.index else ''}"


def read_lane(connection: sqlite3.Connection, lane: Lane, conditions: Conditions, request: PageRequest) -> Found:
    """Read a lane until there are enough rows, or enough were looked at."""
    if lane.unordered or lane.complete or (not conditions.terms and not lane.rest):
        return read_rows(connection, lane, lane.ranges(request.order, request.start), conditions, request)
    until = last_looked_at(connection, lane, request.order, request.start)
    found = read_rows(connection, lane, lane.ranges(request.order, request.start, until), conditions, request)
    return found if found.until is not None else replace(found, until=until)


def last_looked_at(connection: sqlite3.Connection, lane: Lane, order: Order, start: Spot | None) -> Spot | None:
    """Return where the read ends because enough rows were looked at; None if there are fewer rows."""
    skipped = lane.look - 1
    for term, bounds, ties in lane.ranges(order, start):
        rows, values = f"{source(lane)} WHERE {' AND '.join([*lane.terms, term])}", (*lane.values, *bounds)
        sorting = lane.sorted_by(order, ties=ties)
        statement = f"SELECT {lane.spot} FROM {rows} ORDER BY {sorting} LIMIT 1 OFFSET {skipped}"
        if (row := connection.execute(statement, values).fetchone()) is not None:
            return cast("Spot", row)
        if ties:
            skipped -= connection.execute(f"SELECT count(*) FROM {rows}", values).fetchone()[0]
    return None


def read_rows(
    connection: sqlite3.Connection, lane: Lane, ranges: Sequence[Bound], conditions: Conditions, request: PageRequest
) -> Found:
    rows: list[tuple[Spot, Any]] = []
    for term, bounds, ties in ranges:
        terms = [*lane.terms, term, str(conditions), *([lane.rest] if lane.rest else [])]
        values = (*lane.values, *bounds, *conditions.values, request.limit + 1 - len(rows))
        statement = f"""SELECT {lane.spot}, {COLUMNS[lane.table]} FROM {source(lane)} WHERE {" AND ".join(terms)}
                        ORDER BY {lane.sorted_by(request.order, ties=ties)} LIMIT ?"""
        rows += [((key, tie), row) for key, tie, *row in connection.execute(statement, values)]
        if len(rows) > request.limit:
            return Found(rows, rows[-1][0])
    return Found(rows)


# -- lanes ----------------------------------------------------------------------------------------


def exact_lane(order: Order, table: str) -> Lane:
    """Return how matching rows are sorted, if they are few."""
    match order.sort:
        case Sort.DUE:
            lane = Lane(table, f"{table}.run_at", tie="seq", terms=(f"{table}.status < {RUNNING}",))
        case Sort.FINISHED:
            lane = Lane(table, f"{table}.finished_at")
        case Sort.DURATION:
            lane = Lane(table, f"iif({SLOW}, {LASTED}, 0)")
        case Sort.ATTEMPTS:
            lane = Lane(table, f"{table}.attempts")
        case _:
            lane = Lane(table, 0)
    return replace(lane, unordered=True)


def lanes_of(connection: sqlite3.Connection, where: Filter, order: Order, table: str) -> list[Lane]:
    """Return the lanes of a table that together have all rows of the list."""
    match order.sort:
        case Sort.DUE:
            return shared_look(list(due_lanes(connection, where)))
        case Sort.FINISHED:
            end = f"{table}.finished_at"
            usual = Lane(table, end, "mainspring_archive_week", (KEPT_A_WEEK,))
            return shared_look([usual, Lane(table, end, "mainspring_archive_finished", (KEPT_OTHERWISE,))])
        case Sort.DURATION:
            slow = Lane(table, LASTED, "mainspring_archive_duration", (SLOW,), split=True)
            return shared_look([slow, Lane(table, 0, rest=f"NOT ({SLOW})")])
        case Sort.ATTEMPTS:
            return shared_look(attempt_lanes(table))
        case _:
            return created_lanes(where, table)


def created_lanes(where: Filter, table: str) -> list[Lane]:
    """Return lanes in the order of creation: of each failed status, of a failure group, or of all jobs."""
    statuses = failed_statuses(where) if table == FINISHED else []
    group = () if where.fingerprint is None else (f"{table}.fingerprint = ?",)
    values = () if where.fingerprint is None else (where.fingerprint,)
    index = "mainspring_archive_failed" if statuses else ""
    if where.fingerprint is not None:
        index = f"mainspring_{'archive' if table == FINISHED else 'jobs'}_failure{'_status' if statuses else ''}"
    partial = () if group else (IN_FAILED,)
    each_status = [(*group, f"{table}.status = {CODES[status]}", *partial) for status in statuses]
    complete = is_answered(where, statuses)
    return [Lane(table, 0, index, terms, values, complete=complete) for terms in each_status or (group,)]


def attempt_lanes(table: str) -> list[Lane]:
    """Nearly all rows have the usual number, and are not in the index."""
    usual, name = (1, "archive") if table == FINISHED else (0, "jobs")
    attempts = f"{table}.attempts"
    rare = Lane(table, attempts, f"mainspring_{name}_attempts", (f"{attempts} <> {usual}",))
    few = [replace(rare, below=usual)] if usual else []
    return [replace(rare, above=usual), Lane(table, usual, rest=f"{attempts} = {usual}"), *few]


def due_lanes(connection: sqlite3.Connection, where: Filter) -> Iterator[Lane]:
    """Yield a lane for each level of each queue, and for the few jobs that are kept apart by their task."""
    for source, index in ((ALL_WAITING, "waiting"), (ALL_SUSPECT, "suspect"), (ALL_ASIDE, "aside")):
        names = connection.execute(f"WITH RECURSIVE {each('names', 'queue', source)} SELECT queue FROM names")
        condition = source.partition("WHERE ")[2]
        for queue in (name for (name,) in names.fetchall() if name is not None and is_wanted(name, where)):
            for terms, values in branches(connection, index, source, queue):
                yield Lane(
                    LIVE, f"{LIVE}.run_at", f"mainspring_jobs_{index}",
                    (condition, "queue = ?", *terms), (queue, *values), tie="seq", split=True,
                )  # fmt: skip


def is_wanted(queue: str, where: Filter) -> bool:
    return (not where.queues or queue in where.queues) and (not where.within or is_among(queue, where.within))


def branches(
    connection: sqlite3.Connection, index: str, source: str, queue: str
) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...]]]:
    """Yield the further columns by which an index separates the jobs of a queue before it sorts them by time."""
    if index == "waiting":
        yield from (((f"priority = {level}",), ()) for level in PRIORITIES)
        return
    statement = f"WITH RECURSIVE {each('names', 'task', f'{source} AND queue = :queue')} SELECT task FROM names"
    for (task,) in connection.execute(statement, {"queue": queue}).fetchall():
        if task is not None and index == "suspect":
            yield ("task = ?",), (task,)
        elif task is not None:
            yield from ((("task = ?", f"priority = {level}"), (task,)) for level in PRIORITIES)


# -- filters that few rows match ----------------------------------------------------------------------


def selective_part(where: Filter, order: Order, table: str) -> Filter:
    """Return the part of a filter that an index answers, though not in the order of the list."""
    target_id = where.target_id if where.target_type else None
    part = Filter(target_type=where.target_type, target_id=target_id, operation=where.operation)
    if order.sort is not Sort.CREATED:
        statuses = tuple(failed_statuses(where)) if table == FINISHED else ()
        part = replace(part, fingerprint=where.fingerprint, statuses=statuses)
    if table == FINISHED:
        part = replace(part, dedupe_key=where.dedupe_key)
        return replace(part, finished_after=where.finished_after, changed_after=where.changed_after)
    if where.tasks:
        part = replace(part, dedupe_key=where.dedupe_key, tasks=where.tasks if where.dedupe_key else ())
    return part if where.statuses != (Status.RUNNING,) else replace(part, statuses=where.statuses, worker=where.worker)


def is_selective(connection: sqlite3.Connection, where: Filter, order: Order, table: str) -> bool:
    """Return whether an index finds the few rows that match, so that they can be read and sorted as a whole."""
    if where.ids:
        return True
    if any(tagged(connection, tag) <= UNSELECTIVE for tag in where.tags):
        return True
    part = selective_part(where, order, table)
    return part != Filter() and number_in(connection, part, table, UNSELECTIVE + 1) <= UNSELECTIVE


TAGGED = "SELECT count(*) FROM (SELECT 1 FROM mainspring_tags WHERE tag = ? LIMIT ?)"


def tagged(connection: sqlite3.Connection, tag: str) -> int:
    number: int = connection.execute(TAGGED, (tag, UNSELECTIVE + 1)).fetchone()[0]
    return number


def number_in(connection: sqlite3.Connection, where: Filter, table: str, most: int) -> int:
    conditions = Conditions(where, table)
    return 0 if conditions.impossible else number_of(connection, conditions, most)


# -- counts ---------------------------------------------------------------------------------------

COUNTED = "SELECT queue, status, n FROM mainspring_counts"


def count_up_to(connection: sqlite3.Connection, where: Filter, cap: int) -> CappedCount:
    if where == Filter(queues=where.queues, statuses=where.statuses, within=where.within):
        codes = {CODES[status] for status in where.statuses or STATUSES}
        rows = connection.execute(COUNTED).fetchall()
        total = sum(n for queue, code, n in rows if code in codes and is_wanted(queue, where))
        return CappedCount(total, exact=True)
    total, exact = 0, True
    for table in (LIVE, FINISHED):
        number, complete = count_in(connection, where, table, cap + 1)
        total, exact = total + number, exact and complete
    return CappedCount(min(total, cap), exact and total <= cap)


def count_in(connection: sqlite3.Connection, where: Filter, table: str, most: int) -> tuple[int, bool]:
    """Count the matching rows of a table, up to `most`; return also whether all rows were looked at."""
    conditions = Conditions(where, table, correlated=True)
    if conditions.impossible:
        return 0, True
    order = Order()
    if is_selective(connection, where, order, table):
        return number_in(connection, where, table, most), True
    number, complete = 0, True
    for lane in created_lanes(where, table):
        until = None if lane.complete else last_looked_at(connection, lane, order, None)
        bound, values = ("1", ()) if until is None else (f"{table}.id >= ?", (until[1],))
        statement = f"""SELECT count(*) FROM (SELECT 1 FROM {source(lane)} WHERE {" AND ".join([*lane.terms, bound])}
                        AND {conditions} LIMIT ?)"""
        number += connection.execute(statement, (*lane.values, *values, *conditions.values, most)).fetchone()[0]
        complete = complete and until is None
    return number, complete
