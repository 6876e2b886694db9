"""Programs whose handlers write down when they start: eight bytes each, by the clock that all processes share."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from mainspring import Breaker, Chunk, Mainspring, RunCall
from mainspring.cli import logs
from mainspring.events import BreakerOpened, Event
from mainspring.features.breakers import storage as breakers
from mainspring.worker import Worker

START = struct.Struct("<Q")  # CLOCK_MONOTONIC, nanoseconds
CHUNK_WAIT = 1.0  # seconds
CALL_TAKES = 0.05  # seconds, so that calls are left when the breaker opens
CALL, OPENED = "call", "opened"
FAILING = ("fail", "fail_behind_middleware")


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


def work_for_broken_service(folder: str, who: str, **worker: Any) -> int:
    """Write down, in the order in which they happen here, the calls and that the breaker opened."""
    app = Mainspring(os.environ["CHAOS_DATABASE"])
    emit = app.runtime.bus.emit
    logs.set_up("info", as_json=True, final=True)
    with Path(folder, f"calls-{who}").open("w", buffering=1) as book:

        def noting(event: Event) -> None:
            if isinstance(event, BreakerOpened):
                print(OPENED, file=book)
            emit(event)

        app.runtime.bus.emit = noting  # type: ignore[method-assign]
        define_failing(app, lambda: print(CALL, file=book))
        return Worker(app, id=who, **worker).run()


def define_failing(app: Mainspring, called: Callable[[], object]) -> None:
    """Two tasks of one breaker, whose calls all fail; the middleware of one of them waits."""
    app.breakers.configure("service", Breaker(open_for=3600))

    @app.around_run
    async def wait(call: RunCall) -> AsyncIterator[None]:
        if call.task == "fail_behind_middleware":
            await asyncio.sleep(random.uniform(0, 10 * CALL_TAKES))
        yield

    async def fail() -> None:
        called()
        await asyncio.sleep(random.uniform(0, CALL_TAKES))
        raise ConnectionError

    for name in FAILING:
        app.task(name=name, breaker="service", max_attempts=1)(fail)


def starts(folder: Path) -> list[int]:
    path = folder / "starts"
    return [at for (at,) in START.iter_unpack(path.read_bytes())] if path.exists() else []


def work(folder: str, who: str, fresh: int = breakers.FRESH_FOR, **worker: Any) -> int:
    """`fresh`: for how many milliseconds it goes by what it has read of a breaker, if nothing wakes it."""
    breakers.FRESH_FOR = fresh
    logs.set_up("info", as_json=True, final=True)
    return Worker(make_app(folder), id=who, **worker).run()
