"""Runs plain functions in daemon threads: a thread that hangs cannot keep a stopped worker alive."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import queue
import threading
from collections.abc import Callable
from typing import Any

Work = tuple[contextvars.Context, Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class HeldBack(BaseException):
    """The job was halted between its claim and the moment when its handler was to be called.

    `except Exception` does not catch it, as with a cancellation. Otherwise middleware would report it as an error.
    """


class Threads:
    """As many threads as are needed at once, reused. The worker's concurrency limits their number."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._idle = 0
        self._count = 0
        self._lock = threading.Lock()

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call the function in a thread; return a future of its result, on the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._count += 1
                threading.Thread(target=self._serve, name=f"mainspring-{self._count}", daemon=True).start()
        self._inbox.put((contextvars.copy_context(), function, loop, future))
        return future

    def close(self) -> None:
        for _ in range(self._count):
            self._inbox.put(None)

    def _serve(self) -> None:
        while (work := self._inbox.get()) is not None:
            context, function, loop, future = work
            value, error = None, None
            try:
                value = context.run(function)
            except BaseException as raised:  # noqa: BLE001 - the caller that awaits the future gets it
                error = raised
            with self._lock:
                self._idle += 1
            with contextlib.suppress(RuntimeError):  # its loop is closed, so nothing awaits the future any more
                loop.call_soon_threadsafe(_settle, future, value, error)
            del work, context, function, future, value, error


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():  # the caller that awaited it has been stopped
        if inspect.iscoroutine(value):
            value.close()
        return
    # a future does not accept StopIteration, and GeneratorExit would end the coroutine that awaits it
    if isinstance(error, (StopIteration, GeneratorExit)):
        replacement = RuntimeError(f"handler raised {type(error).__name__}: {error}")
        error = replacement.with_traceback(error.__traceback__)
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
