"""What a worker costs while nothing is due, though many jobs wait for later."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from bench.crew import Crew

if TYPE_CHECKING:
    from bench.peer import Peer

SETTLE_SECONDS = 3.0


async def idle(peer: Peer, *, seconds: float, timeout: float) -> dict[str, float]:
    await peer.enqueue(0)
    async with Crew(peer) as crew:
        await crew.run(1, timeout)
        await asyncio.sleep(SETTLE_SECONDS)
        cpu, begin = crew.cpu_seconds(), time.perf_counter()
        await asyncio.sleep(seconds)
        percent = (crew.cpu_seconds() - cpu) / (time.perf_counter() - begin) * 100
        return {"percent": percent, "megabytes": crew.peak_megabytes()}
