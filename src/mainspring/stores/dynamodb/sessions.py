"""HTTP connections: a pool per event loop, since they belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp

MOST = 64  # connections per loop; who needs one more waits
KEPT = 60.0  # seconds that an idle one is kept


class Sessions:
    def __init__(self, timeout: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._by_loop: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    def mine(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._by_loop.get(loop)
        if session is None:
            self._drop_those_of_ended_loops()
            session = self._by_loop[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MOST, keepalive_timeout=KEPT),
                timeout=self._timeout,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session

    async def close(self) -> None:
        here = self._by_loop.pop(asyncio.get_running_loop(), None)
        if here is not None:
            await here.close()
        self._drop_those_of_ended_loops()

    def _drop_those_of_ended_loops(self) -> None:
        for loop in [loop for loop in list(self._by_loop) if loop.is_closed()]:
            abandon(self._by_loop.pop(loop))


def abandon(session: aiohttp.ClientSession) -> None:
    """Its loop has ended without closing it, as that of a thread does: only the sockets are left to be closed."""
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
        connector._closed = True  # noqa: SLF001 - close() would ask the ended loop
