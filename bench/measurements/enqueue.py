"""How many jobs a process makes durable in a second. Timed, not counted: slow and fast peers get the same seconds."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.peer import Peer

MOST_JOBS = 2_000_000


async def enqueue(peer: Peer, *, seconds: float) -> dict[str, float]:
    """One by one: each waits for the one before."""
    return await enqueue_concurrently(peer, seconds=seconds, tasks=1)


async def enqueue_concurrently(peer: Peer, *, seconds: float, tasks: int) -> dict[str, float]:
    """From a number of asyncio tasks, each one by one."""
    await peer.enqueue(0)
    numbers = count(1)
    begin = time.perf_counter()
    await asyncio.gather(*(_enqueue_until(peer, numbers, begin + seconds) for _ in range(tasks)))
    return {"rate": (next(numbers) - 1) / (time.perf_counter() - begin)}


async def _enqueue_until(peer: Peer, numbers: Iterator[int], end: float) -> None:
    for number in numbers:
        await peer.enqueue(number)
        if time.perf_counter() > end or number > MOST_JOBS:
            break


async def enqueue_in_bulk(peer: Peer, *, seconds: float, batch: int) -> dict[str, float]:
    """With the peer's own call for many jobs, if it has one."""
    await peer.enqueue_many(range(batch))
    jobs = 0
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds and jobs < MOST_JOBS:
        await peer.enqueue_many(range(batch))
        jobs += batch
    return {"rate": jobs / (time.perf_counter() - begin)}
