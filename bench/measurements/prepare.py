"""Not a measurement: fills a store that several measurements then use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.crew import Crew

if TYPE_CHECKING:
    from bench.peer import Peer


async def prepare(peer: Peer, *, waiting: int, finished: int, timeout: float) -> dict[str, float]:
    """Leave jobs that wait for later, and jobs that a worker has finished."""
    begin = time.perf_counter()
    if waiting:
        await peer.fill_waiting(waiting)
    if finished:
        await peer.fill(finished)
        async with Crew(peer) as crew:
            await crew.run(finished, timeout)
    return {"seconds": time.perf_counter() - begin}
