# /// script
# requires-python = ">=3.11"
#
# [tool.bench]
# title = "Mainspring, SQLite"
# durability = "WAL, synchronous=FULL at each enqueue"
# worker = "mainspring serve, as it ships"
# drain_jobs = 1
# ///
"""`mainspring serve` on a SQLite file, and the library on the same file for comparison."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from bench.peer import TEXT, here
from bench.peers.http._web import Web
from mainspring import Mainspring

app = Mainspring(f"sqlite:///{here()[0] / 'mainspring.db'}")


@app.task()
async def noop(n: int, s: str) -> None: ...


class Ours(Web):
    async def open(self) -> None:
        await app.store.open()

    async def close(self) -> None:
        await app.close()

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await noop.enqueue_many({"n": number, "s": TEXT} for number in numbers)

    def bulk(self, batch: int) -> bytes:
        jobs = [{"task": "noop", "payload": {"n": number, "s": TEXT}} for number in range(batch)]
        return json.dumps({"jobs": jobs}).encode()

    def server(self, port: int, *, worker: bool) -> list[str]:
        command = [sys.executable, "-m", "mainspring", "serve", f"{__name__}:app", "--port", str(port)]
        return command if worker else [*command, "--no-worker", "--no-schedules"]


peer = Ours
