"""Documents other than jobs. A bundle is one transaction; each document is an item of its collection.

PK=doc#<collection>, SK=<group>NUL<id>            sorted by code point
places: place=due#<collection>, rank=<due>#<SK>   documents that come due
PK=collections, SK=<collection>                   all collections that have been used
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from mainspring.clock import Millis
from mainspring.errors import AlreadyDone, StoreBusy, StoreError
from mainspring.job import Inserted
from mainspring.stores.documents import (
    Bundle,
    Document,
    Due,
    Key,
    Listing,
    accepted,
    comes_soon,
    is_there,
)
from mainspring.stores.dynamodb import halts, steps, wakeups
from mainspring.stores.dynamodb.admin import note_actions
from mainspring.stores.dynamodb.client import Cancelled, ConditionFailed
from mainspring.stores.dynamodb.document_items import (
    SEPARATOR,
    due_place,
    is_alive,
    item_key,
    partition,
    register_collections,
    to_action,
    to_document,
)
from mainspring.stores.dynamodb.filters import unexpired
from mainspring.stores.dynamodb.insertion import (
    MAX_TRIES,
    PendingInserts,
    holder_of,
    named_among,
    register_queues,
)
from mainspring.stores.dynamodb.items import PLACES, dedupe_key, key, stamp
from mainspring.stores.dynamodb.once import once_actions
from mainspring.stores.dynamodb.table import TRANSACTION, Action, Table, together
from mainspring.stores.dynamodb.values import Condition, Row, delete, equals
from mainspring.stores.engine import feed
from mainspring.stores.engine.halts import refuse_while_halted
from mainspring.stores.protocol import Wake

# -- writing --------------------------------------------------------------------------------------------


async def refuse_accepted_while_halted(table: Table, bundles: Sequence[Bundle]) -> None:
    """Raise SystemHalted if a halt rejects the jobs of a bundle whose expected versions match."""
    refusing = [halt for halt in await halts.standing(table) if not halt.accept]
    if not refusing:
        return
    found = await documents(table, [write.key for bundle in bundles for write in bundle.writes])
    holds = accepted(bundles, {document.key: document.version for document in found})
    if jobs := [job for bundle, held in zip(bundles, holds, strict=True) if held for job in bundle.jobs]:
        refuse_while_halted(refusing, {job.queue for job in jobs})


async def write(table: Table, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
    """Write bundles. Those that share a document or a dedupe key are written one after the other."""
    now = table.clock.now()
    jobs = list(chain.from_iterable(bundle.jobs for bundle in bundles))
    if jobs:
        await refuse_accepted_while_halted(table, bundles)
    attempts = [Attempt(table, bundle, now) for bundle in bundles]
    await register_queues(table, {job.queue for job in jobs})
    awaited = named_among(jobs)
    await wakeups.mark(table, awaited)
    await register_collections(table, {write.key.collection for bundle in bundles for write in bundle.writes})

    async def in_turn(numbers: list[int]) -> dict[int, list[Inserted] | None]:
        return {number: await attempts[number].run() for number in numbers}

    answers: dict[int, list[Inserted] | None] = {}
    for part in await together([in_turn(numbers) for numbers in apart(bundles)]):
        answers |= part
    await wakeups.wake_if_ended(table, awaited)
    taken = [bundle for number, bundle in enumerate(bundles) if answers[number] is not None]
    if comes_soon((write for bundle in taken for write in bundle.writes), now):
        table.local_workers.tell_all(Wake.DOCUMENTS)
    if any(bundle.spread for bundle in taken):
        table.local_workers.tell_all(Wake.STATE)
    return [answers[number] for number in range(len(bundles))]


def apart(bundles: Sequence[Bundle]) -> list[list[int]]:
    """Group the bundles so that no two groups share a document or a dedupe key."""
    joined = list(range(len(bundles)))  # each bundle points to an earlier one of its group, or to itself

    def first_of(number: int) -> int:
        while joined[number] != number:
            number = joined[number]
        return number

    users: dict[object, int] = {}
    for number, bundle in enumerate(bundles):
        names: set[object] = {write.key for write in bundle.writes}
        names |= {(job.task, job.dedupe_key) for job in bundle.jobs if job.dedupe_key is not None}
        for name in names:
            own, other = first_of(number), first_of(users.setdefault(name, number))
            joined[max(own, other)] = min(own, other)
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for number in range(len(bundles)):
        groups[first_of(number)].append(number)
    return list(groups.values())


class Attempt:
    """One bundle to write."""

    def __init__(self, table: Table, bundle: Bundle, now: Millis) -> None:
        self._table = table
        self._bundle = bundle
        self._now = now
        self._documents: list[Action] = [to_action(write, now) for write in bundle.writes]
        self._note: list[Action] = [] if bundle.note is None else note_actions(bundle.note, now)
        self._once: list[Action] = []
        self._inserts = PendingInserts(table, bundle.jobs, named_among(bundle.jobs), bundle.steps)

    async def run(self) -> list[Inserted] | None:
        self._once = await once_actions(self._table, self._bundle.once)
        for job_id, recorded in self._bundle.steps.items():
            await steps.put_first(self._table, job_id, recorded)
        for _ in range(MAX_TRIES):
            try:
                await self._write()
            except ConditionFailed:
                return [] if await self._is_there() else None
            except Cancelled as cancelled:
                if any(cancelled.failed(number) for number in range(len(self._documents))):
                    return await self._answer_again() if await self._is_there() else None
                if self._once and cancelled.failed(len(self._documents)):
                    raise AlreadyDone from None
                await self._inserts.learn(cancelled)
                if self._note and cancelled.failed(len(self._documents) + len(self._once)):  # in the audit log already
                    self._note = []
            else:
                self._inserts.after_write()
                return self._inserts.answers()
        msg = "dedupe keys of a bundle's jobs changed hands too often; try again"
        raise StoreBusy(msg)

    async def _write(self) -> None:
        before = [*self._documents, *self._once, *self._note]
        actions = [*before, *self._inserts.actions(len(before))]
        self._inserts.hint.add(feed.documents(self._bundle.writes))
        actions += self._inserts.hint.actions()
        if len(actions) > TRANSACTION:
            msg = f"a bundle of {len(actions)} items: DynamoDB writes at most {TRANSACTION} at once; make it smaller"
            raise StoreError(msg)
        if len(actions) == 1 and not self._bundle.jobs:
            kind, request = actions[0]
            await (self._table.put(request) if kind == "Put" else self._table.delete(request))
        elif actions:
            await self._table.transact(*actions)

    async def _is_there(self) -> bool:
        """Return whether the bundle was written before and only the answer got lost."""
        found = await documents(self._table, [write.key for write in self._bundle.writes])
        return is_there(self._bundle, {document.key: document.version for document in found})

    async def _answer_again(self) -> list[Inserted]:
        """Give the same answer as before: a job that does not exist was refused because of its dedupe key."""
        jobs = self._bundle.jobs
        here = {row["SK"] for row in await self._table.get_many([self._table.job_key(job.id) for job in jobs], ["SK"])}
        answers: list[Inserted] = []
        for job in jobs:
            holder: str | None = None
            if job.id not in here and job.dedupe_key is not None:
                found = await self._table.get(dedupe_key(job.task, job.dedupe_key))
                holder = await holder_of(self._table, found, self._now) if found else None
            answers.append(Inserted(holder or job.id, created=holder is None))
        return answers


# -- reading --------------------------------------------------------------------------------------------


async def documents(table: Table, keys: Sequence[Key]) -> list[Document]:
    now = table.clock.now()
    rows = await table.get_many([item_key(name) for name in keys])
    return [to_document(row) for row in rows if is_alive(row, now)]


async def browse(table: Table, listing: Listing) -> list[Document]:
    bounds = []
    if listing.group is not None:
        bounds = [Condition("begins_with({name}, {value})", "SK", f"{listing.group}{SEPARATOR}{listing.prefix}")]
    pages = table.query(
        equals("PK", partition(listing.collection)),
        *bounds,
        after=None if listing.after is None else item_key(Key(listing.collection, *listing.after)),
        newest_first=listing.backwards,
        consistent=True,
        only=[unexpired(table.clock.now())],
    )
    return [to_document(row) for row in await table.first(pages, listing.limit)]


async def due(table: Table, collection: str, limit: int, ahead: Millis) -> Due:
    now = table.clock.now()
    pages = table.query(equals("place", due_place(collection)), index=PLACES, limit=limit + 1)
    found: list[Document] = []
    next_at: Millis | None = None
    while pages.more and next_at is None:
        entries = await pages.next()
        rows = {row["SK"]: row for row in await table.get_many([key(entry["PK"], entry["SK"]) for entry in entries])}
        for entry in entries:
            row = rows.get(entry["SK"])
            if row is None or row.get("rank") != entry["rank"] or not is_alive(row, now):
                continue
            document = to_document(row)
            if len(found) < limit and (document.due_at or 0) <= now + ahead:
                found.append(document)
            elif next_at is None:
                next_at = document.due_at
    return Due(found, now, next_at)


async def collections(table: Table) -> list[str]:
    return [row["SK"] for row in await table.rows("collections")]


async def count(table: Table) -> int:
    pages = [
        table.query(equals("PK", partition(name)), only=[unexpired(table.clock.now())], count=True)
        for name in await collections(table)
    ]
    await together([page.rest() for page in pages])
    return sum(page.counted for page in pages)


# -- retention ------------------------------------------------------------------------------------------


async def prune(table: Table, limit: int) -> int:
    now = table.clock.now()
    removed = 0
    for name in await collections(table):
        over = Condition("{name} <= {value}", "expires_at", stamp(now))
        pages = table.query(equals("PK", partition(name)), only=[over], consistent=True)
        while pages.more and removed < limit:
            for row in (await pages.next())[: limit - removed]:
                removed += await prune_one(table, row)
    return removed


async def prune_one(table: Table, row: Row) -> bool:
    try:
        await table.delete(delete(key(row["PK"], row["SK"]), [equals("version", row["version"])]))
    except ConditionFailed:
        return False
    return True
