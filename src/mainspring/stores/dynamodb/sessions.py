"""HTTP connections: a pool per event loop, because a connection belongs to the loop that opened it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp

MAX_CONNECTIONS = 64  # per event loop; a caller that needs another one waits
IDLE_TIMEOUT = 60.0  # seconds after which an idle connection is closed


class Sessions:
    def __init__(self, timeout: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._by_loop: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    def mine(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._by_loop.get(loop)
        if session is None:
            self._drop_ended_loops()
            session = self._by_loop[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=IDLE_TIMEOUT),
                timeout=self._timeout,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session

    async def close(self) -> None:
        here = self._by_loop.pop(asyncio.get_running_loop(), None)
        if here is not None:
            await here.close()
        self._drop_ended_loops()

    def _drop_ended_loops(self) -> None:
        for loop in [loop for loop in list(self._by_loop) if loop.is_closed()]:
            abandon(self._by_loop.pop(loop))


def abandon(session: aiohttp.ClientSession) -> None:
    """Close the sockets of a session whose loop has ended without closing it, as the loop of a thread does."""
    connector = session.connector
    if connector is None or connector.closed:
        return
    waiting: dict[Any, Any] = getattr(connector, "_conns", {})
    for protocol, *_ in [entry for entries in waiting.values() for entry in entries]:
        transport = getattr(protocol, "transport", None)
        with contextlib.suppress(Exception):
            transport._call_connection_lost(None)  # type: ignore[union-attr]  # noqa: SLF001 - close() needs its loop
    waiting.clear()
    session.detach()
    with contextlib.suppress(Exception):
        connector._closed = True  # noqa: SLF001 - close() would use the ended loop
