"""Publishes the tasks of a worker's application, once, so that programs without their code can enqueue them."""

from __future__ import annotations

import asyncio

from mainspring.log import get_log
from mainspring.runtime import Runtime

log = get_log("mainspring.worker")

LOOP = "publication"
DELAY = 0.1  # seconds after the start: the first claim comes first, as making schemas takes time of the event loop


class Publication:
    """Publishes the tasks soon after the worker has started. If the store is away then, it tries again."""

    def __init__(self, runtime: Runtime, worker: str) -> None:
        self._runtime = runtime
        self._worker = worker
        self._done = False

    async def step(self) -> None:
        """Do one turn of a supervised loop. A later turn would overwrite what newer workers have published."""
        if self._done:
            await asyncio.Event().wait()  # until the worker stops and cancels this
        await asyncio.sleep(DELAY)
        written = await self._runtime.published.publish(list(self._runtime.tasks.values()), self._worker)
        self._done = True
        if written:
            log.info("tasks_published", worker=self._worker, tasks=written)
