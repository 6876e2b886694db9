"""What a reader of the change feed costs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from statistics import harmonic_mean
from typing import TYPE_CHECKING

from bench.measurements.drain import drain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.peer import Peer

CHANGES_PER_JOB = 3  # created, started, completed


async def drain_followed(peer: Peer, *, jobs: int, timeout: float) -> dict[str, float]:
    """With a process that reads every change, beside the same without one: in turn, so that neither is always later."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for is_followed in (False, True, True, False) * 2:
        async with followed(peer, jobs, timeout) if is_followed else nullcontext():
            measured = await drain(peer, jobs=jobs, workers=1, timeout=timeout)
            rates[is_followed].append(measured["rate"])
    alone, followed_rate = harmonic_mean(rates[False]), harmonic_mean(rates[True])
    return {"rate": followed_rate, "alone": alone, "share": followed_rate / alone * 100}


@asynccontextmanager
async def followed(peer: Peer, jobs: int, timeout: float) -> AsyncIterator[None]:
    """Start the reader, and wait in the end until it has read every change."""
    wanted = str(jobs * CHANGES_PER_JOB)
    reader = await asyncio.create_subprocess_exec(*peer.reader(), wanted, stdout=asyncio.subprocess.PIPE)
    assert reader.stdout is not None
    try:
        assert await asyncio.wait_for(reader.stdout.readline(), timeout) == b"reading\n"
        yield
        assert await asyncio.wait_for(reader.wait(), timeout) == 0
    finally:
        if reader.returncode is None:
            reader.kill()
            await reader.wait()
        await peer.forget_readers()  # otherwise the store would record starts for days, also for the drains without one
