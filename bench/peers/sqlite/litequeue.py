# /// script
# requires-python = ">=3.12"
# dependencies = ["litequeue==0.14"]
#
# [tool.bench]
# title = "litequeue"
# durability = "as it ships: WAL, synchronous=NORMAL, so a power cut may lose what was committed last"
# worker = "a loop of pop and done; it has no worker of its own"
# drain_jobs = 40_000
# ///
"""litequeue, a bare queue: the loop around it is ours."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import litequeue as package

from bench import tally
from bench.peer import TEXT, Peer, here

if TYPE_CHECKING:
    from collections.abc import Sequence

IDLE_SECONDS = 0.010
"""It cannot wait for a message; so its worker asks this often."""


def noop(n: int, s: str) -> None:
    tally.mark(n)


class LiteQueue(Peer):
    synchronous = "NORMAL"

    def connect(self) -> Any:
        queue = package.LiteQueue(self.place / "litequeue.db", timeout=30)
        queue.conn.execute(f"PRAGMA synchronous = {self.synchronous}")
        return queue

    async def open(self) -> None:
        self.queue = self.connect()

    async def close(self) -> None:
        self.queue.close()

    async def enqueue(self, number: int) -> None:
        self.queue.put(json.dumps({"n": number, "s": TEXT}))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        with self.queue.transaction():
            for number in numbers:
                self.queue.put(json.dumps({"n": number, "s": TEXT}))

    async def fill(self, jobs: int) -> None:
        await self.enqueue_many(range(jobs))

    async def settled(self) -> bool:
        return int(self.queue.active_count()) == 0

    def worker(self) -> list[str]:
        return [sys.executable, "-m", self.__module__]

    def work(self) -> None:
        """Until the process is ended."""
        queue = self.connect()
        while True:
            message = queue.pop()
            if message is None:
                time.sleep(IDLE_SECONDS)
                continue
            noop(**json.loads(message.data))
            queue.done(message.message_id, claim_id=message.claim_id)


peer = LiteQueue

if __name__ == "__main__":
    peer(*here()).work()
