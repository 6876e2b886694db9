"""The table as other modules use it: typed reads and writes, the clock, and the workers to wake."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar
from zlib import crc32

from mainspring.clock import Clock, Millis
from mainspring.errors import StoreError
from mainspring.ids import new_id
from mainspring.job import NewJob, Status, Step
from mainspring.log import get_log
from mainspring.stores.dynamodb.client import THROTTLED, Cancelled, Client, ConditionFailed, Item
from mainspring.stores.dynamodb.counts import DAY, LIVE_DAY, SLOTS, Counts
from mainspring.stores.dynamodb.items import job_key, key, ttl, unstamp
from mainspring.stores.dynamodb.layout import OWN_TABLE, Layout, Translator
from mainspring.stores.dynamodb.local_workers import LocalWorkers
from mainspring.stores.dynamodb.number_tally import NumberTally
from mainspring.stores.dynamodb.values import (
    Condition,
    Expressions,
    ItemUpdate,
    Row,
    absent,
    equals,
    insert_in_batch,
    put_item,
    unpack,
    update,
)

log = get_log("mainspring.dynamodb")

Action = tuple[str, Mapping[str, Any]]  # one write of a transaction: its kind and the request
Doubts = dict[tuple[str, int], set[str]]  # (job, token) -> marks of acks that were never answered

MAX_PARALLEL = 32  # calls at the same time for one operation
BATCH_GET, BATCH_WRITE, TRANSACTION = 100, 25, 100  # items that the service accepts in one call
MAX_BYTES = 3 * 2**20  # of one transaction; the service accepts 4 MB
MAX_ITEMS = TRANSACTION - 2  # of one transaction, without the update of the job that writes them and its hint


@dataclass(frozen=True, slots=True)
class Refused:
    """A write of a batch request whose condition did not hold, and the item as it is."""

    item: Item | None


class Pages:
    """The pages of one query, fetched when they are asked for."""

    def __init__(self, table: Table, request: dict[str, Any]) -> None:
        self._table = table
        self._request = request
        self.more = True
        self.counted = 0

    async def next(self) -> list[Row]:
        """Return the next page. Pages before the last one may be empty."""
        page = await self._table.call("Query", self._request)
        self.counted += page.get("Count", 0)
        last = page.get("LastEvaluatedKey")
        self.more = bool(last)
        self._request["ExclusiveStartKey"] = last
        return [unpack(item) for item in page.get("Items", ())]

    async def rest(self) -> list[Row]:
        rows: list[Row] = []
        while self.more:
            rows += await self.next()
        return rows


@dataclass(slots=True)
class Table:
    client: Client
    name: str
    clock: Clock
    lease: float
    stall_grace: Millis
    patience: Millis
    prunes: bool  # the workers delete expired jobs; otherwise the service does, and reads skip expired ones
    layout: Layout = OWN_TABLE
    translator: Translator | None = None  # only in a table that is shared with other data
    process: str = field(default_factory=new_id)  # identifies this store object among all that use the table
    shards: int = 0  # known once it is open
    queues: set[str] = field(default_factory=set)  # queues that are known to be registered
    collections: set[str] = field(default_factory=set)  # collections that are known to be registered
    held: dict[str, dict[str, int]] = field(default_factory=dict)  # worker of this process -> its jobs and their tokens
    doubts: Doubts = field(default_factory=dict)
    unanswered: dict[tuple[str, int], Status] = field(default_factory=dict)  # acks that were written, but not answered
    swept_at: float | None = None  # monotonic time of the last sweep of what is left of deleted jobs
    counts: Counts = field(default_factory=Counts)
    numbers: NumberTally = field(default_factory=NumberTally)
    chores: set[asyncio.Task[None]] = field(default_factory=set)
    local_workers: LocalWorkers = field(default_factory=LocalWorkers)
    recording: str | None = None  # the life of the feed while changes are recorded, see journal.py; None: they are not
    records_starts: bool = False  # claims are recorded too
    feed_grew: bool = False  # a read of the change feed has found something since the last poll
    recording_age: float = 1.0  # seconds for which this process trusts what it knows about the recording
    recording_read_at: float = -math.inf  # elapsed time before that look
    in_doubt_until: float = -math.inf  # elapsed time until which unanswered writes may take effect unrecorded
    readers: list[Callable[[], None]] = field(default_factory=list)  # called when the change feed may have grown

    async def call(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return await self.send(operation, {"TableName": self.name, **request})

    async def send(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request. In a shared table, requests and answers are translated: see layout.py."""
        if self.translator is None:
            return await self.client.call(operation, request)
        incoming = self.translator.incoming
        try:
            answer = await self.client.call(operation, self.translator.outgoing.translate(request))
        except ConditionFailed as failed:
            raise ConditionFailed(failed.item and incoming.item(failed.item)) from None
        except Cancelled as cancelled:
            raise Cancelled([incoming.translate(reason) for reason in cancelled.reasons]) from None
        return incoming.translate(answer)

    def call_now(self, operation: str, request: Mapping[str, Any], ends: float) -> None:
        """Send a request from code without an event loop, once, until this monotonic time."""
        request = {"TableName": self.name, **request}
        outgoing = request if self.translator is None else self.translator.outgoing.translate(request)
        self.client.call_now(operation, outgoing, ends)

    def lay_out(self, layout: Layout) -> None:
        self.layout = layout
        self.translator = Translator(layout) if layout.prefix else None

    def job_key(self, job_id: str) -> Item:
        return job_key(job_id, self.shards)

    def wake_readers(self) -> None:
        for notice in list(self.readers):
            notice()

    # -- reading ------------------------------------------------------------------------------

    async def get(self, key: Item, *, consistent: bool = True) -> Row | None:
        answer = await self.call("GetItem", {"Key": key, "ConsistentRead": consistent})
        return unpack(answer["Item"]) if "Item" in answer else None

    async def get_many(self, keys: Sequence[Item], attributes: Sequence[str] = ()) -> list[Row]:
        """Return the items that exist, in no particular order."""
        unique = list({(key["PK"]["S"], key["SK"]["S"]): key for key in keys}.values())
        parts = [unique[start : start + BATCH_GET] for start in range(0, len(unique), BATCH_GET)]
        found = await together([self._get_part(part, attributes) for part in parts])
        return [row for rows in found for row in rows]

    async def _get_part(self, keys: list[Item], attributes: Sequence[str]) -> list[Row]:
        request: dict[str, Any] = {"Keys": keys, "ConsistentRead": True}
        if attributes:
            expressions = Expressions()
            request["ProjectionExpression"] = ", ".join(expressions.name(name) for name in attributes)
            request |= expressions.given()
        rows: list[Row] = []
        pause = 0.0
        while True:
            answer = await self.send("BatchGetItem", {"RequestItems": {self.name: request}})
            rows += map(unpack, answer["Responses"].get(self.name, ()))
            left = (answer.get("UnprocessedKeys") or {}).get(self.name)
            if not left:
                return rows
            request = left
            self.client.left_over("BatchGetItem", len(left["Keys"]))
            pause = await self._wait_for_room(pause)

    def query(
        self,
        partition: Condition,
        *bounds: Condition,
        index: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        consistent: bool = False,
        only: Sequence[Condition] = (),
        count: bool = False,
        after: Item | None = None,
    ) -> Pages:
        """Return the pages of a query. `limit` is that of one page."""
        expressions = Expressions()
        request: dict[str, Any] = {"KeyConditionExpression": expressions.all_of([partition, *bounds])}
        if only:
            request["FilterExpression"] = expressions.all_of(only)
        if index:
            request["IndexName"] = index
        if limit:
            request["Limit"] = limit
        if newest_first:
            request["ScanIndexForward"] = False
        if consistent:
            request["ConsistentRead"] = True
        if count:
            request["Select"] = "COUNT"
        if after:
            request["ExclusiveStartKey"] = after
        return Pages(self, request | expressions.given())

    async def rows(self, partition: str, *bounds: Condition, **options: Any) -> list[Row]:
        """Return all rows of one partition of the table itself."""
        return await self.query(equals("PK", partition), *bounds, consistent=True, **options).rest()

    async def first(self, pages: Pages, number: int) -> list[Row]:
        """Return up to `number` rows."""
        rows: list[Row] = []
        while pages.more and len(rows) < number:
            rows += await pages.next()
        return rows[:number]

    # -- writing ------------------------------------------------------------------------------

    async def put(self, request: Mapping[str, Any]) -> None:
        await self.call("PutItem", request)

    async def update(self, request: Mapping[str, Any], *, then: str = "NONE") -> Row:
        """Update an item. `then` says which state of it is returned."""
        answer = await self.call("UpdateItem", {**request, "ReturnValues": then})
        return unpack(answer.get("Attributes") or {})

    async def update_many(self, changes: Sequence[ItemUpdate]) -> list[Row | Refused]:
        """Update items independently; return each as it was before, or why its update was refused.

        The service rejects batch requests that name one item twice, so such updates are sent alone.
        """
        if any(change.beside for change in changes):
            return await together([self._update_recorded(change) for change in changes])
        once = list({str(change.key): number for number, change in reversed(list(enumerate(changes)))}.values())[::-1]
        again = sorted(set(range(len(changes))).difference(once))
        parts = [once[start : start + BATCH_WRITE] for start in range(0, len(once), BATCH_WRITE)]
        parts += [[number] for number in again]
        done = await together([self._update_part([changes[number] for number in part]) for part in parts])
        results = dict(zip(chain.from_iterable(parts), chain.from_iterable(done), strict=True))
        return [results[number] for number in range(len(changes))]

    async def _update_recorded(self, change: ItemUpdate) -> Row | Refused:
        """Update an item in a transaction with other writes. It cannot return the item as it was before."""
        if not change.beside:
            return await self._update_alone(change)
        try:
            await self.transact(("Update", change.alone()), *change.beside)
        except Cancelled as cancelled:
            if not cancelled.failed(0):
                raise
            return Refused(cancelled.item(0))
        return {}

    async def _update_part(self, changes: Sequence[ItemUpdate]) -> list[Row | Refused]:
        if len(changes) == 1:
            return [await self._update_alone(changes[0])]
        answer = await self.send(
            "BatchExecuteStatement", {"Statements": [self._statement(change) for change in changes]}
        )
        pairs = zip(changes, answer["Responses"], strict=True)
        return await together([self._result(change, response) for change, response in pairs])

    def _statement(self, change: ItemUpdate) -> dict[str, Any]:
        return (change if self.translator is None else self.translator.outgoing.update(change)).in_batch(self.name)

    async def _result(self, change: ItemUpdate, response: Mapping[str, Any]) -> Row | Refused:
        error = response.get("Error")
        if error is None:
            return unpack(response.get("Item") or {})
        if error["Code"] == "ConditionalCheckFailed":
            return Refused(error.get("Item"))
        self._note(error)
        return await self._update_alone(change)  # throttled or in conflict: a single call waits and retries

    def _note(self, error: Mapping[str, Any]) -> None:
        """Count a throttled statement of a batch request; it is tried again alone."""
        if error["Code"] in THROTTLED:
            self.client.left_over("BatchExecuteStatement", 1)

    async def _update_alone(self, change: ItemUpdate) -> Row | Refused:
        try:
            return await self.update(change.alone(), then="ALL_OLD")
        except ConditionFailed as failed:
            return Refused(failed.item)

    async def insert_many(self, items: Sequence[Item]) -> list[bool]:
        """Insert items; return for each whether it is new."""
        parts = [items[start : start + BATCH_WRITE] for start in range(0, len(items), BATCH_WRITE)]
        done = await together([self._insert_part(part) for part in parts])
        return [new for part in done for new in part]

    async def _insert_part(self, items: Sequence[Item]) -> list[bool]:
        if len(items) == 1:
            return [await self._insert_alone(items[0])]
        answer = await self.send(
            "BatchExecuteStatement", {"Statements": [insert_in_batch(self.name, self._stored(item)) for item in items]}
        )

        async def result(item: Item, response: Mapping[str, Any]) -> bool:
            error = response.get("Error", {})
            code = error.get("Code")
            if code in {None, "DuplicateItem"}:
                return code is None
            self._note(error)
            return await self._insert_alone(item)

        return await together([result(*pair) for pair in zip(items, answer["Responses"], strict=True)])

    def _stored(self, item: Item) -> Item:
        return item if self.translator is None else self.translator.outgoing.item(item)

    async def _insert_alone(self, item: Item) -> bool:
        try:
            await self.put(put_item(item, [absent("PK")]))
        except ConditionFailed:
            return False
        return True

    async def delete(self, request: Mapping[str, Any]) -> None:
        await self.call("DeleteItem", request)

    async def delete_many(self, keys: Iterable[Item]) -> None:
        requests = [{"DeleteRequest": {"Key": key}} for key in keys]
        parts = [requests[start : start + BATCH_WRITE] for start in range(0, len(requests), BATCH_WRITE)]
        await together([self._write_part(part) for part in parts])

    async def _write_part(self, requests: list[dict[str, Any]]) -> None:
        pause = 0.0
        while requests:
            answer = await self.send("BatchWriteItem", {"RequestItems": {self.name: requests}})
            requests = (answer.get("UnprocessedItems") or {}).get(self.name) or []
            if requests:
                self.client.left_over("BatchWriteItem", len(requests))
                pause = await self._wait_for_room(pause)

    async def _wait_for_room(self, pause: float) -> float:
        longer = min(max(pause * 2, 0.025), 1.0)
        await self.client.back_off(random.uniform(0, longer))  # noqa: S311 - jitter
        return longer

    async def write_counts(self) -> None:
        """Write the counts. They are estimates: what cannot be written now is written later, or never."""
        tally = self.counts.take()
        for (queue, day), numbers in list(tally.items()):
            where = key(f"counts#{self.counts.slot}", f"{queue}#{day}")
            gone = None if day == LIVE_DAY else ttl(unstamp(day + "T00:00:00Z") + 3 * DAY)
            try:
                await self.update(update(where, {"ttl": gone} if gone else {}, add=numbers))
            except BaseException as error:
                self.counts.restore(tally)
                if not isinstance(error, StoreError):
                    raise
                log.debug("counts_not_written", error=str(error))
                return
            del tally[queue, day]

    async def read_counts(self) -> list[Row]:
        """Return the counts, with all changes of this process."""
        await self.finish()
        await self.write_counts()
        parts = await together([self.rows(f"counts#{slot}") for slot in range(SLOTS)])
        return [row for rows in parts for row in rows]

    def settle(self) -> None:
        """Write the counts in the background if it is time. Call it after each operation."""
        if self.counts.due():
            chore = asyncio.get_running_loop().create_task(self.write_counts())
            self.chores.add(chore)
            chore.add_done_callback(self.chores.discard)

    async def finish(self) -> None:
        """Wait for background tasks of this event loop."""
        here = asyncio.get_running_loop()
        mine = [chore for chore in list(self.chores) if chore.get_loop() is here]
        await asyncio.gather(*mine, return_exceptions=True)

    async def transact(self, *actions: Action) -> None:
        """Write all or nothing. The token makes a repetition after a lost answer harmless."""
        items = [{kind: {"TableName": self.name, **request}} for kind, request in actions]
        await self.send("TransactWriteItems", {"TransactItems": items, "ClientRequestToken": new_id()})
        if self.recording is not None:
            self.wake_readers()


T = TypeVar("T")


async def together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines in parallel, but not more than the server and the pool can take.

    If some fail, wait for the others, and then raise the first error.
    """
    room = asyncio.Semaphore(MAX_PARALLEL)

    async def run(work: Coroutine[Any, Any, T]) -> T:
        async with room:
            return await work

    if len(works) == 1:
        return [await works[0]]
    try:
        results = await asyncio.gather(*map(run, works), return_exceptions=True)
    finally:
        for work in works:
            work.close()  # if cancelled, some have not begun, and Python would warn about each
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


def owned(shard: int | str, process: str, processes: Collection[str]) -> bool:
    """Return whether the process serves the shard. A process that knows of no others serves all.

    This is rendezvous hashing: a process that joins or leaves moves few shards. It only keeps processes from competing
    for the same jobs. Conditional writes make a claim safe.
    """
    if process not in processes:
        return True
    return max(processes, key=lambda name: (crc32(f"{name}/{shard}".encode()), name)) == process


# -- room in a transaction -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Room:
    """What something takes up in a transaction."""

    items: int = 0
    bytes: int = 0

    def __add__(self, other: Room) -> Room:
        return Room(self.items + other.items, self.bytes + other.bytes)

    def fits(self) -> bool:
        return self.items <= MAX_ITEMS and self.bytes <= MAX_BYTES


def room_for_job(job: NewJob) -> Room:
    """Count the job, its dedupe key, and the item under the key that it waits for."""
    return Room(1 + (job.dedupe_key is not None) + (job.waits_for is not None), len(job.payload.encode()))


def room_for_step(step: Step) -> Room:
    return Room(1, len((step.output or "").encode()))


def parts_that_fit(things: Sequence[T], room_for: Callable[[T], Room]) -> Iterator[tuple[T, ...]]:
    part: list[T] = []
    taken = Room()
    for thing in things:
        taken += room_for(thing)
        if part and not taken.fits():
            yield tuple(part)
            part, taken = [], room_for(thing)
        part.append(thing)
    if part:
        yield tuple(part)
