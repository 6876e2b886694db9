# /// script
# requires-python = ">=3.11"
#
# [tool.bench]
# title = "Mainspring"
# durability = "WAL, synchronous=FULL at each enqueue and ack"
# worker = "mainspring worker, as it ships"
# drain_jobs = 200_000
# backlog = 10_000_000
# ///
"""Mainspring itself, as its users see it: the application, its task and `mainspring worker`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from bench import tally
from bench.peer import TEXT, Peer, here
from mainspring import Mainspring, Status
from mainspring.ids import new_id
from mainspring.job import Claim, Move, NewJob, Outcome, Priority
from mainspring.stores.protocol import Wake, Want, WorkerInfo

CHUNK = 5_000
WEEK = 7 * 86_400_000
WORKER = "bench"

app = Mainspring(f"sqlite:///{here()[0] / 'mainspring.db'}")


@app.task()
async def noop(n: int, s: str) -> None:
    tally.mark(n)


class Ours(Peer):
    async def open(self) -> None:
        await app.store.open()
        self.joined = False
        self.claimed: list[Claim] = []

    async def close(self) -> None:
        if self.joined:
            await app.store.leave(WORKER)
        await app.close()

    async def enqueue(self, number: int) -> None:
        await noop.enqueue(n=number, s=TEXT)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await noop.enqueue_many({"n": number, "s": TEXT} for number in numbers)

    async def enqueue_at(self, number: int, when: float) -> None:
        await noop.using(run_at=datetime.fromtimestamp(when, UTC)).enqueue(n=number, s=TEXT)

    async def fill(self, jobs: int) -> None:
        for chunk in _chunks(jobs):
            await self.enqueue_many(chunk)

    async def fill_waiting(self, jobs: int) -> None:
        payload = noop.prepare(n=0, s=TEXT).payload
        for chunk in _chunks(jobs):
            await app.store.insert([_waiting(number, payload) for number in chunk])

    async def claim(self, limit: int) -> int:
        if not self.joined:
            await app.store.join(WorkerInfo(WORKER, "localhost", os.getpid(), ("default",)), _ignore)
            self.joined = True
        self.claimed = (await app.store.claim(WORKER, [Want("default", limit)])).jobs
        return len(self.claimed)

    async def ack(self) -> None:
        await app.store.ack([Outcome(job.id, job.token, Move.DONE, result="null") for job in self.claimed])

    async def settled(self) -> bool:
        stats = await app.stats()
        return not any(stats.due.values()) and not any(counts[Status.RUNNING] for counts in stats.queues)

    def worker(self) -> list[str]:
        return [sys.executable, "-m", "mainspring", "worker", "bench.peers.mainspring:app", "--queues", "default"]


def _chunks(jobs: int) -> Iterator[range]:
    return (range(start, min(start + CHUNK, jobs)) for start in range(0, jobs, CHUNK))


def _waiting(number: int, payload: str) -> NewJob:
    priority = list(Priority)[number % len(Priority)]
    return NewJob(new_id(), "noop", payload, priority=priority, delay=WEEK + number % WEEK)


def _ignore(_: Wake) -> None:
    """A claim is made when the measurement says so."""


peer = Ours
