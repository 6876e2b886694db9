"""Not a measurement: fills a store that several measurements then use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.peer import Unsupported
from bench.workers import Workers

if TYPE_CHECKING:
    from bench.peer import Peer


async def prepare(peer: Peer, *, due: int = 0, waiting: int = 0, finished: int = 0, timeout: float) -> dict[str, float]:
    """Leave jobs that are due, that wait for later, or that are finished. With none of them: only the tables."""
    begin = time.perf_counter()
    if due:
        await peer.fill(due)
    if waiting:
        await peer.fill_waiting(waiting)
    if finished:
        await _finish(peer, finished, timeout)
    return {"seconds": time.perf_counter() - begin}


async def _finish(peer: Peer, jobs: int, timeout: float) -> None:
    try:
        await peer.fill_finished(jobs)
    except Unsupported:
        await peer.fill(jobs)
        async with Workers(peer) as workers:
            await workers.run(jobs, timeout)
