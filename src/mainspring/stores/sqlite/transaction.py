"""A write transaction, and statements that handle many rows at once.

Python may switch threads at every step of SQLite, and a busy thread returns the interpreter only after 5 ms. With one
statement per row, each row would cost that (measured next to a busy loop: 140 jobs/s instead of 60,000). So every
operation handles all its items in a few statements.

Rows are the parameters of a VALUES list. SQLite would parse a JSON array again for each column that is read from it.
Bound values cost half of that: 7 instead of 14.7 µs per inserted row (SQLite 3.40).
"""

from __future__ import annotations

import functools
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from types import TracebackType
from typing import Any

from mainspring.clock import Clock, Millis, to_datetime
from mainspring.stores.feed import ChangeKind, Entry
from mainspring.stores.protocol import Halt, Wake
from mainspring.stores.sqlite import numbers

Operation = Callable[["Transaction", list[Any]], list[Any]]
"""Handles all items at once and returns one result for each."""

SIZES = (1024, 512, 256, 128, 64, 32, 16, 8, 4, 3, 2, 1)  # rows of a list; only a few, so that statements are reused

ADD_COUNTS = """
INSERT INTO mainspring_counts (queue, status, n) VALUES {values} ON CONFLICT DO UPDATE SET n = n + excluded.n
"""
ADD_CHANGES = "INSERT INTO mainspring_changes (at, kind, queue, task, jobs, data, n, times) VALUES {values}"
FOLD_EVERY = 1024  # entries of the change feed
HALTS = """
SELECT queue, actor, reason, since, until, accept, number FROM mainspring_halts WHERE until IS NULL OR until > ?
ORDER BY queue
"""


class Transaction:
    """A connection inside a write transaction, and what has to be done after the commit."""

    def __init__(self, connection: sqlite3.Connection, now: Millis) -> None:
        self.connection = connection
        self.now = now
        self.counts: defaultdict[tuple[str, int], int] = defaultdict(int)  # (queue, status) -> change
        self.changes: list[tuple[Any, ...]] = []  # rows for the change feed, in the order in which they happened
        self.has_news = False  # the change feed has new entries for readers
        self.woken: set[str] = set()  # queues that may have something due
        self.cancellations = False
        self.documents = False  # documents come due soon
        self.pages_to_free = 0
        self.halts_changed = False
        self.state_changed = False  # documents changed that workers keep in memory
        self._halts: list[Halt] | None = None

    def execute(self, statement: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> sqlite3.Cursor:
        if self.connection.row_factory is None:
            return self.connection.execute(statement, parameters)
        cursor = self.connection.cursor()
        cursor.row_factory = None  # the caller's own connection may have a row factory
        return cursor.execute(statement, parameters)

    def value(self, statement: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> Any:
        row = self.execute(statement, parameters).fetchone()
        return None if row is None else row[0]

    def halts(self) -> list[Halt]:
        """Return the halt of the system and the pauses of queues. They are read once per transaction."""
        if self._halts is None:
            self._halts = [to_halt(row) for row in self.execute(HALTS, (self.now,)).fetchall()]
        return self._halts

    def forget_halts(self) -> None:
        """Have the halts read again, because they were changed."""
        self._halts = None

    def count(self, queue_name: str, status: int, change: int) -> None:
        self.counts[queue_name, status] += change

    def record(self, entries: Iterable[Entry]) -> None:
        """Add entries to the change feed."""
        for entry in entries:
            texts = entry.jobs_json(), entry.data_json()
            self.record_row(entry.kind, entry.queue, entry.task, *texts, len(entry.jobs), entry.times_json())

    def record_row(self, *row: str | int | None) -> None:
        """Add an entry to the change feed. The values are in the order of ADD_CHANGES, without the time."""
        self.changes.append((self.now, *row))
        self.has_news = True

    def count_starts(self, queue: str, task: str, times: str) -> None:
        """Add an entry that is only for the numbers over time: readers do not see it, and are not woken."""
        self.changes.append((self.now, ChangeKind.STARTED, queue, task, None, None, 0, times))

    def finish(self) -> None:
        """Write what is written once per transaction: the counts, the change feed and, now and then, the numbers."""
        self._write_counts()
        last = 0
        for part in in_values(ADD_CHANGES, self.changes):
            last = self.execute(*part).lastrowid or 0
        if last % FOLD_EVERY < len(self.changes):
            numbers.fold(self.execute)

    def _write_counts(self) -> None:
        changes = [(name, status, change) for (name, status), change in self.counts.items() if change]
        for part in in_values(ADD_COUNTS, changes):
            self.execute(*part)
        self.counts.clear()

    def wakes(self) -> Wake:
        wake = Wake.JOBS if self.woken else Wake(0)
        if self.cancellations:
            wake |= Wake.CANCELLATIONS
        if self.halts_changed:
            wake |= Wake.HALTS
        if self.state_changed:
            wake |= Wake.STATE
        return wake | Wake.DOCUMENTS if self.documents else wake


def to_halt(row: tuple[Any, ...]) -> Halt:
    queue, actor, reason, since, until, accept, number = row
    return Halt(
        actor=actor,
        reason=reason,
        since=to_datetime(since),
        until=None if until is None else to_datetime(until),
        queue=queue or None,
        accept=bool(accept),
        number=number,
    )


class Committing:
    """Runs a block in a write transaction, and commits it. Not a generator: that adds 2 % to the enqueue of one job."""

    __slots__ = ("_clock", "_connection", "_transaction")

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    def __enter__(self) -> Transaction:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._transaction = Transaction(self._connection, self._clock.now())
        except BaseException:
            roll_back(self._connection)
            raise
        return self._transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            roll_back(self._connection)
            return
        try:
            self._transaction.finish()
            self._connection.execute("COMMIT")
        except BaseException:
            roll_back(self._connection)
            raise


def roll_back(connection: sqlite3.Connection) -> None:
    """Roll back, unless SQLite has done so already, for example because the disk is full."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def in_values(template: str, rows: Sequence[Sequence[Any]], *first: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield statements (with `{values}` filled in) and their parameters that together cover all rows.

    The parameters begin with `first`.
    """
    start, left = 0, len(rows)
    for size in SIZES:
        while left >= size:
            part = rows[start : start + size]
            yield _statement(template, size, len(part[0])), [*first, *chain.from_iterable(part)]
            start, left = start + size, left - size


@functools.cache
def _statement(template: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return template.format(values=", ".join([row] * rows))
