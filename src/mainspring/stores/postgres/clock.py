"""An estimate of the database server's clock."""

from __future__ import annotations

import time

from mainspring.clock import Millis, since_boot


class ServerClock:
    """The local monotonic clock, corrected whenever the server reports its time.

    Use it only to sleep until a job is due and to record when a run began. The server itself decides what is due.
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
