"""Logs a store outage once, then ever more rarely, and once more when the store is back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mainspring.errors import StoreError
from mainspring.log import get_log

log = get_log("mainspring.worker")

FIRST_REMINDER, LONGEST_REMINDER = 10.0, 600.0  # seconds between two warnings about an outage; it doubles


class Outage:
    """What all loops of a worker know about a store outage. Any thread may call it.

    An outage begins when the first loop fails. It is over when each loop that failed has reached the store again.
    """

    def __init__(
        self,
        worker: str,
        monotonic: Callable[[], float] = time.monotonic,
        noticed: Callable[[StoreError | None], None] = lambda _: None,  # called with None when the outage is over
    ) -> None:
        self._worker = worker
        self._noticed = noticed
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failing: set[str] = set()  # loops
        self._told: set[type[StoreError]] = set()  # kinds of errors that were logged as a warning
        self._since = self._remind_at = self._pause = 0.0
        self._reached_at: float | None = None  # the first success after the last failure
        self._failures = 0

    def failed(self, loop: str, error: StoreError) -> None:
        self._tell(loop, error)
        self._noticed(error)

    def _tell(self, loop: str, error: StoreError) -> None:
        with self._lock:
            now = self._monotonic()
            if not self._failing:
                self._begin(now)
            self._failing.add(loop)
            self._failures += 1
            self._reached_at = None
            fields = {
                "worker": self._worker,
                "loop": loop,
                "error": f"{type(error).__name__}: {error}",
                "gone_for": round(now - self._since, 3),
            }
            if type(error) in self._told and now < self._remind_at:
                log.debug("store_unavailable", **fields)
                return
            log.warning("store_unavailable", **fields)
            self._told.add(type(error))
            self._remind_at = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_REMINDER)

    def worked(self, loop: str) -> None:
        if loop not in self._failing:  # nearly always
            return
        with self._lock:
            self._failing.discard(loop)
            if self._reached_at is None:
                self._reached_at = self._monotonic()
            is_over = not self._failing
            if is_over:
                gone_for = round(self._reached_at - self._since, 3)
                log.info("store_back", worker=self._worker, gone_for=gone_for, failures=self._failures)
        if is_over:
            self._noticed(None)

    def _begin(self, now: float) -> None:
        self._since, self._failures, self._pause = now, 0, FIRST_REMINDER
        self._told.clear()
