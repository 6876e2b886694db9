"""Read the change feed: move recorded changes into a log with numbers, and read the log.

Hints name the jobs with recorded changes (journal.py). Any reader, and any worker, moves what it finds: one transaction
puts the next item of the log, takes the changes out of the jobs' journals, and deletes the hints. The item has the
number after the last one and must not exist yet, so of several processes one succeeds, and each change is in the log
exactly once. The changes of one job are in the log in the order of its journal, which is the order of the writes.

A hint may be seen before the change of a job that it names: a transaction of the service appears item by item. And a
change may be moved before its hint is seen, because of a later hint of the same job. So each job remembers the last
hints whose changes are in the log, and a hint without its change waits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mainspring.clock import Millis
from mainspring.ids import new_id
from mainspring.stores.dynamodb import halts, journal
from mainspring.stores.dynamodb.client import Cancelled
from mainspring.stores.dynamodb.items import key, stamp, ttl, unstamp
from mainspring.stores.dynamodb.journal import JOURNAL, RECORDING, TOLD, from_line, hint_key, hint_of, note_recording
from mainspring.stores.dynamodb.table import Action, Table, together
from mainspring.stores.dynamodb.values import Condition, Row, absent, delete, equals, has_size, put, update
from mainspring.stores.feed import RETENTION, ChangeKind, ChangePage, Cursor, Entry, JobRef

LOG = "feed"  # the partition
LAST = key("feed last", "number")  # the item with the last number, which outlives the items of the log
EXTEND_BEFORE: Millis = RETENTION - 3_600_000  # a reader extends the recording when less than this is left
MAX_HINTS = 100  # read from each partition
MAX_JOBS = 40  # whose journals one transaction takes
MAX_BYTES = 200_000  # of one item of the log, about
MAX_ROUNDS = 200
MAX_TOLD = 20  # hints that a job remembers
HINT_PATIENCE: Millis = 600_000  # a hint whose change has not been seen for this long was moved before
NUMBERS = 10_000  # of entries of one item of the log
SEEN = ("SK", JOURNAL, TOLD, "queue", "job_type", "target_type", "target_id")
SHORTEST_POLL = 0.1  # seconds; the pause doubles each time nothing is found


# -- recording ----------------------------------------------------------------------------------------


async def refresh_recording(table: Table) -> None:
    """Find out whether changes are recorded, unless this process has found out a moment ago."""
    if table.clock.monotonic() - table.recording_read_at >= table.recording_age:
        note_recording(table, await table.get(halts.ours(table)))


async def keep_recording(table: Table) -> str:
    """Have all processes record changes, from now until the feed's retention after the last read; return its life."""
    row = await table.get(halts.ours(table)) or {}
    found: dict[str, str] = row.get(RECORDING, {})
    now = table.clock.now()
    is_on = found.get("until", "") > stamp(now)
    if is_on and unstamp(found["until"]) - now > EXTEND_BEFORE:
        note_recording(table, row)
        return str(found["life"])
    life = str(found["life"]) if is_on else new_id()[-8:]
    await halts.write_all(table, {RECORDING: {"life": life, "until": stamp(now + RETENTION)}}, None)
    note_recording(table, await table.get(halts.ours(table)))
    if not is_on:
        await asyncio.sleep(table.recording_age)  # by then, all processes know
    return life


# -- moving -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Move:
    """What one transaction moves into the log."""

    entries: list[list[Any]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    told: set[tuple[str, str]] = field(default_factory=set)  # (job, hint) whose change is in the log, or will be
    bytes: int = 0

    def add(self, entries: Sequence[list[Any]]) -> None:
        self.entries += entries
        self.bytes += sum(len(json.dumps(entry)) for entry in entries)

    def take_journal(self, table: Table, row: Row) -> None:
        """Move the changes of a job."""
        lines = row.get(JOURNAL, [])
        self.told.update((row["SK"], hint) for hint in [*row.get(TOLD, []), *map(hint_of, lines)])
        if lines:
            self.add([from_line(row, line) for line in lines])
            self.actions.append(taken(table, row, lines))


async def move(table: Table) -> None:
    """Move recorded changes into the log, until there are none left or another process is faster."""
    for _ in range(MAX_ROUNDS):
        hints = await read_hints(table)
        if not hints:
            return
        planned = await plan(table, hints)
        if not planned.actions:
            return  # only hints whose changes cannot be seen yet
        last = await last_number(table)
        try:
            await table.transact(*log_item(table, planned, last), *planned.actions)
        except Cancelled:
            continue  # another process has moved some of it, or a job has changed again


async def read_hints(table: Table) -> list[Row]:
    partitions = [
        table.query(equals("PK", f"hints#{number}"), consistent=True, limit=MAX_HINTS)
        for number in range(journal.HINT_PARTITIONS)
    ]
    found = await together([pages.next() for pages in partitions])
    return sorted((row for rows in found for row in rows), key=lambda row: str(row["SK"]))


async def plan(table: Table, hints: Sequence[Row]) -> Move:
    """Decide what to move: the journals of the first jobs, and hints that are done then, in the order of the hints."""
    named = list(dict.fromkeys(job_id for hint in hints for job_id in hint["jobs"]))[:MAX_JOBS]
    rows = {row["SK"]: row for row in await table.get_many([table.job_key(job_id) for job_id in named], SEEN)}
    gone = {job_id for job_id in named if job_id not in rows}
    planned = Move()
    for hint in hints:
        for job_id in hint["jobs"]:
            if job_id in rows and planned.bytes < MAX_BYTES:
                planned.take_journal(table, rows.pop(job_id))
        is_old = unstamp(hint["at"]) <= table.clock.now() - HINT_PATIENCE
        done = all(is_old or job_id in gone or (job_id, hint["SK"]) in planned.told for job_id in hint["jobs"])
        if done and len(planned.actions) < MAX_HINTS - 2:
            planned.add(json.loads(hint.get("data") or "[]"))
            planned.actions.append(("Delete", delete(hint_key(hint["SK"]), [equals("SK", hint["SK"])])))
    return planned


def taken(table: Table, row: Row, lines: Sequence[str]) -> Action:
    """Return the write that empties a journal, if it has not grown since."""
    told = list(dict.fromkeys([*row.get(TOLD, []), *map(hint_of, lines)]))[-MAX_TOLD:]
    changes = {JOURNAL: None, TOLD: told}
    return "Update", update(table.job_key(row["SK"]), changes, only_if=[has_size(JOURNAL, len(lines))])


def log_item(table: Table, planned: Move, last: int) -> list[Action]:
    """Return the writes of the next item of the log. They fail if another process has written it."""
    if not planned.entries:
        return []
    until = table.clock.now() + RETENTION
    words = {
        "PK": LOG,
        "SK": f"{last + 1:012d}",
        "data": json.dumps(planned.entries),
        "expires_at": stamp(until),
        "ttl": ttl(until),
    }
    unused = [equals("number", last)] if last else [absent("number")]
    return [("Update", update(LAST, {"number": last + 1}, only_if=unused)), ("Put", put(words))]


async def last_number(table: Table) -> int:
    return int((await table.get(LAST) or {}).get("number", 0))


async def prune(table: Table, limit: int) -> None:
    """Delete what has expired, if the service does not do it."""
    over = Condition("{name} <= {value}", "expires_at", stamp(table.clock.now()))
    rows = await table.first(table.query(equals("PK", LOG), only=[over], limit=limit), limit)
    await table.delete_many([key(row["PK"], row["SK"]) for row in rows])


# -- reading ------------------------------------------------------------------------------------------


async def read(table: Table, after: Cursor | None, limit: int) -> ChangePage:
    """Return the entries after a cursor; without a cursor, none, and the cursor of now."""
    life = await keep_recording(table)
    await move(table)
    if after is None or after.life != life:
        end = Cursor(life, await last_number(table) * NUMBERS + NUMBERS - 1)
        return ChangePage([], end, reset=after is not None)
    number = after.number // NUMBERS
    bound = Condition("{name} >= {value}", "SK", f"{number:012d}")
    pages = table.query(equals("PK", LOG), bound, consistent=True, limit=limit)
    rows: list[Row] = []
    entries: list[Entry] = []
    while pages.more and len(entries) <= limit:
        found = await pages.next()
        rows += [row for row in found if int(row["SK"]) > number or after.number % NUMBERS < NUMBERS - 1]
        entries += [entry for row in found for entry in entries_of(row) if entry.number > after.number]
    if int(rows[0]["SK"]) > number + 1 if rows else await last_number(table) > number:  # some have expired
        return ChangePage([], Cursor(life, await last_number(table) * NUMBERS + NUMBERS - 1), reset=True)
    page = entries[:limit]
    table.feed_grew = table.feed_grew or bool(page)
    cursor = Cursor(life, page[-1].number) if page else after
    return ChangePage(page, cursor, more=len(entries) > limit or pages.more)


def entries_of(row: Row) -> list[Entry]:
    first = int(row["SK"]) * NUMBERS
    return [to_entry(first + index, stored) for index, stored in enumerate(json.loads(row["data"]))]


def to_entry(number: int, stored: Sequence[Any]) -> Entry:
    at, kind, queue, task, jobs, data = stored
    refs = [job if isinstance(job, str) else JobRef(*job) for job in jobs]
    return Entry(ChangeKind(kind), queue, task, refs, data, at, number)


@asynccontextmanager
async def watching(table: Table, notice: Callable[[], None]) -> AsyncIterator[None]:
    """Call `notice` for changes of this process at once, and from time to time for those of others."""
    loop = asyncio.get_running_loop()

    def tell() -> None:
        loop.call_soon_threadsafe(notice)

    async def poll() -> None:
        pause = SHORTEST_POLL
        while True:
            await asyncio.sleep(pause)
            pause = SHORTEST_POLL if table.feed_grew else min(2 * pause, table.local_workers.longest_poll)
            table.feed_grew = False
            notice()

    table.readers.append(tell)
    task = loop.create_task(poll(), name="mainspring-feed-poll")
    try:
        yield
    finally:
        table.readers.remove(tell)
        task.cancel()
