"""What limits cost, and what fairness gives."""

from __future__ import annotations

from statistics import harmonic_mean, median
from typing import TYPE_CHECKING

from bench.measurements.drain import drain
from bench.workers import Workers

if TYPE_CHECKING:
    from bench.peer import Peer


async def drain_rated(peer: Peer, *, jobs: int, timeout: float) -> dict[str, float]:
    """With a rate that is never reached, beside the same without one: in turn, so that neither is always later."""
    rates: dict[str, list[float]] = {"": [], "rated": []}
    for task in ("", "rated", "rated", "") * 2:
        peer.limited(task)
        measured = await drain(peer, jobs=jobs, workers=1, timeout=timeout)
        rates[task].append(measured["rate"])
    free, rated = harmonic_mean(rates[""]), harmonic_mean(rates["rated"])
    return {"rate": rated, "free": free, "share": rated / free * 100}


async def drain_beside_blocked(peer: Peer, *, jobs: int, blocked: int, timeout: float) -> dict[str, float]:
    """Others are claimed as fast as ever, however many jobs a limit blocks."""
    free = await drain(peer, jobs=jobs, workers=1, timeout=timeout)
    await peer.fill_blocked(blocked)
    beside = await drain(peer, jobs=jobs, workers=1, timeout=timeout)
    return {"rate": beside["rate"], "free": free["rate"], "share": beside["rate"] / free["rate"] * 100}


async def drain_fairly(peer: Peer, *, jobs: int, keys: int, timeout: float) -> dict[str, float]:
    peer.limited("shared", keys)
    return await drain(peer, jobs=jobs, workers=1, timeout=timeout)


async def fairness(peer: Peer, *, backlog: int, keys: int, probes: int, timeout: float) -> dict[str, float]:
    """One tenant has a backlog; single jobs of others come along, each of a tenant that had a job before."""
    peer.limited("served", keys)
    await peer.fill(keys)
    async with Workers(peer) as workers:
        await workers.run(keys, timeout)
        peer.limited("served", 1)
        await peer.fill(backlog)
        await workers.start(keys + 1, timeout)
        delays = [await peer.probe(f"tenant {number}", timeout) for number in range(min(probes, keys))]
    return {"worst": max(delays), "median": median(delays)}
