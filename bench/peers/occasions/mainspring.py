# /// script
# requires-python = ">=3.11"
#
# [tool.bench]
# title = "Mainspring"
# durability = "WAL, synchronous=FULL at each import, firing and ack"
# worker = "mainspring worker, as it ships"
# drain_jobs = 50_000
# ///
"""Mainspring on SQLite, as its users see it: `app.people.import_csv`, `@app.occasion` and `mainspring worker`."""

from __future__ import annotations

import sys
from pathlib import Path

from bench import tally
from bench.celebrated import ahead
from bench.peer import Peer, here
from mainspring import Mainspring, Person
from mainspring.clock import SystemClock
from mainspring.stores.protocol import Filter

AHEAD = ahead()


class Clock(SystemClock):
    """The machine's, moved so that the instant comes when it is wanted."""

    def now(self) -> int:
        return super().now() + round(AHEAD * 1000)


app = Mainspring(f"sqlite:///{here()[0] / 'mainspring.db'}", clock=Clock())


@app.occasion("birthday")
async def greet(person: Person) -> None:
    tally.mark(len(person.id))


class Ours(Peer):
    async def open(self) -> None:
        await app.store.open()

    async def close(self) -> None:
        await app.close()

    async def enqueue(self, number: int) -> None:
        self.cannot("jobs but those of occasions here")

    async def fill(self, jobs: int) -> None:
        self.cannot("jobs but those of occasions here")

    async def settled(self) -> bool:
        return not any((await app.stats()).due.values())

    async def import_people(self, path: Path) -> None:
        report = await app.people.import_csv(path)
        assert not report.problems, report.problems[:3]

    async def last_fired(self) -> float:
        newest = (await app.store.find(Filter(), limit=1)).jobs[0]
        return newest.created_at.timestamp() - ahead()

    def worker(self) -> list[str]:
        return [sys.executable, "-m", "mainspring", "worker", f"{__name__}:app", "--queues", "default"]


peer = Ours
