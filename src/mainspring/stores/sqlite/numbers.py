"""Numbers over time: fold entries of the change feed into them, read them, and delete old ones.

SQLite has one writer at a time, so the entries up to a number are complete, and `mainspring_feed` says up to which one
they are folded. A transaction that adds the 1024th, 2048th, … entry folds, so readers find few entries to add.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from mainspring.clock import Millis
from mainspring.stores.engine.numbers import KINDS, MEASURE, SUM, Row, spread, within_limit
from mainspring.stores.numbers import (
    SLOT,
    Counts,
    Figure,
    Line,
    NumbersQuery,
    Period,
    Span,
    answer,
    is_due,
    measure_and_bucket,
)

Execute = Callable[[str, Sequence[Any]], sqlite3.Cursor]

NOT_FOLDED = f"""
SELECT at / 60000 * 60000, queue, task, {MEASURE}, 0, sum(n) FROM mainspring_changes
WHERE number > (SELECT folded FROM mainspring_feed) AND times IS NULL AND kind IN ({KINDS}) GROUP BY 1, 2, 3, 4
UNION ALL
SELECT at / 60000 * 60000, queue, task, iif(key = 0, {SUM}, {MEASURE}), max(key - 1, 0), sum(value)
FROM mainspring_changes CROSS JOIN json_each(times)
WHERE number > (SELECT folded FROM mainspring_feed) AND times IS NOT NULL AND value <> 0 GROUP BY 1, 2, 3, 4, 5
"""  # the second part is for entries with times: their sum, and then the number of jobs in each bucket
KNOWN = f"""
SELECT task, queue FROM (
    SELECT json_extract(value, '$[0]') AS task, json_extract(value, '$[1]') AS queue FROM json_each(?)) AS given
WHERE EXISTS (SELECT 1 FROM mainspring_numbers AS old
              WHERE old.period = {Period.DAY:d} AND old.task = given.task AND old.queue = given.queue)
"""
ADD = """
INSERT INTO mainspring_numbers (period, start, task, queue, measure, bucket, n)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
       json_extract(value, '$[6]')
FROM json_each(?) WHERE true
ON CONFLICT DO UPDATE SET n = n + excluded.n
"""
FOLDED = "UPDATE mainspring_feed SET folded = (SELECT coalesce(max(number), 0) FROM mainspring_changes)"
NEXT_PLACE = f"""
SELECT task, queue FROM mainspring_numbers WHERE period = ? AND (task, queue, start) > (?, ?, {1 << 62})
ORDER BY task, queue LIMIT 1
"""  # without `start`, SQLite would read all rows of the last place
READ = f"""
SELECT start, {SLOT}, n FROM mainspring_numbers
WHERE period = ? AND task = ? AND queue = ? AND start >= ? AND start < ?
"""
LAST_PRUNED = "SELECT numbers_pruned_at FROM mainspring_feed"
PRUNED = "UPDATE mainspring_feed SET numbers_pruned_at = ?"
FORGET = "DELETE FROM mainspring_numbers WHERE period = ? AND task = ? AND queue = ? AND start < ?"

Place = tuple[str, str]  # a task and a queue


def fold(execute: Execute) -> None:
    """Add the new entries of the change feed to the numbers."""
    rows = execute(NOT_FOLDED, ()).fetchall()
    if rows:
        add(execute, spread(within_limit(rows, known_places(execute, rows))))
    execute(FOLDED, ())


def known_places(execute: Execute, rows: Iterable[Row]) -> set[Place]:
    """Return the places that are counted by name: those of these rows or, if some of these are new, all."""
    used = {(task, queue) for _, queue, task, *_ in rows}
    known = set(execute(KNOWN, (json.dumps(list(used)),)).fetchall())
    return known if known >= used else {place for place in places(execute, Period.DAY) if all(place)}


def add(execute: Execute, lines: Iterable[Line]) -> None:
    rows = [(*line[:4], *measure_and_bucket(key), n) for line in lines for key, n in line.counts.items()]
    execute(ADD, (json.dumps(rows),))


def places(execute: Execute, period: Period) -> Iterator[Place]:
    """Yield the places that have lines of such periods, by one seek in the index each."""
    place = execute(NEXT_PLACE, (period, "", "")).fetchone()
    if execute(f"SELECT EXISTS ({READ})", (period, "", "", 0, 1 << 62)).fetchone()[0]:
        yield "", ""
    while place is not None:
        yield place
        place = execute(NEXT_PLACE, (period, *place)).fetchone()


# -- reading ----------------------------------------------------------------------------------------------


def read(connection: sqlite3.Connection, query: NumbersQuery) -> list[Figure]:
    rows: list[Row] = connection.execute(NOT_FOLDED).fetchall()
    return answer(query, chain(stored(connection.execute, query), spread(rows)))


def stored(execute: Execute, query: NumbersQuery) -> Iterator[Line]:
    for period in {span.period for span in query.spans}:
        for task, queue in wanted_places(execute, query, period):
            for span in query.spans:
                if span.period is period:
                    for start, counts in counts_by_start(execute, task, queue, span).items():
                        yield Line(period, start, task, queue, counts)


def counts_by_start(execute: Execute, task: str, queue: str, span: Span) -> dict[Millis, Counts]:
    found: dict[Millis, Counts] = {}
    for start, key, n in execute(READ, (span.period, task, queue, span.since, span.until)):
        found.setdefault(start, {})[key] = n
    return found


def wanted_places(execute: Execute, query: NumbersQuery, period: Period) -> list[Place]:
    if query.place is not None:
        return [query.place]
    return [place for place in places(execute, period) if query.wants(*place)]


# -- retention --------------------------------------------------------------------------------------------


def something_expired(connection: sqlite3.Connection, now: Millis) -> bool:
    """Return whether it is time to delete old numbers."""
    return is_due(connection.execute(LAST_PRUNED).fetchone()[0], now)


def prune(execute: Execute, now: Millis) -> None:
    if not is_due(execute(LAST_PRUNED, ()).fetchone()[0], now):
        return
    for period in Period:
        for task, queue in list(places(execute, period)):
            execute(FORGET, (period, task, queue, now - period.kept))
    execute(PRUNED, (now,))
