"""The base of all fake servers: HTTP/1.1 on the loopback interface, with faults to order."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

HOST = "127.0.0.1"
LARGEST_BODY = 16 * 1024 * 1024  # bytes
START_WITHIN = 10.0  # seconds
LOOK_EVERY = 0.01  # seconds between two looks whether the delay was changed
WAIT = 10.0  # seconds that a test waits for requests, unless it says otherwise

_CLOSE = object()  # instead of an answer: hang up


@dataclass(frozen=True, slots=True)
class Request:
    """What a client has sent."""

    method: str
    path: str  # without the query
    query: Mapping[str, list[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server sends back. `body` is sent as it is if it is bytes, else as JSON."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else json.dumps(self.body).encode()

    def to_bytes(self) -> bytes:
        content = self.content()
        kind = "application/octet-stream" if isinstance(self.body, bytes) else "application/json"
        lines = {"Content-Type": kind, **self.headers, "Content-Length": str(len(content)), "Connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"HTTP/1.1 {self.status} {phrase_of(self.status)}\r\n{head}\r\n".encode("latin-1") + content


@dataclass(slots=True)
class Fault:
    """What goes wrong with the next requests."""

    status: int | None = None  # None: the connection is closed without an answer
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    left: float = float("inf")  # requests that it still applies to
    after: bool = False  # the request takes effect, and only its answer is lost


class FakeServer:
    """A server for tests. `with` or `async with` it, or call `start` and `stop`.

    Derive from it and override `answer`. That method and the faults run on the server's own thread; everything else may
    be called from any thread.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port  # 0: any free one; then the port stays the same until the object is gone
        self.received: list[Request] = []  # all requests in order, also those that were made to fail
        self._news = threading.Condition()
        self._fault: Fault | None = None
        self._delay = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}, {len(self.received)} requests>"

    @property
    def url(self) -> str:
        """Return where the server is, without a slash at the end. It is valid once the server has started."""
        return f"http://{HOST}:{self.port}"

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request. Override this."""
        del request
        return Answer()

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start to answer, on a thread that does not keep the program alive."""
        if self._thread is None:
            begun: Future[None] = Future()
            self._thread = threading.Thread(target=self._run, args=(begun,), name=type(self).__name__, daemon=True)
            self._thread.start()
            try:
                begun.result(START_WITHIN)
            except BaseException:
                self._thread = self._loop = None  # it has not started: `start` can be called again
                raise
        return self

    def stop(self) -> None:
        """Close all connections and end the thread. `start` starts the server again, at the same port."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = self._loop = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _run(self, begun: Future[None]) -> None:
        self._loop = loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._open())
        except BaseException as error:  # noqa: BLE001 - the thread that called `start` gets it
            begun.set_exception(error)
        else:
            begun.set_result(None)
            loop.run_forever()
            loop.run_until_complete(self._close())
        finally:
            loop.close()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        """Stop listening and hang up on all clients."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    # -- faults ---------------------------------------------------------------------------------

    def fail(
        self,
        status: int | None = 500,
        *,
        times: int | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        after: bool = False,
    ) -> None:
        """Answer the next `times` requests with this status, or all of them until `recover`. None: hang up instead.

        `headers` are those of the answer, such as `{"Retry-After": "30"}`. With `after`, the request takes effect
        first: the client cannot tell whether it did.
        """
        self._fault = Fault(status, body, headers or {}, float("inf") if times is None else times, after)

    def slow(self, seconds: float) -> None:
        """Wait this long before each answer, until `recover`."""
        self._delay = seconds

    def down(self) -> None:
        """Refuse connections, like a server that is not running, until `recover`."""
        self._call(self._close)

    def recover(self) -> None:
        """End all faults."""
        self._fault, self._delay = None, 0.0
        self._call(self._reopen)

    async def _reopen(self) -> None:
        if self._server is None:
            await self._open()

    def _call(self, work: Callable[[], Any]) -> None:
        """Run a coroutine function on the server's thread, if there is one."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(work(), self._loop).result(START_WITHIN)

    # -- waiting --------------------------------------------------------------------------------

    def wait_for(self, number: int, *, timeout: float = WAIT) -> list[Request]:
        """Return the requests once there are this many; raise TimeoutError if there are not in time."""
        return self.wait_until(lambda: len(self.received) >= number, f"{number} requests", timeout=timeout)

    def wait_until(self, done: Callable[[], bool], what: str = "it", *, timeout: float = WAIT) -> list[Request]:
        """Wait until `done()` is true. It is looked at whenever a request was answered."""
        with self._news:
            if not self._news.wait_for(done, timeout):
                msg = f"waited {timeout:g} s for {what}; {self!r} has received: {[r.path for r in self.received]}"
                raise TimeoutError(msg)
            return list(self.received)

    async def arrived(self, number: int, *, timeout: float = WAIT) -> list[Request]:
        """Do what `wait_for` does, in a coroutine."""
        return await asyncio.to_thread(self.wait_for, number, timeout=timeout)

    # -- connections ----------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None  # noqa: S101 - streams run it as a task
        self._talks.add(talk)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._talk(reader, writer)
        finally:
            self._talks.discard(talk)
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request. The connection is closed after it."""
        try:
            request = await read_request(reader)
        except ValueError as error:
            writer.write(Answer(HTTPStatus.BAD_REQUEST, {"error": str(error)}).to_bytes())
            await writer.drain()
            return
        reply = self._reply(request)
        await self._wait()
        if isinstance(reply, Answer):
            writer.write(reply.to_bytes())
            await writer.drain()

    async def _wait(self) -> None:
        """Wait for the delay. `recover` and another call of `slow` also apply to requests that wait already."""
        clock = asyncio.get_running_loop().time
        start = clock()
        while (left := start + self._delay - clock()) > 0:  # noqa: ASYNC110 - another thread changes it
            await asyncio.sleep(min(left, LOOK_EVERY))

    def _reply(self, request: Request) -> Answer | object:
        """Record the request and return the answer, or what a fault makes of it."""
        with self._news:
            self.received.append(request)
            fault = self._due_fault()
            reply = self._safely(request) if fault is None or fault.after else None
            self._news.notify_all()
        if fault is None:
            return reply
        return _CLOSE if fault.status is None else Answer(fault.status, fault.body, fault.headers)

    def _safely(self, request: Request) -> Answer:
        try:
            return self.answer(request)
        except Exception as error:  # noqa: BLE001 - a mistake in a fake is shown to its client
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"{type(error).__name__}: {error}"})

    def _due_fault(self) -> Fault | None:
        fault = self._fault
        if fault is None or fault.left <= 0:
            return None
        fault.left -= 1
        return fault


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Read one request; raise ValueError if it is not HTTP, or larger than a test needs."""
    words = (await reader.readline()).decode("latin-1").split()
    if len(words) != 3:
        msg = f"not a request line of HTTP: {' '.join(words)[:100]!r}"
        raise ValueError(msg)
    headers = await read_headers(reader)
    length = int(headers.get("content-length", "0"))
    if not 0 <= length <= LARGEST_BODY or "transfer-encoding" in headers:
        msg = f"send a body with a Content-Length of at most {LARGEST_BODY} bytes"
        raise ValueError(msg)
    target = urlsplit(words[1])
    return Request(words[0], target.path, parse_qs(target.query), headers, await reader.readexactly(length))


async def read_headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    while line := (await reader.readline()).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def phrase_of(status: int) -> str:
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else "Fault"
