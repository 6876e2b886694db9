"""How fast worker processes empty a queue.

From the moment when each worker process has its first job in hand until the last job has been acked, so the start of
the processes is left out and the last commit is not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.crew import Crew

if TYPE_CHECKING:
    from bench.peer import Peer

RUN_UP = 10  # a tenth of the jobs are run before the clock starts


async def drain(peer: Peer, *, jobs: int, workers: int, timeout: float) -> dict[str, float]:
    await peer.fill(jobs)
    async with Crew(peer, workers) as crew:
        await crew.run(jobs, timeout)
        end = time.time_ns()
        memory = crew.peak_megabytes()
    return {"rate": jobs * 1e9 / (end - crew.first), "megabytes": memory}


async def drain_in_batches(peer: Peer, *, jobs: int, size: int, workers: int, timeout: float) -> dict[str, float]:
    """The same with a handler that is called once for so many jobs."""
    peer.in_batches(size)
    return await drain(peer, jobs=jobs, workers=workers, timeout=timeout)


async def drain_backlog(peer: Peer, *, jobs: int, workers: int, timeout: float) -> dict[str, float]:
    """How fast the first of many due jobs go, once a worker is at it; most of them are still there at the end."""
    async with Crew(peer, workers) as crew:
        await crew.start(jobs // RUN_UP, timeout)
        first, begin = crew.count, time.perf_counter()
        await crew.start(jobs, timeout)
        last, end = crew.count, time.perf_counter()
        memory = crew.peak_megabytes()
    return {"rate": (last - first) / (end - begin), "megabytes": memory}
