"""Programs whose handlers write down when they start: eight bytes each, by the clock that all processes share."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from pathlib import Path
from typing import Any

from mainspring import Chunk, Mainspring
from mainspring.cli import logs
from mainspring.features.breakers import api as breakers
from mainspring.worker import Worker

START = struct.Struct("<Q")  # CLOCK_MONOTONIC, nanoseconds
CHUNK_WAIT = 1.0  # seconds
CALL_TAKES = 0.05  # seconds, so that calls are left when the breaker opens


def make_app(folder: str) -> Mainspring:
    app = Mainspring(os.environ["CHAOS_DATABASE"])
    define(app, folder)
    return app


def define(app: Mainspring, folder: str) -> None:
    book = os.open(Path(folder) / "starts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def started() -> None:
        os.write(book, START.pack(time.monotonic_ns()))

    @app.task()
    async def quick() -> None:
        started()

    @app.task()
    def threaded() -> None:
        started()

    @app.task(chunk=Chunk(size=100, wait=CHUNK_WAIT))
    async def together(numbers: list[int]) -> None:
        del numbers
        started()

    @app.task(breaker="service")
    async def call() -> None:
        started()
        await asyncio.sleep(CALL_TAKES)


def starts(folder: Path) -> list[int]:
    path = folder / "starts"
    return [at for (at,) in START.iter_unpack(path.read_bytes())] if path.exists() else []


def work(folder: str, who: str, fresh: int = breakers.FRESH_FOR, **worker: Any) -> int:
    """`fresh`: for how many milliseconds it goes by what it has read of a breaker, if nothing wakes it."""
    breakers.FRESH_FOR = fresh
    logs.set_up("info", as_json=True, final=True)
    return Worker(make_app(folder), id=who, **worker).run()
