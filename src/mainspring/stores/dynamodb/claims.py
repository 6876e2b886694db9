"""Choose the due jobs that a worker gets, and claim them for it.

The index shows what waits, but it may lag. The write decides: it takes a job only from the exact place at which the
index showed it. Each claim has a number of its own, so that a claim whose answer got lost can be recognised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mainspring.clock import Millis
from mainspring.ids import new_id
from mainspring.job import Claim, Move, Outcome, Status
from mainspring.queue_patterns import covers, is_among, is_pattern
from mainspring.stores.dynamodb import halts, wakeups
from mainspring.stores.dynamodb.acks import ack
from mainspring.stores.dynamodb.items import (
    ASIDE,
    PLACES,
    STATUSES,
    SUSPECT,
    WORDS,
    apart_place,
    line_of,
    running_place,
    stamp,
    status_of,
    to_attributes,
    to_claim,
    unstamp,
    waiting_place,
)
from mainspring.stores.dynamodb.journal import moment, note_recording, recorded_update
from mainspring.stores.dynamodb.table import Refused, Table, owned, together
from mainspring.stores.dynamodb.values import Condition, ItemUpdate, Row, equals, unpack
from mainspring.stores.dynamodb.workers import revive, worker_key
from mainspring.stores.engine.claim import Level, claimed, earliest, ends, knows, shares
from mainspring.stores.feed import ChangeKind, Entry
from mainspring.stores.numbers import Measure
from mainspring.stores.protocol import Claims, Halt, Want

PRIORITIES = 4
MAX_ROUNDS = 20  # of looking again because other workers were faster
CONTENDED_RETRY: Millis = 20  # after this time other workers have finished claiming due jobs that this one did not get
MAX_SET_ASIDE = 100  # jobs of unknown tasks that are read from one place before they are set aside
MAX_ASIDE = 1000  # jobs, about, that one claim sets aside
ALL_SHARDS_EVERY = 4  # claims; urgent jobs in shards of other processes must not wait for those


@dataclass(slots=True)
class ClaimRequest:
    worker: str
    wants: Sequence[Want]
    limit: int
    solo: bool
    tasks: frozenset[str] | None  # those that the worker knows; None: any
    turn: int  # counts the claims
    version: str = ""  # of the worker's code
    processes: frozenset[str] = frozenset()  # those that share the queues
    number: str = field(default_factory=new_id)
    tried: set[str] = field(default_factory=set)  # jobs that this claim may have taken, if no answer comes
    aside: set[str] = field(default_factory=set)  # jobs set aside; the index may still show them in the queue
    unknown: set[str] = field(default_factory=set)  # unknown tasks of which jobs are due


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """A partition of the index, and the queue whose jobs are in it."""

    queue: str
    name: str


@dataclass(slots=True)
class IndexEntry:
    """A job as the index shows it."""

    id: str
    queue: str
    priority: int
    due: Millis
    place: str
    rank: str
    task: str


@dataclass(slots=True)
class QueueEntries:
    """What waits in a queue: due jobs by priority, and when the next ones are due."""

    queue: str
    due: dict[int, list[IndexEntry]]
    later: list[Millis] = field(default_factory=list)
    unknown_entries: list[IndexEntry] = field(default_factory=list)  # due, of unknown tasks, and not set aside yet


@dataclass(slots=True)
class TaskEntries:
    """The jobs of a queue that are kept by task: suspects and jobs that were set aside. Only known tasks."""

    queue: str
    suspects: list[IndexEntry] = field(default_factory=list)  # due
    aside: list[IndexEntry] = field(default_factory=list)  # due
    later_suspects: list[Millis] = field(default_factory=list)
    later: list[Millis] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)  # unknown tasks of which jobs are due


async def claim(table: Table, request: ClaimRequest) -> Claims:
    standing = await halts.standing(table, consistent=False)  # only a hint: `confirm` reads them consistently
    if any(halt.queue is None for halt in standing):
        return Claims([], next_due=earliest(ends(standing, {None})))
    paused = {halt.queue for halt in standing}
    queues = [queue for queue in await wanted_queues(table, request.wants) if queue not in paused]
    task_entries = await together([read_by_task(table, queue, request.tasks, request.limit) for queue in queues])
    request.unknown.update(task for by_task in task_entries for task in by_task.unknown)
    due_suspect = any(by_task.suspects for by_task in task_entries)
    queue_entries: list[QueueEntries] = []
    if request.solo:
        rows = await take_suspect(table, request, task_entries)
    else:
        rows, queue_entries = await take_waiting(table, request, task_entries)
    jobs = await confirm(table, request, rows)
    unknown = frozenset(request.unknown)
    if jobs:
        return Claims([to_claim(row) for row in jobs], suspects=due_suspect, unknown=unknown)
    now = table.clock.now()
    later = [moment for by_task in task_entries for moment in by_task.later_suspects]
    if not request.solo:
        later += [moment for by_task in task_entries for moment in by_task.later]
        later += [moment for waiting in queue_entries for moment in waiting.later]
    missed = [now + CONTENDED_RETRY for waiting in queue_entries if waiting.due or waiting.unknown_entries]
    wanted = {want.queue for want in request.wants}
    return Claims([], earliest([*later, *missed, *ends(standing, wanted)]), due_suspect, unknown)


async def wanted_queues(table: Table, wants: Sequence[Want]) -> list[str]:
    named = [want.queue for want in wants if not is_pattern(want.queue)]
    if patterns := [want.queue for want in wants if is_pattern(want.queue)]:
        known = [row["SK"] for row in await table.query(equals("PK", "queues")).rest()]
        named += [queue for queue in known if is_among(queue, patterns)]
    return list(dict.fromkeys(named))


# -- looking ------------------------------------------------------------------------------------------


async def read_queue(
    table: Table, queue: str, places: Iterable[str], most: int, tasks: frozenset[str] | None = None
) -> QueueEntries:
    """Read up to `most` due entries of each priority from each place, and when the next entries are due."""
    now = table.clock.now()
    waiting = QueueEntries(queue, {})
    looks = [read_place(table, place, most, tasks, now) for place in (IndexPlace(queue, name) for name in places)]
    for entries, later, unknown_entries in await together(looks):
        waiting.later += later
        waiting.unknown_entries += unknown_entries
        add_due(waiting, entries)
    return waiting


def add_due(waiting: QueueEntries, entries: Iterable[IndexEntry]) -> None:
    for entry in entries:
        waiting.due.setdefault(entry.priority, []).append(entry)
    waiting.due = {
        priority: sorted(waiting.due[priority], key=lambda entry: (entry.due, entry.id))
        for priority in sorted(waiting.due)
    }


async def read_place(
    table: Table, place: IndexPlace, most: int, tasks: frozenset[str] | None, now: Millis
) -> tuple[list[IndexEntry], list[Millis], list[IndexEntry]]:
    """Seek each priority, so that jobs for later are skipped, however many there are."""
    due: list[IndexEntry] = []
    later: list[Millis] = []
    unknown_entries: list[IndexEntry] = []
    number: Counter[int] = Counter()
    priority = 0
    while priority < PRIORITIES:
        from_there = Condition("{name} >= {value}", "rank", str(priority))
        pages = table.query(equals("place", place.name), from_there, index=PLACES, limit=most + 1)
        priority = PRIORITIES  # changed below if this loop stops before the end
        while pages.more and priority == PRIORITIES:
            for row in await pages.next():
                entry = to_entry(place, row["rank"], row)
                if entry.due > now:
                    later.append(entry.due)
                elif not knows(tasks, entry.task) and len(unknown_entries) < MAX_SET_ASIDE:
                    unknown_entries.append(entry)
                    continue
                elif knows(tasks, entry.task) and number[entry.priority] < most:
                    due.append(entry)
                    number[entry.priority] += 1
                    continue
                priority = entry.priority + 1
                break
    return due, later, unknown_entries


def to_entry(place: IndexPlace, rank: str, row: Row) -> IndexEntry:
    """Convert an index row. `rank` is the row's rank without the kind and task that may precede it."""
    priority, due, job_id = rank.split("#", 2)
    return IndexEntry(job_id, place.queue, int(priority), unstamp(due), place.name, row["rank"], row["job_type"])


async def read_by_task(table: Table, queue: str, tasks: frozenset[str] | None, most: int) -> TaskEntries:
    """Read up to `most` due entries of each kind, task and priority. Unknown tasks and later jobs are skipped."""
    now, place, by_task = table.clock.now(), IndexPlace(queue, apart_place(queue)), TaskEntries(queue)
    number: Counter[str] = Counter()
    position: str | None = ""
    while position is not None:
        beyond = [Condition("{name} > {value}", "rank", position)] if position else []
        pages = table.query(equals("place", place.name), *beyond, index=PLACES, limit=most + 1)
        position = None  # changed below if this loop stops before the end
        while pages.more and position is None:
            for row in await pages.next():
                kind, line, rank = row["rank"].split("#", 2)
                entry = to_entry(place, rank, row)
                level = f"{kind}#{line}#{entry.priority}#"
                number[level] += 1
                if number[level] > most or not sort_in(by_task, kind, entry, tasks, now):
                    position = f"{level}~"  # after the level's last entry
                    break
    return by_task


def sort_in(by_task: TaskEntries, kind: str, entry: IndexEntry, tasks: frozenset[str] | None, now: Millis) -> bool:
    """Add an entry; return whether the next one of the same kind, task and priority matters too."""
    is_suspect = kind == SUSPECT
    if not knows(tasks, entry.task):
        if entry.due <= now:
            by_task.unknown.add(entry.task)
        return False
    if entry.due > now:
        (by_task.later_suspects if is_suspect else by_task.later).append(entry.due)
        return False
    (by_task.suspects if is_suspect else by_task.aside).append(entry)
    return True


# -- taking ---------------------------------------------------------------------------------------------


async def take_waiting(
    table: Table, request: ClaimRequest, task_entries: Sequence[TaskEntries]
) -> tuple[list[Row], list[QueueEntries]]:
    """Take jobs from the shards that this process serves first, and from all shards if that is not enough."""
    everywhere = range(table.shards)
    room = [want.limit for want in request.wants]  # remaining room of each want
    ours = [shard for shard in everywhere if owned(shard, table.process, request.processes)]
    if request.turn % ALL_SHARDS_EVERY and len(ours) < table.shards:
        rows, _ = await take_from(table, request, task_entries, ours, room, limit=request.limit)
        if len(rows) >= request.limit:
            return rows, []
        more, queue_entries = await take_from(
            table, request, task_entries, everywhere, room, limit=request.limit - len(rows)
        )
        return rows + more, queue_entries
    return await take_from(table, request, task_entries, everywhere, room, limit=request.limit)


async def take_from(
    table: Table,
    request: ClaimRequest,
    task_entries: Sequence[TaskEntries],
    shards: Iterable[int],
    room: list[int],
    *,
    limit: int,
) -> tuple[list[Row], list[QueueEntries]]:
    """Take jobs. Look again if other workers were faster, or if jobs of unknown tasks were set aside."""
    taken: list[Row] = []
    queue_entries: list[QueueEntries] = []
    for _ in range(MAX_ROUNDS):
        most = min(limit - len(taken), sum(room))
        if most <= 0:
            break
        queue_entries = await together([look_at(table, request, by_task, shards, most) for by_task in task_entries])
        again = await put_aside(
            table, request, [entry for waiting in queue_entries for entry in waiting.unknown_entries]
        )
        for index, want in enumerate(request.wants):
            mine = [waiting for waiting in queue_entries if covers(want.queue, waiting.queue)]
            chosen = choose(table, request, mine, min(room[index], limit - len(taken)))
            rows = await take(table, request, chosen)
            taken += rows
            room[index] -= len(rows)
            again = again or len(rows) < len(chosen)
        if not again:
            break
    left = [waiting for waiting in queue_entries if waiting.due or waiting.unknown_entries]
    return taken, queue_entries if not taken else left


async def look_at(
    table: Table, request: ClaimRequest, by_task: TaskEntries, shards: Iterable[int], most: int
) -> QueueEntries:
    """Read the due jobs of a queue, and sort the set-aside jobs in."""
    places = [waiting_place(by_task.queue, shard) for shard in shards]
    waiting = await read_queue(table, by_task.queue, places, most, request.tasks)
    waiting.unknown_entries = [entry for entry in waiting.unknown_entries if entry.id not in request.aside]
    add_due(waiting, by_task.aside)
    return waiting


async def put_aside(table: Table, request: ClaimRequest, unknown_entries: Sequence[IndexEntry]) -> bool:
    """Set aside jobs of unknown tasks, each once, for workers that know them; return whether to look for more."""
    request.unknown.update(entry.task for entry in unknown_entries)
    if not unknown_entries or len(request.aside) >= MAX_ASIDE:
        return False
    request.aside.update(entry.id for entry in unknown_entries)
    await table.update_many([aside(table, entry) for entry in unknown_entries])
    return True


def aside(table: Table, entry: IndexEntry) -> ItemUpdate:
    still_there = [equals("place", entry.place), equals("rank", entry.rank)]
    there = {"place": apart_place(entry.queue), "rank": f"{line_of(ASIDE, entry.task)}#{entry.rank}"}
    return ItemUpdate(table.job_key(entry.id), there, still_there)


def choose(table: Table, request: ClaimRequest, queue_entries: Sequence[QueueEntries], room: int) -> list[IndexEntry]:
    """Return the entries to take, in order. Jobs that were tried are gone, though the index may still show them.

    While a job moves, the index may show it at two places. Only one of them is tried. If both were, the refused try
    could take the other's success for its own, and the job would be handed out twice.
    """
    if room <= 0:
        return []
    levels = [
        Level(priority, waiting.queue, entries[0].due)
        for waiting in queue_entries
        for priority, entries in waiting.due.items()
    ]
    by_level = {
        (waiting.queue, priority): entries for waiting in queue_entries for priority, entries in waiting.due.items()
    }
    now = table.clock.now()
    chosen: list[IndexEntry] = []
    plan = shares(levels, room, now=now, patience=table.patience, turn=request.turn)
    for level, most in plan:
        entries = by_level[level.queue, level.priority]
        once = list({entry.id: entry for entry in entries if entry.id not in request.tried}.values())
        part = once[: min(most, room - len(chosen))]
        request.tried.update(entry.id for entry in part)
        chosen += part
    return chosen


async def take(table: Table, request: ClaimRequest, chosen: Sequence[IndexEntry]) -> list[Row]:
    """Claim the chosen jobs and return those that were still free."""
    now = table.clock.now()
    asked = [asked_for(table, request, entry, now) for entry in chosen]
    request.tried.update(entry.id for entry in chosen)
    states = await states_of(table, chosen)
    before = await table.update_many(asked)
    if states:
        before = await with_items(table, chosen, before, states)
    results = zip(asked, before, strict=True)
    taken = [row for change, answer in results if (row := row_after(change, answer, request)) is not None]
    for row in taken:
        table.counts.add(row["queue"], STATUSES[row["was"]], -1)
        table.counts.add(row["queue"], Status.RUNNING, 1)
    waited = [row for row in before if not isinstance(row, Refused) and "waits_for" in row]
    await wakeups.forget(table, [wakeups.waiter_key(row) for row in waited])
    return taken


def asked_for(table: Table, request: ClaimRequest, entry: IndexEntry, now: Millis) -> ItemUpdate:
    changes = {
        **to_attributes(claimed(request.worker, request.version, now)),
        "lock_expires_at": stamp(now + round(table.lease * 1000)),
        "claim": request.number,
        "place": running_place(request.worker),
        "rank": entry.id,
    }
    still_there = [equals("place", entry.place), equals("rank", entry.rank)]
    change = ItemUpdate(table.job_key(entry.id), changes, still_there, {"token": 1})
    if not table.records_starts:
        return change
    started = Entry(ChangeKind.STARTED, entry.queue, data={"worker": request.worker})
    return recorded_update(table, entry.id, change, [started])


async def states_of(table: Table, chosen: Sequence[IndexEntry]) -> dict[str, Row]:
    """Read what transactions do not return: how the jobs waited. A job at the same place still waits like this."""
    if not table.records_starts:
        return {}
    keys = [table.job_key(entry.id) for entry in chosen]
    return {row["SK"]: row for row in await table.get_many(keys, ("SK", "status", "waits_for"))}


async def with_items(
    table: Table, chosen: Sequence[IndexEntry], answers: Sequence[Row | Refused], states: Mapping[str, Row]
) -> list[Row | Refused]:
    """Return the jobs as they were before they were taken, if they were taken by transactions."""
    taken = [entry.id for entry, answer in zip(chosen, answers, strict=True) if answer == {}]
    rows = {row["SK"]: row for row in await table.get_many([table.job_key(job_id) for job_id in taken])}
    return [
        {**rows[entry.id], **states[entry.id], "token": rows[entry.id]["token"] - 1}
        if answer == {} and entry.id in rows and entry.id in states
        else answer
        for entry, answer in zip(chosen, answers, strict=True)
    ]


def row_after(change: ItemUpdate, before: Row | Refused, request: ClaimRequest) -> Row | None:
    """Return the job as this claim has changed it, or None if it was not free any more."""
    if isinstance(before, Refused):
        return ours(before.item and unpack(before.item), request.number)
    row = {**before, **change.changes, "token": before["token"] + 1, "was": before["status"]}
    return {name: value for name, value in row.items() if value is not None}


def ours(row: Row | None, number: str) -> Row | None:
    """Return the job if this claim has taken it: a write that was repeated after its answer got lost."""
    if not row or row.get("claim") != number or status_of(row) is not Status.RUNNING:
        return None
    return row | {"was": WORDS[Status.RETRYING if row["attempts"] else Status.PENDING]}


async def take_suspect(table: Table, request: ClaimRequest, task_entries: Sequence[TaskEntries]) -> list[Row]:
    """Take one suspect and nothing else."""
    if request.limit < 1:
        return []
    for want in request.wants:
        due = [
            entry
            for by_task in task_entries
            if want.limit > 0 and covers(want.queue, by_task.queue)
            for entry in by_task.suspects
        ]
        for entry in sorted(due, key=lambda suspect: (suspect.due, suspect.id)):
            if rows := await take(table, request, [entry]):
                return rows
    return []


# -- handing out ----------------------------------------------------------------------------------------


async def confirm(table: Table, request: ClaimRequest, rows: Sequence[Row]) -> list[Row]:
    """Return the taken jobs that may start; release the others.

    A job may start if, after it was taken, it was not halted and the worker was not declared dead.
    """
    if not rows:
        return []
    looked_at = moment(table)
    read = await table.get_many([halts.ours(table), worker_key(request.worker)])
    by_partition = {row["PK"].partition("#")[0]: row for row in read}
    note_recording(table, by_partition.get("halts"), looked_at)
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


def count_starts(table: Table, jobs: Iterable[Claim]) -> None:
    """Count a start for each job that a claim returns. Jobs that it gives back, or that are lost with it, have none."""
    for job in jobs:
        claimed_at = unstamp(job.ref["started_at"])
        table.numbers.add(claimed_at, job.queue, job.task, Measure.STARTED, claimed_at - job.run_at)


async def find_lost(table: Table, ids: Sequence[str], numbers: set[str]) -> list[Row]:
    """Return jobs that were taken by claims which were never answered. No worker runs them."""
    rows = await table.get_many([table.job_key(job_id) for job_id in ids])
    return [row for row in rows if row.get("claim") in numbers and status_of(row) is Status.RUNNING]
