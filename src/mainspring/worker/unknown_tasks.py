"""Telling of due jobs that cannot run: no live worker of their queue knows their task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mainspring.app import Mainspring
from mainspring.events import TaskUnknown
from mainspring.log import get_log
from mainspring.worker.outage import Outage

log = get_log("mainspring.worker")

LOOP = "unknown tasks"  # its name in what is told of an outage
LOOK_EVERY = 5.0  # seconds, at least, between looks at what other workers know


class UnknownTasks:
    """Of one event loop. A claim says which due tasks its worker does not know; here it is found out who does.

    Each task is told of once, until a worker knows it or its jobs are gone. During a rolling deployment old workers
    meet new tasks all the time: that is worth a look now and then, and nothing is told while a new worker is alive.
    """

    def __init__(self, app: Mainspring, worker: str, outage: Outage) -> None:
        self._app = app
        self._worker = worker
        self._outage = outage
        self._met: set[str] = set()  # tasks that this worker does not know
        self._told: set[tuple[str, str]] = set()  # task and queue
        self._news = asyncio.Event()

    def met(self, tasks: Iterable[str]) -> None:
        self._met.update(tasks)
        self._news.set()

    async def step(self) -> None:
        """Look when a claim has met an unknown task; and again, as the workers that know it may leave."""
        await self._news.wait()
        await self.look()
        self._outage.worked(LOOP)
        await asyncio.sleep(LOOK_EVERY)

    async def look(self) -> None:
        if not self._met:
            return
        stats = await self._app.store.stats()
        self._met &= {one.task for one in stats.due_tasks}
        unknown = {(one.task, one.queue): one for one in stats.unknown_tasks if one.task in self._met}
        for key in sorted(unknown.keys() - self._told):
            one = unknown[key]
            log.warning("task_unknown", task=one.task, queue=one.queue, due=one.due, worker=self._worker)
            self._app.bus.emit(TaskUnknown(task=one.task, queue=one.queue, due=one.due, oldest_due=one.oldest_due))
        self._told = set(unknown)
        if not self._met:
            self._news.clear()
