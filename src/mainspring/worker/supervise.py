"""Keeps loops running while the database is away for a while."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from mainspring.errors import StoreError
from mainspring.log import get_log
from mainspring.worker.outage import Outage

log = get_log("mainspring.worker")


class Backoff:
    """Pauses of 0.05 s, doubling up to 5 s, each slightly random. They start anew after a success."""

    def __init__(self, first: float = 0.05, most: float = 5.0) -> None:
        self._first, self._most = first, most
        self.next = first

    def reset(self) -> None:
        self.next = self._first

    async def wait(self, unless: asyncio.Event | None = None) -> None:
        """Wait for the next pause, or until the event is set."""
        delay = self.next * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load
        self.next = min(self._most, self.next * 2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await (unless or asyncio.Event()).wait()


def is_being_cancelled() -> bool:
    """Return whether the current task is being cancelled, not just something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def supervised(name: str, step: Callable[[], Awaitable[None]], outage: Outage) -> None:
    """Call the step for ever. If it fails, report that and try again after a pause."""
    backoff = Backoff()
    while True:
        try:
            await step()
        except (Exception, asyncio.CancelledError) as error:  # the loop must survive whatever it is
            if is_being_cancelled():
                raise
            if isinstance(error, StoreError):
                outage.failed(name, error)
            else:
                log.warning("loop_failed", loop=name, error=f"{type(error).__name__}: {error}", retry_in=backoff.next)
            await backoff.wait()
        else:
            backoff.reset()
            outage.worked(name)
