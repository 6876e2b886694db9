# /// script
# requires-python = ">=3.11"
# dependencies = ["saq==0.26.4", "psycopg[binary,pool]==3.3.8"]
#
# [tool.bench]
# title = "SAQ, PostgreSQL"
# finished = "kept (ttl=0)"
# worker = "its Worker, default timers"
# drain_jobs = 2_000
# skip = ["heard-*"]
#
# [tool.bench.variants]
# "concurrency 10" = { concurrency = 10 }
# "concurrency 50" = { concurrency = 50 }
# ///
"""SAQ on its PostgreSQL queue, with its own worker."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from saq import Queue, Worker

from bench import tally
from bench.peer import TEXT, Peer, database, here

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "bench.peers.postgres.saq"
FOREVER = 0
UNSETTLED = """
SELECT EXISTS (SELECT 1 FROM saq_jobs WHERE status IN ('new', 'queued', 'active')
               AND scheduled <= extract(epoch FROM now()))
"""


async def noop(ctx: Any, *, n: int, s: str) -> None:
    tally.mark(n)


class Saq(Peer):
    async def open(self) -> None:
        self.queue: Any = Queue.from_url(database())
        await self.queue.connect()

    async def close(self) -> None:
        await self.queue.disconnect()

    async def enqueue(self, number: int) -> None:
        await self.queue.enqueue("noop", n=number, s=TEXT, ttl=FOREVER)

    async def enqueue_at(self, number: int, when: float) -> None:
        """It stores whole seconds, and rounds down: such a job would start up to a second early."""
        await self.queue.enqueue("noop", n=number, s=TEXT, ttl=FOREVER, scheduled=int(when))

    async def fill(self, jobs: int) -> None:
        numbers = iter(range(jobs))
        await asyncio.gather(*(self._fill_from(numbers) for _ in range(20)))

    async def _fill_from(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            await self.enqueue(number)

    async def settled(self) -> bool:
        async with self.queue.pool.connection() as connection:
            cursor = await connection.execute(UNSETTLED)
            return not (await cursor.fetchone())[0]

    def worker(self) -> list[str]:
        return [sys.executable, "-c", f"from {MODULE} import work; work()"]


async def _work() -> None:
    _, settings = here()
    queue = Queue.from_url(database())
    worker: Any = Worker(queue, functions=[("noop", noop)], concurrency=settings.get("concurrency", 10))
    await queue.connect()
    await worker.start()


def work() -> None:
    asyncio.run(_work())


peer = Saq
