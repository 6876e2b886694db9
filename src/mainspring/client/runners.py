"""Take the steps of calls: one runner blocks, the other awaits. Nothing else of the client differs between the two."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, closing
from functools import cache
from typing import Any, TypeVar, cast

try:
    import httpx2 as httpx
except ImportError as error:
    from mainspring.errors import MissingExtra

    msg = "the client needs httpx2; install it with: pip install 'mainspring[client]'"
    raise MissingExtra(msg) from error

from mainspring.client.connection import Connection
from mainspring.client.errors import ServiceUnreachable
from mainspring.client.request import Answer, Request
from mainspring.client.steps import AnySteps, Done, Item, Items, Open, Pause, Read, Send, Step, Steps, resume

T = TypeVar("T")

NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)  # the request did not reach the service


def unreachable(connection: Connection, error: httpx.HTTPError) -> ServiceUnreachable:
    sent = not isinstance(error, NOT_SENT)
    what = str(error) or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        what = f"{type(error).__name__}: no answer in time"
    where = "the connection broke" if sent else "there is no connection"
    return ServiceUnreachable(f"{connection.url} did not answer: {where} ({what})", sent=sent)


def options_of(connection: Connection, token: str | None, options: dict[str, Any]) -> dict[str, Any]:
    headers = {"user-agent": connection.agent, "accept": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    if not {"verify", "cert"} & options.keys():
        options = {**options, "verify": certificates()}
    return {"headers": headers, "timeout": connection.timeout, "follow_redirects": False, **options}


@cache
def certificates() -> ssl.SSLContext:
    """Return whose certificates are trusted. Reading them takes 40 ms, so all clients of a process share them."""
    return httpx.create_ssl_context()


def arguments_of(connection: Connection, request: Request) -> dict[str, Any]:
    """Return what httpx is asked for."""
    timeout = httpx.Timeout(connection.timeout, read=request.timeout or connection.timeout)
    return {
        "method": request.method,
        "url": f"{connection.url}{request.path}",
        "headers": dict(request.headers),
        "content": request.body,
        "timeout": timeout,
    }


def answer_of(response: httpx.Response, body: bytes = b"") -> Answer:
    return Answer(response.status_code, {name.lower(): value for name, value in response.headers.items()}, body)


class SyncRunner:
    """Takes steps in the calling thread. Several threads may use it at the same time."""

    def __init__(self, connection: Connection, token: str | None, **options: Any) -> None:
        self.connection = connection
        self._http = httpx.Client(**options_of(connection, token, options))
        self.sleep = time.sleep

    def close(self) -> None:
        self._http.close()

    def run(self, steps: Steps[T]) -> T:
        with closing(steps), SyncLine(self._http, self) as line:
            step = resume(steps)
            while not isinstance(step, Done):
                step = line.advance(steps, step)
            return cast("T", step.value)

    def iterate(self, steps: Items[T]) -> Iterator[T]:
        with closing(steps), SyncLine(self._http, self) as line:
            step = resume(steps)
            while not isinstance(step, Done):
                if isinstance(step, Item):
                    yield step.value
                    step = resume(steps)
                else:
                    step = line.advance(steps, step)


class SyncLine(ExitStack):
    """What one call uses of the network: it has at most one stream open."""

    def __init__(self, http: httpx.Client, runner: SyncRunner) -> None:
        super().__init__()
        self._http, self._runner = http, runner
        self._chunks: Iterator[bytes] = iter(())

    def advance(self, steps: AnySteps, step: Any) -> Any:
        """Take a step; return the next one."""
        try:
            outcome = self.take(step)
        except ServiceUnreachable as error:
            return resume(steps, error=error)
        return resume(steps, outcome)

    def take(self, step: Step) -> Any:
        try:
            match step:
                case Send(request):
                    response = self._http.request(**arguments_of(self._runner.connection, request))
                    return answer_of(response, response.content)
                case Open(request):
                    return self._open(request)
                case Read():
                    return next(self._chunks, None)
                case Pause(seconds):
                    return self._runner.sleep(seconds)
        except httpx.HTTPError as error:
            raise unreachable(self._runner.connection, error) from error

    def _open(self, request: Request) -> Answer:
        self.close()
        response = self.enter_context(self._http.stream(**arguments_of(self._runner.connection, request)))
        if response.status_code != 200:
            return answer_of(response, response.read())
        self._chunks = response.iter_bytes()
        return answer_of(response)


class AsyncRunner:
    """Takes steps on the running event loop."""

    def __init__(self, connection: Connection, token: str | None, **options: Any) -> None:
        self.connection = connection
        self._http = httpx.AsyncClient(**options_of(connection, token, options))
        self.sleep = asyncio.sleep

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, steps: Steps[T]) -> T:
        with closing(steps):
            async with AsyncLine(self._http, self) as line:
                step = resume(steps)
                while not isinstance(step, Done):
                    step = await line.advance(steps, step)
                return cast("T", step.value)

    async def iterate(self, steps: Items[T]) -> AsyncIterator[T]:
        with closing(steps):
            async with AsyncLine(self._http, self) as line:
                step = resume(steps)
                while not isinstance(step, Done):
                    if isinstance(step, Item):
                        yield step.value
                        step = resume(steps)
                    else:
                        step = await line.advance(steps, step)


class AsyncLine(AsyncExitStack):
    """What one call uses of the network: it has at most one stream open."""

    def __init__(self, http: httpx.AsyncClient, runner: AsyncRunner) -> None:
        super().__init__()
        self._http, self._runner = http, runner
        self._chunks: AsyncIterator[bytes] | None = None

    async def advance(self, steps: AnySteps, step: Any) -> Any:
        """Take a step; return the next one."""
        try:
            outcome = await self.take(step)
        except ServiceUnreachable as error:
            return resume(steps, error=error)
        return resume(steps, outcome)

    async def take(self, step: Step) -> Any:
        try:
            match step:
                case Send(request):
                    response = await self._http.request(**arguments_of(self._runner.connection, request))
                    return answer_of(response, response.content)
                case Open(request):
                    return await self._open(request)
                case Read():
                    return None if self._chunks is None else await anext(self._chunks, None)
                case Pause(seconds):
                    return await self._runner.sleep(seconds)
        except httpx.HTTPError as error:
            raise unreachable(self._runner.connection, error) from error

    async def _open(self, request: Request) -> Answer:
        await self.aclose()
        stream = self._http.stream(**arguments_of(self._runner.connection, request))
        response = await self.enter_async_context(stream)
        if response.status_code != 200:
            return answer_of(response, await response.aread())
        self._chunks = response.aiter_bytes()
        return answer_of(response)
