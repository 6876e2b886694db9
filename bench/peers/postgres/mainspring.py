# /// script
# requires-python = ">=3.11"
#
# [tool.bench]
# title = "Mainspring"
# finished = "kept, with their results"
# worker = "mainspring worker, as it ships"
# drain_jobs = 100_000
# backlog = 1_000_000
# history = 1_000_000
# ///
"""Mainspring on PostgreSQL, as its users see it: the application, its task and `mainspring worker`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import psycopg
from typing_extensions import TypedDict

from bench import limited as limits
from bench import tally
from bench.peer import TEXT, Peer, database, here
from mainspring import Chunk, Mainspring, Status

JOBS_PER_CALL = 5_000
DAY = 86_400_000  # milliseconds
WEEK, MONTH = 7 * DAY, 30 * DAY

# Ids in the order of time, as ours are: 48 bits of milliseconds, then what makes them differ.
NUMBERED = """
WITH numbered AS (
    SELECT i, %(now)s - (%(jobs)s - i) / 4096 - 1 AS ms FROM generate_series(0, %(jobs)s - 1) AS i
), identified AS (
    SELECT i, (lpad(to_hex(ms), 12, '0') || '7' || lpad(to_hex(i %% 4096), 3, '0') || '8000'
               || lpad(to_hex(i), 12, '0'))::uuid AS id
    FROM numbered
)
"""

# Due in a week and later, a millisecond apart, at the four priorities in turn.
WAITING = f"""
{NUMBERED}
INSERT INTO mainspring.jobs (id, task, queue, priority, run_at, max_attempts, created_at, keep, keep_dead, payload)
SELECT id, 'noop', 'default', i %% 4, %(now)s + {WEEK} + i, 3, %(now)s, {WEEK}, {MONTH}, %(payload)s FROM identified
"""
COUNTED = "INSERT INTO mainspring.counts (queue, status, n) VALUES ('default', %(status)s, %(jobs)s)"
PARTITION = """
CREATE TABLE mainspring.archive_{day} PARTITION OF mainspring.archive FOR VALUES FROM ({day}) TO ({after})
"""
FINISHED = f"""
{NUMBERED}
INSERT INTO mainspring.archive (
    id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token, worker, started_at, finished_at,
    expires_at, drop_day, timeout, created_at, keep, keep_dead, reason, payload, result)
SELECT id, 'noop', 'default', 4, 2, %(now)s, 1, 3, 0, 1, 'bench', %(now)s, %(now)s,
       %(now)s + {WEEK}, %(day)s, 0, %(now)s, {WEEK}, {MONTH}, '', %(payload)s, 'null'
FROM identified
"""

app = Mainspring(database())
limited = limits.define(database())


@app.task()
async def noop(n: int, s: str) -> None:
    tally.mark(n)


class Arguments(TypedDict):
    n: int
    s: str


@app.task(chunk=Chunk(here()[1].get("chunk", 1)))
async def noops(jobs: list[Arguments]) -> None:
    for job in jobs:
        tally.mark(job["n"])


class Ours(Peer):
    task, keys = "", 1  # of those with limits

    async def open(self) -> None:
        await app.store.open()

    async def close(self) -> None:
        await app.close()
        await limited.close()

    async def enqueue(self, number: int) -> None:
        await noop.enqueue(n=number, s=TEXT)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        if self.task:
            await limits.fill(limited, self.task, numbers, self.keys)
            return
        task = noops if "chunk" in self.settings else noop
        await task.enqueue_many({"n": number, "s": TEXT} for number in numbers)

    async def enqueue_at(self, number: int, when: float) -> None:
        await noop.using(run_at=datetime.fromtimestamp(when, UTC)).enqueue(n=number, s=TEXT)

    async def fill(self, jobs: int) -> None:
        for numbers in _ranges(jobs):
            await self.enqueue_many(numbers)

    async def fill_waiting(self, jobs: int) -> None:
        """By SQL: a million through the application would take a minute, and are not what is measured."""
        with psycopg.connect(database()) as connection:
            connection.execute(WAITING, self._common(jobs))
            connection.execute(COUNTED, {"jobs": jobs, "status": 0})

    async def fill_finished(self, jobs: int) -> None:
        with psycopg.connect(database()) as connection:
            day = (app.store.clock.now() + WEEK) // DAY + 1
            connection.execute(PARTITION.format(day=day, after=day + 1).encode())
            connection.execute(FINISHED, self._common(jobs) | {"day": day})
            connection.execute(COUNTED, {"jobs": jobs, "status": 4})

    def _common(self, jobs: int) -> dict[str, int | str]:
        return {"now": app.store.clock.now(), "jobs": jobs, "payload": noop.prepare(n=0, s=TEXT).payload}

    async def settled(self) -> bool:
        stats = await app.stats()
        return not any(stats.due.values()) and not any(counts[Status.RUNNING] for counts in stats.queues)

    def in_chunks(self, size: int) -> None:
        self.settings = {**self.settings, "chunk": size}

    def reader(self) -> list[str]:
        return [sys.executable, "-m", "bench.follow", database()]

    async def forget_readers(self) -> None:
        with psycopg.connect(database()) as connection:
            connection.execute("UPDATE mainspring.feed SET starts_until = 0")

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


peer = Ours
