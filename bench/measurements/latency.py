"""How soon a job starts: after the call that enqueues it in another process, and after the time it was set for."""

from __future__ import annotations

import asyncio
import random
import time
from statistics import quantiles
from typing import TYPE_CHECKING

from bench.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Peer

WARM_UP = 20
HOUR = 3600 * 10**9


async def latency(peer: Peer, *, jobs: int, timeout: float) -> dict[str, float]:
    """One job at a time at random intervals; from before the call to enqueue until the handler runs."""
    async with Workers(peer, samples=WARM_UP + jobs) as workers:
        await _warm_up(peer, workers, timeout)
        chance = random.Random(1)
        for _ in range(jobs):
            await asyncio.sleep(chance.uniform(0.005, 0.020))
            await peer.enqueue_now()
        await workers.run(WARM_UP + jobs, timeout)
    return _summary(workers.lags())


async def lateness(peer: Peer, *, jobs: int, seconds: float, timeout: float) -> dict[str, float]:
    """Jobs set for times spread over some seconds; from that time until the handler runs. Early ones are negative."""
    async with Workers(peer, samples=WARM_UP + jobs) as workers:
        await _warm_up(peer, workers, timeout)
        chance = random.Random(2)
        start = time.time() + 1.5
        for _ in range(jobs):
            when = round(start + chance.uniform(0, seconds), 3)  # milliseconds: what every peer can store
            await peer.enqueue_at(round(when * 1e9), when)
        await workers.run(WARM_UP + jobs, timeout)
    return _summary(workers.lags())


async def _warm_up(peer: Peer, workers: Workers, timeout: float) -> None:
    for number in range(WARM_UP):
        await peer.enqueue(number)
    await workers.run(WARM_UP, timeout)
    await asyncio.sleep(0.5)


def _summary(lags: Sequence[int]) -> dict[str, float]:
    milliseconds = [lag / 1e6 for lag in lags if lag < HOUR]  # the numbers of the warm-up are no times
    percentiles = quantiles(milliseconds, n=100, method="inclusive")
    return {
        "p50": percentiles[49],
        "p99": percentiles[98],
        "max": max(milliseconds),
        "min": min(milliseconds),
    }
