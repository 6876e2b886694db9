"""What a worker, and the server behind it, cost while nothing is due."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from bench.peer import SERVER
from bench.workers import Workers, server_cpu_seconds

if TYPE_CHECKING:
    from bench.peer import Peer

SETTLE_SECONDS = 3.0


async def idle(peer: Peer, *, seconds: float, timeout: float) -> dict[str, float]:
    await peer.enqueue(0)
    async with Workers(peer) as workers:
        await workers.run(1, timeout)
        await asyncio.sleep(SETTLE_SECONDS)
        worker, server, begin = workers.cpu_seconds(), server_cpu_seconds(), time.perf_counter()
        await asyncio.sleep(seconds)
        share = 100 / (time.perf_counter() - begin)
        figures = {"percent": (workers.cpu_seconds() - worker) * share, "megabytes": workers.peak_megabytes()}
        if SERVER in os.environ:
            figures["server"] = (server_cpu_seconds() - server) * share
        return figures
