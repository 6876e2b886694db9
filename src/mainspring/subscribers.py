"""Durable subscribers: each is a name with a place in the change feed, and a function that is called for each change.

The place is a document. One worker at a time serves a subscriber: it reads the changes after that place, calls the
function, and moves the place. Each move names the version of the document that the worker has read. So a worker that
was paused, and whose subscriber another worker serves by now, cannot move the place back.

If a process dies after the function has acted and before the place was moved, the next worker calls the function again
for that change. `Change.id` is the same then: pass it on as an idempotency key. The same happens if the others cannot
know that the process lives, because it was stopped or cut off from the store for longer than the lease, or if a worker
was told to stop and its grace ended during the action. A store that is away or refuses writes is not a reason to call
the function again: the worker keeps trying to move the place, and others take over only after a write of their own has
succeeded and the owner has had time for one.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from mainspring.clock import Millis
from mainspring.errors import ConfigurationError
from mainspring.events import SubscriberReset
from mainspring.ids import new_id
from mainspring.log import get_log
from mainspring.names import check_name
from mainspring.services import Services
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Listing, Write
from mainspring.stores.feed import Change, ChangeFilter, Cursor, check_where, with_tags

log = get_log("mainspring.subscribers")

COLLECTION = "subscribers"
TAKEOVERS = "subscriber_takeovers"  # written to learn whether the store takes writes
A_DAY: Millis = 86_400_000
PAGE = 200  # entries of the feed that one read returns at most
PAUSE = 0.02  # seconds between two reads while changes keep coming
LONGEST_ERROR = 500  # characters

Handler = Callable[[Change], Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """All of it in seconds."""

    lease: float = 15.0  # without a sign of life, after which another worker takes over
    sign_of_life: float = 5.0  # between two of them
    first_pause: float = 1.0  # before a change is tried again, doubling
    longest_pause: float = 60.0
    outage_pause: float = 1.0  # between two tries to move the place; shorter than `sign_of_life`


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
    owner: str | None = None  # the worker that serves it, as "host:process:number"; None: none does
    failures: int = 0  # in a row, for the next change
    error: str = ""  # the last one; empty if there is none

    @classmethod
    def of(cls, document: Document) -> SubscriberState:
        data = json.loads(document.data)
        return cls(document.key.id, data["cursor"], data["owner"], data["failures"], data["error"])


def check_handler(handler: object) -> None:
    """Raise ConfigurationError for what cannot be called with a change: every change would fail for ever."""
    if not callable(handler):
        msg = f"a subscriber is a function that takes a change, not {handler!r}"
        raise ConfigurationError(msg)
    try:
        signature = inspect.signature(handler)
    except ValueError:  # some functions of C do not tell
        return
    try:
        signature.bind(None)
    except TypeError:
        msg = f"a subscriber is called with one argument, the change, but {handler!r} takes {signature}"
        raise ConfigurationError(msg) from None


class Subscribers:
    """The durable subscribers of an application. Its workers serve them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.timing = Timing()
        self.registered: dict[str, Subscriber] = {}

    def add(self, name: str, where: ChangeFilter, handler: Handler) -> None:
        check_name(name, "the name of a subscriber")
        check_where(where)
        check_handler(handler)
        if name in self.registered:
            msg = f"there is a subscriber named {name!r} already; give each one its own name"
            raise ConfigurationError(msg)
        self.registered[name] = Subscriber(name, where, handler)

    def services_for(self, stopping: asyncio.Event) -> list[Service]:
        """Return what a worker runs: one service for each subscriber."""
        subscribers = self.registered.values()
        return [Service(self._services, subscriber, self.timing, stopping) for subscriber in subscribers]

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
    """Another worker serves the subscriber."""


class Service:
    """Serves one subscriber in one worker, if no other worker does."""

    def __init__(self, services: Services, subscriber: Subscriber, timing: Timing, stopping: asyncio.Event) -> None:
        self._services = services
        self._subscriber = subscriber
        self._timing = timing
        self._stopping = stopping
        self.finished = asyncio.Event()  # the worker stops, and the place is handed over
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{new_id()[-6:]}"
        self._key = Key(COLLECTION, "", subscriber.name)
        self._version = ABSENT
        self._cursor = ""
        self._failures = 0
        self._error = ""
        self._saved_at = 0.0
        self._seen: tuple[str, float] | None = None  # another owner's version, and when it was first seen
        self._warned: str | None = None  # the version that is taken over unless the owner writes now

    @property
    def name(self) -> str:
        return f"subscriber {self._subscriber.name}"

    async def step(self) -> None:
        """Take the subscriber if no live worker has it, and serve it until the worker stops or the place is lost."""
        if self._stopping.is_set():
            self.finished.set()
            await asyncio.Event().wait()  # until this loop is cancelled
        if not await self._take_if_free():
            await self._sleep(self._timing.sign_of_life)
            return
        with suppress(PlaceLost):
            await self._serve()

    # -- the place --------------------------------------------------------------------------------

    async def _take_if_free(self) -> bool:
        """Take the subscriber, see `_take`. If the store fails, forget for how long the owner was silent.

        The owner cannot give signs of life either then.
        """
        try:
            return await self._take()
        except Exception:
            self._seen = self._warned = None
            raise

    async def _take(self) -> bool:
        """Become the owner: of a new subscriber, one without an owner, or one whose owner gives no sign of life."""
        found = await self._services.store.documents([self._key])
        if not found:
            starts = self._subscriber.where.asks_for_starts
            cursor = str((await self._services.store.changes(starts=starts)).cursor)
            return await self._become_owner(ABSENT, SubscriberState(self._subscriber.name, cursor))
        state = SubscriberState.of(found[0])
        if state.owner not in {None, self._owner} and not await self._may_take_from(found[0].version):
            return False
        return await self._become_owner(found[0].version, state)

    async def _may_take_from(self, version: str) -> bool:
        """Return whether the owner is silent although the store takes writes.

        The second part needs a look after the next sign of life was due: during a failover, a store may answer reads
        and refuse writes for longer than the lease.
        """
        if not self._is_silent(version):
            return False
        if self._warned != version:
            now = self._services.store.clock.now()
            attempt = Write(Key(TAKEOVERS, "", self._subscriber.name), json.dumps(self._owner), expires_at=now + A_DAY)
            await self._services.store.write([Bundle((attempt,))])
            self._warned = version
            return False
        return True

    def _is_silent(self, version: str) -> bool:
        now = self._services.store.clock.monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = version, now
        return now - self._seen[1] >= self._timing.lease

    async def _become_owner(self, version: str, state: SubscriberState) -> bool:
        self._version, self._cursor, self._failures, self._error = version, state.cursor, state.failures, state.error
        try:
            await self._save()
        except PlaceLost:
            return False
        return True

    async def _save(self, *, owner: str | None = "") -> None:
        """Write the place; raise PlaceLost if another worker has written it."""
        data = {
            "cursor": self._cursor,
            "owner": self._owner if owner == "" else owner,
            "failures": self._failures,
            "error": self._error,
        }
        began = self._services.store.clock.monotonic()  # not after the write: the process may be paused during it
        write = Write(self._key, json.dumps(data), expected=self._version)
        (written,) = await self._services.store.write([Bundle((write,))])
        if written is None:
            log.warning("subscriber_lost", subscriber=self._subscriber.name)
            raise PlaceLost
        self._version, self._saved_at = write.version, began

    async def _save_after_action(self) -> None:
        """Write the place, however long the store cannot do it: otherwise the function would be called again."""
        while not await self._can_save():  # noqa: ASYNC110 - no event tells that the store is back
            await asyncio.sleep(self._timing.outage_pause)

    async def _can_save(self) -> bool:
        """Write the place; False if the store fails, for whatever reason. During a failover, it is read-only."""
        try:
            await self._save()
        except PlaceLost:
            raise
        except Exception as error:  # noqa: BLE001 - whatever failed, the action must not be repeated for it
            log.warning("subscriber_waits", subscriber=self._subscriber.name, error=f"{type(error).__name__}: {error}")
            return False
        return True

    async def _show_life(self) -> None:
        if self._services.store.clock.monotonic() - self._saved_at >= self._timing.sign_of_life:
            await self._save()

    # -- serving ------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        news = asyncio.Event()
        async with self._services.store.watching(news.set):
            while not self._stopping.is_set():
                news.clear()
                starts = self._subscriber.where.asks_for_starts
                page = await self._services.store.changes(self._cursor, limit=PAGE, starts=starts)
                if page.reset:
                    await self._begin_anew(str(page.cursor))
                    continue
                page = await with_tags(page, self._subscriber.where, self._services.store.tags)
                before = Cursor.parse(self._cursor)
                for change in page.changes(self._subscriber.where, before):
                    if not await self._handle(change):
                        break
                else:
                    await self._pass_over(str(page.cursor), moved=bool(page.entries))
                    await self._wait(news, busy=bool(page.entries), more=page.more)
        await self._save(owner=None)

    async def _begin_anew(self, cursor: str) -> None:
        """Go on from now, and tell it: the feed no longer has what came after the place."""
        name = self._subscriber.name
        log.error("subscriber_reset", subscriber=name, advice="the feed no longer has what came after its place")
        self._services.bus.emit(SubscriberReset(subscriber=name))
        self._cursor, self._failures, self._error = cursor, 0, ""
        await self._save()

    async def _pass_over(self, cursor: str, *, moved: bool) -> None:
        """Move the place past changes that do not match, now and then."""
        self._cursor = cursor
        if moved:
            await self._show_life()

    async def _handle(self, change: Change) -> bool:
        """Call the function until it succeeds, then move the place; False if the worker stops before that."""
        while not self._stopping.is_set():
            await self._show_life()  # after a pause, this also checks that no other worker has taken over
            if await self._call(change):
                self._cursor, self._failures, self._error = change.cursor, 0, ""
                await self._save_after_action()
                return True
            self._failures += 1
            await self._save()
            doubled = self._timing.first_pause * 2 ** min(self._failures - 1, 30)
            await self._pause(min(self._timing.longest_pause, doubled))
        return False

    async def _pause(self, seconds: float) -> None:
        """Wait before the next try, and show life meanwhile."""
        end = self._services.store.clock.monotonic() + seconds
        while (left := end - self._services.store.clock.monotonic()) > 0 and not self._stopping.is_set():
            await self._sleep(min(left, self._timing.sign_of_life))
            await self._show_life()

    async def _call(self, change: Change) -> bool:
        """Call the function, and show life meanwhile: it may take longer than the lease."""
        call = asyncio.create_task(error_of(self._subscriber.handler, change))
        try:
            while not call.done():
                await asyncio.wait([call], timeout=self._timing.sign_of_life)
                if not call.done():
                    await self._can_save()
        finally:
            call.cancel()  # it has ended, or the place is lost, or the worker waits no longer
        return self._has_succeeded(call, change)

    def _has_succeeded(self, call: asyncio.Task[BaseException | None], change: Change) -> bool:
        error = asyncio.CancelledError("cancelled") if call.cancelled() else call.result()
        if error is None:
            return True
        self._error = in_words(error)
        name = self._subscriber.name
        log.warning("subscriber_failed", subscriber=name, change=change.id, kind=change.kind, error=self._error)
        return False

    async def _wait(self, news: asyncio.Event, *, busy: bool, more: bool) -> None:
        if more:
            return
        if busy:
            await asyncio.sleep(PAUSE)
            return
        stopping = asyncio.create_task(self._stopping.wait())
        heard = asyncio.create_task(news.wait())
        try:
            most = self._timing.sign_of_life
            await asyncio.wait([heard, stopping], timeout=most, return_when=asyncio.FIRST_COMPLETED)
        finally:
            heard.cancel()
            stopping.cancel()
        await self._show_life()

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not longer than the worker works."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


async def finish(services: Sequence[Service], seconds: float, unless: asyncio.Event) -> None:
    """Wait until all of them have finished the change that they are at and handed over their places, or `unless`."""
    if not services:
        return
    finished = asyncio.create_task(all_finished(services))
    told = asyncio.create_task(unless.wait())
    try:
        await asyncio.wait([finished, told], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        finished.cancel()
        told.cancel()


async def all_finished(services: Sequence[Service]) -> bool:
    return all([await service.finished.wait() for service in services])


async def error_of(handler: Handler, change: Change) -> BaseException | None:
    """Call the function; return what it raised. A task that raised SystemExit would end the worker."""
    try:
        await call_handler(handler, change)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, the change is not handled
        return error
    return None


async def call_handler(handler: Handler, change: Change) -> None:
    """Call the function: a coroutine function here, another one in a thread."""
    if inspect.iscoroutinefunction(handler):
        await handler(change)
        return
    answer = await call_in_thread(handler, change)
    if isinstance(answer, Awaitable):
        await answer


async def call_in_thread(handler: Handler, change: Change) -> Any:
    """Call a function in a daemon thread: one that hangs must not keep a stopped program alive.

    The future has the exception as a value, because it does not accept each of them: StopIteration would be lost.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(answer: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((answer, error))

    def call() -> None:
        answer, error = None, None
        try:
            answer = context.run(handler, change)
        except BaseException as raised:  # noqa: BLE001 - the coroutine that waits raises it
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, answer, error)

    threading.Thread(target=call, name="mainspring-subscriber", daemon=True).start()
    answer, error = await ended
    if error is not None:
        raise error
    return answer


def in_words(error: BaseException) -> str:
    """Return type and message of an error, even if its `__str__` raises."""
    try:
        return f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
    except Exception as worse:  # noqa: BLE001 - the user's code
        return f"{type(error).__name__}: <its message raised {type(worse).__name__}>"
