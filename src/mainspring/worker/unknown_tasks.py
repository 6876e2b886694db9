"""Reports due jobs that cannot run because no live worker of their queue knows their task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mainspring.events import TaskUnknown
from mainspring.log import get_log
from mainspring.runtime import Runtime
from mainspring.worker.outage import Outage

log = get_log("mainspring.worker")

LOOP = "unknown-tasks"  # the name of this loop in reports of an outage
LOOK_EVERY = 5.0  # seconds, at least, between two looks at what other workers know


class UnknownTasks:
    """A claim says which due tasks its worker does not know. This finds out whether another worker knows them.

    Each task is reported once, until a worker knows it or its jobs are gone. During a rolling deployment old workers
    meet new tasks all the time: they look now and then, and report nothing while a new worker is alive. Belongs to one
    event loop.
    """

    def __init__(self, runtime: Runtime, worker: str, outage: Outage) -> None:
        self._runtime = runtime
        self._worker = worker
        self._outage = outage
        self._met: set[str] = set()  # tasks that this worker does not know
        self._told: set[tuple[str, str]] = set()  # task and queue that were reported
        self._news = asyncio.Event()

    def met(self, tasks: Iterable[str]) -> None:
        self._met.update(tasks)
        self._news.set()

    async def step(self) -> None:
        """Look when a claim has met an unknown task, and keep looking, as the workers that know it may leave."""
        await self._news.wait()
        await self.look()
        self._outage.worked(LOOP)
        await asyncio.sleep(LOOK_EVERY)

    async def look(self) -> None:
        if not self._met:
            return
        stats = await self._runtime.store.stats()
        self._met &= {stat.task for stat in stats.due_tasks}
        unknown = {(stat.task, stat.queue): stat for stat in stats.unknown_tasks if stat.task in self._met}
        for key in sorted(unknown.keys() - self._told):
            stat = unknown[key]
            log.warning("task_unknown", task=stat.task, queue=stat.queue, due=stat.due, worker=self._worker)
            self._runtime.bus.emit(
                TaskUnknown(task=stat.task, queue=stat.queue, due=stat.due, oldest_due=stat.oldest_due)
            )
        self._told = set(unknown)
        if not self._met:
            self._news.clear()
