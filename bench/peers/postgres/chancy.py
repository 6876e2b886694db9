# /// script
# requires-python = ">=3.11"
# dependencies = ["chancy==0.26.0", "psycopg[binary]==3.3.8"]
#
# [tool.bench]
# title = "chancy"
# finished = "kept, for a day unless its pruner is told otherwise"
# worker = "Worker with the asyncio executor, eager_polling, a poll each second (its shortest)"
# drain_jobs = 8_000
# skip = ["heard-*"]
#
# [tool.bench.variants]
# "concurrency 100" = { concurrency = 100 }
# "concurrency 300" = { concurrency = 300 }
# ///
"""chancy with its own worker."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from chancy import Chancy, Queue, Worker, job

from bench import tally
from bench.peer import TEXT, Peer, database, here

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULE = "bench.peers.postgres.chancy"
UNSETTLED = """
SELECT EXISTS (SELECT 1 FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying') AND scheduled_at <= now())
"""


async def _noop(n: int, s: str) -> None:
    tally.mark(n)


noop: Any = job()(_noop)


def connect() -> Any:
    log = logging.getLogger("chancy")
    log.setLevel(logging.WARNING)
    return Chancy(database(), log=log)


class ChancyPeer(Peer):
    async def open(self) -> None:
        self.chancy = await connect().__aenter__()
        if not await self.chancy.is_up_to_date():
            await self.chancy.migrate()
        await self.chancy.declare(
            Queue(
                "default",
                concurrency=self.settings.get("concurrency", 100),
                executor=Chancy.Executor.Async,
                eager_polling=True,
                polling_interval=1,
            ),
            upsert=True,
        )

    async def close(self) -> None:
        await self.chancy.__aexit__(None, None, None)

    def _job(self, number: int) -> Any:
        return noop.job.with_kwargs(n=number, s=TEXT)

    async def enqueue(self, number: int) -> None:
        await self.chancy.push(self._job(number).with_scheduled_at(datetime.now(UTC)))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        now = datetime.now(UTC)
        jobs = [self._job(number).with_scheduled_at(now) for number in numbers]
        async for _ in self.chancy.push_many(jobs, batch_size=len(jobs)):
            pass

    async def enqueue_at(self, number: int, when: float) -> None:
        await self.chancy.push(self._job(number).with_scheduled_at(datetime.fromtimestamp(when, UTC)))

    async def fill(self, jobs: int) -> None:
        await self.enqueue_many(range(jobs))

    async def settled(self) -> bool:
        async with self.chancy.pool.connection() as connection:
            cursor = await connection.execute(UNSETTLED)
            return not (await cursor.fetchone())[0]

    def worker(self) -> list[str]:
        return [sys.executable, "-c", f"from {MODULE} import work; work()"]


async def _work() -> None:
    async with connect() as chancy, Worker(chancy, shutdown_timeout=5) as worker:
        await worker.wait_for_shutdown()


def work() -> None:
    here()
    asyncio.run(_work())


peer = ChancyPeer
