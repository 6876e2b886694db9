"""How fast worker processes empty a queue.

From the moment when each worker process has its first job in hand until the last job has been acked, so the start of
the processes is left out and the last commit is not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.workers import Workers

if TYPE_CHECKING:
    from bench.peer import Peer

RUN_UP = 10  # a tenth of the jobs are run before the clock starts


async def drain(peer: Peer, *, jobs: int, workers: int, timeout: float) -> dict[str, float]:
    await peer.fill(jobs)
    async with Workers(peer, workers) as processes:
        await processes.run(jobs, timeout)
        end = time.time_ns()
        memory = processes.peak_megabytes()
    return {"rate": jobs * 1e9 / (end - processes.first), "megabytes": memory}


async def drain_in_chunks(peer: Peer, *, jobs: int, size: int, workers: int, timeout: float) -> dict[str, float]:
    """The same with a handler that is called once for so many jobs."""
    peer.in_chunks(size)
    return await drain(peer, jobs=jobs, workers=workers, timeout=timeout)


async def drain_backlog(peer: Peer, *, jobs: int, workers: int, timeout: float) -> dict[str, float]:
    """How fast the first of many due jobs go, once a worker is at it; most of them are still there at the end."""
    async with Workers(peer, workers) as processes:
        await processes.start(jobs // RUN_UP, timeout)
        first, begin = processes.count, time.perf_counter()
        await processes.start(jobs, timeout)
        last, end = processes.count, time.perf_counter()
        memory = processes.peak_megabytes()
    return {"rate": (last - first) / (end - begin), "megabytes": memory}
