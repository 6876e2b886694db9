"""How many jobs a process makes durable in a second. Timed, not counted: slow and fast peers get the same seconds."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from bench.workers import Workers

if TYPE_CHECKING:
    from bench.peer import Peer

SETTLE_SECONDS = 1.0
WARM_UP_SHARE = 4


async def enqueue(peer: Peer, *, seconds: float) -> dict[str, float]:
    """One by one: each waits for the one before."""
    return await enqueue_concurrently(peer, seconds=seconds, tasks=1)


async def enqueue_concurrently(peer: Peer, *, seconds: float, tasks: int) -> dict[str, float]:
    """From a number of asyncio tasks, each one by one."""
    await peer.enqueue(0)
    return {"rate": await peer.enqueue_for(seconds, tasks)}


async def enqueue_in_bulk(peer: Peer, *, seconds: float, batch: int) -> dict[str, float]:
    """With the peer's own call for many jobs, if it has one."""
    await peer.enqueue_many(range(batch))
    return {"rate": await peer.enqueue_many_for(seconds, batch)}


async def enqueue_heard(peer: Peer, *, seconds: float, tasks: int, timeout: float) -> dict[str, float]:
    """The same with nobody there, and then with a worker that has gone idle and wants to be told.

    The worker's process is stopped meanwhile: it stays idle and keeps listening, and takes no time from the enqueuer
    by running what it is told of.
    """
    await peer.enqueue_for(seconds / WARM_UP_SHARE, tasks)
    unheard = await peer.enqueue_for(seconds, tasks)
    async with Workers(peer) as workers:
        await workers.settle(timeout)
        await asyncio.sleep(SETTLE_SECONDS)
        workers.signal(signal.SIGSTOP)
        heard = await peer.enqueue_for(seconds, tasks)
        workers.signal(signal.SIGKILL)
    return {"rate": heard, "unheard": unheard, "share": heard / unheard * 100}
