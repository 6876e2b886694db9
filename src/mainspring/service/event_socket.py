"""`/v1/events/ws`: the frames of `GET /v1/events` over a WebSocket, for clients that cannot read server-sent events.

The client's first message subscribes. The server then sends one JSON message for each frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.websockets import WebSocket, WebSocketDisconnect

from mainspring.errors import MainspringError
from mainspring.service.event_frames import Frame, Names, Parcel
from mainspring.service.event_query import Subscribe, wish_of
from mainspring.service.event_stream import live_of, while_connected
from mainspring.service.guard import Caller
from mainspring.service.problems import Problem, problem_of
from mainspring.service.requests import invalid
from mainspring.service.tokens import Scope, Tokens

FIRST_MESSAGE = 10.0  # seconds that a client has to subscribe
LONGEST_MESSAGE = 100_000  # characters
MESSAGES = 50  # that are sent at once; making thousands takes long, and others wait
GOING_AWAY, REFUSED, TRY_LATER = 1001, 1008, 1013  # codes of RFC 6455, and of its registry
T = TypeVar("T")
FIRST: TypeAdapter[Subscribe] = TypeAdapter(Subscribe)


async def follow_by_socket(socket: WebSocket) -> None:
    await serve_socket(socket, follow)


async def serve_socket(socket: WebSocket, follow: Callable[[WebSocket], Awaitable[bool]]) -> None:
    """Let a client follow events, and close its WebSocket as it should be."""
    await socket.accept()
    try:
        if await follow(socket):
            await socket.close(GOING_AWAY)
    except WebSocketDisconnect:
        return
    except Problem as problem:
        await refuse(socket, problem)
    except MainspringError as error:
        await refuse(socket, problem_of(error))


async def follow(socket: WebSocket) -> bool:
    """Send events; return whether the client got all of them."""
    asked = await first_message(socket, FIRST)
    live, is_complete = live_of(socket.app), False
    async with while_connected(socket.receive):
        caller = await caller_of(socket, asked.token)
        caller.check(Scope.READ, projects=True)
        wish = wish_of(caller, asked.filter, asked.since, asked.names)
        async with live.stream(caller, wish) as stream:
            is_complete = await stream.run(SocketWire(socket), live.now())
    return is_complete


async def first_message(socket: WebSocket, check: TypeAdapter[T]) -> T:
    try:
        async with asyncio.timeout(FIRST_MESSAGE):
            text = await socket.receive_text()
    except TimeoutError:
        msg = f'send {{"subscribe": "events"}} within {FIRST_MESSAGE:.0f} seconds'
        raise Problem("invalid_request", msg) from None
    except KeyError:
        raise Problem("invalid_json", "messages are text, not bytes") from None
    if len(text) > LONGEST_MESSAGE:
        raise Problem("body_too_large", f"a message may have up to {LONGEST_MESSAGE:,} characters")
    try:
        return check.validate_json(text)
    except ValidationError as error:
        raise invalid(error, text) from None


async def caller_of(socket: WebSocket, text: str | None) -> Caller:
    """Return the caller: by the token of the header, of the message, or without one if that is allowed."""
    known: Caller | None = socket.state.caller
    if text is None or (known is not None and known.token is not None and not known.user):
        if known is None:
            raise Problem("unauthorized", 'send the token in the first message: {"token": "msk_…"}')
        return known
    tokens: Tokens = socket.app.state.tokens
    token = await tokens.find(text)
    if token is None:
        raise Problem("unauthorized", "the token is wrong, revoked or expired")
    socket.state.limits.take(token.id)
    return Caller(token)


async def refuse(socket: WebSocket, problem: Problem) -> None:
    body = problem.body(socket.state.request_id, socket.scope.get("root_path", ""))
    await socket.send_text(Frame("error", body, None).message().decode())
    await socket.close(REFUSED if problem.kind.retry_after is None else TRY_LATER, problem.code)


class SocketWire:
    """Sends frames as messages."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def hello(self, frame: Frame, retry: float) -> None:
        del retry  # the client decides; docs/service-events.md says how long to wait
        await self.send(frame)

    async def send(self, frame: Frame) -> None:
        await self._write(frame.message())

    async def send_parcels(self, parcels: Sequence[Parcel], names: Names) -> bool:
        number = 0
        for message in filter(None, (event.message(names) for parcel in parcels for event in parcel)):
            await self._write(message)
            number += 1
            if number % MESSAGES == 0:
                await asyncio.sleep(0)
        return number > 0

    async def keep_alive(self, place: str) -> None:
        await self.send(Frame("keep_alive", to_json({}), place))

    async def _write(self, message: bytes) -> None:
        await self._socket.send({"type": "websocket.send", "text": message.decode()})
