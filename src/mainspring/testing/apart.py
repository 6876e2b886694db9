"""Wait for a coroutine in code that cannot await, even while an event loop runs in this thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on its own loop: in this thread, or in a new thread if a loop already runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_here(work)
    return in_thread(work).result()


def run_here(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new loop. The loop factory keeps the runner from changing the thread's current loop."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)


def in_thread(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine in a new thread. A pool would run out of threads when one waits for the next."""
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(run_here, work))
        except BaseException as error:  # noqa: BLE001 - the caller that waits gets it
            future.set_exception(error)

    threading.Thread(target=run, name="mainspring-testing", daemon=True).start()
    return future
