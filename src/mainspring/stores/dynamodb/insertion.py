"""Insert jobs, and decide which job holds a dedupe key.

A key is an item of its own that names its job. It is written with the job in one transaction. It is usually deleted
when the job ends, but nothing depends on that: code that finds a key checks the job it names, and takes the key over if
that job is finished or gone. Each change of holder gives the key a new `version`. So if two processes found the same
state, only one of them can write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from mainspring.clock import Millis
from mainspring.errors import StoreBusy, StoreError
from mainspring.job import FINISHED, FOREVER, Inserted, NewJob, Status
from mainspring.stores.dynamodb import halts, wakeups
from mainspring.stores.dynamodb.client import Cancelled, ConditionFailed, Item
from mainspring.stores.dynamodb.items import dedupe_key, new_row, stamp, status_of, ttl, unstamp
from mainspring.stores.dynamodb.journal import JOURNAL, Hint
from mainspring.stores.dynamodb.table import Action, Table, parts_that_fit, room_for_job, together
from mainspring.stores.dynamodb.values import (
    Condition,
    Row,
    absent,
    attribute,
    delete,
    equals,
    pack,
    put,
    put_item,
    size,
    unpack,
    update,
)
from mainspring.stores.engine.creation import first_status
from mainspring.stores.engine.halts import refuse_while_halted
from mainspring.stores.feed import ChangeKind, Entry
from mainspring.stores.numbers import Measure

MAX_ITEM_BYTES = 400 * 1024  # the service's limit
MAX_JOB_BYTES = 350 * 1024  # less than an item, to leave space for a traceback and the names of workers
MAX_TRIES = 20
KEPT_FOR_EVER = "forever"
KEPT_ATTRIBUTES = ("kept_until", "kept_job", "place", "rank")  # of a key that outlives its job
KEPT_PLACE = "kept"
MAX_RANK_CHARS = 500  # a sort key has at most 1 KB


async def insert(table: Table, jobs: Sequence[NewJob]) -> list[Inserted]:
    """Insert jobs. All are checked before the first is written. Jobs with one dedupe key go one after the other."""
    now = table.clock.now()
    awaited = named_among(jobs)
    keyed = {
        number: PendingInserts(table, [job], awaited) for number, job in enumerate(jobs) if job.dedupe_key is not None
    }
    waiters = {job.id: job for job in jobs if job.dedupe_key is None and job.waits_for is not None}
    parties = [PendingInserts(table, part, awaited) for part in parts_that_fit(list(waiters.values()), room_for_job)]
    items = {job.id: to_item(table, job, now, awaited) for job in jobs if is_one_item(job)}
    queues = {job.queue for job in jobs}
    refuse_while_halted(await halts.standing(table), queues)
    await register_queues(table, queues)
    await wakeups.mark(table, awaited)
    groups: dict[tuple[str, str | None], list[int]] = {}
    for number in keyed:
        groups.setdefault((jobs[number].task, jobs[number].dedupe_key), []).append(number)
    answers: dict[int, Inserted] = {}

    async def insert_group(numbers: list[int]) -> None:
        for number in numbers:
            (answers[number],) = await insert_together(table, keyed[number])

    await together([insert_group(numbers) for numbers in groups.values()])
    await together([insert_together(table, party) for party in parties])
    await insert_plain(table, list({job.id: job for job in jobs if is_one_item(job)}.values()), items)
    await wakeups.wake_if_ended(table, awaited)
    table.local_workers.wake(queues)
    return [answers.get(number) or Inserted(job.id, created=True) for number, job in enumerate(jobs)]


def is_one_item(job: NewJob) -> bool:
    return job.dedupe_key is None and job.waits_for is None


def named_among(jobs: Iterable[NewJob]) -> frozenset[str]:
    """Return the jobs whose end these jobs wait for."""
    return frozenset(named for job in jobs if (named := wakeups.named_by(job.waits_for)))


def to_item(
    table: Table, job: NewJob, now: Millis, awaited: Collection[str] = (), with_steps: Collection[str] = ()
) -> Item:
    marks = {"awaited": job.id in awaited or None, "steps": job.id in with_steps or None}
    return checked(pack(new_row(job, now, table.shards) | marks))


def checked(item: Item) -> Item:
    bytes_needed = size(item)
    if bytes_needed > MAX_JOB_BYTES:
        msg = (
            f"job {item['SK']['S']} would take {bytes_needed // 1024} KB; in DynamoDB a job may have up to "
            f"{MAX_JOB_BYTES // 1024} KB. Store large data elsewhere and put its location into the payload"
        )
        raise StoreError(msg)
    return item


async def register_queues(table: Table, queues: set[str]) -> None:
    """Record new queues, so that workers that serve every queue know them."""
    for queue in queues - table.queues:
        await table.put(put({"PK": "queues", "SK": queue}))
        table.queues.add(queue)


async def insert_plain(table: Table, jobs: Sequence[NewJob], items: Mapping[str, Item]) -> None:
    """Insert jobs that are one item each. An item that exists already is a repeated insert."""
    insert_many = table.insert_many if table.recording is None else partial(insert_recorded, table)
    for job, new in zip(jobs, await insert_many([items[job.id] for job in jobs]), strict=True):
        if new:
            table.counts.add(job.queue, Status.PENDING, 1)
            table.numbers.add(table.clock.now(), job.queue, job.task, Measure.ENQUEUED)


async def insert_recorded(table: Table, items: Sequence[Item]) -> list[bool]:
    """Insert jobs while changes are recorded; return for each whether it is new. Each takes a transaction."""
    return await together([insert_one_recorded(table, item) for item in items])


async def insert_one_recorded(table: Table, item: Item) -> bool:
    hint = Hint(table)
    try:
        await table.transact(("Put", put_item(with_journal(item, hint), [absent("PK")])), *hint.actions())
    except Cancelled as cancelled:
        if not cancelled.failed(0):
            raise
        return False
    return True


def with_journal(item: Item, hint: Hint) -> Item:
    """Return the item of a new job with the change that creates it."""
    lines = hint.journal(item["SK"]["S"], [Entry(ChangeKind.CREATED, item["queue"]["S"])])
    return {**item, JOURNAL: attribute(lines)} if lines else item


async def insert_together(table: Table, inserts: PendingInserts) -> list[Inserted]:
    """Insert jobs in one transaction, without those that exist already."""
    for _ in range(MAX_TRIES):
        if not (actions := inserts.actions(0)):
            return inserts.answers()
        try:
            await table.transact(*actions, *inserts.hint.actions())
        except Cancelled as cancelled:
            await inserts.learn(cancelled)
        else:
            inserts.after_write()
            return inserts.answers()
    msg = f"dedupe key {inserts.jobs[0].dedupe_key!r} changed hands too often; try again"
    raise StoreBusy(msg)


class PendingInserts:
    """Jobs to insert in one transaction, perhaps with other writes: each with its dedupe key and its waiter."""

    def __init__(
        self,
        table: Table,
        jobs: Sequence[NewJob],
        awaited: Collection[str] = (),
        with_steps: Collection[str] = (),
    ) -> None:
        """`awaited`: jobs whose end is waited for, by each other or by the job that inserts them.

        `with_steps`: jobs that have recorded steps already.
        """
        self._table = table
        self._now = table.clock.now()
        self.jobs = list(jobs)
        self._items = [to_item(table, job, self._now, awaited, with_steps) for job in jobs]
        self._twins = twins_of(jobs)
        self._answers: dict[int, Inserted] = {}  # for jobs that are not to be inserted
        self._keys: dict[int, Row] = {}  # the state of the jobs' dedupe keys
        self._put: dict[int, int] = {}  # job -> the number of its first action in the transaction
        self.hint = Hint(table)  # its actions belong at the end of the transaction

    def actions(self, first: int) -> list[Action]:
        """Return the writes. `first` is the number of the first one in the transaction."""
        self.hint = Hint(self._table)
        new = [number for number in range(len(self.jobs)) if number not in self._answers | self._twins]
        actions: list[Action] = []
        self._put = {}
        for number in new:
            self._put[number] = first + len(actions)
            actions += self._actions_for(number)
        return actions

    def _actions_for(self, number: int) -> list[Action]:
        job, item = self.jobs[number], self._items[number]
        row = unpack(item)
        actions: list[Action] = [("Put", put_item(with_journal(item, self.hint), [absent("PK")]))]
        if job.dedupe_key is not None:
            actions.append(put_key(job, row, self._keys.get(number), self._now))
        if job.waits_for is not None:
            actions.append(wakeups.waiter(row))
        return actions

    async def learn(self, cancelled: Cancelled, *, ends: str | None = None) -> None:
        """Learn from a failed transaction which jobs exist already, and which jobs hold the keys.

        A key held by the job that `ends` in the same transaction is free.
        """
        for number, place in self._put.items():
            job = self.jobs[number]
            if cancelled.failed(place):
                self._answers[number] = Inserted(job.id, created=True)
            elif job.dedupe_key is not None and cancelled.failed(place + 1):
                await self._learn_of_key(number, unpack(cancelled.item(place + 1) or {}), ends)

    async def _learn_of_key(self, number: int, found: Row, ends: str | None) -> None:
        if not found:
            self._keys.pop(number, None)
            return
        freed = found["job_sk"] == ends and not is_kept(found, self._now)
        if not freed and (holder := await holder_of(self._table, found, self._now)):
            self._answers[number] = Inserted(holder, created=False)
        else:
            self._keys[number] = found

    def after_write(self) -> None:
        """Count the jobs and wake workers: this need not be part of the transaction."""
        for number in self._put:
            job = self.jobs[number]
            self._table.counts.add(job.queue, first_status(job), 1)
            self._table.numbers.add(self._table.clock.now(), job.queue, job.task, Measure.ENQUEUED)
        self._table.local_workers.wake(self.jobs[number].queue for number in self._put)

    def answers(self) -> list[Inserted]:
        return [self._answer(number) for number in range(len(self.jobs))]

    def _answer(self, number: int) -> Inserted:
        job = self.jobs[number]
        if number in self._twins:
            first = self._answer(self._twins[number])
            return first if self.jobs[self._twins[number]].id == job.id else Inserted(first.id, created=False)
        return self._answers.get(number) or Inserted(job.id, created=True)


def twins_of(jobs: Sequence[NewJob]) -> dict[int, int]:
    """Map jobs to an earlier one with the same id or dedupe key: only the first is inserted."""
    first: dict[tuple[str, ...], int] = {}
    twins: dict[int, int] = {}
    for number, job in enumerate(jobs):
        names = [(job.id,)] if job.dedupe_key is None else [(job.id,), (job.task, job.dedupe_key)]
        other = next((first[name] for name in names if name in first), None)
        if other is not None:
            twins[number] = other
        else:
            first |= dict.fromkeys(names, number)
    return twins


def put_key(job: NewJob, row: Row, found: Row | None, now: Millis) -> Action:
    """Return the write of the job's key, on condition that the key is still as it was found."""
    words = new_key(row, job.id)
    if job.dedupe_for is not None:
        until = KEPT_FOR_EVER if job.dedupe_for == FOREVER else stamp(now + job.dedupe_for)
        words |= kept_as(words, job.id, until)
    return "Put", put(words, [as_found(found)])


def new_key(row: Row, version: str) -> Row:
    """Return a key that a job holds for as long as it is live."""
    return {
        **unpack(dedupe_key(row["job_type"], row["dedupe_key"])),
        "job_type": row["job_type"],
        "dedupe_key": row["dedupe_key"],
        "job_pk": row["PK"],
        "job_sk": row["SK"],
        "version": version,
    }


def kept_as(key: Row, job_id: str, until: str) -> Row:
    """Return the attributes of a key that outlives its job. They put the key into the index, to be listed."""
    return {"kept_until": until, "kept_job": job_id, "place": KEPT_PLACE, "rank": key["PK"][:MAX_RANK_CHARS]}


def as_found(found: Row | None) -> Condition:
    return absent("PK") if found is None else equals("version", found["version"])


async def holder_of(table: Table, found: Row, now: Millis) -> str | None:
    """Return the job that holds a key: because it is live, or because the key outlives it."""
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
    """Delete the key of a finished job. This only saves space, so failures are ignored.

    The delete names the key's version: if the job was retried by hand meanwhile, its key has another one.
    """
    name = row.get("dedupe_key")
    if name is None:
        return
    where = dedupe_key(row["job_type"], name)
    same_version = equals("version", row.get("dedupe_version", row["SK"]))
    try:
        await table.delete(delete(where, [same_version, absent("kept_until")]))
    except ConditionFailed as failed:
        until = unpack(failed.item or {}).get("kept_until", KEPT_FOR_EVER)
        if until != KEPT_FOR_EVER:
            with suppress(ConditionFailed, StoreError):
                await table.update(update(where, {"ttl": ttl(unstamp(until))}, only_if=[same_version]))
    except StoreError:
        return
