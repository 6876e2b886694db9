# /// script
# requires-python = ">=3.11"
# dependencies = ["pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"]
#
# [tool.bench]
# title = "pgqueuer"
# finished = "a row in its log, without the payload; the job itself is deleted"
# worker = "PgQueuer.run under uvloop, as pgq run does, on an asyncpg pool; its autovacuum settings applied"
# drain_jobs = 50_000
# backlog = 1_000_000
# history = 1_000_000
#
# [tool.bench.variants]
# "batch_size 100" = { batch = 100 }
# "batch_size 250" = { batch = 250 }
# "batch_size 500" = { batch = 500 }
# ///
"""pgqueuer with its own runner."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench import tally
from bench.peer import TEXT, Peer, database, here

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULE = "bench.peers.postgres.pgqueuer"
JOBS_PER_CALL = 10_000
CONNECTIONS = 4
WAITING = """
INSERT INTO pgqueuer (priority, execute_after, status, entrypoint, payload)
SELECT i % 4, now() + interval '7 days' + i * interval '1 ms', 'queued', 'noop', $1
FROM generate_series(1, $2::bigint) AS i
"""
FINISHED = """
INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint, aggregated)
SELECT i, 'successful', 0, 'noop', true FROM generate_series(-$1::bigint, -1) AS i
"""
UNSETTLED = "SELECT EXISTS (SELECT 1 FROM pgqueuer WHERE execute_after <= now())"


async def connect() -> Any:
    return await asyncpg.create_pool(database(), min_size=1, max_size=CONNECTIONS)


class PgQueuerPeer(Peer):
    async def open(self) -> None:
        self.pool = await connect()
        self.queries = Queries.from_asyncpg_pool(self.pool)
        if not await self.queries.schema_is_installed():
            await self.queries.install()
            await self.queries.optimize_autovacuum()

    async def close(self) -> None:
        await self.pool.close()

    async def enqueue(self, number: int) -> None:
        await self.queries.enqueue("noop", _payload(number))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self.queries.enqueue(
            ["noop"] * len(numbers), [_payload(number) for number in numbers], [0] * len(numbers)
        )

    async def enqueue_at(self, number: int, when: float) -> None:
        delay = timedelta(seconds=when - datetime.now(UTC).timestamp())
        await self.queries.enqueue("noop", _payload(number), execute_after=delay)

    async def fill(self, jobs: int) -> None:
        for start in range(0, jobs, JOBS_PER_CALL):
            await self.enqueue_many(range(start, min(start + JOBS_PER_CALL, jobs)))

    async def fill_waiting(self, jobs: int) -> None:
        await self.pool.execute(WAITING, _payload(0), jobs, timeout=300)

    async def fill_finished(self, jobs: int) -> None:
        await self.pool.execute(FINISHED, jobs, timeout=300)

    async def settled(self) -> bool:
        return not await self.pool.fetchval(UNSETTLED)

    def worker(self) -> list[str]:
        return [sys.executable, "-c", f"from {MODULE} import work; work()"]


async def _work() -> None:
    _, settings = here()
    queuer = PgQueuer.from_asyncpg_pool(await connect())

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        tally.mark(json.loads(job.payload or b"{}")["n"])

    await queuer.run(batch_size=settings.get("batch", 100))


def work() -> None:
    """Its command line does not start with the newest release of the library that parses it."""
    uvloop.run(_work())


def _payload(number: int) -> bytes:
    return json.dumps({"n": number, "s": TEXT}).encode()


peer = PgQueuerPeer
