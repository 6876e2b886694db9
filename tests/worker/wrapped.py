"""Handlers for child processes, and middleware around them: importing this module registers both, as it should be."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from pathlib import Path

from mainspring import Mainspring, RunCall
from mainspring.stores.sqlite import MemoryStore

app = Mainspring(MemoryStore())
tenant: ContextVar[str] = ContextVar("tenant", default="none")
trail: ContextVar[tuple[str, ...]] = ContextVar("trail", default=())


@app.around_run
def with_tenant(call: RunCall) -> Iterator[None]:
    token = tenant.set(f"{call.headers.get('tenant')} of {os.getpid()}")
    trail.set((*trail.get(), "plain"))
    yield
    tenant.reset(token)


@app.around_run
def when_told(call: RunCall) -> Iterator[None]:
    """Wait, if the job says so, until the test has written the file."""
    if folder := call.headers.get("wait in"):
        Path(folder, "begun").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.003)
    yield


@app.around_run
async def with_loop(call: RunCall) -> AsyncIterator[None]:
    await asyncio.sleep(0)
    trail.set((*trail.get(), f"async {call.task}"))
    yield


@app.task(isolation="process")
def isolated() -> list[str]:
    return [tenant.get(), str(os.getpid()), *trail.get()]


@app.task(isolation="process")
async def isolated_coroutine() -> list[str]:
    return [tenant.get(), str(os.getpid()), *trail.get()]


@app.task()
def threaded() -> list[str]:
    return [tenant.get(), str(threading.current_thread() is threading.main_thread()), *trail.get()]


class Elsewhere:
    """An application whose middleware a child process cannot find: a function registers it."""

    app = Mainspring(MemoryStore())


@Elsewhere.app.task(isolation="process", max_attempts=1)
def lonely() -> str:
    return "ran without its middleware"


def register_late() -> None:
    @Elsewhere.app.around_run
    def late(_call: RunCall) -> Iterator[None]:
        yield
