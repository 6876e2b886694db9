"""Run coroutines for code without an event loop, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
LOOK_UP_SECONDS = 0.5  # how late Ctrl-C may be noticed


class Portal:
    """An event loop in a thread. It starts at first use; a forked child starts its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._lock = threading.Lock()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the portal's loop and wait for its result."""
        if self.here():
            work.close()
            msg = "the event loop that serves synchronous callers cannot wait for itself; use await here"
            raise RuntimeError(msg)
        return wait_for(asyncio.run_coroutine_threadsafe(work, self._started()))

    def here(self) -> bool:
        """Return whether the caller runs on the portal's own loop, as a coroutine that subscribes to events may."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._pid == os.getpid():
            loop.call_soon_threadsafe(loop.stop)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="mainspring-portal", daemon=True
                )
                self._thread.start()
            return self._loop


def wait_for(future: Future[T]) -> T:
    """Return the result of a future, and let Ctrl-C end the wait.

    Python runs signal handlers in the main thread, between two steps. A signal that arrives just before the thread
    blocks, or that the system gives to another thread, does not wake it. So the main thread looks up now and then.
    """
    if threading.current_thread() is not threading.main_thread():
        return future.result()
    while True:
        try:
            return future.result(LOOK_UP_SECONDS)
        except TimeoutError:
            if future.done():  # just now, or the coroutine raised this error
                return future.result()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        _cancel_all(loop)
    finally:
        loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks of the loop; otherwise other threads that wait for them would wait for ever."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, in the caller's thread: only there may a synchronous connection be used."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    msg = "an asynchronous connection needs `await task.using(connection=…).enqueue(…)`"
    raise TypeError(msg)
