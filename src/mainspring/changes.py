"""Follow the change feed: `async for change in app.changes()`.

The stream reads the store when the store says that the feed may have grown, and sleeps otherwise. It survives outages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress

from mainspring.errors import ChangesLost, StoreUnavailable
from mainspring.log import get_log
from mainspring.services import Services
from mainspring.stores.feed import Change, ChangeFilter, ChangePage, Cursor, check_where, with_tags

log = get_log("mainspring.changes")

PAGE = 500  # entries of the feed that one read returns at most
FIRST_PAUSE = 0.01  # seconds between two reads when changes have begun to come
LONGEST_PAUSE = 0.05  # seconds between two reads while they keep coming: many small reads would cost the store more
PAUSE_GROWTH = 1.5
LONGEST_SLEEP = 15.0  # seconds without a look at the feed, in case a wake-up got lost
RETRY_PAUSE = 1.0  # seconds to wait while the store is away


class ChangeStream:
    """The changes after a cursor, without end. `cursor` is where to resume; it moves on even if nothing matches.

    Use `async for`, or `for` in code without an event loop. Breaking out of the loop ends the stream. To wait for one
    change with a timeout: `changes = aiter(stream)`, then `await asyncio.wait_for(anext(changes), 5)`, again and again.
    """

    def __init__(self, services: Services, after: str | None, where: ChangeFilter) -> None:
        check_where(where)
        self._services = services
        self._where = where
        self._place: Cursor | Change | None = None if after is None else Cursor.parse(after)
        self._news: asyncio.Event | None = None  # set once it is followed
        self.reads = 0  # of the store that have begun

    @property
    def cursor(self) -> str | None:
        """Return where to resume; None until the stream has begun, if it begins now."""
        return self._place.cursor if isinstance(self._place, Change) else self._place and str(self._place)

    def __aiter__(self) -> AsyncIterator[Change]:
        return Following(self._batches, self._services)

    def __iter__(self) -> Iterator[Change]:
        refuse_event_loop()
        return self._follow_in_thread()

    def _follow_in_thread(self) -> Iterator[Change]:
        batches = Pull(self._batches())
        run = self._services.run
        try:
            while True:
                yield from run(batches.next())
        finally:
            run(batches.close())

    async def begin(self) -> str:
        """Return the cursor, after which every change will be seen. Call it to fix the place before you act."""
        return str(await self._begin())

    async def _begin(self) -> Cursor:
        if self._place is None:
            self._place = (await self._services.store.changes(starts=self._where.asks_for_starts)).cursor
        return self._place.place if isinstance(self._place, Change) else self._place

    async def _batches(self) -> AsyncGenerator[Iterator[Change]]:
        """Yield the matching changes of each page: a thread would wait 80 times as long if it asked for each change."""
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                yield self._moving_on(page.changes(self._where, await self._begin()))

    def _moving_on(self, changes: Iterator[Change]) -> Iterator[Change]:
        """Yield the changes; each that is taken moves the cursor."""
        for change in changes:
            self._place = change
            yield change

    async def pages(self) -> AsyncGenerator[ChangePage]:
        """Yield each page of the feed as it is read, also if it is empty. The filter is not applied to it.

        Close the generator when you stop (`aclosing`). The first page may begin with changes before `cursor`: pass the
        cursor to `ChangePage.changes` as `skip`.
        """
        self._news = news = asyncio.Event()
        pause = 0.0
        await self._begin()
        async with self._services.store.watching(news.set):
            while True:
                news.clear()
                page = await self._read()
                if page is None:
                    continue
                yield page
                self._place = page.cursor
                pause = next_pause(pause) if page.entries else 0.0
                await self._wait(page, pause, news)

    def look(self) -> None:
        """Read the feed soon, even if the store does not say that it has grown. Only for the event loop of `pages`."""
        if self._news is not None:
            self._news.set()

    async def _read(self) -> ChangePage | None:
        """Return the next page; None if the store is away for now."""
        self.reads += 1
        try:
            starts = self._where.asks_for_starts
            page = await self._services.store.changes(self.cursor, limit=PAGE, starts=starts)
            page = await with_tags(page, self._where, self._services.store.tags)
        except StoreUnavailable as error:
            log.warning("changes_unavailable", error=str(error), retry_in=RETRY_PAUSE)
            await asyncio.sleep(RETRY_PAUSE)
            return None
        if page.reset:
            lost, self._place = self.cursor, page.cursor
            raise ChangesLost(lost or "", str(page.cursor))
        return page

    async def _wait(self, page: ChangePage, pause: float, news: asyncio.Event) -> None:
        if page.more:
            return
        if page.entries:
            await asyncio.sleep(pause)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_SLEEP):
                await news.wait()


def next_pause(pause: float) -> float:
    """Return how long to wait for more changes, after a page that had some."""
    return min(max(FIRST_PAUSE, pause * PAUSE_GROWTH), LONGEST_PAUSE)


def refuse_event_loop() -> None:
    """Raise RuntimeError on an event loop: a plain `for` would block it until the next change, perhaps for ever."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # as it should be
        return
    msg = "a plain `for` over changes would block the event loop; write `async for change in app.changes()`"
    raise RuntimeError(msg)


class Following:
    """The changes for one `async for`. A loop that ends early closes the stream, at the latest with the application."""

    def __init__(self, follow: Callable[[], AsyncGenerator[Iterator[Change]]], services: Services) -> None:
        self._follow = follow
        self._batches = follow()
        self._batch: Iterator[Change] = iter(())
        self._services = services

    def __aiter__(self) -> Following:
        return self

    async def __anext__(self) -> Change:  # a coroutine, so that it keeps this object alive while it waits
        """Return the next change. After an error or a cancellation, such as by a timeout, the next call goes on."""
        while (change := next(self._batch, None)) is None:
            try:
                self._batch = await anext(self._batches)
            except BaseException:
                self._batches = self._follow()  # an error has ended the other one
                raise
        return change

    def __del__(self) -> None:
        with suppress(RuntimeError):  # no event loop runs here; then Python closes the generator
            self._services.end(self._batches.aclose)


class Pull:
    """Batches for a thread that asks for one after the other, and may be interrupted (Ctrl-C) while it waits."""

    def __init__(self, batches: AsyncGenerator[Iterator[Change]]) -> None:
        self._batches = batches
        self._pending: asyncio.Future[Iterator[Change]] | None = None

    async def next(self) -> Iterator[Change]:
        self._pending = asyncio.ensure_future(anext(self._batches))
        return await self._pending

    async def close(self) -> None:
        if self._pending is not None:  # a generator that still runs cannot be closed
            self._pending.cancel()
            await asyncio.wait([self._pending])
        await self._batches.aclose()
