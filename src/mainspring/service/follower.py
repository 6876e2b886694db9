"""Where one client is in the change feed: it reads the feed by itself until it has caught up with the hub."""

from __future__ import annotations

import asyncio

from mainspring.changes import PAGE, RETRY_PAUSE
from mainspring.errors import StoreUnavailable
from mainspring.log import get_log
from mainspring.service.event_frames import Parcel
from mainspring.service.hub import Hub, Subscription, events_of
from mainspring.stores.feed import ChangeFilter, ChangePage, Cursor, with_tags
from mainspring.stores.protocol import Store

log = get_log("mainspring.service")


class Lost(Exception):
    """The feed no longer has what came after the client's cursor, or never had it."""


class Follower:
    """One client's way through the feed. `place` is where it is after everything that `next` has returned."""

    def __init__(self, hub: Hub, store: Store, where: ChangeFilter, after: Cursor | None) -> None:
        self.subscription = Subscription(hub, where)
        self._hub = hub
        self._store = store
        self._place = after
        self._behind = True  # it reads by itself
        self._page: ChangePage | None = None  # read, but not returned yet
        self._at_end = False  # its last page was the newest
        self._goal: Cursor | None = None  # where the hub was when it joined

    @property
    def place(self) -> Cursor | None:
        return self._place if self._behind else self.subscription.place

    async def begin(self) -> None:
        """Find the first place. Raises ConfigurationError if the cursor is not one of this kind of store."""
        self._hub.enter(self.subscription)
        if self._place is None:
            await self._hub.join(self.subscription)
            self._behind = False
        elif not self._join_ring(self._place):
            self._page = await self._read_once(self._place)

    def end(self) -> None:
        self._hub.leave(self.subscription)

    def _join_ring(self, place: Cursor) -> bool:
        if self._hub.recall(self.subscription, place):
            self._behind = False
        return not self._behind

    async def next(self) -> list[Parcel]:
        """Return what comes next, perhaps nothing. Raises Lost, once, if there is a gap before it."""
        if self._behind and self._place is not None:
            return await self._read_on(self._place)
        await self.subscription.news.wait()
        return self.subscription.take()

    async def _read_on(self, place: Cursor) -> list[Parcel]:
        if self._at_end and self._goal is None:
            self._goal = await self._hub.join(self.subscription)
        page = self._page or await self._read(place)
        self._page = None
        if page.reset:
            self._start_again(page.cursor)
            raise Lost
        events = events_of(page, self.subscription.where, place, self._hub.redaction)
        self._place = page.cursor
        if not page.more:
            self._reach_end(page.cursor)
        return [events] if events else []

    async def _read(self, place: Cursor) -> ChangePage:
        while True:
            try:
                return await self._read_once(place)
            except StoreUnavailable as error:
                log.warning("changes_unavailable", error=str(error), retry_in=RETRY_PAUSE)
                await asyncio.sleep(RETRY_PAUSE)

    async def _read_once(self, place: Cursor) -> ChangePage:
        goal = None if self._goal is None else str(self._goal)
        async with self._hub.own_reads:
            page = await self._store.changes(str(place), limit=PAGE, until=goal)
            return await with_tags(page, self.subscription.where, self._store.tags)

    def _reach_end(self, place: Cursor) -> None:
        """At the end of the feed, join. At the place where it has joined, go on with what the hub sends."""
        if self._goal is not None:
            self._behind = False
        elif not self._join_ring(place):
            self._at_end = True

    def _start_again(self, place: Cursor) -> None:
        self.subscription.leave()
        self._place, self._goal, self._at_end = place, None, False
