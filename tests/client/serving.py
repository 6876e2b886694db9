"""A service in a thread of its own, a proxy that loses answers, and both clients behind one face."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from mainspring import Mainspring, Retry
from mainspring.client import AsyncClient, Client
from mainspring.service import ServiceSettings, make_service
from tests.service.serving import listening

T = TypeVar("T")
SOON = 10.0  # seconds; only a failing test waits this long


def define(app: Mainspring) -> None:
    @app.task(queue="mail")
    async def welcome(guest: str) -> str:
        """Welcome a guest."""
        return f"welcome, {guest}"

    @app.task(retry=Retry(max_attempts=1))
    async def fail(why: str) -> None:
        raise ValueError(why)


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SOON)

    @contextmanager
    def using(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter and leave a context in one task, as timeouts and task groups need it."""
        entered, leave = asyncio.run_coroutine_threadsafe(self._holding(manager), self.loop).result(SOON)
        try:
            yield entered
        finally:
            asyncio.run_coroutine_threadsafe(leave(), self.loop).result(SOON)

    async def _holding(self, manager: AbstractAsyncContextManager[T]) -> tuple[T, Any]:
        entered: asyncio.Future[T] = self.loop.create_future()
        ending = asyncio.Event()

        async def hold() -> None:
            try:
                async with manager as value:
                    entered.set_result(value)
                    await ending.wait()
            except BaseException as error:
                if not entered.done():
                    entered.set_exception(error)
                raise

        task = asyncio.create_task(hold())

        async def leave() -> None:
            ending.set()
            await task

        return await entered, leave

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(SOON)
        self.loop.close()


class Service:
    """An application that is served."""

    def __init__(self, loop: Loop, app: Mainspring, url: str) -> None:
        self.loop, self.app, self.url = loop, app, url


@contextmanager
def served(loop: Loop, *, worker: bool = False, **settings: Any) -> Iterator[Service]:
    app = Mainspring("memory://")
    define(app)
    with loop.using(serve(app, worker=worker, **settings)) as url:
        yield Service(loop, app, url)


@asynccontextmanager
async def serve(app: Mainspring, *, worker: bool, **settings: Any) -> AsyncIterator[str]:
    service = make_service(app, ServiceSettings(**{"tokens": "optional", "rate_limit": 0.0, **settings}))
    async with app, listening(service) as url:
        if not worker:
            yield url
            return
        async with app.worker():
            yield url


class Proxy:
    """Passes requests on. It can lose answers that the service has already given, and break streams."""

    def __init__(self, target: str) -> None:
        self.port_of_target = int(target.rpartition(":")[2])
        self.url = ""
        self.lose = 0  # so many answers
        self.refuse = 0  # so many connections, before anything is sent
        self.cut_after = 0  # each connection breaks when so many bytes were answered; 0: none does
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuse:
            self.refuse -= 1
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.port_of_target)
        self._open |= {writer, back}
        passing = asyncio.create_task(self._pass(reader, back))
        try:
            await self._answer(there, writer)
        finally:
            passing.cancel()
            self._open -= {writer, back}
            writer.transport.abort()
            back.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.cut_after
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if self.lose:
                    self.lose -= 1
                    return
                writer.write(data[:left] if left else data)
                await writer.drain()
                if left and len(data) >= left:
                    return
                left = max(0, left - len(data))


class Both:
    """Lets a test use either client as if it blocked."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self._target, self._loop = target, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name == "runner":
            return found
        return self._called(found) if callable(found) else Both(found, self._loop)

    def _called(self, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if self._loop is None:
                return in_time(result) if inspect.isgenerator(result) else result
            if inspect.isawaitable(result):
                return self._loop.run_until_complete(asyncio.wait_for(result, SOON))
            return self._iterated(result) if inspect.isasyncgen(result) else result

        return call

    def _iterated(self, items: Any) -> Iterator[Any]:
        assert self._loop is not None
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(asyncio.wait_for(anext(items), SOON))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(items.aclose())


def in_time(items: Iterator[Any]) -> Iterator[Any]:
    """Yield the items; raise TimeoutError if the next one does not come soon. A stream would wait without end."""
    try:
        while True:
            coming: Future[Any] = Future()
            threading.Thread(target=take_next, args=(items, coming), daemon=True).start()
            if (item := coming.result(SOON)) is END:
                return
            yield item
    finally:
        with suppress(ValueError):  # it still waits
            items.close()  # type: ignore[attr-defined]


def take_next(items: Iterator[Any], coming: Future[Any]) -> None:
    try:
        coming.set_result(next(items, END))
    except Exception as error:
        coming.set_exception(error)


END = object()


class Pauses:
    """Takes the place of sleep: remembers how long the client wanted to wait, and moves its clock on."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.seen.append(seconds)
        self.now += seconds

    async def wait_async(self, seconds: float) -> None:
        self.wait(seconds)


@contextmanager
def connected(kind: str, url: str, **options: Any) -> Iterator[Any]:
    """Yield a client of this kind."""
    if kind == "sync":
        with Client(url, **options) as client:
            yield Both(client, None)
        return
    loop = asyncio.new_event_loop()
    made = AsyncClient(url, **options)
    try:
        yield Both(made, loop)
    finally:
        loop.run_until_complete(made.close())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def without_sleep(client: Any) -> Pauses:
    """Let a client not sleep between attempts."""
    pauses = Pauses()
    is_async = inspect.iscoroutinefunction(client.runner.sleep)
    client.runner.sleep = pauses.wait_async if is_async else pauses.wait
    return pauses
