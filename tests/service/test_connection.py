"""Connections of `mainspring serve`: those without a complete request are closed, all others stay open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest

from mainspring import Mainspring
from mainspring.service import ServiceSettings
from mainspring.service.program import Service

PATIENCE = 30.0  # seconds; only a failing test waits this long
HEADER_TIMEOUT = 0.2
HALF = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
WHOLE = HALF + b"\r\n"


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        """Read one answer, and return its status."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in head.splitlines()[1:-1])
        await self.reader.readexactly(int(lines[b"content-length"]))
        return int(head.split(b" ")[1])

    async def rest(self) -> bytes:
        """Return all that comes until the service hangs up."""
        return await self.reader.read()


@dataclass
class Served:
    url: str

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()

    async def until_a_silent_one_is_closed(self) -> None:
        """Wait for longer than `header_timeout`, by the service's own clock."""
        async with self.connect() as silent:
            assert await silent.rest() == b""


@contextlib.asynccontextmanager
async def serving(app: Mainspring) -> AsyncIterator[Served]:
    service = Service(app, ServiceSettings(port=0, worker=False, header_timeout=HEADER_TIMEOUT))
    task = asyncio.create_task(service.serve())
    try:
        async with asyncio.timeout(PATIENCE):
            yield Served(service.url)
    finally:
        service.stop()
        await task


@pytest.mark.parametrize("sent", [b"", b"G", HALF])
async def test_a_connection_without_a_whole_request_is_closed(app: Mainspring, sent: bytes) -> None:
    async with serving(app) as served, served.connect() as connection:
        await connection.send(sent)
        assert await connection.rest() == b""


async def test_bytes_that_trickle_in_give_no_more_time(app: Mainspring) -> None:
    async with serving(app) as served, served.connect() as connection:
        closed = asyncio.create_task(connection.rest())
        while not closed.done():
            with contextlib.suppress(ConnectionError):  # it has just been closed
                await connection.send(b"x")
            await asyncio.wait({closed}, timeout=HEADER_TIMEOUT / 20)


async def test_a_later_request_must_arrive_in_time_too(app: Mainspring) -> None:
    async with serving(app) as served, served.connect() as connection:
        await connection.send(WHOLE)
        assert await connection.status() == 200
        await connection.send(HALF)
        assert await connection.rest() == b""


async def test_a_body_that_nothing_reads_does_not_keep_its_connection(app: Mainspring) -> None:
    """The answer is complete before the body is: what trickles in after it is thrown away, and not for ever."""
    refused = b"POST /nowhere HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 1000\r\n\r\n"
    async with serving(app) as served, served.connect() as connection:
        await connection.send(refused)
        assert await connection.status() == 421
        await connection.send(b"x")
        assert await connection.rest() == b""


async def test_a_connection_between_two_requests_stays_open(app: Mainspring) -> None:
    async with serving(app) as served, served.connect() as connection:
        for _ in range(2):
            await connection.send(WHOLE)
            assert await connection.status() == 200
            await served.until_a_silent_one_is_closed()
        await connection.send(WHOLE[:10])
        await connection.send(WHOLE[10:])
        assert await connection.status() == 200


async def test_two_requests_at_once_are_both_answered(app: Mainspring) -> None:
    async with serving(app) as served, served.connect() as connection:
        await connection.send(WHOLE + WHOLE + HALF)
        assert [await connection.status() for _ in range(2)] == [200, 200]
        await served.until_a_silent_one_is_closed()
        await connection.send(b"\r\n")
        assert await connection.status() == 200


async def test_a_stream_and_a_claim_that_waits_stay_open(app: Mainspring) -> None:
    async with serving(app) as served, aiohttp.ClientSession() as session:
        claim = {"worker": "far", "queues": ["none"], "wait": 3 * HEADER_TIMEOUT}
        waiting = asyncio.create_task(session.post(f"{served.url}/v1/leases", json=claim))
        async with session.get(f"{served.url}/v1/events") as stream:
            await stream.content.readuntil(b"\n\n")
            await served.until_a_silent_one_is_closed()
            job = await app.enqueue("any", {}, allow_unknown=True)
            while job.id.encode() not in await stream.content.readuntil(b"\n\n"):
                pass
        async with await waiting as answer:
            assert answer.status == 200


async def test_a_websocket_stays_open(app: Mainspring) -> None:
    async with (
        serving(app) as served,
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{served.url}/v1/events/ws") as socket,
    ):
        await socket.send_json({"subscribe": "events"})
        await socket.receive_str()
        await served.until_a_silent_one_is_closed()
        job = await app.enqueue("any", {}, allow_unknown=True)
        while job.id not in await socket.receive_str():
            pass
