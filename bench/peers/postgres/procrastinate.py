# /// script
# requires-python = ">=3.11"
# dependencies = ["procrastinate==3.10.0", "psycopg[binary]==3.3.8"]
#
# [tool.bench]
# title = "procrastinate"
# finished = "kept"
# worker = "App.run_worker, LISTEN and its default polling"
# drain_jobs = 2_000
#
# [tool.bench.variants]
# "concurrency 10" = { concurrency = 10 }
# "concurrency 30" = { concurrency = 30 }
# ///
"""procrastinate with its own worker."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import procrastinate as package

from bench import tally
from bench.peer import TEXT, Peer, database, here

if TYPE_CHECKING:
    from collections.abc import Sequence

JOBS_PER_CALL = 5_000
UNSETTLED = """
SELECT EXISTS (SELECT 1 FROM procrastinate_jobs
               WHERE status IN ('todo', 'doing') AND (scheduled_at IS NULL OR scheduled_at <= now())) AS found
"""

# Tasks are found by the module that defines them, so that module must have the same name in every process.
MODULE = "bench.peers.postgres.procrastinate"
app: Any = package.App(connector=package.PsycopgConnector(conninfo=database(), min_size=4, max_size=10))


async def _noop(n: int, s: str) -> None:
    tally.mark(n)


noop: Any = app.task(name="noop")(_noop)


class Procrastinate(Peer):
    async def open(self) -> None:
        await app.open_async()
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()

    async def close(self) -> None:
        await app.close_async()

    async def enqueue(self, number: int) -> None:
        await noop.defer_async(n=number, s=TEXT)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await noop.batch_defer_async(*({"n": number, "s": TEXT} for number in numbers))

    async def enqueue_at(self, number: int, when: float) -> None:
        await noop.configure(schedule_at=datetime.fromtimestamp(when, UTC)).defer_async(n=number, s=TEXT)

    async def fill(self, jobs: int) -> None:
        for start in range(0, jobs, JOBS_PER_CALL):
            await self.enqueue_many(range(start, min(start + JOBS_PER_CALL, jobs)))

    async def settled(self) -> bool:
        return not (await app.connector.execute_query_one_async(UNSETTLED))["found"]

    def worker(self) -> list[str]:
        return [sys.executable, "-c", f"from {MODULE} import work; work()"]


def work() -> None:
    _, settings = here()
    app.run_worker(concurrency=settings.get("concurrency", 10))


peer = Procrastinate
