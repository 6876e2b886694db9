"""Programs that run a durable function of twenty, and die at a chosen commit of it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from mainspring import Mainspring
from mainspring.cli import logs
from mainspring.worker import Worker
from tests.chaos.programs.tasks import with_settings
from tests.features.durable.twenty import Boundary, Ledger, define, put, watch

NAP = 0.02  # seconds


def make_app(folder: str, settings: str) -> Mainspring:
    app = Mainspring(with_settings(os.environ["CHAOS_DATABASE"], settings))
    define(app, Ledger(Path(folder) / "twenty"), ack="sync")  # with one slot, a child never runs beside its parent
    return app


def die_at(folder: str, who: str, settings: str = "", **at: Any) -> int:
    """Enqueue a job into a queue of its own, work on it, and be killed."""
    logs.set_up("info", as_json=True, final=True)
    app = make_app(folder, settings)
    asyncio.run(_enqueue(app, folder, who, Boundary(**at)))
    return Worker(app, id=who, queues=[who], concurrency=1, prefetch=0, maintenance_interval=0.05).run()


async def _enqueue(app: Mainspring, folder: str, who: str, at: Boundary) -> None:
    job_id = await put(app, who, NAP)
    (Path(folder) / f"{who}.job").write_text(job_id)
    watch(app.store, job_id, at, die)
    await app.close()


async def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def finish(folder: str, who: str, settings: str = "", **worker: Any) -> int:
    """Whatever is left, until SIGTERM."""
    logs.set_up("info", as_json=True, final=True)
    return Worker(make_app(folder, settings), id=who, maintenance_interval=0.05, **worker).run()
