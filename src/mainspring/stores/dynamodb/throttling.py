"""Track whether the service throttles this process. Log it once when it begins and once when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from mainspring.log import get_log

log = get_log("mainspring.dynamodb")

QUIET_PERIOD = 10.0  # seconds without a refusal after which throttling has ended


class Throttling:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began = self._last = 0.0
        self._refused = 0  # since it began
        self.now = False

    def met(self, operation: str, words: str) -> None:
        """Record that a call, or a part of one, was throttled."""
        self._last = self._monotonic()
        self._refused += 1
        if not self.now:
            self.now, self._began, self._refused = True, self._last, 1
            log.warning("dynamodb_throttled", operation=operation, error=words)

    def passed(self) -> None:
        """Record that a call succeeded."""
        if self.now and self._monotonic() - self._last >= QUIET_PERIOD:
            self.now = False
            lasted = round(self._last - self._began, 3)
            log.info("dynamodb_throttling_over", lasted=lasted, refused=self._refused)
