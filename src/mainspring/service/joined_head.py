"""Connections that send the head of an answer together with the beginning of its body.

uvicorn writes them one after the other. That is one more call of the system for each answer, and one more packet. ASGI
lets a server hold the head back until the body begins.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle


class Protocol(H11Protocol):
    """A connection of uvicorn that joins head and body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(cast("asyncio.Transport", HeadJoiner(transport, self)))


class HeadJoiner:
    """The transport of a connection. It keeps the first write of each answer until the next one."""

    def __init__(self, transport: asyncio.Transport, protocol: H11Protocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._head: bytes | None = None
        self._last: RequestResponseCycle | None = None  # the newest answer whose head was written
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head + data)
        elif self._begins_answer():
            self._head = data
        elif data:
            self._transport.write(data)

    def close(self) -> None:
        if self._head is not None:  # the application has failed before the body
            self.write(b"")
        self._transport.close()

    def _begins_answer(self) -> bool:
        answer: RequestResponseCycle | None = self._protocol.cycle  # None before the first request
        if answer is None or answer is self._last or not answer.response_started:
            return False
        self._last = answer
        return True
