"""A worker's membership in its store: it joins, says which tasks it knows, and leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version

from mainspring.errors import StoreError, StoreUnavailable
from mainspring.features.batches.api import TASK as TASK_OF_BATCHES
from mainspring.log import get_log
from mainspring.runtime import Runtime
from mainspring.stores.protocol import Wake, WorkerInfo
from mainspring.worker.outage import Backoff, Outage
from mainspring.worker.settings import WorkerSettings

log = get_log("mainspring.worker")


class Membership:
    """The membership of one worker. The store calls `on_wake` when there may be something to do."""

    def __init__(
        self, runtime: Runtime, settings: WorkerSettings, outage: Outage, on_wake: Callable[[Wake], None]
    ) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._settings = settings
        self._outage = outage
        self._on_wake = on_wake
        self._started_at = datetime.now(UTC)
        self._note_tasks()
        self.queues = sorted(subscription.queue for subscription in settings.queues)

    async def join(self, unless: asyncio.Event) -> bool:
        """Join the store, waiting while it is away; return False if the event is set first.

        A store that cannot be used at all is an error at once.
        """
        backoff = Backoff()
        while not unless.is_set():
            try:
                await self._store.open()
                await self._store.join(self._info(), self._on_wake)
            except StoreUnavailable as error:
                self._outage.failed("join", error)
                await backoff.wait(unless=unless)
            else:
                self._outage.worked("join")
                self._log_start()
                return True
        self._runtime.contact.forget(self._settings.id)
        return False

    async def announce_tasks(self) -> None:
        """Tell the store of tasks that were defined, or removed, since this worker joined."""
        self._note_tasks()
        await self._store.join(self._info(), self._on_wake)

    async def leave(self) -> None:
        with contextlib.suppress(StoreError):  # then the other workers will notice that this one is gone
            await self._store.leave(self._settings.id)
        self._runtime.contact.forget(self._settings.id)

    def _note_tasks(self) -> None:
        self.declared = frozenset(self._runtime.tasks)
        self.tasks = self.declared | {TASK_OF_BATCHES}  # all that this worker can run

    def _info(self) -> WorkerInfo:
        return WorkerInfo(
            id=self._settings.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=tuple(self.queues),
            concurrency=self._settings.concurrency,
            heartbeat=self._settings.heartbeat_interval,
            tasks=tuple(sorted(self.tasks)),
            version=version("mainspring"),
            started_at=self._started_at,
        )

    def _log_start(self) -> None:
        worker, tasks = self._settings.id, sorted(self._runtime.tasks)
        log.info("worker_started", worker=worker, queues=self.queues, tasks=tasks, store=self._store.url)
        if not tasks:
            advice = "import the modules that declare tasks where the application is made"
            log.warning("worker_has_no_tasks", worker=worker, advice=advice)
