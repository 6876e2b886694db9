"""What a reader of the change feed costs."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager, nullcontext
from statistics import median
from typing import TYPE_CHECKING

from bench.measurements.drain import drain
from bench.peer import SERVER
from bench.workers import cpu_seconds, server_processes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.peer import Peer

CHANGES_PER_JOB = 3  # created, started, completed
SETTLE_SECONDS = 3.0
PAIRS = 8  # of drains with and without a reader


async def drain_followed(peer: Peer, *, jobs: int, timeout: float) -> dict[str, float]:
    """With a process that reads every change, beside the same without one: in turn, so that neither is always later.

    The share is the median of the pairs. What else the machine does meanwhile slows both drains of a pair down, or
    spoils few of the pairs.
    """
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(PAIRS):
        for is_followed in (number % 2 == 1, number % 2 == 0):
            async with followed(peer, jobs, timeout) if is_followed else nullcontext():
                measured = await drain(peer, jobs=jobs, workers=1, timeout=timeout)
                rates[is_followed].append(measured["rate"])
    share = median(beside / alone for beside, alone in zip(rates[True], rates[False], strict=True))
    return {"rate": median(rates[True]), "alone": median(rates[False]), "share": share * 100}


async def idle_reader(peer: Peer, *, seconds: float, timeout: float) -> dict[str, float]:
    """A process that waits for changes while there are none, and the processes of the server that serve it."""
    others = set(server_processes())
    async with reading(peer, 1, timeout) as reader:
        await asyncio.sleep(SETTLE_SECONDS)
        serving = [pid for pid in server_processes() if pid not in others]
        own, server, begin = cpu_seconds(reader.pid), sum(map(cpu_seconds, serving)), time.perf_counter()
        await asyncio.sleep(seconds)
        share = 100 / (time.perf_counter() - begin)
        figures = {"percent": (cpu_seconds(reader.pid) - own) * share}
        if SERVER in os.environ:
            figures["server"] = (sum(map(cpu_seconds, serving)) - server) * share
        return figures


@asynccontextmanager
async def followed(peer: Peer, jobs: int, timeout: float) -> AsyncIterator[None]:
    """Start the reader, and wait in the end until it has read every change."""
    async with reading(peer, jobs * CHANGES_PER_JOB, timeout) as reader:
        yield
        assert await asyncio.wait_for(reader.wait(), timeout) == 0


@asynccontextmanager
async def reading(peer: Peer, changes: int, timeout: float) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a reader that ends after `changes` changes of jobs."""
    reader = await asyncio.create_subprocess_exec(*peer.reader(), str(changes), stdout=asyncio.subprocess.PIPE)
    assert reader.stdout is not None
    try:
        assert await asyncio.wait_for(reader.stdout.readline(), timeout) == b"reading\n"
        yield reader
    finally:
        if reader.returncode is None:
            reader.kill()
            await reader.wait()
        await peer.forget_readers()  # otherwise the store would record starts for days, also for the drains without one
