"""A read that all callers of a process share: one at a time, and its result serves for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedRead(Generic[T]):
    """Reads at most once every `fresh_for` seconds, however many callers ask. An error is not kept."""

    def __init__(self, read: Callable[[], Awaitable[T]], fresh_for: float) -> None:
        self._read = read
        self._fresh_for = fresh_for
        self._task: asyncio.Task[T] | None = None
        self._began = 0.0

    async def get(self) -> T:
        task = self._task
        if task is None or not self._is_usable(task):
            self._began = time.monotonic()
            task = self._task = asyncio.create_task(self._run(), name="mainspring-metrics-read", context=Context())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # callers may have hung up
        return await asyncio.shield(task)

    async def _run(self) -> T:
        return await self._read()

    def _is_usable(self, task: asyncio.Task[T]) -> bool:
        """Return whether the read is under way here, or its result is fresh."""
        if not task.done():
            return task.get_loop() is asyncio.get_running_loop()
        failed = task.cancelled() or task.exception() is not None
        return not failed and time.monotonic() - self._began < self._fresh_for
