"""Keeps the worker's loops running while the store is away, and reports the outage.

An outage is logged once, then ever more rarely, and once more when the store is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial

from mainspring.clock import Clock, Millis
from mainspring.errors import StoreError
from mainspring.health import Contact
from mainspring.log import get_log

log = get_log("mainspring.worker")

Step = Callable[[], Awaitable[None]]
FIRST_REMINDER, LONGEST_REMINDER = 10.0, 600.0  # seconds between two warnings about an outage; it doubles
LONGEST_SLEEP = 10.0  # seconds that a loop sleeps when nothing is due and nothing wakes it


class Outage:
    """What all loops of a worker know about a store outage. Any thread may call it.

    An outage begins when the first loop fails. It is over when each loop that failed has reached the store again.
    `contact` is told too, on the event loop that made this object, where its subscribers run.
    """

    def __init__(
        self, worker: str, contact: Contact | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._worker = worker
        self._contact = contact
        self._home = None if contact is None else asyncio.get_running_loop()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failing: set[str] = set()  # loops
        self._told: set[type[StoreError]] = set()  # kinds of errors that were logged as a warning
        self._since = self._remind_at = self._pause = 0.0
        self._reached_at: float | None = None  # the first success after the last failure
        self._failures = 0

    def failed(self, loop: str, error: StoreError) -> None:
        self._log(loop, error)
        if self._contact is not None:
            self._tell(partial(self._contact.failed, self._worker, error))

    def _log(self, loop: str, error: StoreError) -> None:
        with self._lock:
            now = self._monotonic()
            if not self._failing:
                self._begin(now)
            self._failing.add(loop)
            self._failures += 1
            self._reached_at = None
            fields = {
                "worker": self._worker,
                "loop": loop,
                "error": f"{type(error).__name__}: {error}",
                "gone_for": round(now - self._since, 3),
            }
            if type(error) in self._told and now < self._remind_at:
                log.debug("store_unavailable", **fields)
                return
            log.warning("store_unavailable", **fields)
            self._told.add(type(error))
            self._remind_at = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_REMINDER)

    def worked(self, loop: str) -> None:
        if loop not in self._failing:  # nearly always
            return
        with self._lock:
            self._failing.discard(loop)
            if self._reached_at is None:
                self._reached_at = self._monotonic()
            is_over = not self._failing
            if is_over:
                gone_for = round(self._reached_at - self._since, 3)
                log.info("store_back", worker=self._worker, gone_for=gone_for, failures=self._failures)
        if is_over and self._contact is not None:
            self._tell(partial(self._contact.answered, self._worker))

    def _begin(self, now: float) -> None:
        self._since, self._failures, self._pause = now, 0, FIRST_REMINDER
        self._told.clear()

    def _tell(self, news: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the worker's loop is closed
            if self._home is not None:
                self._home.call_soon_threadsafe(news)


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


async def supervised(name: str, step: Step, outage: Outage) -> None:
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


@contextlib.asynccontextmanager
async def supervised_loops(steps: Mapping[str, Step], outage: Outage) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run a supervised loop for each of the steps, side by side, until the block ends."""
    loops = [
        asyncio.create_task(supervised(name, step, outage), name=f"mainspring-{name}") for name, step in steps.items()
    ]
    try:
        yield loops
    finally:  # also if we are cancelled: no loop may claim for a worker that has left
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def sleep_until(
    due: Millis | None, clock: Clock, wake: asyncio.Event, most: float | None = None, longest: float = LONGEST_SLEEP
) -> None:
    """Sleep until this time, for at most `most` or `longest` seconds, or until the event is set."""
    seconds = longest if most is None else min(most, longest)
    if due is not None:
        seconds = min(seconds, max(0.0, (due - clock.now()) / 1000))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()
