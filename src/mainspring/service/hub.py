"""The hub: one reader of the change feed per process, whose changes go to all clients that follow events.

The hub reads pages of the feed, keeps the newest of them in a ring, and hands each client what its filter selects. It
runs while there are clients.

A client that begins now, or whose cursor is in the ring, joins at once. Another client first reads the feed by itself
(follower.py) and then joins at the end of a page of the hub. It reads up to exactly that place, so nothing is lost or
repeated. On PostgreSQL this matters: the places of two readers are snapshots, and neither need include the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass, field
from functools import cached_property

from mainspring.app import Mainspring
from mainspring.changes import LONGEST_PAUSE, RETRY_PAUSE, ChangeStream
from mainspring.errors import ChangesLost, StoreUnavailable
from mainspring.log import get_log
from mainspring.redaction import Redaction
from mainspring.service.event_frames import Event, Parcel
from mainspring.service.progress import Conflation, latest_only
from mainspring.stores.feed import EVERY_CHANGE, ChangeFilter, ChangeKind, ChangePage, Cursor

log = get_log("mainspring.service")

RING = 2_000  # changes that the hub remembers; each takes about 2 KB
QUEUE = 1_000  # changes that may wait for a client before it counts as slow
OWN_READS = 4  # clients that read the store by themselves at the same time; more would hold up the hub's reads
WITHOUT_STARTS = tuple(kind for kind in ChangeKind if kind is not ChangeKind.STARTED)


@dataclass(slots=True)
class Batch:
    """One page of the feed in the ring."""

    before: Cursor
    after: Cursor
    events: Sequence[Event]

    @property
    def size(self) -> int:
        return max(1, len(self.events))

    def events_after(self, cursor: Cursor) -> Sequence[Event] | None:
        """Return the events after a cursor within this batch; None if no event has that cursor."""
        for index, event in enumerate(self.events):
            if event.has_place and event.change.place == cursor:
                return self.events[index + 1 :]
        return None


class Ring:
    """The newest batches of the hub, and where each cursor is in them."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._size = 0
        self._first = 0  # the number of the first batch; batches are numbered from 0
        self._bounds: dict[Cursor, int] = {}  # cursor before a batch -> number of that batch
        self._entries: dict[int, int] = {}  # number of an entry -> number of its batch

    def add(self, batch: Batch) -> None:
        number = self._first + len(self._batches)
        self._batches.append(batch)
        self._size += batch.size
        self._bounds[batch.before] = number
        for event in batch.events:
            self._entries[event.change.entry_number] = number
        while self._size > RING and len(self._batches) > 1:
            self._drop()

    def _drop(self) -> None:
        batch = self._batches.popleft()
        self._first += 1
        self._size -= batch.size
        self._bounds.pop(batch.before, None)
        for event in batch.events:
            self._entries.pop(event.change.entry_number, None)

    def events_after(self, cursor: Cursor) -> list[Event] | None:
        """Return all events after a cursor; None if the ring does not know the cursor."""
        number = self._bounds.get(cursor)
        if number is not None:
            return self._from(number)
        number = self._entries.get(cursor.number)
        rest = None if number is None else self._batches[number - self._first].events_after(cursor)
        return None if rest is None or number is None else [*rest, *self._from(number + 1)]

    def _from(self, number: int) -> list[Event]:
        batches = list(self._batches)[max(0, number - self._first) :]
        return [event for batch in batches for event in batch.events]


class HubStopped(Exception):
    """The hub has stopped, so a client cannot join."""


class Subscription:
    """What one client gets from the hub."""

    def __init__(self, hub: Hub, where: ChangeFilter) -> None:
        self.where = where
        self.joined = False  # the hub sends it what it reads
        self.over = ""  # why it gets no more
        self.lost_at: Cursor | None = None  # go on from here, if `over` says that changes are missing
        self.on_end: Callable[[], None] = lambda: None  # a client that is still sending may have to be interrupted
        self.news = asyncio.Event()
        self._hub = hub
        self._place: Cursor | None = None
        self._parcels: deque[tuple[Parcel, Cursor]] = deque()
        self._waiting = 0

    @property
    def asks_for_starts(self) -> bool:
        return not self.where.kinds or ChangeKind.STARTED in self.where.kinds

    @property
    def asks_for_tags(self) -> bool:
        return bool(self.where.tags)

    @property
    def place(self) -> Cursor | None:
        """Where the client is after everything that it has taken. It moves on even if nothing matches."""
        if self.joined and not self._parcels:
            self._place = self._hub.cursor
        return self._place

    def join(self, place: Cursor) -> None:
        """Get what the hub reads from now on."""
        self.leave()
        self._place, self.joined = place, True

    def leave(self) -> None:
        self.joined = False
        self.take()

    def deliver(self, parcel: Parcel, place: Cursor) -> None:
        """Queue changes. A client that has not taken the thousand before them is slow, and gets no more."""
        if self._waiting >= QUEUE:
            self.end("slow", place)
            return
        self._parcels.append((parcel, place))
        self._waiting += len(parcel)
        self.news.set()

    def end(self, why: str, lost_at: Cursor | None = None) -> None:
        if self.over:
            return
        self._place = self.place  # while the hub is at the same place
        self.over, self.lost_at, self.joined = why, lost_at, False
        self.news.set()
        self.on_end()

    def take(self) -> list[Parcel]:
        """Return all that has come since the last call."""
        parcels, self._waiting = [parcel for parcel, _ in self._parcels], 0
        if self._parcels:
            self._place = self._parcels[-1][1]
        self._parcels.clear()
        self.news.clear()
        return parcels


@dataclass(slots=True)
class Joining:
    """A client that waits for the hub to read the feed once more."""

    subscription: Subscription
    after_read: int  # the read must have begun later than this one
    place: asyncio.Future[Cursor] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Hub:
    """Reads the feed for all clients of this process."""

    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self._subscriptions: set[Subscription] = set()
        self._joining: list[Joining] = []
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.own_reads = asyncio.Semaphore(OWN_READS)
        self._forget()

    def _forget(self) -> None:
        self.lag = 0.0  # how old the newest change was when it was read, in seconds
        self.cursor: Cursor | None = None
        self._ring = Ring()
        self._progress = Conflation(self._flush)
        self._stream: ChangeStream | None = None
        self._with_starts = False
        self._with_tags = False

    @property
    def redaction(self) -> Redaction:
        """The rules now: the service adds those of its settings after it has made this."""
        return self._app.redaction

    @property
    def is_running(self) -> bool:
        return self._task is not None

    # -- clients --------------------------------------------------------------------------------

    def enter(self, subscription: Subscription) -> None:
        """Keep the hub running for a client, which gets changes after `join` or `recall`. A closed hub stays closed."""
        if self._is_closed:
            raise HubStopped
        self._subscriptions.add(subscription)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="mainspring-hub", context=Context())

    def leave(self, subscription: Subscription) -> None:
        subscription.leave()
        self._subscriptions.discard(subscription)
        if not self._subscriptions:
            self._stop()

    def _stop(self) -> None:
        self._progress.stop()
        if self._task is not None:
            self._ending.add(self._task)
            self._task.add_done_callback(self._ending.discard)
            self._task.cancel()
            self._task = None
        self._forget()

    async def close(self, why: str) -> None:
        """End the streams of all clients, and stop reading the change feed for good."""
        self._is_closed = True
        for subscription in list(self._subscriptions):
            subscription.end(why)
        self._dismiss()
        self._stop()
        if self._ending:
            await asyncio.wait(self._ending)

    def recall(self, subscription: Subscription, cursor: Cursor) -> bool:
        """Let a client join after a cursor that the ring knows; return whether it does."""
        found = self._ring.events_after(cursor)
        if found is None and cursor == self.cursor:
            found = []
        if found is None or self.cursor is None or self._lacks(subscription):
            return False
        subscription.join(cursor)
        if events := Selection(found).of(subscription.where):
            subscription.deliver(events, self.cursor)
        return True

    async def join(self, subscription: Subscription) -> Cursor:
        """Let a client join at the end of a page that is read from now on; return that place."""
        joining = Joining(subscription, self._stream.reads if self._stream is not None else 0)
        self._joining.append(joining)
        if self._stream is not None:
            self._stream.look()
        try:
            return await joining.place
        finally:
            self._joining = [each for each in self._joining if each is not joining]

    def _lacks(self, subscription: Subscription) -> bool:
        """Return whether the hub reads less than a client asks for: no starts, or no tags."""
        lacks_starts = subscription.asks_for_starts and not self._with_starts
        return lacks_starts or (subscription.asks_for_tags and not self._with_tags)

    # -- reading --------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                await self._follow()
        except Exception as error:  # noqa: BLE001 - whatever it was, clients must not wait for it
            log.error("events_failed", error=f"{type(error).__name__}: {error}")  # noqa: TRY400
            self._fail()

    def _fail(self) -> None:
        """Let the clients come back: the next one starts the hub again."""
        for subscription in list(self._subscriptions):
            subscription.end("failed")
        self._dismiss()
        self._task = None
        self._progress.stop()
        self._forget()

    def _dismiss(self) -> None:
        for joining in self._joining:
            if not joining.place.done():
                joining.place.set_exception(HubStopped())
        self._joining.clear()

    async def _follow(self) -> None:
        """Read until the feed is lost, or a client is the first to ask for starts or tags."""
        after = None if self.cursor is None else str(self.cursor)
        self._stream = stream = self._app.changes(after=after, where=self._wanted())
        for joining in self._joining:
            joining.after_read = 0
        try:
            self.cursor = Cursor.parse(await stream.begin())
            async with aclosing(stream.pages()) as pages:
                async for page in pages:
                    self._take(page)
                    self._welcome(page, stream.reads)
                    if any(map(self._lacks, self._subscriptions)):
                        return
        except StoreUnavailable as error:
            log.warning("events_unavailable", error=str(error), retry_in=RETRY_PAUSE)
            await asyncio.sleep(RETRY_PAUSE)
        except ChangesLost as lost:
            self._lose(Cursor.parse(lost.cursor))
            await asyncio.sleep(LONGEST_PAUSE)

    def _wanted(self) -> ChangeFilter:
        """Return what to read for all clients. The tags of events that are in the ring already cannot be added."""
        self._with_starts = any(each.asks_for_starts for each in self._subscriptions)
        tags = {tag for each in self._subscriptions for tag in each.where.tags}
        if tags and not self._with_tags:
            self._ring = Ring()
        self._with_tags = bool(tags)
        return ChangeFilter(kinds=tuple(ChangeKind) if self._with_starts else WITHOUT_STARTS, tags=tuple(sorted(tags)))

    def _take(self, page: ChangePage) -> None:
        before, self.cursor = self.cursor, page.cursor
        if before is None or (before == page.cursor and not page.entries):
            return
        if page.entries:
            self.lag = max(0, self._app.store.clock.now() - page.entries[-1].at) / 1000
        events = self._progress.pass_on(page.changes(EVERY_CHANGE, before), self.redaction)
        self._ring.add(Batch(before, page.cursor, events))
        self._publish(events, page.cursor)

    def _publish(self, events: Sequence[Event], place: Cursor) -> None:
        """Hand out events. Clients with equal filters share what is selected, and its bytes."""
        parcels: dict[ChangeFilter, Parcel] = {}
        sorted_out = Selection(events)
        for subscription in [each for each in self._subscriptions if each.joined]:
            where = subscription.where
            if where not in parcels:
                parcels[where] = sorted_out.of(where)
            if parcel := parcels[where]:
                subscription.deliver(parcel, place)

    def _flush(self, events: Sequence[Event]) -> None:
        """Hand out progress that was held back."""
        if self.cursor is not None:
            self._publish(events, self.cursor)

    def _welcome(self, page: ChangePage, read: int) -> None:
        """Let clients join that have waited for this read."""
        if page.more:
            return
        ready = [each for each in self._joining if read > each.after_read and not self._lacks(each.subscription)]
        for joining in ready:
            self._joining.remove(joining)
            if not joining.place.done():
                joining.subscription.join(page.cursor)
                joining.place.set_result(page.cursor)
        if self._joining and self._stream is not None:
            self._stream.look()

    def _lose(self, place: Cursor) -> None:
        """Tell all clients that changes are missing: the feed was restored, or pruned faster than the hub has read."""
        for subscription in list(self._subscriptions):
            if subscription.joined:
                subscription.end("lost", place)
        self._progress.stop()
        self._ring, self.cursor = Ring(), place


class Selection:
    """Selects from events by many filters. Filters of single jobs look their jobs up."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    @cached_property
    def _of_jobs(self) -> dict[str | None, list[int]]:
        places: dict[str | None, list[int]] = {}
        for place, event in enumerate(self._events):
            places.setdefault(event.change.job_id, []).append(place)
        return places

    def of(self, where: ChangeFilter) -> Sequence[Event]:
        if where == EVERY_CHANGE:
            return self._events
        return [event for event in self._candidates(where) if event.change.matches(where)]

    def _candidates(self, where: ChangeFilter) -> Iterable[Event]:
        if not where.jobs:
            return self._events
        places = sorted(place for job_id in set(where.jobs) for place in self._of_jobs.get(job_id, ()))
        return [self._events[place] for place in places]


def events_of(page: ChangePage, where: ChangeFilter, skip: Cursor, redaction: Redaction) -> list[Event]:
    """Return the events of a page that a client has read by itself."""
    return latest_only(page.changes(where, skip), redaction)
