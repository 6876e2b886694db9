# /// script
# requires-python = ">=3.11"
#
# [tool.bench]
# title = "Mainspring"
# durability = "WAL, synchronous=FULL at each enqueue and ack"
# worker = "mainspring worker, as it ships"
# drain_jobs = 200_000
# backlog = 10_000_000
# history = 1_000_000
# ///
"""Mainspring itself, as its users see it: the application, its task and `mainspring worker`."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime

from bench import limited as limits
from bench import tally
from bench.peer import TEXT, Peer, here
from mainspring import Mainspring, Status
from mainspring.job import Claim, Move, Outcome
from mainspring.stores.protocol import Wake, Want, WorkerInfo

JOBS_PER_CALL = 5_000
JOBS_PER_FILL = 500_000
WORKER = "bench"
DATABASE = here()[0] / "mainspring.db"

# Due in a week and later, a millisecond apart, at the four priorities in turn; ids in the order of time, as ours are.
WAITING = """
WITH RECURSIVE numbers (i) AS (SELECT :start UNION ALL SELECT i + 1 FROM numbers WHERE i < :end - 1),
stamps (i, ms) AS (SELECT i, :now - (:jobs - i) / 4096 - 1 FROM numbers)
INSERT INTO mainspring_jobs (id, task, queue, priority, run_at, max_attempts, created_at, keep, keep_dead, payload)
SELECT printf('%08x-%04x-7%03x-8000-%012x', ms >> 16, ms & 65535, i % 4096, i), 'noop', 'default', i % 4,
       :now + 604800000 + i, 3, :now, 604800000, 2592000000, :payload
FROM stamps
"""
COUNT_WAITING = """
INSERT INTO mainspring_counts (queue, status, n) VALUES ('default', 0, :jobs)
ON CONFLICT DO UPDATE SET n = n + excluded.n
"""

app = Mainspring(f"sqlite:///{DATABASE}")
limited = limits.define(f"sqlite:///{DATABASE}")


@app.task()
async def noop(n: int, s: str) -> None:
    tally.mark(n)


class Ours(Peer):
    task, keys = "", 1  # of those with limits

    async def open(self) -> None:
        await app.store.open()
        self.joined = False
        self.claimed: list[Claim] = []

    async def close(self) -> None:
        if self.joined:
            await app.store.leave(WORKER)
        await app.close()
        await limited.close()

    async def enqueue(self, number: int) -> None:
        await noop.enqueue(n=number, s=TEXT)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        if self.task:
            await limits.fill(limited, self.task, numbers, self.keys)
            return
        await noop.enqueue_many({"n": number, "s": TEXT} for number in numbers)

    async def enqueue_at(self, number: int, when: float) -> None:
        await noop.using(run_at=datetime.fromtimestamp(when, UTC)).enqueue(n=number, s=TEXT)

    async def fill(self, jobs: int) -> None:
        for numbers in _ranges(jobs):
            await self.enqueue_many(numbers)

    async def fill_waiting(self, jobs: int) -> None:
        """By SQL: ten million through the application would take minutes, and are not what is measured."""
        first = {"now": app.store.clock.now(), "jobs": jobs, "payload": noop.prepare(n=0, s=TEXT).payload}
        with closing(sqlite3.connect(DATABASE)) as db, db:
            for start in range(0, jobs, JOBS_PER_FILL):
                db.execute(WAITING, first | {"start": start, "end": min(start + JOBS_PER_FILL, jobs)})
                db.commit()
            db.execute(COUNT_WAITING, first)

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

    def reader(self) -> list[str]:
        return [sys.executable, "-m", "bench.follow", f"sqlite:///{DATABASE}"]

    async def forget_readers(self) -> None:
        with closing(sqlite3.connect(DATABASE)) as db, db:
            db.execute("UPDATE mainspring_feed SET starts_until = 0")

    def limited(self, task: str, keys: int = 1) -> None:
        self.task, self.keys = task, keys

    async def fill_blocked(self, jobs: int) -> None:
        await limits.block(limited, jobs)

    async def probe(self, tenant: str, timeout: float) -> float:
        return await limits.probe(limited, tenant, timeout)

    def worker(self) -> list[str]:
        app_name = "limited" if self.task else "app"
        return [sys.executable, "-m", "mainspring", "worker", f"{__name__}:{app_name}", "--queues", "default"]


def _ranges(jobs: int) -> Iterator[range]:
    return (range(start, min(start + JOBS_PER_CALL, jobs)) for start in range(0, jobs, JOBS_PER_CALL))


def _ignore(_: Wake) -> None:
    """A claim is made when the measurement says so."""


peer = Ours
