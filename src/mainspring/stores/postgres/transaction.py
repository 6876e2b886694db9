"""What store operations work with: a connection in a transaction, and what to announce after the commit."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from mainspring.clock import Clock, Millis, since_boot
from mainspring.stores.feed import Entry
from mainspring.stores.postgres import arrays
from mainspring.stores.postgres.pool import Connection
from mainspring.stores.protocol import EVERY_QUEUE, Wake

SERVER_NOW = "(extract(epoch FROM statement_timestamp()) * 1000)::bigint"
"""One value for the whole statement. clock_timestamp() may differ at each call, so no index could be used with it."""


SERVER_START = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"


class Dialect:
    """Fill the schema's name and the time into statement templates.

    In a template, {s} is the schema and {now} the time: the server's clock, or a test's own clock.
    """

    def __init__(self, schema: str, clock: Clock | None) -> None:
        self.schema = schema
        self._clock = clock
        self._now = SERVER_NOW if clock is None else "%(now)s::bigint"
        self._made: dict[str, str] = {}
        self.has_readers = False  # processes read the change feed, as far as the last statement that looked knows

    def statement(self, template: str) -> Any:
        made = self._made.get(template)
        if made is None:
            made = self._made[template] = template.replace("{s}", self.schema).replace("{now}", self._now)
        return made

    def parameters(self, given: dict[str, Any]) -> dict[str, Any]:
        return given if self._clock is None else {**given, "now": self._clock.now()}


class Transaction:
    def __init__(self, connection: Connection, dialect: Dialect) -> None:
        self.connection = connection
        self.dialect = dialect
        self.counts: defaultdict[tuple[str, int], int] = defaultdict(int)  # (queue, status) -> change
        self.woken: set[str] = set()  # queues that may have jobs due
        self.cancellations = False
        self.documents = False  # some documents come due soon
        self.halts_changed = False
        self.state_changed = False  # shared state that workers keep in memory has changed
        self.recorded = False  # the change feed has grown

    async def rows(self, template: str, **parameters: Any) -> list[tuple[Any, ...]]:
        statement, given = self.dialect.statement(template), self.dialect.parameters(parameters)
        return await (await self.connection.execute(statement, given)).fetchall()

    async def row(self, template: str, **parameters: Any) -> tuple[Any, ...] | None:
        found = await self.rows(template, **parameters)
        return found[0] if found else None

    async def value(self, template: str, **parameters: Any) -> Any:
        row = await self.row(template, **parameters)
        return None if row is None else row[0]

    async def do(self, template: str, **parameters: Any) -> int:
        """Execute a statement and return the number of rows it touched."""
        statement, given = self.dialect.statement(template), self.dialect.parameters(parameters)
        return (await self.connection.execute(statement, given)).rowcount

    def count(self, queue: str, status: int, change: int) -> None:
        self.counts[queue, status] += change

    async def record(self, entries: Iterable[Entry]) -> None:
        """Add entries to the change feed, at once: later statements of this transaction may add others of these jobs.

        The jobs must be locked. Then entries of one job have numbers in the order of the transactions.
        """
        if rows := [row_of(entry) for entry in entries]:
            self.note_readers(await self.value(RECORD, **arrays.of_columns(ENTRY, rows)))

    def note_readers(self, heard: bool) -> None:  # noqa: FBT001
        """Note that the change feed has grown, and whether some process reads it."""
        self.recorded = True
        self.dialect.has_readers = heard

    async def write_counts(self) -> None:
        changes = [(queue, status, change) for (queue, status), change in self.counts.items() if change]
        self.counts.clear()
        if changes:
            queues, statuses, numbers = (list(column) for column in zip(*changes, strict=True))
            await self.do(ADD_COUNTS, queues=queues, statuses=statuses, numbers=numbers)

    def wake_everyone(self) -> None:
        """Make all workers look for everything, whatever this transaction changes."""
        self.woken.add(EVERY_QUEUE)
        self.cancellations = self.documents = self.halts_changed = self.state_changed = True

    def wakes(self) -> Wake:
        wake = Wake.JOBS if self.woken else Wake(0)
        if self.cancellations:
            wake |= Wake.CANCELLATIONS
        if self.halts_changed:
            wake |= Wake.HALTS
        if self.state_changed:
            wake |= Wake.STATE
        return wake | Wake.DOCUMENTS if self.documents else wake

    @property
    def wakes_busy_workers(self) -> bool:
        """Whether busy workers must be notified as well as idle ones."""
        return self.cancellations or self.documents or self.halts_changed or self.state_changed


ENTRY = {
    "kinds": "text",
    "queues": "text",
    "tasks": "text",
    "ids": "text",
    "details": "text",
    "data": "text",
    "times": "text",
}
RECORD = f"""
WITH recorded AS (
    INSERT INTO {{s}}.changes (at, kind, queue, task, ids, details, data, times)
    SELECT {{now}}, kind, queue, task, ids::uuid[], details, data, times::bigint[]
    FROM unnest({arrays.casts(ENTRY)}) WITH ORDINALITY AS given(kind, queue, task, ids, details, data, times, place)
    ORDER BY place
) SELECT EXISTS (SELECT 1 FROM {{s}}.readers)
"""


def row_of(entry: Entry) -> tuple[str | None, ...]:
    """Return the values in the order of ENTRY."""
    ids = [job if isinstance(job, str) else job.id for job in entry.jobs]
    more = [None if isinstance(job, str) else job.to_list()[1:] or None for job in entry.jobs]
    return (
        entry.kind,
        entry.queue,
        entry.task,
        arrays.of_plain(ids) if ids else None,
        json.dumps(more) if any(more) else None,
        entry.data_json(),
        None if entry.times is None else arrays.of_plain(entry.times),
    )


ADD_COUNTS = """
INSERT INTO {s}.counts (queue, status, n)
SELECT * FROM unnest(%(queues)s::text[], %(statuses)s::smallint[], %(numbers)s::bigint[])
"""
PLAN_FREELY = """
SELECT set_config(setting, %(freely)s, true)
FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_sort']) AS setting
"""  # without statistics the planner expects that most of a table is wanted, and reads and sorts all of it


class ServerClock:
    """An estimate of the server's clock: the local monotonic clock, corrected whenever the server reports its time.

    Use it only to sleep until a job is due and to record when a run began. The server itself decides what is due.
    """

    def __init__(self) -> None:
        self._ahead = time.time() * 1000 - time.monotonic() * 1000

    def set(self, now: Millis) -> None:
        self._ahead = now - time.monotonic() * 1000

    def now(self) -> Millis:
        return int(time.monotonic() * 1000 + self._ahead)

    def monotonic(self) -> float:
        return time.monotonic()

    def elapsed(self) -> float:
        return since_boot()
