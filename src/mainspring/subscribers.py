"""Durable subscribers: each is a name with a place in the change feed, and a function that is called for each change.

The place is a document. One process at a time serves a subscriber: it reads the changes after that place, calls the
function, and moves the place. Each move names the version of the document that the process has read. So a process that
was paused, and whose subscriber another process serves by now, cannot move the place back.

If a process dies after the function has acted and before the place was moved, the next process calls the function again
for that change. `Change.id` is the same then: pass it on as an idempotency key.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mainspring.errors import ConfigurationError
from mainspring.events import SubscriberReset
from mainspring.ids import new_id
from mainspring.log import get_log
from mainspring.names import check_name
from mainspring.services import Services
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Listing, Write
from mainspring.stores.feed import Change, ChangeFilter, Cursor

log = get_log("mainspring.subscribers")

COLLECTION = "subscribers"
LEASE = 15.0  # seconds without a sign of life after which another process takes over
SIGN_OF_LIFE = 5.0  # seconds between two of them
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a change is tried again, doubling
PAGE = 200  # entries of the feed that one read returns at most
PAUSE = 0.02  # seconds between two reads while changes keep coming

Handler = Callable[[Change], Any]


@dataclass(frozen=True, slots=True)
class Subscriber:
    name: str
    where: ChangeFilter
    handler: Handler


@dataclass(frozen=True, slots=True)
class SubscriberState:
    """A subscriber as the store knows it."""

    name: str
    cursor: str  # the last change that it has handled, or passed over
    owner: str | None  # the process that serves it; None: no process does
    failures: int  # in a row, for the next change
    error: str  # the last one; empty if there is none

    @classmethod
    def of(cls, document: Document) -> SubscriberState:
        data = json.loads(document.data)
        return cls(document.key.id, data["cursor"], data["owner"], data["failures"], data["error"])


class Subscribers:
    """The durable subscribers of an application. Its workers serve them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._process = new_id()
        self.registered: dict[str, Subscriber] = {}

    def add(self, name: str, where: ChangeFilter, handler: Handler) -> None:
        check_name(name, "the name of a subscriber")
        if name in self.registered:
            msg = f"there is a subscriber named {name!r} already; give each one its own name"
            raise ConfigurationError(msg)
        self.registered[name] = Subscriber(name, where, handler)

    def services_for(self, stopping: asyncio.Event) -> list[Service]:
        """Return what a worker runs: one service for each subscriber."""
        subscribers = self.registered.values()
        return [Service(self._services, subscriber, self._process, stopping) for subscriber in subscribers]

    async def states(self) -> list[SubscriberState]:
        """Return all subscribers that the store knows, also those of other programs."""
        found = await self._services.store.browse(Listing(COLLECTION, limit=1000))
        return [SubscriberState.of(document) for document in found]

    async def remove(self, name: str) -> bool:
        """Forget a subscriber and its place; False if there is none. A program that serves it begins anew, from now."""
        if not await self._services.store.documents([Key(COLLECTION, "", name)]):
            return False
        await self._services.store.write([Bundle((Write(Key(COLLECTION, "", name), None),))])
        return True


class PlaceLost(Exception):
    """Another process serves the subscriber."""


class Service:
    """Serves one subscriber in this process, if no other process does."""

    def __init__(self, services: Services, subscriber: Subscriber, process: str, stopping: asyncio.Event) -> None:
        self._services = services
        self._subscriber = subscriber
        self._process = process
        self._stopping = stopping
        self._key = Key(COLLECTION, "", subscriber.name)
        self._version = ABSENT
        self._cursor = ""
        self._failures = 0
        self._error = ""
        self._saved_at = 0.0
        self._seen: tuple[str, float] | None = None  # another owner's version, and when it was first seen

    @property
    def name(self) -> str:
        return f"subscriber {self._subscriber.name}"

    async def step(self) -> None:
        """Take the subscriber if no live process has it, and serve it until the worker stops or the place is lost."""
        if self._stopping.is_set():
            await asyncio.Event().wait()  # until this loop is cancelled
        if not await self._take():
            await self._sleep(SIGN_OF_LIFE)
            return
        with suppress(PlaceLost):
            await self._serve()

    # -- the place --------------------------------------------------------------------------------

    async def _take(self) -> bool:
        """Become the owner: of a new subscriber, one without an owner, or one whose owner gives no sign of life."""
        found = await self._services.store.documents([self._key])
        if not found:
            cursor = str((await self._services.store.changes()).cursor)
            return await self._become_owner(ABSENT, cursor)
        state = SubscriberState.of(found[0])
        if state.owner not in {None, self._process} and not self._is_silent(found[0].version):
            return False
        self._failures = state.failures
        return await self._become_owner(found[0].version, state.cursor)

    def _is_silent(self, version: str) -> bool:
        now = self._services.store.clock.monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = version, now
        return now - self._seen[1] >= LEASE

    async def _become_owner(self, version: str, cursor: str) -> bool:
        self._version, self._cursor, self._error = version, cursor, ""
        try:
            await self._save()
        except PlaceLost:
            return False
        return True

    async def _save(self, *, owner: str | None = "") -> None:
        """Write the place; raise PlaceLost if another process has written it."""
        data = {
            "cursor": self._cursor,
            "owner": self._process if owner == "" else owner,
            "failures": self._failures,
            "error": self._error,
        }
        write = Write(self._key, json.dumps(data), expected=self._version)
        (written,) = await self._services.store.write([Bundle((write,))])
        if written is None:
            log.warning("subscriber_lost", subscriber=self._subscriber.name)
            raise PlaceLost
        self._version, self._saved_at = write.version, self._services.store.clock.monotonic()

    async def _show_life(self) -> None:
        if self._services.store.clock.monotonic() - self._saved_at >= SIGN_OF_LIFE:
            await self._save()

    # -- serving ------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        news = asyncio.Event()
        async with self._services.store.watching(news.set):
            while not self._stopping.is_set():
                news.clear()
                page = await self._services.store.changes(self._cursor, limit=PAGE)
                if page.reset:
                    self._tell_reset()
                before = Cursor.parse(self._cursor)
                for change in page.changes(self._subscriber.where, before):
                    if not await self._handle(change):
                        break
                else:
                    await self._pass_over(str(page.cursor), moved=bool(page.entries) or page.reset)
                    await self._wait(news, busy=bool(page.entries), more=page.more)
        await self._save(owner=None)

    def _tell_reset(self) -> None:
        name = self._subscriber.name
        log.error("subscriber_reset", subscriber=name, advice="the feed no longer has what came after its place")
        self._services.bus.emit(SubscriberReset(subscriber=name))

    async def _pass_over(self, cursor: str, *, moved: bool) -> None:
        """Move the place past changes that do not match, now and then."""
        self._cursor = cursor
        if moved:
            await self._show_life()

    async def _handle(self, change: Change) -> bool:
        """Call the function until it succeeds, then move the place; False if the worker stops before that."""
        while not self._stopping.is_set():
            await self._show_life()  # after a pause, this also checks that no other process has taken over
            if await self._call(change):
                self._cursor, self._failures, self._error = change.cursor, 0, ""
                await self._save()
                return True
            self._failures += 1
            await self._save()
            await self._pause(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._failures - 1, 10)))
        return False

    async def _pause(self, seconds: float) -> None:
        """Wait before the next try, and show life meanwhile."""
        end = self._services.store.clock.monotonic() + seconds
        while (left := end - self._services.store.clock.monotonic()) > 0 and not self._stopping.is_set():
            await self._sleep(min(left, SIGN_OF_LIFE))
            await self._show_life()

    async def _call(self, change: Change) -> bool:
        """Call the function, and show life meanwhile: it may take longer than the lease."""
        call = asyncio.create_task(call_handler(self._subscriber.handler, change))
        try:
            while not call.done():
                await asyncio.wait([call], timeout=SIGN_OF_LIFE)
                if not call.done():
                    await self._save()
            call.result()
        except PlaceLost:
            call.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            self._error = f"{type(error).__name__}: {error}"[:500]
            name = self._subscriber.name
            log.warning("subscriber_failed", subscriber=name, change=change.id, kind=change.kind, error=self._error)
            return False
        finally:
            if not call.done():
                call.cancel()
        return True

    async def _wait(self, news: asyncio.Event, *, busy: bool, more: bool) -> None:
        if more:
            return
        if busy:
            await asyncio.sleep(PAUSE)
            return
        stopping = asyncio.create_task(self._stopping.wait())
        heard = asyncio.create_task(news.wait())
        try:
            await asyncio.wait([heard, stopping], timeout=SIGN_OF_LIFE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            heard.cancel()
            stopping.cancel()
        await self._show_life()

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not longer than the worker works."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


async def call_handler(handler: Handler, change: Change) -> None:
    """Call the function: a coroutine function here, another one in a thread."""
    if inspect.iscoroutinefunction(handler):
        await handler(change)
        return
    answer = await asyncio.to_thread(handler, change)
    if isinstance(answer, Awaitable):
        await answer
