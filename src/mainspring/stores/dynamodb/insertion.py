"""How jobs come in, and who holds a dedupe key.

A key is an item of its own that names its job, written with the job in one transaction. That it goes when the job ends
is a courtesy: who finds a key looks at the job it names, and takes the key over if that job is finished or gone. Each
change of holder gives it a new `version`, so that of two who found the same state one comes second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from mainspring.clock import Millis
from mainspring.errors import StoreBusy, StoreError
from mainspring.job import FINISHED, FOREVER, Inserted, NewJob, Status
from mainspring.stores.dynamodb import halts
from mainspring.stores.dynamodb.client import Cancelled, ConditionFailed, Item
from mainspring.stores.dynamodb.items import dedupe_key, new_item, stamp, status_of, ttl, unstamp
from mainspring.stores.dynamodb.table import Table, together
from mainspring.stores.dynamodb.values import (
    Condition,
    Row,
    absent,
    delete,
    equals,
    put,
    put_item,
    size,
    unpack,
    update,
)

LARGEST_ITEM = 400 * 1024  # the service's limit
LARGEST_JOB = 350 * 1024  # ours, so that a traceback and the names of those who ran it still fit
TRIES = 20
KEPT_FOR_EVER = "forever"
KEPT = ("kept_until", "kept_job", "place", "rank")  # of a key that outlives its job
KEPT_PLACE = "kept"
KEPT_RANK = 500  # characters: a sort key has at most 1 KB

Action = tuple[str, Mapping[str, Any]]


async def insert(table: Table, jobs: Sequence[NewJob]) -> list[Inserted]:
    """All are checked before the first is written. Those with one key or one id go one after the other."""
    now = table.clock.now()
    items = {id(job): checked(new_item(job, now, table.shards)) for job in jobs}
    queues = {job.queue for job in jobs}
    halts.refuse(await halts.standing(table), queues)
    await write_down(table, queues)
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, job in enumerate(jobs):
        groups.setdefault((job.id,) if job.dedupe_key is None else (job.task, job.dedupe_key), []).append(number)
    answers: dict[int, Inserted] = {}

    async def insert_group(numbers: list[int]) -> None:
        for number in numbers:
            answers[number] = await insert_keyed(table, jobs[number], items[id(jobs[number])], now)

    plain = [jobs[numbers[0]] for key, numbers in groups.items() if len(key) == 1]
    await together([insert_group(numbers) for key, numbers in groups.items() if len(key) > 1])
    await insert_plain(table, plain, [items[id(job)] for job in plain])
    table.crew.call(queues)
    return [answers.get(number) or Inserted(job.id, created=True) for number, job in enumerate(jobs)]


def checked(item: Item) -> Item:
    bytes_needed = size(item)
    if bytes_needed > LARGEST_JOB:
        msg = (
            f"job {item['SK']['S']} would take {bytes_needed // 1024} KB; in DynamoDB a job may have up to "
            f"{LARGEST_JOB // 1024} KB. Keep what is large elsewhere and let the payload say where"
        )
        raise StoreError(msg)
    return item


async def write_down(table: Table, queues: set[str]) -> None:
    """So that who wants any queue knows which ones there are."""
    for queue in queues - table.queues:
        await table.put(put({"PK": "queues", "SK": queue}))
        table.queues.add(queue)


async def insert_plain(table: Table, jobs: Sequence[NewJob], items: Sequence[Item]) -> None:
    """One that is there already is the same insert, repeated."""
    for job, new in zip(jobs, await table.insert_many(items), strict=True):
        if new:
            table.counts.add(job.queue, Status.PENDING, 1)


async def insert_keyed(table: Table, job: NewJob, item: Item, now: Millis) -> Inserted:
    found: Row | None = None
    for _ in range(TRIES):
        try:
            await table.transact(*put_keyed(job, item, found, now))
        except Cancelled as cancelled:
            if cancelled.failed(0):
                return Inserted(job.id, created=True)
            old = cancelled.item(1)
            found = unpack(old) if old else None
            if found is not None and (holder := await holder_of(table, found, now)):
                return Inserted(holder, created=False)
        else:
            table.counts.add(job.queue, Status.PENDING, 1)
            return Inserted(job.id, created=True)
    msg = f"dedupe key {job.dedupe_key!r} changed hands too often; try again"
    raise StoreBusy(msg)


def put_keyed(job: NewJob, item: Item, found: Row | None, now: Millis) -> list[Action]:
    """A job and its key, where the key is as it was found."""
    words = new_key(unpack(item), job.id)
    if job.dedupe_for is not None:
        until = KEPT_FOR_EVER if job.dedupe_for == FOREVER else stamp(now + job.dedupe_for)
        words |= kept_as(words, job.id, until)
    return [("Put", put_item(item, [absent("PK")])), ("Put", put(words, [as_found(found)]))]


def new_key(row: Row, version: str) -> Row:
    """That is held by a job for as long as it is live."""
    return {
        **unpack(dedupe_key(row["job_type"], row["dedupe_key"])),
        "job_type": row["job_type"],
        "dedupe_key": row["dedupe_key"],
        "job_pk": row["PK"],
        "job_sk": row["SK"],
        "version": version,
    }


def kept_as(key: Row, job_id: str, until: str) -> Row:
    """Beyond the life of a job; such keys have a place in the index, so that they can be listed."""
    return {"kept_until": until, "kept_job": job_id, "place": KEPT_PLACE, "rank": key["PK"][:KEPT_RANK]}


def as_found(found: Row | None) -> Condition:
    return absent("PK") if found is None else equals("version", found["version"])


async def holder_of(table: Table, found: Row, now: Millis) -> str | None:
    """The job that holds a key: because it is live, or because the key is kept for longer."""
    kept = str(found["kept_job"]) if is_kept(found, now) else None
    if kept == found["job_sk"] or not await is_live(table, found["job_sk"]):
        return kept
    return str(found["job_sk"])


def is_kept(found: Row, now: Millis) -> bool:
    until = found.get("kept_until")
    return until is not None and (until == KEPT_FOR_EVER or until > stamp(now))


async def is_live(table: Table, job_id: str) -> bool:
    row = await table.get(table.job_key(job_id))
    return row is not None and status_of(row) not in FINISHED


async def forget_key(table: Table, row: Row) -> None:
    """Its job is finished: only to save the room. Fails silently, as nothing depends on it.

    Under its version: who brought the job back meanwhile has given the key another.
    """
    name = row.get("dedupe_key")
    if name is None:
        return
    where = dedupe_key(row["job_type"], name)
    ours = equals("version", row.get("dedupe_version", row["SK"]))
    try:
        await table.delete(delete(where, [ours, absent("kept_until")]))
    except ConditionFailed as failed:
        until = unpack(failed.item or {}).get("kept_until", KEPT_FOR_EVER)
        if until != KEPT_FOR_EVER:
            with suppress(ConditionFailed, StoreError):
                await table.update(update(where, {"ttl": ttl(unstamp(until))}, only_if=[ours]))
    except StoreError:
        return
