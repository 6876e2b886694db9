"""The worker's slots: one asyncio task each, which runs jobs one after the other.

A task per job would cost more than a quick job itself. Each job still has a context of its own, as a task would give
it, so that no context variable leaks from one job into the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from mainspring.clock import since_boot
from mainspring.worker.chunks import PendingChunk
from mainspring.worker.executor import Executor
from mainspring.worker.gate import Gate, StartCheck
from mainspring.worker.run import Run, run_in_new_context
from mainspring.worker.runs import Runs

SLOTS_PER_WAIT = 2  # slots that are set to work whenever a job has to wait, so that many are soon busy
CANCEL_TIMEOUT = 1.0  # seconds that cancelled slots have to end
MAX_TURN = 0.0005  # seconds for which one slot runs jobs that never wait, before the event loop gets its turn


class SlotPool:
    """Runs what is in `Runs.ready`, in its order, in at most `limit` slots. A slot is started when it is needed."""

    def __init__(self, limit: int, runs: Runs, gate: Gate, check: StartCheck, executor: Executor) -> None:
        self._limit = limit
        self._runs = runs
        self._ready = runs.ready
        self._gate = gate
        self._check = check
        self._executor = executor
        self._slots: list[asyncio.Task[None]] = []
        self._resting: list[asyncio.Future[None]] = []
        self._closing = False
        self._loop = asyncio.get_running_loop()

    def put(self, chunk: PendingChunk) -> None:
        self._ready.append(chunk)
        self.feed()

    def feed(self) -> None:
        """Set slots to work, if something is ready.

        A slot sets others to work when its job has to wait. So one slot runs jobs that never wait in a row, without a
        turn of the event loop for each of them.
        """
        for _ in range(min(len(self._ready), SLOTS_PER_WAIT)):
            self._set_one_to_work()

    async def close(self) -> None:
        """Cancel what still runs. A handler that ignores its cancellation is left behind."""
        self._closing = True
        for slot in self._slots:
            slot.cancel()
        if self._slots:
            await asyncio.wait(self._slots, timeout=CANCEL_TIMEOUT)
        self._slots.clear()

    # -- slots ----------------------------------------------------------------------------------

    def _set_one_to_work(self) -> None:
        while self._resting:
            resting = self._resting.pop()
            if not resting.done():
                resting.set_result(None)
                return
        if len(self._slots) < self._limit:
            number = len(self._slots) + 1
            self._slots.append(self._loop.create_task(self._serve(), name=f"mainspring-slot-{number}"))

    async def _serve(self) -> None:
        slot = asyncio.current_task()
        assert slot is not None  # noqa: S101 - a coroutine that runs is in a task
        while not self._closing:
            try:
                await self._run_some(slot)
                if self._ready:
                    await asyncio.sleep(0)
                elif not self._closing:
                    await self._rest()
            except asyncio.CancelledError:  # from something that a job left behind: the slot must not end by it
                if self._closing:
                    raise
                uncancel(slot)

    async def _run_some(self, slot: asyncio.Task[None]) -> None:
        ready, run, time = self._ready, self.run, self._loop.time
        until = time() + MAX_TURN
        while ready and not self._closing:
            await run_in_new_context(run(ready.popleft(), slot), self.feed)
            if time() > until:
                return

    async def _rest(self) -> None:
        fed: asyncio.Future[None] = self._loop.create_future()
        self._resting.append(fed)
        await fed

    # -- what a slot does with a run ------------------------------------------------------------

    async def run(self, run: Run | PendingChunk, slot: asyncio.Task[None]) -> None:
        """Run one job in one slot, until its outcome is on the way to the store."""
        if isinstance(run, PendingChunk):
            await self._run_chunk(run.take(), slot)
            return
        if since_boot() > self._gate.open_until or run.needs_recheck:
            await self._check.end_unstartable([run])
            if run.ended:
                return
        self._runs.begin(run, slot)
        outcome = await self._executor.run(run)
        self._runs.finish(run, outcome)
        if run.written is not None or slot.cancelling():  # a handler may have swallowed its cancellation
            await leave([run], slot)

    async def _run_chunk(self, runs: list[Run], slot: asyncio.Task[None]) -> None:
        """Run several jobs in one slot by one call of their handler, until their outcomes are on the way."""
        await self._check.end_unstartable(runs)
        runs = [run for run in runs if not run.ended]
        if not runs:  # all of them were taken away while they waited for this slot
            self._runs.room.set()
            return
        self._runs.together += len(runs) - 1
        for run in runs:
            self._runs.begin(run, slot)
        outcomes = await self._executor.run_chunk(runs, slot)
        self._runs.together -= len(runs) - 1
        for run, outcome in outcomes:
            self._runs.finish(run, outcome)
        await leave(runs, slot)


async def leave(runs: Sequence[Run], slot: asyncio.Task[None]) -> None:
    """Wait for the writes that must be done before the slot takes the next run, and end its cancellation."""
    if slot.cancelling():
        await shed_cancellation(slot)
    for run in runs:
        if run.written is not None:
            await run.written


async def shed_cancellation(slot: asyncio.Task[None]) -> None:
    """Clear a cancellation that was requested but not raised yet: before Python 3.13 it would end the next job."""
    uncancel(slot)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


def uncancel(slot: asyncio.Task[None]) -> None:
    """Clear the cancellation of a slot: it was meant for the slot's job."""
    while slot.cancelling():
        slot.uncancel()
