"""A load of HTTP requests: connections that send their next request when they are answered.

With the standard library alone, it costs little beside a server in Python, so that what is measured is the server.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
GOOD = frozenset({200, 201, 202})


class BadAnswer(Exception):
    """The server did not do what it was asked; the message is its answer."""


@dataclass
class Load:
    """What a number of connections have sent for some seconds."""

    took: float = 0.0
    seconds: list[float] = field(default_factory=list)  # that each request took

    @property
    def rate(self) -> float:
        return len(self.seconds) / self.took

    def percentile(self, share: float) -> float:
        """In milliseconds."""
        ordered = sorted(self.seconds)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000


def post(path: str, body: bytes) -> bytes:
    """The bytes of a request."""
    lines = [f"POST {path} HTTP/1.1", f"host: {HOST}", "content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def load(port: int, request: Callable[[], bytes], *, connections: int, seconds: float) -> Load:
    result = Load()
    begin = time.perf_counter()
    clients = [Client(request, begin + seconds, result) for _ in range(connections)]
    loop = asyncio.get_running_loop()
    for client in clients:
        await loop.create_connection(lambda client=client: client, HOST, port)  # type: ignore[misc]
    await asyncio.gather(*(client.ended for client in clients))
    result.took = time.perf_counter() - begin
    return result


class Client(asyncio.Protocol):
    """One connection, which is kept open."""

    def __init__(self, request: Callable[[], bytes], until: float, result: Load) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request, self._until, self._result = request, until, result
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator or len(body) < _length(head):
            return
        now = time.perf_counter()
        self._result.seconds.append(now - self._sent_at)
        status = int(head[9:12])
        if status not in GOOD:
            self._end(BadAnswer(self._received[:500].decode(errors="replace")))
        elif now > self._until:
            self._end()
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(BadAnswer(f"the server has closed the connection: {exc}"))

    def _send(self) -> None:
        assert self._transport is not None
        self._received = b""
        self._sent_at = time.perf_counter()
        self._transport.write(self._request())

    def _end(self, error: BadAnswer | None = None) -> None:
        assert self._transport is not None
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
        self._transport.close()


def _length(head: bytes) -> int:
    """The length of the body that a head announces."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
