"""What one claim costs, apart from running the jobs: the peer's own call, timed in this process."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.peer import Peer


async def claim(peer: Peer, *, claims: int, limit: int) -> dict[str, float]:
    await peer.fill((claims + 1) * limit)
    await _timed(peer, limit)
    times = [await _timed(peer, limit) for _ in range(claims)]
    return {"milliseconds": median(times), "worst": max(times)}


async def _timed(peer: Peer, limit: int) -> float:
    begin = time.perf_counter()
    claimed = await peer.claim(limit)
    spent = (time.perf_counter() - begin) * 1e3
    await peer.ack()
    if claimed != limit:
        raise AssertionError(f"{claimed} jobs were claimed instead of {limit}")
    return spent
