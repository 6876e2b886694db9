"""Jobs that wait for a key, and how they are woken.

Each waiting job has an item under the key, its waiter. It is in the table itself, because an index may lag. It is
written in one transaction with the suspension and names the job's token, so a job that suspends again has another
waiter. The job's own item decides: if the job is no longer suspended under that token, the waiter is void for good.

A job that waits for another job's end marks that job (`awaited`) before it begins to wait. The mark stays. If the
process dies then, the mark only makes that end cost more. The write that ends a job is refused if it does not know of
the mark. If it does, it also writes a pending wake-up, in the same transaction. If the process dies before it has
carried that out, maintenance does so later. So jobs that no job waits for pay nothing, and no wake-up is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from zlib import crc32

from mainspring.clock import Millis
from mainspring.errors import StoreError
from mainspring.ids import new_id
from mainspring.job import FINISHED, UNTIL_WOKEN, Status, awaited_job, end_of, is_end
from mainspring.stores.dynamodb.client import ConditionFailed, Item
from mainspring.stores.dynamodb.items import (
    WORDS,
    key,
    place_waiting,
    short,
    stamp,
    status_of,
    to_attributes,
    ttl,
    unstamp,
)
from mainspring.stores.dynamodb.journal import recorded_update
from mainspring.stores.dynamodb.table import Action, Refused, Table, together
from mainspring.stores.dynamodb.values import ItemUpdate, Row, delete, equals, exists, put, unpack, update
from mainspring.stores.engine.change import woken
from mainspring.stores.feed import ChangeKind, Entry

WAKEUP_PARTITIONS = 4  # of pending wake-ups
ALL_WAITERS = 2**31
WAITER_RETENTION: Millis = 30 * 86_400_000  # how long the waiter of a job with a due time is kept after that time
READ_MARGIN = 25  # waiters read beyond those to be woken, because other processes may wake some first
MAX_PAGE = 1000  # waiters read at once

# -- waiters --------------------------------------------------------------------------------------------


def partition(name: str) -> str:
    return f"waits#{short(name)}"


def waiter_key(row: Row) -> Item:
    """Return the key of a suspended job's waiter. Waiters are sorted by priority, then by age."""
    return key(partition(row["waits_for"]), f"{row['priority']}#{row['SK']}#{row['token']:012d}")


def waiter(row: Row) -> Action:
    """Return the write of a job's waiter, with all that waking needs. It expires if the job has a due time."""
    timed = row["scheduled_for"] < stamp(UNTIL_WOKEN)
    until = ttl(unstamp(row["scheduled_for"]) + WAITER_RETENTION) if timed else None
    words = {"queue": row["queue"], "ttl": until}
    if row["crashes"]:  # it will wait among the suspects, which are found by their task
        words |= {"crashes": row["crashes"], "job_type": row["job_type"]}
    return "Put", put(unpack(waiter_key(row)) | words)


async def forget(table: Table, waiters: Iterable[Item]) -> None:
    """Delete void waiters. This only saves space."""
    with suppress(StoreError):
        await table.delete_many(waiters)


async def has_waiters(table: Table, name: str) -> bool:
    return bool(await table.first(table.query(equals("PK", partition(name)), consistent=True, limit=1), 1))


# -- waking ---------------------------------------------------------------------------------------------


async def wake(table: Table, keys: Mapping[str, int]) -> dict[str, int]:
    """Wake jobs and return their number per key. A repeated call may wake more jobs than asked for, never fewer."""
    numbers = await together([wake_some(table, name, number) for name, number in keys.items()])
    return dict(zip(keys, numbers, strict=True))


async def wake_some(table: Table, name: str, number: int) -> int:
    mark = new_id()
    pages = table.query(equals("PK", partition(name)), consistent=True, limit=min(number + READ_MARGIN, MAX_PAGE))
    found: list[Row] = []
    woken = 0
    while woken < number and (found or pages.more):
        if not found:
            found = await pages.next()
        part, found = found[: number - woken], found[number - woken :]
        woken += await wake_these(table, name, part, mark)
    return woken


async def wake_these(table: Table, name: str, waiters: Sequence[Row], mark: str) -> int:
    """Wake the jobs of these waiters and return how many still waited.

    The mark `woken` recognises a write that was repeated after its answer got lost.
    """
    changes = [wake_up(table, name, waiting, mark) for waiting in waiters]
    results = await table.update_many(changes)
    await forget(table, [key(waiting["PK"], waiting["SK"]) for waiting in waiters])
    queues = [
        waiting["queue"]
        for waiting, change, result in zip(waiters, changes, results, strict=True)
        if not isinstance(result, Refused) or unpack(result.item or {}).get("woken") == change.changes["woken"]
    ]
    for queue in queues:
        table.counts.add(queue, Status.SUSPENDED, -1)
        table.counts.add(queue, Status.PENDING, 1)
    table.local_workers.wake(queues)
    return len(queues)


def wake_up(table: Table, name: str, waiting: Row, mark: str) -> ItemUpdate:
    """Return the update that wakes a waiter's job.

    The mark also has the token, so that a void waiter does not take the write of its successor for its own.
    """
    priority, _, rest = waiting["SK"].partition("#")
    job_id, _, token = rest.rpartition("#")
    changes = to_attributes(woken(table.clock.now()))
    job = {**waiting, "SK": job_id, "priority": int(priority), **changes}
    changes |= {"woken": f"{mark}#{token}", **place_waiting(job, table.shards)}
    still = [equals("status", WORDS[Status.SUSPENDED]), equals("token", int(token)), equals("waits_for", name)]
    change = ItemUpdate(table.job_key(job_id), changes, still)
    return recorded_update(table, job_id, change, [Entry(ChangeKind.RESUMED, waiting["queue"])])


# -- the end of a job -------------------------------------------------------------------------------------


def named_by(waits_for: str | None) -> str | None:
    """Return the id of the job whose end is waited for, if any."""
    return awaited_job(waits_for) if is_end(waits_for) else None


async def mark(table: Table, ids: Iterable[str]) -> None:
    """Mark jobs whose end will be waited for; finished ones too, because they may be retried.

    This is not part of the waiting jobs' transactions: many jobs that wait for one job would conflict.
    """
    await together([mark_one(table, job_id) for job_id in ids])


async def mark_one(table: Table, job_id: str) -> None:
    with suppress(ConditionFailed):  # the job does not exist
        await table.update(update(table.job_key(job_id), {"awaited": True}, only_if=[exists("PK")]))


async def wake_if_ended(table: Table, ids: Collection[str]) -> None:
    """Wake the waiters of those awaited jobs that are not live: they ended before the wait was written.

    This is not part of the write that suspended the waiting jobs. If the process dies in between, they check by
    themselves after a minute.
    """
    rows = await table.get_many([table.job_key(job_id) for job_id in ids], ("SK", "status")) if ids else []
    live = {row["SK"] for row in rows if status_of(row) not in FINISHED}
    await wake(table, {end_of(job_id): ALL_WAITERS for job_id in ids if job_id not in live})


@dataclass(frozen=True, slots=True)
class PendingWakeup:
    """A wake-up that is due because a job has ended. A later end of the same job is another wake-up."""

    job_id: str
    number: str = field(default_factory=new_id)

    @property
    def key(self) -> Item:
        return key(partition_of(self.job_id), self.job_id)

    def action(self) -> Action:
        return "Put", put({**unpack(self.key), "number": self.number})

    async def carry_out(self, table: Table) -> None:
        """Wake the waiters. If that fails, maintenance does it later."""
        with suppress(StoreError, ConditionFailed):
            await wake_some(table, end_of(self.job_id), ALL_WAITERS)
            await table.delete(delete(self.key, [equals("number", self.number)]))


def partition_of(job_id: str) -> str:
    return f"wakeups#{crc32(job_id.encode()) % WAKEUP_PARTITIONS}"


def wakeup_for(row: Row) -> PendingWakeup | None:
    """Return a wake-up if another job waits for the end of this one."""
    return PendingWakeup(row["SK"]) if row.get("awaited") else None


async def pending(table: Table, *, consistent: bool = False) -> set[PendingWakeup]:
    partitions = [
        table.query(equals("PK", f"wakeups#{number}"), consistent=consistent) for number in range(WAKEUP_PARTITIONS)
    ]
    found = await together([pages.rest() for pages in partitions])
    return {PendingWakeup(row["SK"], row["number"]) for rows in found for row in rows}


async def carry_out(table: Table, wakeups: Iterable[PendingWakeup]) -> None:
    await together([wakeup.carry_out(table) for wakeup in wakeups])
