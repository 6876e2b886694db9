"""Which due jobs a worker gets, and that they are its own.

The index says what waits; it may be a moment behind. What decides is the write: it takes a job only from the very place
at which the index showed it. A claim is known by a number of its own, so that one whose answer got lost is found again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mainspring.clock import Millis
from mainspring.ids import new_id
from mainspring.job import Move, Outcome, Status
from mainspring.stores.dynamodb import halts, waiting
from mainspring.stores.dynamodb.endings import ack
from mainspring.stores.dynamodb.items import (
    PLACES,
    STATUSES,
    WORDS,
    running_place,
    stamp,
    status_of,
    suspect_place,
    to_claim,
    unstamp,
    waiting_place,
)
from mainspring.stores.dynamodb.shares import owned
from mainspring.stores.dynamodb.table import Refused, Table, together
from mainspring.stores.dynamodb.values import Change, Condition, Row, equals, unpack
from mainspring.stores.dynamodb.workers import revive, worker_key
from mainspring.stores.protocol import EVERY_QUEUE, Claims, Halt, Want
from mainspring.stores.rules import Level, earliest, ends, shares

PRIORITIES = 4
ROUNDS = 20  # of looking again after others were quicker
SOON: Millis = 20  # then others have finished claiming what was due and not to be had
LOOK_EVERYWHERE = 4  # every so many claims: what is urgent in others' shards must not wait for them


@dataclass(slots=True)
class Request:
    worker: str
    wants: Sequence[Want]
    limit: int
    solo: bool
    turn: int  # counts the claims
    processes: frozenset[str] = frozenset()  # that share the queues
    number: str = field(default_factory=new_id)
    tried: set[str] = field(default_factory=set)  # jobs that may be ours, should no answer come


@dataclass(slots=True)
class Entry:
    """A job as the index shows it."""

    id: str
    queue: str
    priority: int
    due: Millis
    place: str
    rank: str


@dataclass(slots=True)
class Shelf:
    """What waits in a queue: due by priority, and when the next are."""

    queue: str
    due: dict[int, list[Entry]]
    later: list[Millis] = field(default_factory=list)


async def claim(table: Table, request: Request) -> Claims:
    standing = await halts.standing(table, consistent=False)  # what counts is what `confirm` reads
    if any(halt.queue is None for halt in standing):
        return Claims([], next_due=earliest(ends(standing, {None})))
    paused = {halt.queue for halt in standing}
    queues = [queue for queue in await wanted_queues(table, request.wants) if queue not in paused]
    suspects = await together([read_shelf(table, queue, [suspect_place(queue)], 1) for queue in queues])
    due_suspect = any(shelf.due for shelf in suspects)
    shelves: list[Shelf] = []
    if request.solo:
        rows = await take_suspect(table, request, suspects)
    else:
        rows, shelves = await take_waiting(table, request, queues)
    jobs = await confirm(table, request, rows)
    if jobs:
        return Claims([to_claim(row) for row in jobs], suspects=due_suspect)
    now = table.clock.now()
    later = [moment for shelf in (*suspects, *shelves) for moment in shelf.later]
    missed = [now + SOON for shelf in shelves if shelf.due]
    wanted = {want.queue for want in request.wants}
    return Claims([], earliest([*later, *missed, *ends(standing, wanted)]), due_suspect)


async def wanted_queues(table: Table, wants: Sequence[Want]) -> list[str]:
    named = [want.queue for want in wants if want.queue != EVERY_QUEUE]
    if any(want.queue == EVERY_QUEUE for want in wants):
        named += [row["SK"] for row in await table.query(equals("PK", "queues")).rest()]
    return list(dict.fromkeys(named))


# -- looking ------------------------------------------------------------------------------------------


async def read_shelf(table: Table, queue: str, places: Sequence[str], most: int) -> Shelf:
    """Up to `most` due entries of each priority from each place, and when the first of those for later is due."""
    now = table.clock.now()
    shelf = Shelf(queue, {})
    parts = await together([read_place(table, queue, place, most, now) for place in places])
    by_priority: defaultdict[int, list[Entry]] = defaultdict(list)
    for entries, later in parts:
        shelf.later += later
        for entry in entries:
            by_priority[entry.priority].append(entry)
    for priority, entries in sorted(by_priority.items()):
        shelf.due[priority] = sorted(entries, key=lambda entry: (entry.due, entry.id))
    return shelf


async def read_place(table: Table, queue: str, place: str, most: int, now: Millis) -> tuple[list[Entry], list[Millis]]:
    """Seek each priority: what waits for later, however much it is, is stepped over."""
    due: list[Entry] = []
    later: list[Millis] = []
    number: Counter[int] = Counter()
    priority = 0
    while priority < PRIORITIES:
        from_there = Condition("{name} >= {value}", "rank", str(priority))
        pages = table.query(equals("place", place), from_there, index=PLACES, limit=most + 1)
        priority = PRIORITIES  # unless we stop before the end
        while pages.more and priority == PRIORITIES:
            for row in await pages.next():
                entry = to_entry(queue, place, row["rank"])
                if entry.due > now:
                    later.append(entry.due)
                elif number[entry.priority] < most:
                    due.append(entry)
                    number[entry.priority] += 1
                    continue
                priority = entry.priority + 1
                break
    return due, later


def to_entry(queue: str, place: str, rank: str) -> Entry:
    priority, due, job_id = rank.split("#", 2)
    return Entry(job_id, queue, int(priority), unstamp(due), place, rank)


# -- taking ---------------------------------------------------------------------------------------------


async def take_waiting(table: Table, request: Request, queues: Sequence[str]) -> tuple[list[Row], list[Shelf]]:
    """From the shards that are ours first, from all when that is not enough."""
    everywhere = range(table.shards)
    room = [want.limit for want in request.wants]  # what is left of it, want by want
    ours = [shard for shard in everywhere if owned(shard, table.process, request.processes)]
    if request.turn % LOOK_EVERYWHERE and len(ours) < table.shards:
        rows, _ = await take_from(table, request, queues, ours, room, limit=request.limit)
        if len(rows) >= request.limit:
            return rows, []
        more, shelves = await take_from(table, request, queues, everywhere, room, limit=request.limit - len(rows))
        return rows + more, shelves
    return await take_from(table, request, queues, everywhere, room, limit=request.limit)


async def take_from(
    table: Table,
    request: Request,
    queues: Sequence[str],
    shards: Iterable[int],
    room: list[int],
    *,
    limit: int,
) -> tuple[list[Row], list[Shelf]]:
    """Again after others were quicker, unless there is nothing more."""
    taken: list[Row] = []
    shelves: list[Shelf] = []
    for _ in range(ROUNDS):
        most = min(limit - len(taken), sum(room))
        if most <= 0:
            break
        shelves = await together(
            [read_shelf(table, queue, [waiting_place(queue, s) for s in shards], most) for queue in queues]
        )
        collided = False
        for index, want in enumerate(request.wants):
            mine = [shelf for shelf in shelves if want.queue in {EVERY_QUEUE, shelf.queue}]
            chosen = choose(table, request, mine, min(room[index], limit - len(taken)))
            rows = await take(table, request, chosen)
            taken += rows
            room[index] -= len(rows)
            collided = collided or len(rows) < len(chosen)
        if not collided:
            break
    left = [shelf for shelf in shelves if shelf.due]
    return taken, shelves if not taken else left


def choose(table: Table, request: Request, shelves: Sequence[Shelf], room: int) -> list[Entry]:
    """In the order in which they are to be given out. What was tried is gone, though the index may still have it.

    While a job moves, the index may show it at two places. It is tried at one of them: of two tries at once, the one
    that is refused could take the other's success for its own, and the job would be given out twice.
    """
    if room <= 0:
        return []
    levels = [Level(priority, s.queue, entries[0].due) for s in shelves for priority, entries in s.due.items()]
    by_level = {(s.queue, priority): entries for s in shelves for priority, entries in s.due.items()}
    now = table.clock.now()
    chosen: list[Entry] = []
    plan = shares(levels, room, now=now, patience=table.patience, turn=request.turn)
    for level, most in merged(plan):
        entries = sorted(
            (entry for one in level for entry in by_level[one.queue, one.priority] if entry.id not in request.tried),
            key=lambda entry: (entry.due, entry.id),
        )
        once = list({entry.id: entry for entry in entries}.values())
        part = once[: min(most, room - len(chosen))]
        request.tried.update(entry.id for entry in part)
        chosen += part
    return chosen


def merged(plan: Sequence[tuple[Level, int]]) -> list[tuple[list[Level], int]]:
    """Neighbours of one priority are one line: a star takes by due time across its queues."""
    lines: list[tuple[list[Level], int]] = []
    for level, most in plan:
        if lines and lines[-1][1] == most and lines[-1][0][-1].priority == level.priority:
            lines[-1][0].append(level)
        else:
            lines.append(([level], most))
    return lines


async def take(table: Table, request: Request, chosen: Sequence[Entry]) -> list[Row]:
    """Those that were to be had."""
    now = table.clock.now()
    asked = [asked_for(table, request, entry, now) for entry in chosen]
    request.tried.update(entry.id for entry in chosen)
    before = await table.update_many(asked)
    results = zip(asked, before, strict=True)
    taken = [row for change, one in results if (row := row_after(change, one, request)) is not None]
    for row in taken:
        table.counts.add(row["queue"], STATUSES[row["was"]], -1)
        table.counts.add(row["queue"], Status.RUNNING, 1)
    waited = [one for one in before if not isinstance(one, Refused) and "waits_for" in one]
    await waiting.forget(table, [waiting.waiter_key(one) for one in waited])
    return taken


def asked_for(table: Table, request: Request, entry: Entry, now: Millis) -> Change:
    changes = {
        "status": WORDS[Status.RUNNING],
        "locked_by": request.worker,
        "lock_expires_at": stamp(now + round(table.lease * 1000)),
        "started_at": stamp(now),
        "claim": request.number,
        "place": running_place(request.worker),
        "rank": entry.id,
        "progress": None,
        "note": None,
        "waits_for": None,
    }
    still_there = [equals("place", entry.place), equals("rank", entry.rank)]
    return Change(table.job_key(entry.id), changes, still_there, {"token": 1})


def row_after(change: Change, before: Row | Refused, request: Request) -> Row | None:
    """The job as it is now that it is ours; None: it was not to be had."""
    if isinstance(before, Refused):
        return ours(before.item and unpack(before.item), request.number)
    row = {**before, **change.changes, "token": before["token"] + 1, "was": before["status"]}
    return {name: value for name, value in row.items() if value is not None}


def ours(row: Row | None, number: str) -> Row | None:
    """Our own write, met when it was repeated after its answer got lost."""
    if not row or row.get("claim") != number or status_of(row) is not Status.RUNNING:
        return None
    return row | {"was": WORDS[Status.FAILED if row["attempts"] else Status.PENDING]}


async def take_suspect(table: Table, request: Request, suspects: Sequence[Shelf]) -> list[Row]:
    """One, and nothing beside it."""
    if request.limit < 1:
        return []
    for want in request.wants:
        mine = [shelf for shelf in suspects if want.queue in {EVERY_QUEUE, shelf.queue}]
        heads = [entry for shelf in mine for entries in shelf.due.values() for entry in entries]
        for entry in sorted(heads, key=lambda one: (one.priority, one.due, one.id)):
            if rows := await take(table, request, [entry]):
                return rows
    return []


# -- giving out -----------------------------------------------------------------------------------------


async def confirm(table: Table, request: Request, rows: Sequence[Row]) -> list[Row]:
    """What was taken is given out only if, after it was taken, nothing was halted and nobody took us for dead."""
    if not rows:
        return []
    read = await table.get_many([halts.ours(table), worker_key(request.worker)])
    by_partition = {row["PK"].partition("#")[0]: row for row in read}
    standing = halts.still_standing(by_partition.get("halts"), table.clock.now())
    me = by_partition.get("workers")
    buried = me is not None and "buried" in me
    if me is None or buried:
        await revive(table, request.worker)
    kept = [row for row in rows if not buried and not stopped(row, standing)]
    given = {row["SK"] for row in kept}
    await give_back(table, [row for row in rows if row["SK"] not in given])
    for row in kept:
        table.held.setdefault(request.worker, {})[row["SK"]] = row["token"]
    return kept


def stopped(row: Row, standing: Iterable[Halt]) -> bool:
    return any(halt.queue in (None, row["queue"]) for halt in standing)


async def give_back(table: Table, rows: Iterable[Row]) -> None:
    await ack(table, [Outcome(row["SK"], row["token"], Move.RELEASE, ref=row) for row in rows])


async def find_lost(table: Table, ids: Sequence[str], numbers: set[str]) -> list[Row]:
    """Of claims that were never answered: what they have taken all the same. Nobody runs it."""
    rows = await table.get_many([table.job_key(job_id) for job_id in ids])
    return [row for row in rows if row.get("claim") in numbers and status_of(row) is Status.RUNNING]
