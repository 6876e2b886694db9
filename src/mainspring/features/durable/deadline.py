"""Timeouts of steps: a coroutine is cancelled, a function in a thread is told through its context."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

from mainspring.errors import StepTimeout

current_deadline: ContextVar[Deadline | None] = ContextVar("mainspring_deadline", default=None)
"""The deadline of the step that is executing in this context, if it runs in a thread and has a timeout."""


class Deadline:
    """The deadline of one step that runs in a thread. A thread cannot be stopped, so the step is only told."""

    def __init__(self, step: str, seconds: float) -> None:
        self.step = step
        self.seconds = seconds
        self.told = threading.Event()  # the time is over, or the whole run must stop
        self.over = False

    def expire(self) -> None:
        self.over = True
        self.told.set()

    def error(self) -> StepTimeout:
        return StepTimeout.of(self.step, self.seconds)


@contextlib.asynccontextmanager
async def cancelled_after(step: str, seconds: float | None) -> AsyncIterator[None]:
    """Cancel the block after this time, and raise StepTimeout then. A block that ends nevertheless counts."""
    if seconds is None:
        yield
        return
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():  # it is the function's own
            raise
        raise StepTimeout.of(step, seconds) from error


@contextlib.contextmanager
def told_after(step: str, seconds: float | None) -> Iterator[None]:
    """Tell a function in a thread when its time is over. What it raises after that becomes StepTimeout.

    If it returns all the same, its result counts: the work is done, and repeating it would not help.
    """
    if seconds is None:
        yield
        return
    deadline = Deadline(step, seconds)
    token = current_deadline.set(deadline)
    timer = threading.Timer(seconds, deadline.expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if deadline.over and not isinstance(error, StepTimeout):
            raise deadline.error() from error
        raise
    finally:
        timer.cancel()
        current_deadline.reset(token)
