"""Read jobs, history and statistics. Jobs by id come from the table, consistently; lists come from the indexes."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.errors import ConfigurationError
from mainspring.job import Attempt, Counts, Job, Status, TimelineEntry
from mainspring.queue_patterns import is_among
from mainspring.stores.dynamodb import steps, workers
from mainspring.stores.dynamodb.claims import read_by_task, read_queue
from mainspring.stores.dynamodb.counts import sum_up
from mainspring.stores.dynamodb.failures import group_part
from mainspring.stores.dynamodb.filters import conditions, matches, unexpired, within
from mainspring.stores.dynamodb.halts import standing
from mainspring.stores.dynamodb.items import (
    LISTED,
    PLACES,
    TARGETS,
    bucket,
    column,
    history,
    key,
    listed_place,
    running_place,
    stamp,
    status_of,
    target_key,
    to_attempt,
    to_job,
    unstamp,
    waiting_place,
)
from mainspring.stores.dynamodb.table import Pages, Table, together
from mainspring.stores.dynamodb.values import Condition, Row, equals
from mainspring.stores.engine.halts import is_about
from mainspring.stores.protocol import (
    DUE_CAP,
    AuditEntry,
    AuditFilter,
    AuditSpot,
    CappedCount,
    Completable,
    Filter,
    Page,
    Sort,
    Stats,
)
from mainspring.stores.sorting import QUICK, Order, PageRequest, Spot
from mainspring.stores.suggestions import PAYLOADS, beginning_with, values_in
from mainspring.stores.tables import DueIn, due_in, timeline_of

DEAD_LOOK = 100  # dead letters that `stats` reads to find the oldest
MOST_SORTED = 10_000  # jobs that a page by another sort than creation may read

# -- jobs -----------------------------------------------------------------------------------------------


def is_over(table: Table, row: Row) -> bool:
    """Return whether the job has expired, and only the service has not deleted it yet."""
    return not table.prunes and "expires_at" in row and row["expires_at"] <= stamp(table.clock.now())


async def rows_of(table: Table, ids: Sequence[str]) -> dict[str, Row]:
    rows = await table.get_many([table.job_key(job_id) for job_id in ids if job_id])
    return {row["SK"]: row for row in rows if not is_over(table, row)}


async def get(table: Table, ids: Sequence[str], within: Sequence[str] = ()) -> list[Job]:
    rows = await rows_of(table, ids)
    found = {job_id: row for job_id, row in rows.items() if is_wanted(row["queue"], within)}
    return [to_job(found[job_id]) for job_id in ids if job_id in found]


async def tags(table: Table, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    rows = await table.get_many([table.job_key(job_id) for job_id in ids], ["SK", "tags"])
    return {row["SK"]: tuple(row["tags"]) for row in rows if row.get("tags")}


def is_wanted(queue: str, within: Sequence[str]) -> bool:
    return not within or is_among(queue, within)


async def find(table: Table, request: PageRequest) -> Page:
    """Return a page of matching jobs. Ids are in order of time; for other sorts, all matching jobs are read."""
    where, order, limit, start = request.where, request.order, request.limit, request.start
    if order.sort is Sort.CREATED:
        beyond = None if start is None else str(start[1])
        search = await JobSearch.start(table, where, newest_first=order.descending, beyond=beyond, hint=limit)
        found: list[tuple[Spot, Row]] = [((0, row["SK"]), row) for row in await search.take(limit + 1)]
    else:
        found = [
            row for row in await all_sorted(table, where, order) if start is None or order.is_beyond(row[0], start)
        ]
    page = [to_job({**row, "traceback": ""}) for _, row in found[:limit]]
    return request.page(page, found[limit - 1][0] if len(found) > limit else None)


async def all_sorted(table: Table, where: Filter, order: Order) -> list[tuple[Spot, Row]]:
    """Return all matching jobs, sorted. No index has this order, so a limit keeps the cost in bounds."""
    listed = tuple(status for status in where.statuses or Status if order.takes(status))
    if not listed:
        return []
    search = await JobSearch.start(table, replace(where, statuses=listed), newest_first=True, beyond=None)
    rows = await search.take(MOST_SORTED + 1)
    if len(rows) > MOST_SORTED:
        msg = (
            f"more than {MOST_SORTED:,} jobs match, and DynamoDB has no index by {order.sort}, so that all of them "
            'would have to be read; narrow the filter, or sort by "created"'
        )
        raise ConfigurationError(msg)
    found = [((sort_key(order.sort, row), row["SK"]), row) for row in rows]
    return sorted(found, key=lambda item: item[0], reverse=order.descending)


def sort_key(sort: Sort, row: Row) -> int:
    match sort:
        case Sort.DUE:
            return int(column("run_at", row))
        case Sort.FINISHED:
            return int(column("finished_at", row))
        case Sort.DURATION:
            began = column("started_at", row)
            lasted = int(column("finished_at", row)) - began if began else 0
            return lasted if lasted >= QUICK else 0
        case _:
            return int(column("attempts", row) or 0)


async def count_up_to(table: Table, where: Filter, cap: int) -> CappedCount:
    search = await JobSearch.start(table, where, newest_first=True, beyond=None, hint=cap)
    number = len(await search.take(cap + 1))
    return CappedCount(min(number, cap), exact=number <= cap)


async def dead_letters(
    table: Table, fingerprints: Sequence[str], cap: int, within: Sequence[str]
) -> dict[str, dict[str, int]]:
    async def queues_of(known: str) -> Counter[str]:
        where = Filter(fingerprint=known, statuses=(Status.DEAD_LETTER,), within=tuple(within))
        search = await JobSearch.start(table, where, newest_first=False, beyond=None, hint=cap)
        return Counter(column("queue", row) for row in await search.take(cap))

    found = await together([queues_of(known) for known in fingerprints])
    return {known: dict(queues) for known, queues in zip(fingerprints, found, strict=True) if queues}


async def count(table: Table, where: Filter) -> int:
    asked, left = conditions(where)
    if left != Filter() or where.fingerprint is not None:
        search = await JobSearch.start(table, where, newest_first=False, beyond=None)
        return len(await search.take(None))
    only = asked if table.prunes else [*asked, unexpired(table.clock.now())]
    counts = [
        table.query(equals("PK", bucket(shard)), only=only, count=True, consistent=True)
        for shard in range(table.shards)
    ]
    await together([pages.rest() for pages in counts])
    return sum(pages.counted for pages in counts)


async def complete(table: Table, what: Completable, prefix: str, limit: int, where: Filter) -> list[str]:
    """Return values that begin with the prefix: of all queues, or of the newest jobs, because no index lists them."""
    if what is Completable.QUEUE:
        queues = [row["SK"] for row in await table.rows("queues")]
        return beginning_with(prefix, [queue for queue in queues if is_wanted(queue, where.within)], limit)
    if what is Completable.ERROR_TYPE:
        where = replace(where, statuses=(Status.DEAD_LETTER,))
    newest = (await find(table, PageRequest(where, Order(), PAYLOADS, None))).jobs
    return beginning_with(prefix, values_in(newest, what), limit)


class JobSearch:
    """Iterate over the matching jobs in the order of their ids, and read only as far as needed."""

    def __init__(self, table: Table, where: Filter, streams: list[Stream], *, newest_first: bool, keys: bool) -> None:
        self._table = table
        self._where = where
        self._streams = streams
        self._newest_first = newest_first
        self._keys = keys  # the streams bring keys only
        self._left: list[Row] = []  # read already, for the next call of `take`

    @classmethod
    async def start(
        cls, table: Table, where: Filter, *, newest_first: bool, beyond: str | None, hint: int = 0
    ) -> JobSearch:
        streams, keys = await streams_for(table, where, newest_first=newest_first, beyond=beyond, hint=hint)
        await together([stream.fill() for stream in streams])
        return cls(table, where, streams, newest_first=newest_first, keys=keys)

    async def take(self, number: int | None) -> list[Row]:
        """Return the next `number` jobs, or all if it is None."""
        found, self._left = self._left, []
        while number is None or len(found) < number:
            rows = await self._next(max(25, (number or 100) - len(found)) if self._keys else 1)
            if not rows:
                break
            if self._keys:
                full = await rows_of(self._table, [row["SK"] for row in rows])
                rows = [full[row["SK"]] for row in rows if row["SK"] in full]
            found += (row for row in rows if not is_over(self._table, row) and matches(row, self._where))
        if number is None:
            return found
        self._left = found[number:]
        return found[:number]

    async def _next(self, number: int) -> list[Row]:
        rows: list[Row] = []
        best = max if self._newest_first else min
        while len(rows) < number:
            waiting = [stream for stream in self._streams if stream.rows]
            if not waiting:
                break
            stream = best(waiting, key=lambda stream: str(stream.rows[0]["SK"]))
            rows.append(stream.rows.popleft())
            await stream.fill()
        return rows


class Stream:
    """Read one partition page by page, or hold rows that were read already."""

    def __init__(self, pages: Pages | None, rows: Sequence[Row] = ()) -> None:
        self._pages = pages
        self.rows: deque[Row] = deque(rows)

    async def fill(self) -> None:
        while not self.rows and self._pages is not None and self._pages.more:
            self.rows.extend(await self._pages.next())


async def streams_for(
    table: Table, where: Filter, *, newest_first: bool, beyond: str | None, hint: int
) -> tuple[list[Stream], bool]:
    """Return the cheapest way to read the jobs, and whether it returns keys only."""

    def bounds(name: str) -> list[Condition]:
        sign = "<" if newest_first else ">"
        return [] if beyond is None else [Condition(f"{{name}} {sign} {{value}}", name, beyond)]

    def in_order(rows: list[Row]) -> list[Stream]:
        further = [
            row for row in rows if beyond is None or ((row["SK"] < beyond) is newest_first and row["SK"] != beyond)
        ]
        return [Stream(None, sorted(further, key=lambda row: str(row["SK"]), reverse=newest_first))]

    if where.ids:
        return in_order(list((await rows_of(table, where.ids)).values())), False
    if where.target_type is not None and where.target_id is not None:
        about = equals("target", target_key(where.target_type, where.target_id))
        return [Stream(table.query(about, *bounds("SK"), index=TARGETS, newest_first=newest_first))], True
    if where.fingerprint is not None:
        parts = [group_part(where.fingerprint, shard) for shard in range(table.shards)]
        return [
            Stream(table.query(equals("PK", part), *bounds("SK"), newest_first=newest_first, consistent=True))
            for part in parts
        ], True
    if where.statuses and LISTED.issuperset(where.statuses):
        places = [listed_place(status, shard) for status in where.statuses for shard in range(table.shards)]
        return [
            Stream(table.query(equals("place", place), *bounds("rank"), index=PLACES, newest_first=newest_first))
            for place in places
        ], True
    if set(where.statuses) == {Status.RUNNING}:
        everyone = [row["SK"] for row in await workers.listing(table)]
        held = await together([what_runs(table, worker) for worker in everyone])
        return in_order([row for rows in held for row in rows]), True
    only, _ = conditions(where)
    size = None if only or where != Filter() else max(5, 2 * hint // table.shards + 1)
    return [
        Stream(
            table.query(
                equals("PK", bucket(shard)),
                *bounds("SK"),
                only=only,
                limit=size,
                newest_first=newest_first,
                consistent=True,
            )
        )
        for shard in range(table.shards)
    ], False


async def what_runs(table: Table, worker: str) -> list[Row]:
    """Return the jobs that a worker has claimed, as the index shows them."""
    return await table.query(equals("place", running_place(worker)), index=PLACES).rest()


# -- history --------------------------------------------------------------------------------------------


async def attempts(table: Table, job_id: str) -> list[Attempt]:
    found = await rows_of(table, [job_id])
    return await attempts_of(table, found[job_id]) if job_id in found else []


async def attempts_of(table: Table, row: Row) -> list[Attempt]:
    """Return the runs of a job. Only runs that did not simply succeed have an item; the job's item has the other."""
    begins = Condition("begins_with({name}, {value})", "SK", "run#")
    runs = await table.rows(history(row["SK"]), begins)
    if status_of(row) is Status.COMPLETED:
        runs.append({name: row.get(name, "") for name in ("locked_by", "started_at", "completed_at", "version")})
    return [to_attempt(number, run) for number, run in enumerate(runs, 1)]


async def timeline(table: Table, job_id: str) -> list[TimelineEntry]:
    found = await rows_of(table, [job_id])
    if job_id not in found:
        return []
    by_hand = await table.rows(history(job_id), Condition("begins_with({name}, {value})", "SK", "hand#"))
    lines = [(unstamp(row["at"]), row["actor"], row["action"], row.get("reason", "")) for row in by_hand]
    runs = await attempts_of(table, found[job_id])
    return timeline_of(to_job(found[job_id]), runs, lines, await steps.read(table, job_id))


async def audit(table: Table, where: AuditFilter, limit: int, after: AuditSpot | None) -> list[AuditEntry]:
    """Return entries, newest first. The log is read only between the times, and not at all for a job or operation."""
    if where.job is not None:
        found = await audit_of_job(table, where.job)
    elif where.operation is not None:
        found = await entries_at(table, await table.rows(f"operation#{where.operation}"))
    else:
        return [to_entry(row) for row in await read_log(table, where, limit, after)]
    return [to_entry(row) for row in found if is_audited(row, where, after)][:limit]


async def read_log(table: Table, where: AuditFilter, limit: int, after: AuditSpot | None) -> list[Row]:
    since = stamp(to_millis(where.since)) if where.since else ""
    ends = [] if where.until is None else [stamp(to_millis(where.until))]
    end = min([*ends, *([] if after is None else [audit_place(after)])], default=None)
    if end is not None and end <= since:
        return []
    bound = [Condition("{name} >= {value}", "SK", since)] if since else []
    before = None if end is None else key("audit", end)
    pages = table.query(equals("PK", "audit"), *bound, after=before, newest_first=True, consistent=True)
    rows: list[Row] = []
    while pages.more and len(rows) < limit:
        rows += [row for row in await pages.next() if is_audited(row, where, after)]
    return rows[:limit]


async def audit_of_job(table: Table, job_id: str) -> list[Row]:
    """Return the entries of the audit log that a job's timeline names, newest first."""
    lines = await table.rows(history(job_id), Condition("begins_with({name}, {value})", "SK", "hand#"))
    known = await table.get_many([key(f"operation#{line['operation']}", line["action"]) for line in lines])
    return await entries_at(table, known)


async def entries_at(table: Table, known: Iterable[Row]) -> list[Row]:
    """Return the entries at the places that operations remember, newest first."""
    rows = await table.get_many([key("audit", row["entry"]) for row in known])
    return sorted(rows, key=lambda row: str(row["SK"]), reverse=True)


def audit_place(spot: AuditSpot) -> str:
    return f"{stamp(spot[0])}#{spot[1]}#{spot[2]}"


def is_audited(row: Row, where: AuditFilter, after: AuditSpot | None) -> bool:
    return (
        where.actor in (None, row["actor"])
        and where.action in (None, row["action"])
        and where.operation in (None, row["operation"])
        and within(row["at"], where.since, where.until)
        and (after is None or row["SK"] < audit_place(after))
    )


def to_entry(row: Row) -> AuditEntry:
    return AuditEntry(
        at=datetime.fromisoformat(row["at"]),
        actor=row["actor"],
        action=row["action"],
        reason=row.get("reason", ""),
        detail=json.loads(row["detail"]),
        count=row["count"],
        operation=row["operation"],
    )


# -- statistics -----------------------------------------------------------------------------------------


async def stats(table: Table, within: Sequence[str] = ()) -> Stats:
    now = table.clock.now()
    all_counts = sum_up(await table.read_counts(), None if table.prunes else stamp(now)[:10])
    counts = {queue: numbers for queue, numbers in all_counts.items() if is_wanted(queue, within)}
    queues = [queue for row in await table.rows("queues") if is_wanted(queue := row["SK"], within)]
    due = [line for queue in queues if (line := await due_of(table, queue)).number or counts.get(queue)]
    return Stats(
        queues=[Counts(queue, dict(numbers)) for queue, numbers in counts.items() if numbers],
        due={line.queue: line.number for line in due},
        oldest_due={line.queue: to_datetime(line.oldest) for line in due if line.oldest is not None},
        workers=[workers.to_info(row) for row in await workers.present(table)],
        halts=[halt for halt in await standing(table) if is_about(halt, within)],
        estimated=True,
        oldest_dead=await oldest_dead(table, within) if any(c.get(Status.DEAD_LETTER) for c in counts.values()) else {},
        stalled=await count_stalled(table, now, within),
        due_tasks=[task for line in due for task in line.tasks],
    )


async def oldest_dead(table: Table, within: Sequence[str]) -> dict[str, datetime]:
    """Return when the oldest dead letter of each queue failed, among the dead letters that were created first."""
    where = Filter(statuses=(Status.DEAD_LETTER,), within=tuple(within))
    search = await JobSearch.start(table, where, newest_first=False, beyond=None)
    oldest: dict[str, datetime] = {}
    for row in await search.take(DEAD_LOOK):
        failed = datetime.fromisoformat(row["completed_at"])
        oldest[row["queue"]] = min(failed, oldest.get(row["queue"], failed))
    return oldest


async def count_stalled(table: Table, now: Millis, within: Sequence[str]) -> int:
    """Return how many jobs run longer than their timeout and grace."""
    held = await together([what_runs(table, row["SK"]) for row in await workers.listing(table)])
    timed = [entry["SK"] for entries in held for entry in entries if "timeout" in entry]
    rows = [row for row in (await rows_of(table, timed)).values() if is_wanted(row["queue"], within)] if timed else []
    running = [row for row in rows if status_of(row) is Status.RUNNING and row.get("timeout") and "started_at" in row]
    return sum(unstamp(row["started_at"]) + row["timeout"] + table.stall_grace <= now for row in running)


async def due_of(table: Table, queue: str) -> DueIn:
    waiting = await read_queue(table, queue, [waiting_place(queue, shard) for shard in range(table.shards)], DUE_CAP)
    by_task = await read_by_task(table, queue, None, DUE_CAP)
    entries = [entry for level in waiting.due.values() for entry in level] + by_task.suspects + by_task.aside
    return due_in(queue, 0, None, (), [(entry.task, entry.due, 1) for entry in entries])
