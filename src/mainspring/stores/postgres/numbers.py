"""Numbers over time: fold entries of the change feed into them, read them, and delete old ones.

The row in `feed` says which entries are folded: those that its snapshot can see. (changes.py explains why a number is
not enough.) The worker that folds locks that row, so no entry is folded twice. It adds the entries and writes its own
snapshot in one transaction: if it dies, nothing has happened. Readers see the numbers and that row in one snapshot, and
add up the entries that are not folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from mainspring.clock import Millis
from mainspring.stores.engine.numbers import KINDS, MEASURE, SUM, Row, spread, within_limit
from mainspring.stores.numbers import (
    PERIOD_BY_CODE,
    SLOT,
    Figure,
    Line,
    NumbersQuery,
    Period,
    answer,
    is_due,
    measure_and_bucket,
)
from mainspring.stores.postgres import arrays
from mainspring.stores.postgres.changes import parts
from mainspring.stores.postgres.transaction import Transaction

ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
STATE = """
SELECT folded, folded_in = {s}.database_id(), numbers_pruned_at, {now}, pg_current_snapshot()::text FROM {s}.feed
"""
NUMBER = "CASE WHEN times IS NULL THEN cardinality(ids) END"  # `times` has it too; long arrays of ids are stored apart
NOT_FOLDED = f"""
WITH entry AS MATERIALIZED (
    SELECT at / 60000 * 60000 AS minute, queue, task, kind, {NUMBER} AS n, times, txid
    FROM {{s}}.changes WHERE txid >= %(since)s::xid8
    UNION ALL
    SELECT at / 60000 * 60000, queue, task, kind, {NUMBER}, times, txid
    FROM {{s}}.changes WHERE txid = ANY(%(late)s::xid8[])
), counted AS MATERIALIZED (
    SELECT * FROM entry WHERE kind IN ({KINDS}) AND pg_visible_in_snapshot(txid, pg_current_snapshot())
)
SELECT minute, queue, task, {MEASURE} AS measure, 0 AS bucket, sum(n)::bigint AS number
FROM counted WHERE times IS NULL GROUP BY minute, queue, task, kind
UNION ALL
SELECT minute, queue, task, CASE WHEN place = 1 THEN {SUM} ELSE {MEASURE} END, greatest(place - 2, 0)::integer,
       sum(value)::bigint
FROM counted CROSS JOIN unnest(times) WITH ORDINALITY AS part(value, place)
WHERE value <> 0 GROUP BY minute, queue, task, kind, place
"""  # the second part is for entries with times: their sum, and then the number of jobs in each bucket
SNAPSHOT_AND_ROWS = f"""
SELECT pg_current_snapshot()::text, found.* FROM (SELECT 1) AS always LEFT JOIN ({NOT_FOLDED}) AS found ON true
"""
KNOWN = f"""
SELECT task, queue FROM unnest(%(tasks)s::text[], %(queues)s::text[]) AS given(task, queue)
WHERE EXISTS (SELECT 1 FROM {{s}}.numbers AS old
              WHERE old.period = {Period.DAY:d} AND old.task = given.task AND old.queue = given.queue)
"""
PLACES = """
WITH RECURSIVE place AS (
    SELECT period, first.* FROM unnest(%(periods)s::smallint[]) AS given(period),
        LATERAL (SELECT task, queue FROM {s}.numbers AS n WHERE n.period = given.period
                 ORDER BY n.period, task, queue LIMIT 1) AS first
    UNION ALL
    SELECT place.period, next.* FROM place,
        LATERAL (SELECT task, queue FROM {s}.numbers AS n
                 WHERE n.period = place.period AND (n.task, n.queue) > (place.task, place.queue)
                 ORDER BY n.period, n.task, n.queue LIMIT 1) AS next
)
"""  # one seek in the index for each place
ALL_PLACES = PLACES + "SELECT period, task, queue FROM place"
LINES = {
    "periods": "smallint",
    "starts": "bigint",
    "tasks": "text",
    "queues": "text",
    "measures": "smallint",
    "buckets": "smallint",
    "numbers": "bigint",
}
ADD = f"""
INSERT INTO {{s}}.numbers (period, start, task, queue, measure, bucket, n) SELECT * FROM unnest({arrays.casts(LINES)})
ON CONFLICT (period, task, queue, start, measure, bucket) DO UPDATE SET n = numbers.n + excluded.n
"""
FOLDED = "UPDATE {s}.feed SET folded = %(snapshot)s, folded_in = {s}.database_id()"
WANTED = {"periods": "smallint", "tasks": "text", "queues": "text", "sinces": "bigint", "untils": "bigint"}
READ = f"""
SELECT wanted.period, n.start, wanted.task, wanted.queue, n.slots, n.counts
FROM unnest({arrays.casts(WANTED)}) AS wanted(period, task, queue, since, until), LATERAL (
    SELECT start, array_agg({SLOT}) AS slots, array_agg(n) AS counts FROM {{s}}.numbers
    WHERE numbers.period = wanted.period AND numbers.task = wanted.task
        AND numbers.queue = wanted.queue AND start >= wanted.since AND start < wanted.until GROUP BY start) AS n
"""  # one row for each period: to read a row takes longer than its numbers
FORGET = (
    PLACES
    + """
DELETE FROM {s}.numbers AS old USING place, unnest(%(periods)s::smallint[], %(kept)s::bigint[]) AS age(period, kept)
WHERE age.period = place.period AND old.period = place.period AND old.task = place.task AND old.queue = place.queue
    AND old.start < {now} - age.kept
"""
)
PRUNED = "UPDATE {s}.feed SET numbers_pruned_at = {now}"
PERIODS = arrays.of_plain(int(period) for period in Period)


class Folded(NamedTuple):
    """What `feed` says about the numbers."""

    snapshot: str
    valid: bool  # False: the row is of another database, of which this one is a restored dump
    pruned_at: Millis
    now: Millis
    current: str


async def fold(transaction: Transaction) -> str | None:
    """Add the new entries of the change feed to the numbers; return the snapshot up to which they are included.

    None: another worker is doing so.
    """
    row = await transaction.row(f"{STATE} FOR UPDATE SKIP LOCKED")
    if row is None:
        return None
    folded = Folded(*row)
    if not folded.valid:  # the numbers of its transactions mean nothing here
        await transaction.do(FOLDED, snapshot=folded.current)
        return folded.current
    snapshot, rows = await new_rows(transaction, folded)
    if rows:
        known = await known_places(transaction, rows)
        await add(transaction, spread(within_limit(rows, known)))
        await transaction.do(FOLDED, snapshot=snapshot)
    return snapshot


async def new_rows(transaction: Transaction, folded: Folded) -> tuple[str, list[Row]]:
    """Return the entries that are not folded, added up, and the snapshot in which they were read.

    The snapshot is that of the same statement. So it was taken after the row in `feed` was locked.
    """
    since, late = parts(folded.snapshot)
    given = {"since": str(since), "late": [str(txid) for txid in late]}
    rows = await transaction.rows(SNAPSHOT_AND_ROWS, **given)
    return rows[0][0], [row[1:] for row in rows if row[1] is not None]


async def known_places(transaction: Transaction, rows: Iterable[Row]) -> set[tuple[str, str]]:
    """Return the places that are counted by name: those of these rows or, if some of these are new, all."""
    used = {(task, queue) for _, queue, task, *_ in rows}
    tasks, queues = (arrays.of_texts(column) for column in zip(*used, strict=True))
    known = set(await transaction.rows(KNOWN, tasks=tasks, queues=queues))
    if known >= used:
        return known
    places = await transaction.rows(ALL_PLACES, periods=arrays.of_plain([int(Period.DAY)]))
    return {(task, queue) for _, task, queue in places if task and queue}


async def add(transaction: Transaction, lines: Iterable[Line]) -> None:
    rows = [
        (int(line.period), *line[1:4], int(measure), bucket, n)
        for line in lines
        for key, n in line.counts.items()
        for measure, bucket in [measure_and_bucket(key)]
    ]
    for part in arrays.in_parts(rows):
        await transaction.do(ADD, **arrays.of_columns(LINES, part))


# -- reading ----------------------------------------------------------------------------------------------


async def read(transaction: Transaction, query: NumbersQuery) -> list[Figure]:
    async with transaction.connection.transaction():
        await transaction.do(ONE_SNAPSHOT)
        folded = Folded(*(await transaction.row(STATE) or ("", False, 0, 0, "")))
        rows = (await new_rows(transaction, folded))[1] if folded.valid else []
        return answer(query, chain(await stored(transaction, query), spread(rows)))


async def stored(transaction: Transaction, query: NumbersQuery) -> Iterator[Line]:
    periods = {int(span.period) for span in query.spans}
    if query.place is None:
        places = await transaction.rows(ALL_PLACES, periods=arrays.of_plain(periods))
    else:
        places = [(period, *query.place) for period in periods]
    wanted = [
        (period, task, queue, span.since, span.until)
        for period, task, queue in places
        if query.wants(task, queue)
        for span in query.spans
        if span.period == period
    ]
    rows = await transaction.rows(READ, **arrays.of_columns(WANTED, wanted)) if wanted else []
    return (
        Line(PERIOD_BY_CODE[period], start, task, queue, dict(zip(slots, counts, strict=True)))
        for period, start, task, queue, slots, counts in rows
    )


# -- retention --------------------------------------------------------------------------------------------


async def prune(transaction: Transaction) -> None:
    """Delete old numbers, once an hour."""
    row = await transaction.row(f"{STATE} FOR UPDATE SKIP LOCKED")
    if row is None or not is_due(Folded(*row).pruned_at, Folded(*row).now):
        return
    await transaction.do(FORGET, periods=PERIODS, kept=arrays.of_plain(period.kept for period in Period))
    await transaction.do(PRUNED)
