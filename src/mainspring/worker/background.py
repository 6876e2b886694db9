"""Runs a worker in the background of your program: this is what `async with app.worker():` starts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from mainspring.log import get_log
from mainspring.worker.outage import is_being_cancelled

log = get_log("mainspring.worker")


class Background:
    """Holds the asyncio task in which a worker serves. If that task dies, it is logged at once; `ended` raises why."""

    def __init__(self, worker: str, serve: Coroutine[Any, Any, None]) -> None:
        self._worker = worker
        self._task = asyncio.create_task(serve, name=f"mainspring-worker-{worker}")
        self._leaving = False

    async def begun(self, joined: asyncio.Event) -> None:
        """Wait until the worker has joined; if it could not join, raise the reason."""
        waiting = asyncio.create_task(joined.wait())
        try:
            await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # your program gave up on starting: leave no worker behind
            self._task.cancel()
            await asyncio.wait({self._task})
            raise
        finally:
            waiting.cancel()
        if self._task.done():
            await self.ended()
        self._task.add_done_callback(self._report)

    async def ended(self) -> None:
        """Wait for a worker that was told to stop. If the caller is cancelled meanwhile, the worker's grace ends."""
        self._leaving = True
        try:
            await self._task
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            msg = f"the asyncio task of worker {self._worker} was cancelled"
            raise RuntimeError(msg) from None

    def _report(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            if not self._leaving:
                log.error("worker_died", worker=self._worker, error="its asyncio task was cancelled")
        elif (error := task.exception()) is not None:
            log.error("worker_died", worker=self._worker, error=f"{type(error).__name__}: {error}", exc_info=error)
