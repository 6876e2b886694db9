"""How many requests a token may make: a bucket per token, which holds `burst` requests and fills at `rate` per second.

Each process counts for itself. Requests without a token come from this machine, and are not limited.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from mainspring.service.problems import Problem

MANY_BUCKETS = 10_000  # beyond that, buckets are forgotten
Header = tuple[bytes, bytes]


class RateLimits:
    """The buckets of all tokens."""

    def __init__(self, rate: float, burst: int, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate  # 0: no limit
        self._burst = burst
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}  # token -> requests that are left, and when that was
        self._policy = (b"ratelimit-policy", b'"token";q=%d;w=%d' % (burst, math.ceil(burst / rate) if rate else 0))

    def take(self, token: str) -> list[Header]:
        """Count a request; return the headers of its answer. Raises Problem if there were too many."""
        if not self._rate:
            return []
        now = self._now()
        left, at = self._buckets.get(token, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._rate)
        if left < 1:
            self._buckets[token] = left, now
            raise self._refusal((1 - left) / self._rate)
        self._buckets[token] = left - 1, now
        self._tidy(now)
        return self._headers(left - 1)

    def _headers(self, left: float) -> list[Header]:
        """Return headers as draft-ietf-httpapi-ratelimit-headers says: what is left, and seconds until it is full."""
        full_in = math.ceil((self._burst - left) / self._rate)
        return [self._policy, (b"ratelimit", b'"token";r=%d;t=%d' % (int(left), full_in))]

    def _refusal(self, wait: float) -> Problem:
        seconds = max(1, math.ceil(wait))
        msg = (
            f"the token may make {self._rate:g} requests a second, and {self._burst:,} at once; try again after"
            f" {seconds} s, or send several jobs in one request (POST /v1/jobs:bulk)"
        )
        return Problem("too_many_requests", msg, retry_after=seconds)

    def _tidy(self, now: float) -> None:
        """Forget buckets that are full again. If too many are left, keep those with the fewest requests left."""
        if len(self._buckets) <= MANY_BUCKETS:
            return
        age = self._burst / self._rate
        kept = [(left, at, token) for token, (left, at) in self._buckets.items() if now - at < age]
        if len(kept) > MANY_BUCKETS // 2:
            kept = sorted(kept)[: MANY_BUCKETS // 2]
        self._buckets = {token: (left, at) for left, at, token in kept}
