"""A service in the event loop of a test, and clients of its events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

from mainspring import Mainspring
from mainspring.service import ServiceSettings, Tokens, make_service
from mainspring.service.live import Live, Pace
from tests.service.serving import listening

PATIENCE = 30.0  # seconds; far more than anything takes


@dataclass(frozen=True)
class Served:
    """A running service."""

    url: str
    live: Live
    tokens: Tokens
    http: aiohttp.ClientSession
    stack: AsyncExitStack  # closes what the test leaves open

    async def events(self, after: str | None = None, token: str | None = None, **query: Any) -> EventClient:
        headers = {"last-event-id": after} if after else {}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        client = EventClient(await self.http.get(f"{self.url}/v1/events", params=query, headers=headers))
        self.stack.callback(client.close)
        if client.status == 200:
            client.hello = await client.next()
        return client

    async def socket(self, message: Any = None, **options: Any) -> aiohttp.ClientWebSocketResponse:
        socket: aiohttp.ClientWebSocketResponse = await self.http.ws_connect(f"{self.url}/v1/events/ws", **options)
        self.stack.push_async_callback(socket.close)
        await socket.send_json(message or {"subscribe": "events"})
        return socket


@asynccontextmanager
async def serving(app: Mainspring, pace: Pace | None = None, **settings: Any) -> AsyncIterator[Served]:
    tokens = Tokens(app.store)
    live = Live(app, tokens, pace)
    service = make_service(app, ServiceSettings(**{"tokens": "optional", "rate_limit": 0.0, **settings}), live)
    connector = aiohttp.TCPConnector(limit=0)
    async with listening(service) as url:
        try:
            async with aiohttp.ClientSession(connector=connector) as http, AsyncExitStack() as stack:
                yield Served(url, live, tokens, http, stack)
        finally:
            await live.close()


@dataclass(frozen=True)
class Got:
    """One frame."""

    event: str
    data: Any
    id: str | None

    @property
    def job(self) -> str | None:
        job_id: str | None = self.data.get("job_id")
        return job_id


class EventClient:
    """Reads server-sent events, as a browser does."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.status = response.status
        self.hello = Got("", {}, None)
        self.last_id: str | None = None
        self.comments = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()

    async def problem(self) -> str:
        code: str = (await self.response.json(content_type=None))["code"]
        return code

    async def next(self) -> Got:
        """Return the next frame. Raises EOFError at the end of the stream."""
        async with asyncio.timeout(PATIENCE):
            while True:
                block = await self._block()
                if "data" in block:
                    return Got(block["event"], json.loads(block["data"]), block.get("id"))

    async def _block(self) -> dict[str, str]:
        block: dict[str, str] = {}
        while line := (await self._line()).rstrip("\n"):
            name, _, value = line.partition(": ")
            block[name] = value
            self.comments += not name
        self.last_id = block.get("id", self.last_id)
        return block

    async def _line(self) -> str:
        line = await self.response.content.readline()
        if not line:
            raise EOFError
        return line.decode()

    async def take(self, number: int) -> list[Got]:
        return [await self.next() for _ in range(number)]

    async def named(self, name: str) -> Got:
        """Return the next event of this name; leave out those before it."""
        while (got := await self.next()).event != name:
            pass
        return got

    async def rest(self) -> list[Got]:
        """Return all frames up to the end of the stream."""
        found: list[Got] = []
        while True:
            try:
                found.append(await self.next())
            except EOFError:
                return found
