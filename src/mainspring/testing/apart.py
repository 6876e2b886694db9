"""Waiting for a coroutine in code that cannot await, even while an event loop runs in this thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """On a loop of its own: here, or if a loop runs here already, in a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_here(work)
    return in_thread(work).result()


def run_here(work: Coroutine[Any, Any, T]) -> T:
    """With a factory, the runner leaves alone what this thread takes for its current loop: it may be a test's."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)


def in_thread(work: Coroutine[Any, Any, T]) -> Future[T]:
    """In a new thread: those of a pool would run out when one waits for the next."""
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(run_here, work))
        except BaseException as error:  # noqa: BLE001 - belongs to the one who waits
            future.set_exception(error)

    threading.Thread(target=run, name="mainspring-testing", daemon=True).start()
    return future
