# /// script
# requires-python = ">=3.11"
# dependencies = ["dbos==3.3.0", "psycopg[binary]==3.3.8"]
#
# [tool.bench]
# title = "dbos"
# finished = "kept"
# worker = "DBOS.launch with one queue; an asyncio workflow"
# drain_jobs = 1_000
# skip = ["heard-*"]
#
# [tool.bench.variants]
# "its defaults (a poll each second)" = { polling = 1.0 }
# "a poll each 100 ms" = { polling = 0.1 }
# ///
"""dbos: each job is a workflow without steps."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
from dbos import DBOS, DBOSClient

from bench import tally
from bench.peer import TEXT, Peer, database, here

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MODULE = "bench.peers.postgres.dbos"
QUEUE = "bench"
OPTIONS: Any = {"workflow_name": "noop", "queue_name": QUEUE}
UNSETTLED = """
SELECT EXISTS (SELECT 1 FROM dbos.workflow_status WHERE queue_name = 'bench' AND (
    status IN ('ENQUEUED', 'PENDING')
    OR status = 'DELAYED' AND delay_until_epoch_ms <= extract(epoch FROM now()) * 1000))
"""


class Dbos(Peer):
    async def open(self) -> None:
        """Its client makes no tables; the application does, when it is launched."""
        self.db = psycopg.connect(database(), autocommit=True)
        found = self.db.execute("SELECT to_regclass('dbos.workflow_status')").fetchone()
        if not found or found[0] is None:
            await asyncio.to_thread(self._make_tables)
        self.client = DBOSClient(system_database_url=database(), system_database_pool_size=20)

    def _make_tables(self) -> None:
        launch(self.settings)
        DBOS.destroy()

    async def close(self) -> None:
        self.client.destroy()
        self.db.close()

    async def enqueue(self, number: int) -> None:
        await self.client.enqueue_async(OPTIONS, number, TEXT)

    async def enqueue_at(self, number: int, when: float) -> None:
        await self.client.enqueue_async(OPTIONS | {"delay_seconds": when - time.time()}, number, TEXT)

    async def fill(self, jobs: int) -> None:
        numbers = iter(range(jobs))
        await asyncio.gather(*(self._fill_from(numbers) for _ in range(16)))

    async def _fill_from(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            await self.enqueue(number)

    async def settled(self) -> bool:
        found = self.db.execute(UNSETTLED).fetchone()
        return found is not None and not found[0]

    def worker(self) -> list[str]:
        return [sys.executable, "-c", f"from {MODULE} import work; work()"]


def launch(settings: Mapping[str, Any]) -> None:
    DBOS(
        config={"name": "bench", "system_database_url": database(), "log_level": "WARNING", "application_version": "1"}
    )

    @DBOS.workflow(name="noop")
    async def noop(n: int, s: str) -> None:
        tally.mark(n)

    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=settings.get("polling", 1.0))


def work() -> None:
    _, settings = here()
    launch(settings)
    threading.Event().wait()


peer = Dbos
