"""The server's clock, as far as this process knows it."""

from __future__ import annotations

import time

from mainspring.clock import Millis, since_boot


class ServerClock:
    """Our own monotonic clock, set by the server's whenever we hear of that.

    Only to sleep until the right moment and to tell when a run began. What is due is decided by the server.
    """

    def __init__(self) -> None:
        self._ahead = time.time() * 1000 - time.monotonic() * 1000

    def set(self, now: Millis) -> None:
        self._ahead = now - time.monotonic() * 1000

    def now(self) -> Millis:
        return int(time.monotonic() * 1000 + self._ahead)

    def monotonic(self) -> float:
        return time.monotonic()

    def elapsed(self) -> float:
        return since_boot()
