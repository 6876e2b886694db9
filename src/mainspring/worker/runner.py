"""What a slot does with a run: the last check, the call of its handler, and passing on its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mainspring.clock import since_boot
from mainspring.worker.admission import StartCheck
from mainspring.worker.chunker import PendingChunk
from mainspring.worker.executor import Executor
from mainspring.worker.gate import Gate
from mainspring.worker.run import Run
from mainspring.worker.runs import Runs
from mainspring.worker.slots import shed_cancellation


class Runner:
    """Runs jobs in the slots of one worker."""

    def __init__(self, gate: Gate, check: StartCheck, executor: Executor, runs: Runs) -> None:
        self._gate = gate
        self._check = check
        self._executor = executor
        self._runs = runs

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
