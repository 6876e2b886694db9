"""The head of an answer leaves together with the beginning of its body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from mainspring.service.guard import App, Message, Receive, Send
from mainspring.service.joined_head import Protocol

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
SOON = 30.0  # seconds; only a failing test waits this long


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = asyncio.Event()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def write(self, data: bytes) -> None:
        assert not self.closed.is_set()
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed.set()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connected:
    """A connection to an application."""

    def __init__(self, app: App) -> None:
        config = uvicorn.Config(cast("Any", app), lifespan="off", log_config=None, http=Protocol, date_header=False)
        config.load()
        self.state = ServerState()
        self.transport = Transport()
        self.protocol = Protocol(config, self.state, {})
        self.protocol.connection_made(cast("asyncio.Transport", self.transport))

    async def send(self, data: bytes) -> list[bytes]:
        """Send bytes; return what was written when all answers have ended."""
        self.protocol.data_received(data)
        while self.state.tasks:
            await asyncio.wait(self.state.tasks, timeout=SOON)
        written, self.transport.written = self.transport.written, []
        return written


@asynccontextmanager
async def connected(app: App) -> AsyncIterator[Connected]:
    found = Connected(app)
    yield found
    found.protocol.connection_lost(None)


def answering(*bodies: bytes) -> App:
    """Return an application that sends a body in these parts."""

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send(start([(b"content-length", str(sum(map(len, bodies))).encode())]))
        for number, body in enumerate(bodies, 1):
            await send({"type": "http.response.body", "body": body, "more_body": number < len(bodies)})

    return app


def start(headers: Sequence[tuple[bytes, bytes]] = ()) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


async def test_an_answer_is_one_write() -> None:
    async with connected(answering(b"HTTP/1.1 is text")) as connection:
        for _ in range(3):
            [written] = await connection.send(GET)
            assert written.startswith(b"HTTP/1.1 200 OK\r\n")
            assert written.endswith(b"\r\n\r\nHTTP/1.1 is text")


async def test_an_answer_without_a_body_leaves_at_once() -> None:
    async with connected(answering(b"")) as connection:
        [written] = await connection.send(GET)
        assert written.endswith(b"content-length: 0\r\n\r\n")


async def test_further_parts_of_a_stream_leave_as_they_come() -> None:
    async with connected(answering(b"one", b"two", b"three")) as connection:
        first, *others = await connection.send(GET)
        assert first.endswith(b"\r\n\r\none")
        assert others == [b"two", b"three"]


async def test_requests_in_one_packet_are_answered_in_order() -> None:
    async with connected(answering(b"yes")) as connection:
        written = await connection.send(GET * 3)
        assert [part.endswith(b"\r\n\r\nyes") for part in written] == [True] * 3


async def test_a_client_that_waits_for_permission_to_send_its_body_gets_it() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await receive()
        assert connection.transport.written == [b"HTTP/1.1 100 Continue\r\n\r\n"]
        await answering(b"yes")(scope, receive, send)

    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
    async with connected(app) as connection:
        connection.protocol.data_received(head)
        await asyncio.sleep(0)  # the application asks for the body
        assert connection.transport.written == [b"HTTP/1.1 100 Continue\r\n\r\n"]
        _, answer = await connection.send(b"{}")
        assert answer.endswith(b"\r\n\r\nyes")


async def test_a_head_whose_body_never_comes_leaves_before_the_connection_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send(start())
        raise ZeroDivisionError

    async with connected(app) as connection:
        [written] = await connection.send(GET)
        assert written.startswith(b"HTTP/1.1 200 OK\r\n")
        assert connection.transport.is_closing()


async def test_a_bad_request_is_refused_before_and_after_a_good_one() -> None:
    for before in ([], [GET]):
        async with connected(answering(b"yes")) as connection:
            for request in before:
                await connection.send(request)
            assert b"".join(await connection.send(b"no request\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
