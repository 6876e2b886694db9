"""Take the steps of calls: one runner blocks, the other awaits. Nothing else of the client differs between the two."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, closing
from functools import cache
from typing import Any, TypeVar, cast

from mainspring.client.connection import Connection
from mainspring.client.errors import ServiceUnreachable
from mainspring.client.request import Answer, Request
from mainspring.client.steps import AnySteps, Done, Item, Items, Open, Pause, Read, Send, Step, Steps, resume
from mainspring.errors import ConfigurationError, MissingExtra

try:
    import httpx2 as httpx
except ImportError as error:
    msg = "the client needs httpx2; install it with: pip install 'mainspring[client]'"
    raise MissingExtra(msg) from error

T = TypeVar("T")

NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)  # the request did not reach the service


def unreachable(connection: Connection, error: httpx.HTTPError) -> ServiceUnreachable | ConfigurationError:
    """Return what the caller is told. Raise it `from None`: deeper frames hold the headers, and so the token."""
    if (untrusted := certificate_error(error)) is not None:
        hint = "give the certificate of its authority by verify=ssl.create_default_context(cafile=…)"
        return ConfigurationError(f"the certificate of {connection.url} is not trusted: {untrusted}; {hint}")
    sent = not isinstance(error, NOT_SENT)
    what = str(error) or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        what = f"{type(error).__name__}: no answer in time"
    where = "the connection broke" if sent else "there is no connection"
    return ServiceUnreachable(f"{connection.url} did not answer: {where} ({what})", sent=sent)


def certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return why a certificate is not trusted. To try again would not help."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def options_of(connection: Connection, token: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return how httpx is set up."""
    headers = {"user-agent": connection.agent, "accept": "application/json", **options.get("headers", {})}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    trusted = {} if {"verify", "cert"} & options.keys() else {"verify": certificates()}
    return {"timeout": connection.timeout, "follow_redirects": False, **trusted, **options, "headers": headers}


@cache
def certificates() -> ssl.SSLContext:
    """Return whose certificates are trusted. Reading them takes 40 ms, so all clients of a process share them."""
    return httpx.create_ssl_context()


STREAMS = httpx.Limits(max_connections=None, max_keepalive_connections=0)
"""Streams have connections of their own: otherwise a hundred waits would leave none for requests."""


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
        settings = options_of(connection, token, options)
        self.http = httpx.Client(**settings)
        self.streams = httpx.Client(**{**settings, "limits": STREAMS})
        self.sleep = time.sleep

    def close(self) -> None:
        self.http.close()
        self.streams.close()

    def run(self, steps: Steps[T]) -> T:
        with closing(steps), SyncLine(self) as line:
            step = resume(steps)
            while not isinstance(step, Done):
                step = line.advance(steps, step)
            return cast("T", step.value)

    def iterate(self, steps: Items[T]) -> Generator[T, None, None]:
        with closing(steps), SyncLine(self) as line:
            step = resume(steps)
            while not isinstance(step, Done):
                if isinstance(step, Item):
                    yield step.value
                    step = resume(steps)
                else:
                    step = line.advance(steps, step)


class SyncLine(ExitStack):
    """What one call uses of the network: it has at most one stream open."""

    def __init__(self, runner: SyncRunner) -> None:
        super().__init__()
        self._runner = runner
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
                    response = self._runner.http.request(**arguments_of(self._runner.connection, request))
                    return answer_of(response, response.content)
                case Open(request):
                    return self._open(request)
                case Read():
                    return next(self._chunks, None)
                case Pause(seconds):
                    return self._runner.sleep(seconds)
        except httpx.HTTPError as error:
            raise unreachable(self._runner.connection, error) from None

    def _open(self, request: Request) -> Answer:
        self.close()
        response = self.enter_context(self._runner.streams.stream(**arguments_of(self._runner.connection, request)))
        if response.status_code != 200:
            return answer_of(response, response.read())
        self._chunks = response.iter_bytes()
        return answer_of(response)


class AsyncRunner:
    """Takes steps on the running event loop."""

    def __init__(self, connection: Connection, token: str | None, **options: Any) -> None:
        self.connection = connection
        settings = options_of(connection, token, options)
        self.http = httpx.AsyncClient(**settings)
        self.streams = httpx.AsyncClient(**{**settings, "limits": STREAMS})
        self.sleep = asyncio.sleep

    async def close(self) -> None:
        await self.http.aclose()
        await self.streams.aclose()

    async def run(self, steps: Steps[T]) -> T:
        with closing(steps):
            async with AsyncLine(self) as line:
                step = resume(steps)
                while not isinstance(step, Done):
                    step = await line.advance(steps, step)
                return cast("T", step.value)

    async def iterate(self, steps: Items[T]) -> AsyncGenerator[T, None]:
        with closing(steps):
            async with AsyncLine(self) as line:
                step = resume(steps)
                while not isinstance(step, Done):
                    if isinstance(step, Item):
                        yield step.value
                        step = resume(steps)
                    else:
                        step = await line.advance(steps, step)


class AsyncLine(AsyncExitStack):
    """What one call uses of the network: it has at most one stream open."""

    def __init__(self, runner: AsyncRunner) -> None:
        super().__init__()
        self._runner = runner
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
                    response = await self._runner.http.request(**arguments_of(self._runner.connection, request))
                    return answer_of(response, response.content)
                case Open(request):
                    return await self._open(request)
                case Read():
                    return None if self._chunks is None else await anext(self._chunks, None)
                case Pause(seconds):
                    return await self._runner.sleep(seconds)
        except httpx.HTTPError as error:
            raise unreachable(self._runner.connection, error) from None

    async def _open(self, request: Request) -> Answer:
        await self.aclose()
        stream = self._runner.streams.stream(**arguments_of(self._runner.connection, request))
        response = await self.enter_async_context(stream)
        if response.status_code != 200:
            return answer_of(response, await response.aread())
        self._chunks = response.aiter_bytes()
        return answer_of(response)
