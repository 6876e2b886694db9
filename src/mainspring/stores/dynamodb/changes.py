"""Read the change feed: move recorded changes into a log with numbers, and read the log.

Hints name the jobs with recorded changes (journal.py). Any reader, and any worker, moves what it finds: one transaction
puts the next item of the log, takes the changes out of the jobs' journals, and deletes the hints. The item has the
number after the last one and must not exist yet, so of several processes one succeeds, and each change is in the log
exactly once. The changes of one job are in the log in the order of its journal, which is the order of the writes.

A transaction of the service appears item by item to reads that are not transactions. So a hint may be seen before the
change of a job that it names, or before its new job. And a change may be moved before its hint is seen, because of a
later hint of the same job. So each job remembers the last hints whose changes are in the log, and a hint without its
change waits. An item of the log may be seen before an earlier one; a read by its key finds the earlier one.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from mainspring.clock import Millis
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.ids import new_id
from mainspring.log import get_log
from mainspring.stores.dynamodb import halts, journal
from mainspring.stores.dynamodb.client import Cancelled, ConditionFailed
from mainspring.stores.dynamodb.items import key, stamp, ttl, unstamp
from mainspring.stores.dynamodb.journal import (
    JOURNAL,
    RECORDING,
    STARTS,
    TOLD,
    from_journal,
    hint_key,
    hint_of,
    moment,
    note_recording,
)
from mainspring.stores.dynamodb.table import Action, Table, together
from mainspring.stores.dynamodb.values import Condition, Row, absent, delete, equals, has_size, put, update
from mainspring.stores.feed import (
    RETENTION,
    STARTS_RETENTION,
    ChangeKind,
    ChangePage,
    Cursor,
    Entry,
    JobRef,
    are_asked_for,
)

log = get_log("mainspring.dynamodb")

LOG = "feed"  # the partition
LAST = key("feed last", "number")  # the item with the last number, which outlives the items of the log
MARGIN: Millis = 3_600_000  # by which the clocks of writers may be ahead
EXTEND_BEFORE: Millis = RETENTION  # a reader extends the recording when less than this is left
SETTLED = "settled"  # part of RECORDING: some reader has waited for the writes that knew nothing of it
LATE = 2  # times the age of a look, after which a write is late; must be less than FENCE
FENCE = 3  # times the age of a look, that the first reader waits
LATE_WRITE = 120.0  # seconds for which a write that got no answer may still take effect
MAX_HINTS_READ = 100  # from each partition
MAX_HINTS = 40  # that one transaction deletes
MAX_JOBS = 40  # whose journals one transaction takes
MAX_BYTES = 200_000  # of one item of the log, about; and of one transaction, before the journal that exceeds it
MAX_ROUNDS = 200
MAX_TRIES = 10
MAX_TOLD = 20  # hints that a job remembers
HINT_PATIENCE: Millis = 600_000  # a hint whose change has not been seen for this long was moved before
NUMBERS = 10_000  # of entries of one item of the log
SEEN = ("SK", JOURNAL, TOLD, "queue", "job_type", "target_type", "target_id")
SHORTEST_POLL = 0.1  # seconds; the pause doubles each time nothing is found


# -- recording ----------------------------------------------------------------------------------------


async def refresh_recording(table: Table) -> None:
    """Find out whether changes are recorded, unless this process has found out a moment ago."""
    if moment(table) - table.recording_read_at >= table.recording_age:
        await look(table)


async def look(table: Table) -> None:
    looked_at = moment(table)
    note_recording(table, await table.get(halts.ours(table)), looked_at)


@asynccontextmanager
async def writing(table: Table) -> AsyncIterator[None]:
    """Surround writes that record changes.

    The first reader waits until all writes that know nothing of it have taken effect. But a process may be paused
    between its look and its write. A write that took too long is noticed here, and the feed begins again: its readers
    are told that changes may be missing.

    This is about the first reader of all, not about the first one that asks for starts. If a paused claim is not
    recorded as started, only that start is missing. To begin again would cost all other readers their place.
    """
    await refresh_recording(table)
    looked_at, is_unrecorded = table.recording_read_at, table.recording is None
    if not is_unrecorded and moment(table) < table.in_doubt_until:
        await begin_again(table)
    try:
        yield
    except (StoreUnavailable, asyncio.CancelledError):  # the write may still take effect
        if is_unrecorded:
            doubt(table)
        raise
    if is_unrecorded and moment(table) - looked_at > LATE * table.recording_age:
        await look_again(table)


async def look_again(table: Table) -> None:
    """After a late write: if a reader has begun since, begin the feed again. An error must not hide the write."""
    try:
        await look(table)
        if table.recording is not None:
            await begin_again(table)
    except StoreError:
        doubt(table)


def doubt(table: Table) -> None:
    """Remember that a change may be missing, should a reader have begun: the next write looks."""
    table.in_doubt_until = moment(table) + LATE_WRITE


async def begin_again(table: Table) -> None:
    """Give the feed another life, so that every reader is reset: a change may not have been recorded."""
    log.warning("changes_not_recorded", cause="a write took so long that a reader of the feed has begun meanwhile")
    while True:
        found: dict[str, str] = (await table.get(halts.ours(table)) or {}).get(RECORDING, {})
        with suppress(Cancelled):
            another = {**found, "life": new_life()}
            await halts.write_all(table, {RECORDING: another}, None, only_if=[equals(RECORDING, found)])
            table.in_doubt_until = -math.inf
            return


async def keep_recording(table: Table, *, starts: bool) -> str:
    """Have all processes record changes, from now until the feed's retention after the last read; return its life.

    With `starts`, they record claims too. Another reader may be faster, and may not want claims: then try again.
    A reader that begins the recording, or comes soon after, waits for the writes that know nothing of it yet.
    """
    while True:
        looked_at = moment(table)
        row = await table.get(halts.ours(table)) or {}
        found: dict[str, str] = row.get(RECORDING, {})
        wanted = to_record(found, table.clock.now(), starts=starts)
        if wanted == found and SETTLED in found:
            note_recording(table, row, looked_at)
            return found["life"]
        if wanted == found:
            await asyncio.sleep(FENCE * table.recording_age)
            wanted[SETTLED] = "yes"
        same = [equals(RECORDING, found)] if found else [absent(RECORDING)]
        with suppress(Cancelled):  # another reader was faster: two lives would reset each other's cursors
            await halts.write_all(table, {RECORDING: wanted}, None, only_if=same)


def to_record(found: Mapping[str, str], now: Millis, *, starts: bool) -> dict[str, str]:
    """Return the value that RECORDING needs for this reader. It equals `found` if nothing has to be written.

    Writers whose clocks are ahead stop recording earlier. So the recording has ended an hour before it says so.
    """
    wanted = dict(found)
    if found.get("until", "") <= stamp(now + MARGIN):
        wanted = {"life": new_life(), "until": stamp(now + RETENTION + MARGIN)}
    elif unstamp(found["until"]) - now <= EXTEND_BEFORE:
        wanted["until"] = stamp(now + RETENTION + MARGIN)
    if starts and not (STARTS in wanted and are_asked_for(unstamp(wanted[STARTS]), now)):
        if STARTS not in wanted or unstamp(wanted[STARTS]) <= now + MARGIN:
            wanted.pop(SETTLED, None)
        wanted[STARTS] = stamp(now + STARTS_RETENTION)
    return wanted


def new_life() -> str:
    return new_id()[-8:]


# -- moving -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Move:
    """What one transaction moves into the log."""

    last: int  # number of the log, as it was before the journals were read: then no other process has moved any of them
    entries: list[list[Any]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    told: set[tuple[str, str]] = field(default_factory=set)  # (job, hint) whose change is in the log, or will be
    empty: set[str] = field(default_factory=set)  # jobs without a journal, or whose journal is taken
    hints: set[str] = field(default_factory=set)  # that name the moved changes, and are not deleted by the transaction
    bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.bytes >= MAX_BYTES

    def add(self, entries: Sequence[list[Any]]) -> None:
        self.entries += entries
        self.bytes += sum(len(json.dumps(entry)) for entry in entries)

    def take_journal(self, table: Table, row: Row) -> None:
        """Move the changes of a job."""
        lines = row[JOURNAL]
        self.told.update((row["SK"], hint_of(line)) for line in lines)
        self.empty.add(row["SK"])
        self.hints.update(map(hint_of, lines))
        self.add(from_journal(row, lines))
        self.actions.append(taken(table, row, lines))

    def is_done(self, hint: Row, *, is_old: bool) -> bool:
        """Return whether all changes that the hint names are in the log, or will be.

        If a hint is old, its change would have been seen: it was moved, or its job is gone.
        """
        return all((job_id, hint["SK"]) in self.told or (is_old and job_id in self.empty) for job_id in hint["jobs"])

    def delete_hint(self, hint: Row) -> None:
        """Delete a hint, and move the changes that are in the hint itself; these must not be moved twice."""
        self.hints.discard(hint["SK"])
        carried = json.loads(hint.get("data") or "[]")
        self.add(carried)
        there = [equals("SK", hint["SK"])] if carried else []
        self.actions.append(("Delete", delete(hint_key(hint["SK"]), there)))


async def move(table: Table) -> bool:
    """Move recorded changes until there are none left, or another process is faster; return whether the log grew."""
    grew = False
    for _ in range(MAX_ROUNDS):
        planned = await first_plan(table)
        if planned is None:
            return grew
        try:
            await table.transact(*log_items(table, planned), *planned.actions)
        except Cancelled as cancelled:
            if planned.entries and cancelled.failed(0):
                return True  # another process has given this number to its own changes
            continue  # a job has changed again, or its changes were moved
        grew = grew or bool(planned.entries)
        await together([forget_hint(table, hint) for hint in planned.hints])
    return grew


async def move_all(table: Table) -> None:
    """Move all changes that were recorded until now, also if other processes are faster."""
    for _ in range(MAX_TRIES):
        if not await move(table):
            return


async def first_plan(table: Table) -> Move | None:
    """Return what can be moved now, or None. Hints whose changes cannot be seen yet must not hold up the others."""
    partitions = [
        table.query(equals("PK", f"hints#{number}"), consistent=True, limit=MAX_HINTS_READ)
        for number in range(journal.HINT_PARTITIONS)
    ]
    while partitions:
        found = await together([pages.next() for pages in partitions])
        hints = sorted((row for rows in found for row in rows), key=lambda row: str(row["SK"]))
        if hints and (planned := await plan(table, hints)).actions:
            return planned
        partitions = [pages for pages in partitions if pages.more]
    return None


async def plan(table: Table, hints: Sequence[Row]) -> Move:
    """Decide what to move: the journals of the first jobs that have one, and hints that are done then."""
    planned = Move(await last_number(table))
    journals = await first_journals(table, hints, planned)
    too_old = stamp(table.clock.now() - HINT_PATIENCE)
    deletes = 0
    for hint in hints:
        for job_id in hint["jobs"]:
            if job_id in journals and not planned.is_full:
                planned.take_journal(table, journals.pop(job_id))
        is_done = planned.is_done(hint, is_old=hint["at"] <= too_old)
        if is_done and deletes < MAX_HINTS and not planned.is_full:
            planned.delete_hint(hint)
            deletes += 1
    return planned


async def first_journals(table: Table, hints: Sequence[Row], planned: Move) -> dict[str, Row]:
    """Return the first jobs that the hints name and that have a journal; note which hints the jobs remember."""
    named = list(dict.fromkeys(job_id for hint in hints for job_id in hint["jobs"]))
    for first in range(0, len(named), MAX_JOBS):
        part = named[first : first + MAX_JOBS]
        rows = await table.get_many([table.job_key(job_id) for job_id in part], SEEN)
        planned.told.update((row["SK"], hint) for row in rows for hint in row.get(TOLD, ()))
        found = {row["SK"]: row for row in rows if row.get(JOURNAL)}
        planned.empty.update(set(part) - found.keys())
        if found:
            return found
    return {}


def taken(table: Table, row: Row, lines: Sequence[str]) -> Action:
    """Return the write that empties a journal, if it has not grown since."""
    told = list(dict.fromkeys([*row.get(TOLD, []), *map(hint_of, lines)]))[-MAX_TOLD:]
    changes = {JOURNAL: None, TOLD: told}
    return "Update", update(table.job_key(row["SK"]), changes, only_if=[has_size(JOURNAL, len(lines))])


async def forget_hint(table: Table, hint: str) -> None:
    """Delete a hint for which the transaction had no room, unless it names other changes too.

    A job remembers only its last hints. So this one might look as if its change could not be seen yet, and wait.
    """
    with suppress(ConditionFailed, StoreError):
        await table.delete(delete(hint_key(hint), [has_size("jobs", 1), absent("data")]))


def log_items(table: Table, planned: Move) -> list[Action]:
    """Return the writes of the next items of the log. They fail if another process has written one."""
    if not planned.entries:
        return []
    until = table.clock.now() + RETENTION
    about = {"PK": LOG, "expires_at": stamp(until), "ttl": ttl(until)}
    texts = [json.dumps(part) for part in parts_of(planned.entries)]
    puts = [put({**about, "SK": f"{number:012d}", "data": text}) for number, text in enumerate(texts, planned.last + 1)]
    unused = [equals("number", planned.last)] if planned.last else [absent("number")]
    number = planned.last + len(puts)
    return [("Update", update(LAST, {"number": number}, only_if=unused)), *(("Put", item) for item in puts)]


def parts_of(entries: Sequence[list[Any]]) -> Iterator[list[list[Any]]]:
    """Split entries into items of the log: the journal of one job can be larger than an item may be."""
    part: list[list[Any]] = []
    size = 0
    for entry in entries:
        size += len(json.dumps(entry))
        if part and size > MAX_BYTES:
            yield part
            part, size = [], len(json.dumps(entry))
        part.append(entry)
    yield part


async def last_number(table: Table) -> int:
    return int((await table.get(LAST) or {}).get("number", 0))


async def prune(table: Table, limit: int) -> None:
    """Delete what has expired, if the service does not do it."""
    over = Condition("{name} <= {value}", "expires_at", stamp(table.clock.now()))
    rows = await table.first(table.query(equals("PK", LOG), only=[over], limit=limit), limit)
    await table.delete_many([key(row["PK"], row["SK"]) for row in rows])


# -- reading ------------------------------------------------------------------------------------------


async def read(table: Table, after: Cursor | None, limit: int, *, starts: bool) -> ChangePage:
    """Return the entries after a cursor; without a cursor, none, and the cursor of now.

    A reader that is behind the log reads the log only. Many readers that move at the same time hinder each other.
    """
    life = await keep_recording(table, starts=starts)
    if after is None or after.life != life:
        await move_all(table)
        return ChangePage([], await end_of_log(table, life), reset=after is not None)
    page = await read_log(table, after, limit)
    if page.entries or page.reset:
        return replace(page, more=not page.reset)
    return await read_log(table, after, limit) if await move(table) else page


@dataclass(slots=True)
class Part:
    """A part of the log, after a cursor."""

    after: Cursor
    entries: list[Entry] = field(default_factory=list)
    marks: dict[int, str] = field(default_factory=dict)  # entry -> mark of its item
    own_mark: str | None = None  # of the item that has the cursor's number; None: it was not seen

    def add(self, row: Row) -> None:
        if int(row["SK"]) == self.after.number // NUMBERS:
            self.own_mark = mark_of(row)
        entries = [entry for entry in entries_of(row) if entry.number > self.after.number]
        self.entries += entries
        self.marks |= dict.fromkeys((entry.number for entry in entries), mark_of(row))

    def is_of_another_log(self) -> bool:
        """Return whether the cursor's number was given again, after a backup was restored."""
        return bool(self.own_mark and self.after.mark) and self.own_mark != self.after.mark


def mark_of(row: Row) -> str:
    """Return what tells an item of the log from another one that had its number before a backup was restored."""
    return str(row["expires_at"])


async def read_log(table: Table, after: Cursor, limit: int) -> ChangePage:
    part = await part_after(table, after, limit)
    if part.is_of_another_log() or not (part.entries or await add_hidden_item(table, part)):
        return ChangePage([], await end_of_log(table, after.life), reset=True)
    page = part.entries[:limit]
    table.feed_grew = table.feed_grew or bool(page)
    cursor = Cursor(after.life, page[-1].number, mark=part.marks[page[-1].number]) if page else after
    return ChangePage(page, cursor, more=len(part.entries) > limit, marks=part.marks)


async def add_hidden_item(table: Table, part: Part) -> bool:
    """Add the next item, if the query did not show it; return whether the cursor is one of this log.

    It is not if the next item has expired, or if the log has not come to the cursor's number: a backup was restored.
    The cursor's item may be visible before the last number is, because one transaction writes both.
    """
    number, last = part.after.number // NUMBERS, await last_number(table)
    if last <= number:
        return last == number or part.own_mark is not None
    rows = await hidden_items(table, number + 1, number + 2)  # or written after the query
    for row in rows:
        part.add(row)
    return bool(rows)


async def part_after(table: Table, after: Cursor, limit: int) -> Part:
    """Return the next entries, up to the first item that is missing; more of them than the limit, if there are more."""
    expected = after.number // NUMBERS + 1
    bound = Condition("{name} >= {value}", "SK", f"{expected - 1:012d}")
    pages = table.query(equals("PK", LOG), bound, consistent=True, limit=limit)
    part = Part(after)
    while pages.more and len(part.entries) <= limit:
        for row in await pages.next():
            hidden = await hidden_items(table, expected, int(row["SK"]))
            expected += len(hidden)
            is_next = expected >= int(row["SK"])
            for shown in [*hidden, row] if is_next else hidden:
                part.add(shown)
            if not is_next:
                return part
            expected = max(expected, int(row["SK"]) + 1)
    return part


async def hidden_items(table: Table, first: int, end: int) -> list[Row]:
    """Return items of the log that a query did not show, up to the first one that has expired.

    A query may show a transaction before an earlier one. A read of one item does not.
    """
    rows: list[Row] = []
    for number in range(first, end):
        row = await table.get(key(LOG, f"{number:012d}"))
        if row is None:
            break
        rows.append(row)
    return rows


async def end_of_log(table: Table, life: str) -> Cursor:
    number = await last_number(table)
    row = await table.get(key(LOG, f"{number:012d}"))  # None: it has expired, or is not visible yet
    return Cursor(life, number * NUMBERS + NUMBERS - 1, mark="" if row is None else mark_of(row))


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
