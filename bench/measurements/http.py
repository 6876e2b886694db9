"""How many requests a web application answers, and how fast; what a service needs of memory for live clients."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import time
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.http_load import HOST, load, post
from bench.peers.http.floor import peer as floor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.peer import Peer

START_SECONDS = 60.0
STOP_SECONDS = 15.0
WARM_UP_SHARE = 4
PAIRS = 10  # of slices with our server and with the empty route
EVENTS = f"GET /v1/events HTTP/1.1\r\nhost: {HOST}\r\naccept: text/event-stream\r\n\r\n".encode()
JOBS_PER_SECOND = 20
TENTH = 10


async def http_enqueue(peer: Peer, *, seconds: float, connections: int) -> dict[str, float]:
    """One job per request."""
    numbers = itertools.count()

    def request() -> bytes:
        return post("/v1/jobs", peer.job(next(numbers)))

    async with serving(peer, worker=False) as (port, _):
        await load(port, request, connections=connections, seconds=seconds / WARM_UP_SHARE)
        result = await load(port, request, connections=connections, seconds=seconds)
    return {"rate": result.rate, "p50": result.percentile(0.5), "p99": result.percentile(0.99)}


async def http_share(peer: Peer, *, seconds: float, connections: int) -> dict[str, float]:
    """The rate of `http_enqueue`, of that of an empty route: in turn, in short slices.

    The share is the median of the pairs. What else the machine does meanwhile slows both slices of a pair down, or
    spoils few of the pairs.
    """
    numbers = itertools.count()

    def request() -> bytes:
        return post("/v1/jobs", peer.job(next(numbers)))

    rates: tuple[list[float], list[float]] = ([], [])
    async with serving(peer, worker=False) as (ours, _), serving(floor(peer.place, {}), worker=False) as (theirs, _):
        for port in (ours, theirs):
            await load(port, request, connections=connections, seconds=seconds)
        for _ in range(PAIRS):
            for port, found in zip((ours, theirs), rates, strict=True):
                found.append((await load(port, request, connections=connections, seconds=seconds)).rate)
    return {"share": median(our / empty for our, empty in zip(*rates, strict=True)) * 100}


async def http_bulk(peer: Peer, *, seconds: float, batch: int) -> dict[str, float]:
    """Many jobs per request, from one connection: each request waits for the one before."""
    request = post("/v1/jobs:bulk", peer.bulk(batch))
    async with serving(peer, worker=False) as (port, _):
        await load(port, lambda: request, connections=1, seconds=seconds / WARM_UP_SHARE)
        result = await load(port, lambda: request, connections=1, seconds=seconds)
    return {"rate": result.rate * batch}


async def live_memory(peer: Peer, *, seconds: float, clients: int) -> dict[str, float]:
    """Memory of a service that enqueues and runs jobs while clients follow all of them.

    `growth` compares the last tenth of the time with the second one: the first fills caches.
    """
    async with serving(peer, worker=True) as (port, pid):
        followers = [await Follower.connect(port) for _ in range(clients)]
        sampled = asyncio.create_task(sample(pid, seconds))
        await enqueue_slowly(peer, port, seconds)
        samples = await sampled
        received = [follower.received for follower in followers]
        for follower in followers:
            follower.close()
    part = len(samples) // TENTH
    early, late = median(samples[part : 2 * part]), median(samples[-part:])
    return {"growth": (late / early - 1) * 100, "megabytes": late, "least_received": min(received) / 1e3}


async def enqueue_slowly(peer: Peer, port: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    numbers = itertools.count()
    while time.monotonic() < end:
        second = time.monotonic() + 1
        for _ in range(JOBS_PER_SECOND):
            await load(port, lambda: post("/v1/jobs", peer.job(next(numbers))), connections=1, seconds=0)
        await asyncio.sleep(max(second - time.monotonic(), 0))


async def sample(pid: int, seconds: float) -> list[float]:
    """Megabytes that a process has in memory, second by second."""
    found = []
    for _ in range(round(seconds)):
        await asyncio.sleep(1)
        found.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6)
    return found


class Follower(asyncio.Protocol):
    """A client that follows all events and keeps none."""

    received = 0

    @classmethod
    async def connect(cls, port: int) -> Follower:
        _, follower = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return follower

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(EVENTS)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)

    def close(self) -> None:
        self._transport.close()


# -- the server's process -------------------------------------------------------------------------


@asynccontextmanager
async def serving(peer: Peer, *, worker: bool) -> AsyncIterator[tuple[int, int]]:
    """Yield the port and the process id of the peer's server, once it listens."""
    port = free_port()
    log = peer.place / f"server-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(peer.server(port, worker=worker), cwd=peer.place, stdout=output, stderr=output)
    try:
        await listens(process, port, log)
        yield port, process.pid
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process: ask it first, and kill it if it does not end in time."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return
    raise RuntimeError(f"the server does not listen: {log.read_text(errors='replace')[-1500:]}")


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listening:
        port: int = listening.getsockname()[1]
    return port
