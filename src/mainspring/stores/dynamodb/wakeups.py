"""Who waits for a key to be called, and how they are woken.

Each who waits has an item under the key, in the table itself, since an index may lag. It is written with the
suspension in one transaction and names its token, so that a job that suspends again has another. The job's own item
decides: who is no longer suspended under that token is not woken, and the item that brought him up is void, for good.

Who waits for a job's end marks that job (`awaited`) before he begins to, for good; one who dies then has only made
that end dearer. The write that ends a job is refused if it does not know of the mark; with it, it leaves a call behind
in its own transaction. Should the process die before it has called, whoever keeps house does it. So jobs that nobody
waits for pay nothing, and no call is lost.
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
from mainspring.stores.dynamodb.items import WORDS, key, place_waiting, short, stamp, status_of, ttl, unstamp
from mainspring.stores.dynamodb.table import Action, Refused, Table, together
from mainspring.stores.dynamodb.values import Change, Row, delete, equals, exists, put, unpack, update

PARTS = 4  # partitions of what is left to be called
EVERYBODY = 2**31
BEYOND: Millis = 30 * 86_400_000  # that the item of one who has a time is kept after it
MARGIN = 25  # more are read than are to be woken: others may be quicker
LARGEST_PAGE = 1000

# -- who waits ------------------------------------------------------------------------------------------


def partition(name: str) -> str:
    return f"waits#{short(name)}"


def waiter_key(row: Row) -> Item:
    """Of a suspended job: by priority, then the oldest."""
    return key(partition(row["waits_for"]), f"{row['priority']}#{row['SK']}#{row['token']:012d}")


def waiter(row: Row) -> Action:
    """All that is needed to wake it. One that runs at its time in any case need not stay for ever."""
    timed = row["scheduled_for"] < stamp(UNTIL_WOKEN)
    until = ttl(unstamp(row["scheduled_for"]) + BEYOND) if timed else None
    words = {"queue": row["queue"], "ttl": until}
    if row["crashes"]:  # it will wait among the suspects, who are found by their task
        words |= {"crashes": row["crashes"], "job_type": row["job_type"]}
    return "Put", put(unpack(waiter_key(row)) | words)


async def forget(table: Table, waiters: Iterable[Item]) -> None:
    """They are void: only to save the room."""
    with suppress(StoreError):
        await table.delete_many(waiters)


async def somebody_waits(table: Table, name: str) -> bool:
    return bool(await table.first(table.query(equals("PK", partition(name)), consistent=True, limit=1), 1))


# -- waking ---------------------------------------------------------------------------------------------


async def wake(table: Table, keys: Mapping[str, int]) -> dict[str, int]:
    """Who asks again because no answer came may wake more than he asked for: none too few."""
    numbers = await together([wake_some(table, name, number) for name, number in keys.items()])
    return dict(zip(keys, numbers, strict=True))


async def wake_some(table: Table, name: str, number: int) -> int:
    call = new_id()
    pages = table.query(equals("PK", partition(name)), consistent=True, limit=min(number + MARGIN, LARGEST_PAGE))
    found: list[Row] = []
    woken = 0
    while woken < number and (found or pages.more):
        if not found:
            found = await pages.next()
        part, found = found[: number - woken], found[number - woken :]
        woken += await wake_these(table, name, part, call)
    return woken


async def wake_these(table: Table, name: str, waiters: Sequence[Row], call: str) -> int:
    """How many of them still waited. A write that was repeated after its answer got lost is known by its mark."""
    changes = [woken(table, name, one, call) for one in waiters]
    results = await table.update_many(changes)
    await forget(table, [key(one["PK"], one["SK"]) for one in waiters])
    queues = [
        one["queue"]
        for one, change, result in zip(waiters, changes, results, strict=True)
        if not isinstance(result, Refused) or unpack(result.item or {}).get("woken") == change.changes["woken"]
    ]
    for queue in queues:
        table.counts.add(queue, Status.SUSPENDED, -1)
        table.counts.add(queue, Status.PENDING, 1)
    table.local_workers.call(queues)
    return len(queues)


def woken(table: Table, name: str, one: Row, call: str) -> Change:
    """Its mark has the token too: an item that is void must not take what the one after it did for its own."""
    priority, _, rest = one["SK"].partition("#")
    job_id, _, token = rest.rpartition("#")
    now = stamp(table.clock.now())
    job = {**one, "SK": job_id, "priority": int(priority), "scheduled_for": now}
    changes = {
        "status": WORDS[Status.PENDING],
        "scheduled_for": now,
        "waits_for": None,
        "woken": f"{call}#{token}",
        **place_waiting(job, table.shards),
    }
    still = [equals("status", WORDS[Status.SUSPENDED]), equals("token", int(token)), equals("waits_for", name)]
    return Change(table.job_key(job_id), changes, still)


# -- the end of a job -------------------------------------------------------------------------------------


def named_by(waits_for: str | None) -> str | None:
    """The job whose end is waited for."""
    return awaited_job(waits_for) if is_end(waits_for) else None


async def mark(table: Table, ids: Iterable[str]) -> None:
    """Jobs whose end will be waited for; finished ones too, as they may be replayed.

    Not in the transaction of who waits: many who wait for one job would be in each other's way.
    """
    await together([mark_one(table, job_id) for job_id in ids])


async def mark_one(table: Table, job_id: str) -> None:
    with suppress(ConditionFailed):  # it is not there
        await table.update(update(table.job_key(job_id), {"awaited": True}, only_if=[exists("PK")]))


async def wake_if_ended(table: Table, ids: Collection[str]) -> None:
    """Of these awaited jobs, wake the waiters of those that are not live: they ended before the wait was written.

    This is not part of the write that suspended the waiters. If the process dies in between, they look by themselves
    after a minute.
    """
    rows = await table.get_many([table.job_key(job_id) for job_id in ids], ("SK", "status")) if ids else []
    live = {row["SK"] for row in rows if status_of(row) not in FINISHED}
    await wake(table, {end_of(job_id): EVERYBODY for job_id in ids if job_id not in live})


@dataclass(frozen=True, slots=True)
class Call:
    """That is due because a job has ended. A later end of the same job is another call."""

    job_id: str
    number: str = field(default_factory=new_id)

    @property
    def key(self) -> Item:
        return key(part_of(self.job_id), self.job_id)

    def action(self) -> Action:
        return "Put", put({**unpack(self.key), "number": self.number})

    async def make(self, table: Table) -> None:
        """Whatever stops it, it is made later by whoever keeps house."""
        with suppress(StoreError, ConditionFailed):
            await wake_some(table, end_of(self.job_id), EVERYBODY)
            await table.delete(delete(self.key, [equals("number", self.number)]))


def part_of(job_id: str) -> str:
    return f"calls#{crc32(job_id.encode()) % PARTS}"


def call_for(row: Row) -> Call | None:
    """If somebody waits for the end of this job."""
    return Call(row["SK"]) if row.get("awaited") else None


async def left_to_make(table: Table, *, consistent: bool = False) -> set[Call]:
    parts = [table.query(equals("PK", f"calls#{number}"), consistent=consistent) for number in range(PARTS)]
    return {Call(row["SK"], row["number"]) for rows in await together([one.rest() for one in parts]) for row in rows}


async def make_all(table: Table, calls: Iterable[Call]) -> None:
    await together([call.make(table) for call in calls])
