# /// script
# requires-python = ">=3.11"
# dependencies = ["huey==3.5.4"]
#
# [tool.bench]
# title = "huey, SQLite"
# durability = "WAL, fsync=True (synchronous=FULL); a job is deleted when a worker takes it, so a crash loses it"
# worker = "huey_consumer -q, default polling"
# drain_jobs = 20_000
# backlog = 1_000_000
# skip = ["claim-*"]
#
# [tool.bench.variants]
# "-k thread -w 1" = { options = ["-k", "thread", "-w", "1"] }
# "-k thread -w 2" = { options = ["-k", "thread", "-w", "2"] }
# "-k thread -w 4" = { options = ["-k", "thread", "-w", "4"] }
# ///
"""huey on SQLite with its own consumer."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import huey as package

from bench import tally
from bench.peer import TEXT, Peer, here

if TYPE_CHECKING:
    from collections.abc import Iterable

DAY = 86_400


def _noop(n: int, s: str) -> None:
    tally.mark(n)


huey: Any = package.SqliteHuey(filename=str(here()[0] / "huey.db"), fsync=True)
noop: Any = huey.task()(_noop)


class Huey(Peer):
    async def open(self) -> None:
        """Nothing to do: the instance has made its tables."""

    async def enqueue(self, number: int) -> None:
        noop(number, TEXT)

    async def enqueue_at(self, number: int, when: float) -> None:
        noop.schedule((number, TEXT), eta=datetime.fromtimestamp(when, UTC))

    async def fill(self, jobs: int) -> None:
        rows = ((huey.name, huey.serialize_task(noop.s(i, TEXT)), 0) for i in range(jobs))
        self._insert("insert into task (queue, data, priority) values (?, ?, ?)", rows)

    async def fill_waiting(self, jobs: int) -> None:
        """Its schedule has no priorities."""
        start = time.time() + 10 * DAY
        rows = ((huey.name, huey.serialize_task(noop.s(i, TEXT)), start + i % DAY) for i in range(jobs))
        self._insert("insert into schedule (queue, data, timestamp) values (?, ?, ?)", rows)

    def _insert(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with huey.storage.db(commit=True) as cursor:
            cursor.executemany(statement, rows)

    async def settled(self) -> bool:
        return int(huey.pending_count()) == 0

    def worker(self) -> list[str]:
        options = self.settings.get("options", ["-k", "thread", "-w", "1"])
        return [sys.executable, "-m", "huey.bin.huey_consumer", "bench.peers.sqlite.huey.huey", "-q", *options]


peer = Huey
