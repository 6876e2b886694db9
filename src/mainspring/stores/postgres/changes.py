"""Read the change feed, and delete its oldest entries.

The numbers of entries are not in the order of the commits: a transaction takes a number early and may commit late. A
reader that only remembered the highest number would miss entries that appear below it. So a cursor remembers the
snapshot that was read: which transactions had ended by then. The next read returns the entries of all transactions that
have ended since, ordered by number.

This keeps the order of each job's entries. A transaction that changes a job holds the lock of the job's row until it
commits, and takes the numbers of its entries under that lock. So the transaction that changes the job next belongs to a
later snapshot, or it is read together with the first one and has the higher number.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mainspring.errors import InvalidCursor, StoreError
from mainspring.stores.feed import (
    MAX_ENTRIES,
    RETENTION,
    STARTS_RETENTION,
    ChangeKind,
    ChangePage,
    Cursor,
    Entry,
    JobRef,
    are_asked_for,
)
from mainspring.stores.postgres.transaction import Transaction

FEED = """
SELECT starts_until, {now}, life || {s}.database_id(), pruned_txid, pruned_number, pg_current_snapshot()::text
FROM {s}.feed
"""  # a restored dump is another feed: the numbers of its transactions are others
ENTRY = "number, at, kind, queue, task, ids::text[], details, data"
FOR_READERS = f"(kind <> '{ChangeKind.STARTED}' OR ids IS NOT NULL)"  # as `only_counts` says
SINCE = f"""
SELECT {ENTRY} FROM {{s}}.changes WHERE txid >= %(since)s::xid8 AND txid < %(until)s::xid8
    AND pg_visible_in_snapshot(txid, %(snapshot)s::pg_snapshot) AND number >= %(number)s AND {FOR_READERS}
UNION ALL
SELECT {ENTRY} FROM {{s}}.changes WHERE txid = ANY(%(late)s::xid8[])
    AND pg_visible_in_snapshot(txid, %(snapshot)s::pg_snapshot) AND number >= %(number)s AND {FOR_READERS}
ORDER BY number LIMIT %(limit)s
"""
ASK_FOR_STARTS = "UPDATE {s}.feed SET starts_until = greatest(starts_until, {now} + %(retention)s)"
FIRST_AND_LAST = """
SELECT first.number, last.number, first.at <= {now} - %(retention)s
FROM (SELECT number, at FROM {s}.changes ORDER BY number LIMIT 1) AS first,
     (SELECT number FROM {s}.changes ORDER BY number DESC LIMIT 1) AS last
"""
PRUNE = """
WITH pruned AS (
    DELETE FROM {s}.changes WHERE number < %(end)s AND number < %(last)s
        AND (at <= {now} - %(retention)s OR number <= %(last)s - %(most)s)
        AND pg_visible_in_snapshot(txid, %(folded)s::pg_snapshot)
    RETURNING txid::text::bigint, number
), noted AS (
    UPDATE {s}.feed SET pruned_txid = greatest(pruned_txid, (SELECT max(txid) FROM pruned)),
                        pruned_number = greatest(pruned_number, (SELECT max(number) FROM pruned))
    WHERE EXISTS (SELECT 1 FROM pruned)
)
SELECT count(*) FROM pruned
"""


SNAPSHOT = re.compile(r"[0-9]{1,19}:[0-9]{1,19}:([0-9]{1,19}(,[0-9]{1,19})*)?")
LAST_TXID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Span:
    """What a cursor has read: what ended before `since`, and of what ended from then on, entries up to a number."""

    since: str  # a snapshot of the server, as text
    until: str  # a later one; empty: nothing of what ended after `since` was read yet

    def __str__(self) -> str:
        return f"{self.since}|{self.until}"

    @classmethod
    def parse(cls, mark: str) -> Span:
        try:
            since, until = mark.split("|")
            check(since)
            check(until or since)
            return cls(since, until)
        except ValueError as error:
            msg = "this is not a cursor of a change feed in PostgreSQL; pass the `cursor` of a change"
            raise InvalidCursor(msg) from error


def check(snapshot: str) -> None:
    """Raise ValueError if the server would not accept this text: a cursor may be forged."""
    if SNAPSHOT.fullmatch(snapshot) is None:
        msg = f"{snapshot!r} is not a snapshot"
        raise ValueError(msg)
    end, running = parts(snapshot)
    bounds = [1, int(snapshot.partition(":")[0]), *running, end, LAST_TXID]
    if any(first > second for first, second in pairwise(bounds)) or (running and running[-1] == end):
        msg = f"the transactions of {snapshot!r} are not in order"
        raise ValueError(msg)


def parts(snapshot: str) -> tuple[int, list[int]]:
    """Return the first transaction that had not begun at the snapshot, and the older ones that had not ended."""
    _, end, running = snapshot.split(":")
    return int(end), [int(txid) for txid in running.split(",") if txid]


async def state(transaction: Transaction, *, starts: bool) -> list[Any]:
    """Return the life of the feed, what was deleted, and the snapshot of now. Ask for starts before that, if wanted."""
    starts_until, now, *found = await transaction.row(FEED) or (0, 0, "", 0, 0, "0:0:")
    if not starts or are_asked_for(starts_until, now):
        return found
    await transaction.do(ASK_FOR_STARTS, retention=STARTS_RETENTION)
    return await state(transaction, starts=False)


async def read(
    transaction: Transaction, after: Cursor | None, limit: int, *, starts: bool, end_at: Cursor | None = None
) -> ChangePage:
    """Return the entries after a cursor; without a cursor, none, and the cursor of now."""
    life, *pruned, snapshot = await state(transaction, starts=starts)
    end = Cursor(life, 0, mark=str(Span(snapshot, "")))
    if after is None:
        return ChangePage([], end)
    if after.life != life:
        return ChangePage([], end, reset=True)
    span = Span.parse(after.mark)
    if missed(after, span, snapshot, *pruned) or parts(span.until or span.since)[0] > parts(snapshot)[0]:
        return ChangePage([], end, reset=True)
    last = snapshot if end_at is None else Span.parse(end_at.mark).since
    until = span.until or last
    rows = await entries(transaction, span.since, until, after, limit)
    mark = str(Span(span.since, until))
    if len(rows) == limit:
        cursor = Cursor(life, rows[-1].number, mark=mark)
    else:
        cursor = Cursor(life, 0, mark=str(Span(until, "")))
    marks = {entry.number: mark for entry in rows}
    return ChangePage(rows, cursor, more=len(rows) == limit or until != last, marks=marks)


def missed(after: Cursor, span: Span, now: str, pruned_txid: int, pruned_number: int) -> bool:
    """Return whether entries after the cursor may have been deleted.

    Transactions are compared instead of times: one that was open for long may commit entries that are old already. A
    reader that is in the middle of `span` has read its entries up to a number.
    """
    has_read_pruned = span.until and pruned_number < after.number + (after.jobs is None)
    begun, running = parts(span.until if has_read_pruned else span.since)
    still_running = parts(now)[1]
    return pruned_txid >= begun or any(txid <= pruned_txid and txid not in still_running for txid in running)


async def entries(transaction: Transaction, since: str, until: str, after: Cursor, limit: int) -> list[Entry]:
    begun, running = parts(since)
    rows = await transaction.rows(
        SINCE,
        since=str(begun),
        until=str(parts(until)[0]),
        late=[str(txid) for txid in running],
        snapshot=until,
        number=after.number + (after.jobs is None),
        limit=limit,
    )
    return [to_entry(row) for row in rows]


def to_entry(row: Sequence[Any]) -> Entry:
    number, at, kind, queue, task, ids, details, data = row
    more = json.loads(details) if details else ()
    jobs = [JobRef(job, *(extra or ())) for job, extra in zip(ids, more, strict=True)] if more else ids or ()
    return Entry(ChangeKind(kind), queue, task, jobs, json.loads(data) if data else None, at, number)


async def prune(transaction: Transaction, limit: int, folded: str) -> int:
    """Delete old entries; return their number if there may be more of them, otherwise 0.

    Note the latest of their transactions: a cursor that has not read it may have missed some. Delete only entries that
    the snapshot `folded` can see: those are included in the numbers over time.
    """
    await transaction.do(FORGET, id="")  # readers that have died
    row = await transaction.row(FIRST_AND_LAST, retention=RETENTION)
    if row is None or not (row[2] or row[1] - row[0] >= MAX_ENTRIES):
        return 0
    first, last, _ = row
    bounds = {"end": first + limit, "last": last, "retention": RETENTION, "most": MAX_ENTRIES, "folded": folded}
    deleted = int(await transaction.value(PRUNE, **bounds))
    return deleted if deleted >= limit else 0


# -- readers ------------------------------------------------------------------------------------------

SHOW_INTERVAL = 60.0  # seconds
SHOW = "INSERT INTO {s}.readers (id) VALUES (%(id)s) ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp()"
MARK = """
INSERT INTO {s}.readers (id, idle) VALUES (%(id)s, %(idle)s)
ON CONFLICT (id) DO UPDATE SET idle = excluded.idle, seen_at = clock_timestamp()
"""
FORGET = "DELETE FROM {s}.readers WHERE id = %(id)s OR seen_at < clock_timestamp() - interval '3 minutes'"

Run = Callable[[Callable[[Transaction], Awaitable[int]]], Awaitable[int]]


class ChangeReader:
    """A process that reads the change feed, as other processes see it: they notify readers that are idle."""

    def __init__(self, id: str, run: Run, notice: Callable[[], None]) -> None:
        self.id = id
        self._run = run
        self._notice = notice
        self._loop = asyncio.get_running_loop()
        self._idle = False

    def notice(self) -> None:
        """Let the reader look at the feed, on its own event loop."""
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._notice)

    async def mark(self, *, idle: bool) -> bool:
        """Record whether it is idle; return whether that was changed."""
        if idle == self._idle:
            return False
        await self._run(lambda transaction: transaction.do(MARK, id=self.id, idle=idle))
        self._idle = idle
        return True

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show other processes that it reads, until the block is left. If it dies, they forget it after a while."""
        await self._run(lambda transaction: transaction.do(SHOW, id=self.id))
        task = asyncio.get_running_loop().create_task(self._keep_shown(), name="mainspring-reader")
        try:
            yield
        finally:
            task.cancel()
            with suppress(StoreError):
                await self._run(lambda transaction: transaction.do(FORGET, id=self.id))

    async def _keep_shown(self) -> None:
        while True:
            await asyncio.sleep(SHOW_INTERVAL)
            with suppress(StoreError):
                await self._run(lambda transaction: transaction.do(SHOW, id=self.id))
