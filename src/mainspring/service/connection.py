"""HTTP connections of `mainspring serve`, which hang up on clients that do not finish their headers."""

from __future__ import annotations

import asyncio
from typing import Any

import h11

from mainspring.service.joined_head import Protocol

BEFORE_OR_AFTER_A_REQUEST = (h11.IDLE, h11.DONE)  # DONE: answered, and the rest of the body is thrown away


class HttpConnection(Protocol):
    """A connection on which the headers of a request must arrive within `header_timeout` seconds.

    The time begins when the connection opens, and with the first bytes of each later request: uvicorn would wait for
    the rest for ever. Between requests, uvicorn's own timeout counts. A request that arrives at once sets no timer.
    """

    def __init__(self, *args: Any, header_timeout: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._header_timeout = header_timeout
        self._hang_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_to_wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.our_state in BEFORE_OR_AFTER_A_REQUEST:
            self._begin_to_wait()
        elif self._hang_up is not None:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _begin_to_wait(self) -> None:
        if self._hang_up is None:  # bytes that trickle in give no more time
            self._hang_up = self.loop.call_later(self._header_timeout, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._hang_up is not None:
            self._hang_up.cancel()
            self._hang_up = None
