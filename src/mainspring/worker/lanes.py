"""The worker's slots: one asyncio task each, which runs jobs one after the other.

A task per job would cost more than a quick job itself. Each job still has a context of its own, as a task would give
it, so that no context variable leaks from one job into the next.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from mainspring.worker.run import Run

T = TypeVar("T")

LAST_WORDS = 1.0  # seconds that cancelled lanes have to end
QUANTUM = 4  # jobs that never wait are run so many at a time, before the event loop gets its turn


class Lanes:
    """At most `limit` lanes, started when needed. They take from the buffer, in its order."""

    def __init__(
        self, limit: int, buffer: deque[Run], execute: Callable[[Run, asyncio.Task[None]], Awaitable[None]]
    ) -> None:
        self._limit = limit
        self._buffer = buffer
        self._execute = execute
        self._lanes: list[asyncio.Task[None]] = []
        self._resting: list[asyncio.Future[None]] = []
        self._closing = False

    def feed(self) -> None:
        """There is something in the buffer: set as many lanes to work."""
        wanted = len(self._buffer)
        while wanted and self._resting:
            resting = self._resting.pop()
            if not resting.done():
                resting.set_result(None)
                wanted -= 1
        while wanted and len(self._lanes) < self._limit:
            self._open()
            wanted -= 1

    async def close(self) -> None:
        """Whatever still runs is cancelled; a handler that does not let itself be cancelled is left behind."""
        self._closing = True
        for lane in self._lanes:
            lane.cancel()
        if self._lanes:
            await asyncio.wait(self._lanes, timeout=LAST_WORDS)
        self._lanes.clear()

    def _open(self) -> None:
        number = len(self._lanes) + 1
        lane = asyncio.get_running_loop().create_task(self._serve(), name=f"mainspring-lane-{number}")
        self._lanes.append(lane)

    async def _serve(self) -> None:
        lane = asyncio.current_task()
        assert lane is not None  # noqa: S101 - a coroutine that runs is in a task
        done = 0
        while not self._closing:
            try:
                if not self._buffer:
                    await self._rest()
                    continue
                await self._execute(self._buffer.popleft(), lane)
                done += 1
                if done % QUANTUM == 0:
                    await asyncio.sleep(0)
            except asyncio.CancelledError:  # by what a job left behind; a lane that ended would be a slot less for ever
                if self._closing:
                    raise
                uncancel(lane)

    async def _rest(self) -> None:
        fed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append(fed)
        await fed


def uncancel(lane: asyncio.Task[None]) -> None:
    """The cancellation was meant for the job; the lane goes on."""
    while lane.cancelling():
        lane.uncancel()


@types.coroutine
def apart(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await a coroutine in a copy of this context: what it sets there stays there."""
    context = contextvars.copy_context()
    step: Callable[[Any], Any] = work.send
    argument: Any = None
    while True:
        try:
            wanted = context.run(step, argument)
        except StopIteration as stop:
            result: T = stop.value
            return result
        try:
            argument = yield wanted
            step = work.send
        except BaseException as error:  # noqa: BLE001 - whatever is thrown at us is for the coroutine
            step, argument = work.throw, error
