"""A service in the event loop of the test, on a free port of this machine, and a client of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn

from mainspring import Mainspring
from mainspring.service import ServiceSettings, Tokens, make_service
from mainspring.service.joined_head import Protocol
from mainspring.service.live import Live
from tests.service.contract import api_of, check_answer

__all__ = ["Answer", "Client", "Server", "api_of", "listening", "serving"]
SOON = 10.0  # seconds; only a failing test waits this long


@dataclass
class Answer:
    status: int
    text: str
    headers: dict[str, str] = field(repr=False)

    @property
    def data(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> str:
        """The code of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        data = self.data
        assert data["status"] == self.status
        assert data["request_id"] == self.headers["x-request-id"]
        assert isinstance(data["code"], str)
        return data["code"]


class Client:
    """Sends requests, with a token if it has one."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str | None = None) -> None:
        self.session, self.url, self.token = session, url, token

    def using(self, token: str) -> Client:
        return Client(self.session, self.url, token)

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            sent.setdefault("authorization", f"Bearer {self.token}")
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent.setdefault("content-type", "application/json")
        async with self.session.request(method, f"{self.url}{path}", data=raw, headers=sent) as response:
            found = Answer(response.status, await response.text(), {k.lower(): v for k, v in response.headers.items()})
        check_answer(method, path.partition("?")[0], found.status, found.headers, found.text)
        return found

    async def status(self, method: str, path: str, body: bytes) -> int:
        """Send, and do not wait for the end of the answer, which may be a stream."""
        headers = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        async with self.session.request(method, f"{self.url}{path}", data=body, headers=headers) as response:
            response.close()
            return response.status

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.send("GET", path, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return await self.send("POST", path, {} if body is None else body, **headers)


@asynccontextmanager
async def serving(app: Mainspring, **settings: Any) -> AsyncIterator[Client]:
    """Serve an application that is open, and yield a client without a token."""
    live = Live(app, Tokens(app.store))
    service = make_service(app, ServiceSettings(**{"tokens": "optional", "rate_limit": 0.0, **settings}), live)
    async with listening(service) as url, aiohttp.ClientSession() as session:
        try:
            yield Client(session, url)
        finally:
            await live.close()  # before the application: what still reads the feed would connect again


class Server(uvicorn.Server):
    """A server that ends as soon as it is told to; uvicorn's takes up to 0.2 s longer."""

    def __init__(self, service: Any, *, proxy_headers: bool = True) -> None:
        config = uvicorn.Config(
            service,
            port=0,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=proxy_headers,
            http=Protocol,
            timeout_keep_alive=3600,  # a busy machine may take longer than uvicorn's 5 s between two requests
        )
        super().__init__(config)
        self.running, self.ending = asyncio.Event(), asyncio.Event()

    async def main_loop(self) -> None:
        self.running.set()
        await self.ending.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        del sockets
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.001)


@asynccontextmanager
async def listening(service: Any, *, proxy_headers: bool = True) -> AsyncIterator[str]:
    """Serve on a free port of this machine; yield the URL."""
    server = Server(service, proxy_headers=proxy_headers)
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(SOON):
            await server.running.wait()
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.ending.set()
        await task
