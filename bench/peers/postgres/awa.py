# /// script
# requires-python = ">=3.11"
# dependencies = ["awa-pg==0.6.9", "psycopg[binary]==3.3.8"]
#
# [tool.bench]
# title = "awa-pg"
# finished = "kept, for its default retention"
# worker = "AsyncClient.start, one queue (a Rust core that calls a Python handler)"
# drain_jobs = 25_000
# skip = ["heard-*"]
#
# [tool.bench.variants]
# "max_workers 256" = { workers = 256 }
# "max_workers 1024" = { workers = 1024 }
# ///
"""awa-pg with its own worker."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import awa as package
import psycopg

from bench import tally
from bench.peer import TEXT, Peer, database, here

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULE = "bench.peers.postgres.awa"
JOBS_PER_CALL = 5_000
QUEUE = "bench"
SCHEMA = "awa"  # of its queue storage, the engine that new installations get
CONNECTIONS = 20
UNSETTLED = f"""
SELECT EXISTS (SELECT 1 FROM {SCHEMA}.deferred_jobs WHERE run_at <= now()) OR EXISTS (
    SELECT 1 FROM (SELECT ready_slot, ready_generation, count(*) AS jobs FROM {SCHEMA}.ready_entries GROUP BY 1, 2)
    LEFT JOIN (SELECT ready_slot, ready_generation, sum(completed_count) AS done
               FROM {SCHEMA}.receipt_completion_batches GROUP BY 1, 2) USING (ready_slot, ready_generation)
    WHERE jobs > coalesce(done, 0))
"""


@dataclass
class Noop:
    n: int
    s: str


class Awa(Peer):
    async def open(self) -> None:
        self.db = psycopg.connect(database(), autocommit=True)
        self.client: Any = package.AsyncClient(database(), CONNECTIONS)
        await self.client.migrate()
        if json.loads(await self.client.storage_status())["active_engine"] != "queue_storage":
            await self.client.install_queue_storage(schema=SCHEMA)

    async def close(self) -> None:
        await self.client.close()
        self.db.close()

    async def enqueue(self, number: int) -> None:
        await self.client.insert(Noop(number, TEXT), queue=QUEUE)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self.client.enqueue_many_copy([Noop(number, TEXT) for number in numbers], queue=QUEUE)

    async def enqueue_at(self, number: int, when: float) -> None:
        await self.client.insert(Noop(number, TEXT), queue=QUEUE, run_at=datetime.fromtimestamp(when, UTC))

    async def fill(self, jobs: int) -> None:
        for start in range(0, jobs, JOBS_PER_CALL):
            await self.enqueue_many(range(start, min(start + JOBS_PER_CALL, jobs)))

    async def settled(self) -> bool:
        """By its tables: its own `queue_stats` takes seconds, or a minute after some thousand jobs."""
        found = self.db.execute(UNSETTLED).fetchone()
        return found is not None and not found[0]

    def worker(self) -> list[str]:
        return [sys.executable, "-c", f"from {MODULE} import work; work()"]


async def _work() -> None:
    _, settings = here()
    client: Any = package.AsyncClient(database(), CONNECTIONS)

    @client.task(Noop, queue=QUEUE)
    async def noop(job: Any) -> None:
        tally.mark(job.args.n)

    queue = {"name": QUEUE, "max_workers": settings.get("workers", 256)}
    await client.start([queue], queue_storage_schema=SCHEMA)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await client.shutdown()


def work() -> None:
    asyncio.run(_work())


peer = Awa
