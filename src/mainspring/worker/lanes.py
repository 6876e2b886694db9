"""The worker's slots: one asyncio task each, which runs jobs one after the other.

A task per job would cost more than a quick job itself. Each job still has a context of its own, as a task would give
it, so that no context variable leaks from one job into the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
W = TypeVar("W")  # what one call of `execute` runs

CALLED = 2  # lanes by each that has to wait, so that many are soon there
LAST_WORDS = 1.0  # seconds that cancelled lanes have to end
TURN = 0.0005  # seconds that jobs which never wait may run in a row, before the event loop gets its turn


class Lanes(Generic[W]):
    """At most `limit` lanes, started when needed. They take from the buffer, in its order."""

    def __init__(
        self, limit: int, buffer: deque[W], execute: Callable[[W, asyncio.Task[None]], Coroutine[Any, Any, None]]
    ) -> None:
        self._limit = limit
        self._buffer = buffer
        self._execute = execute
        self._lanes: list[asyncio.Task[None]] = []
        self._resting: list[asyncio.Future[None]] = []
        self._closing = False
        self._loop = asyncio.get_running_loop()

    def feed(self) -> None:
        """There is something in the buffer: set a lane to work. It calls for others if its job waits for something.

        Jobs that never wait are so run by one lane in a row, and the event loop need not go round for each of them.
        """
        for _ in range(min(len(self._buffer), CALLED)):
            self._call_one()

    async def close(self) -> None:
        """Whatever still runs is cancelled; a handler that does not let itself be cancelled is left behind."""
        self._closing = True
        for lane in self._lanes:
            lane.cancel()
        if self._lanes:
            await asyncio.wait(self._lanes, timeout=LAST_WORDS)
        self._lanes.clear()

    def _call_one(self) -> None:
        while self._resting:
            resting = self._resting.pop()
            if not resting.done():
                resting.set_result(None)
                return
        if len(self._lanes) < self._limit:
            number = len(self._lanes) + 1
            self._lanes.append(self._loop.create_task(self._serve(), name=f"mainspring-lane-{number}"))

    async def _serve(self) -> None:
        lane = asyncio.current_task()
        assert lane is not None  # noqa: S101 - a coroutine that runs is in a task
        while not self._closing:
            try:
                await self._run_some(lane)
                if self._buffer:
                    await asyncio.sleep(0)
                elif not self._closing:
                    await self._rest()
            except asyncio.CancelledError:  # by what a job left behind; a lane that ended would be a slot less for ever
                if self._closing:
                    raise
                uncancel(lane)

    async def _run_some(self, lane: asyncio.Task[None]) -> None:
        buffer, time = self._buffer, self._loop.time
        until = time() + TURN
        while buffer and not self._closing:
            await apart(self._execute(buffer.popleft(), lane), self.feed)
            if time() > until:
                return

    async def _rest(self) -> None:
        fed: asyncio.Future[None] = self._loop.create_future()
        self._resting.append(fed)
        await fed


def frames_of(lane: asyncio.Task[None]) -> list[types.FrameType]:
    """Where a lane is suspended, down to what its handler awaits. `Task.get_stack` would stop at `apart`."""
    frames: list[types.FrameType] = []
    awaitable: Any = lane.get_coro()
    while (frame := getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)) is not None:
        frames.append(frame)
        if frame.f_code is apart.__code__:
            awaitable = frame.f_locals["work"]
        else:
            awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
    return frames


def uncancel(lane: asyncio.Task[None]) -> None:
    """The cancellation was meant for the job; the lane goes on."""
    while lane.cancelling():
        lane.uncancel()


async def shed_cancellation(lane: asyncio.Task[None]) -> None:
    """Before Python 3.13 one that was asked for, but that no await has met yet, stays: it would end the next job."""
    uncancel(lane)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


@types.coroutine
def apart(work: Coroutine[Any, Any, T], on_wait: Callable[[], None]) -> Generator[Any, Any, T]:
    """Await a coroutine in a copy of this context: what it sets there stays there."""
    context = contextvars.copy_context()
    step: Callable[[Any], Any] = work.send
    argument: Any = None
    try:
        wanted = context.run(step, None)
    except StopIteration as stop:
        return cast("T", stop.value)
    on_wait()
    while True:
        try:
            argument = yield wanted
            step = work.send
        except BaseException as error:  # noqa: BLE001 - whatever is thrown at us is for the coroutine
            step, argument = work.throw, error
        try:
            wanted = context.run(step, argument)
        except StopIteration as stop:
            return cast("T", stop.value)
