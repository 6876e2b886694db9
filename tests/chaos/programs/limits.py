"""Programs whose jobs have limits, and write down when they are inside."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

from mainspring import Limit, Mainspring, Rate
from mainspring.cli import logs
from mainspring.worker import Worker
from tests.chaos.programs.tasks import BLINK, with_settings

ALL, EACH, RATE, BURST = 4, 2, 100, 10
CUSTOMERS = ("acme", "bolt", "cord")


def make_app(folder: str, who: str, settings: str) -> Mainspring:
    app = Mainspring(with_settings(os.environ["CHAOS_DATABASE"], settings))
    book = os.open(Path(folder) / "places", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(*words: object) -> None:
        os.write(book, (" ".join(map(str, (time.monotonic_ns(), who, *words))) + "\n").encode())

    @app.task(limits=[Limit(ALL), Limit(EACH, key=lambda p: p.customer)], max_attempts=100)
    async def place(customer: str) -> None:
        visit = random.randrange(2**40)
        write("in", customer, visit)
        await asyncio.sleep(random.random() * BLINK)
        write("out", customer, visit)

    @app.task(limits=[Rate(RATE, per=1, burst=BURST)])
    async def beat() -> None:
        write("beat")

    return app


def work(folder: str, who: str, settings: str = "", **worker: Any) -> int:
    logs.set_up("info", as_json=True, final=True)
    return Worker(
        make_app(folder, who, settings), id=who, maintenance_interval=0.05, heartbeat_interval=0.2, **worker
    ).run()


def enqueue(folder: str, who: str, settings: str = "", places: int = 0, beats: int = 0) -> None:
    asyncio.run(_enqueue(make_app(folder, who, settings), places, beats))


async def _enqueue(app: Mainspring, places: int, beats: int) -> None:
    async with app:
        await app.tasks["place"].enqueue_many([{"customer": CUSTOMERS[n % len(CUSTOMERS)]} for n in range(places)])
        await app.tasks["beat"].enqueue_many([{}] * beats)
