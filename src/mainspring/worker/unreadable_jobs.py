"""Reports claimed jobs that this worker cannot decrypt, in its log and in the store, where health finds them."""

from __future__ import annotations

import asyncio

from mainspring.log import get_log
from mainspring.runtime import Runtime
from mainspring.stores.unreadable import UnreadableReports, key_of
from mainspring.worker.run import Run

log = get_log("mainspring.worker")

LOOP = "unreadable-jobs"  # the name of this loop in reports of an outage
LOG_EVERY = 60.0  # seconds between two lines


class Unreadable:
    """Reports jobs that cannot be decrypted. Belongs to one event loop."""

    def __init__(self, runtime: Runtime, worker: str) -> None:
        self._store = runtime.store
        self._worker = worker
        self._reports = UnreadableReports()
        self._news = asyncio.Event()
        self.is_due = False  # whether there is something to write
        self._loop = asyncio.get_running_loop()
        self._logged_at = -LOG_EVERY

    def met(self, run: Run) -> None:
        if self._reports.met(self._store, self._worker, [run.claim]):
            self.is_due = True
            self._news.set()
        if self._loop.time() - self._logged_at >= LOG_EVERY:
            self._logged_at = self._loop.time()
            self._log(run)

    def _log(self, run: Run) -> None:
        claim, key = run.claim, key_of(run.claim)
        error = (
            f"this worker cannot decrypt the job with its keys; it needs the key {key}: add it to"
            " MAINSPRING_ENCRYPTION_KEYS and restart the worker"
        )
        log.error("job_unreadable", job_id=claim.id, task=claim.task, queue=claim.queue, key=key, error=error)

    async def step(self) -> None:
        await self._news.wait()
        await self.write()

    async def write(self) -> None:
        await self._reports.write(self._store)
        self.is_due = False
        self._news.clear()
