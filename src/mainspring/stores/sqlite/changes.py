"""Read the change feed, and delete its oldest entries.

SQLite has one writer at a time, so the numbers of the entries are in the order of the commits, and a reader that has
seen a number will never see a lower one appear.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from mainspring.clock import Millis
from mainspring.stores.feed import (
    MAX_ENTRIES,
    RETENTION,
    STARTS_RETENTION,
    ChangePage,
    Cursor,
    Entry,
    are_asked_for,
    entry_of,
    only_counts,
)
from mainspring.stores.sqlite import numbers
from mainspring.stores.sqlite.transaction import Transaction

FIRST_AND_LAST = """
SELECT (SELECT life FROM mainspring_feed), (SELECT min(number) FROM mainspring_changes),
       (SELECT max(number) FROM mainspring_changes)
"""
MARK = "SELECT at FROM mainspring_changes WHERE number = ?"
READ = """
SELECT number, at, kind, queue, task, jobs, data FROM mainspring_changes WHERE number BETWEEN ? AND ?
ORDER BY number LIMIT ?
"""
FIRST = """
SELECT number, at, (SELECT max(number) FROM mainspring_changes) FROM mainspring_changes
WHERE number = (SELECT min(number) FROM mainspring_changes)
"""
FIRST_KEPT = """
SELECT min(number) FROM mainspring_changes WHERE number BETWEEN ? AND ? AND at > ?
"""
STARTS_UNTIL = "SELECT starts_until FROM mainspring_feed"
ASK_FOR_STARTS = "UPDATE mainspring_feed SET starts_until = max(starts_until, ?)"
LAST_NUMBER = 2**63 - 1  # that SQLite could give
PRUNE = "DELETE FROM mainspring_changes WHERE number < ?"


def read(connection: sqlite3.Connection, after: Cursor | None, limit: int, until: Cursor | None) -> ChangePage:
    """Return the entries after a cursor; without a cursor, none, and the cursor of the feed's end."""
    life, first, last = connection.execute(FIRST_AND_LAST).fetchone()
    end = Cursor(life, last or 0, mark=mark_of(connection, last or 0))
    if after is None:
        return ChangePage([], end)
    if after.life != life or not is_known(connection, after, first, last):
        return ChangePage([], end, reset=True)
    start = after.number + (after.jobs is None)
    rows = connection.execute(READ, (start, LAST_NUMBER if until is None else until.number, limit)).fetchall()
    if not rows:
        return ChangePage([], after)
    entries = [to_entry(row) for row in rows if not only_counts(row[2], row[5])]
    number, at = rows[-1][:2]
    marks = {entry.number: str(entry.at) for entry in entries}
    return ChangePage(entries, Cursor(life, number, mark=str(at)), more=len(rows) == limit, marks=marks)


def is_known(connection: sqlite3.Connection, cursor: Cursor, first: int | None, last: int | None) -> bool:
    """Return whether the cursor is one of this feed, and no entry after it was deleted.

    After a backup was restored, the number may exist again, but with another time.
    """
    if first is None or last is None:
        return cursor.number == 0
    if cursor.number == first - 1 and cursor.jobs is None:
        return True
    return first <= cursor.number <= last and mark_of(connection, cursor.number) == cursor.mark


def mark_of(connection: sqlite3.Connection, number: int) -> str:
    row = connection.execute(MARK, (number,)).fetchone()
    return "" if row is None else str(row[0])


def to_entry(row: Sequence[Any]) -> Entry:
    number, at, *stored = row
    entry = entry_of(*stored)
    entry.number, entry.at = number, at
    return entry


def read_if_asked(
    connection: sqlite3.Connection, now: Millis, after: Cursor | None, limit: int, until: Cursor | None
) -> ChangePage | None:
    """Return a page as `read` does; None if no reader has asked for starts lately."""
    if not are_asked_for(connection.execute(STARTS_UNTIL).fetchone()[0], now):
        return None
    return read(connection, after, limit, until)


def ask_for_starts(transaction: Transaction, requests: list[None]) -> list[None]:
    """Have claims name the started jobs in the feed."""
    transaction.execute(ASK_FOR_STARTS, (transaction.now + STARTS_RETENTION,))
    return requests


def something_expired(connection: sqlite3.Connection, now: Millis) -> bool:
    row = connection.execute(FIRST).fetchone()
    return row is not None and row[0] < row[2] and (row[1] <= now - RETENTION or row[2] - row[0] >= MAX_ENTRIES)


def prune(transaction: Transaction, now: Millis, limit: int) -> int:
    """Delete old entries; return their number if there may be more of them, otherwise 0."""
    row = transaction.execute(FIRST).fetchone()
    if row is None:
        return 0
    first, _, last = row
    end = first + limit
    kept = transaction.value(FIRST_KEPT, (first, end - 1, now - RETENTION))
    too_many = min(end, last - MAX_ENTRIES + 1)
    numbers.fold(transaction.execute)  # what is deleted must be included in the numbers
    deleted = transaction.execute(PRUNE, (min(last, max(too_many, end if kept is None else kept)),)).rowcount
    return deleted if deleted >= limit else 0
