"""Runs jobs as the executor does, with observers around them. Workers without observers do not use this."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from mainspring.job import Outcome
from mainspring.observer import Execution, Observers, Result
from mainspring.worker.executor import Executor, LastCheck, hold_back
from mainspring.worker.run import Run


class Runner(Protocol):
    """What a slot needs: an `Executor`, or an `ObservedExecutor`."""

    async def run(self, run: Run) -> Outcome | None: ...
    async def run_chunk(self, runs: list[Run], slot: asyncio.Task[None]) -> list[tuple[Run, Outcome | None]]: ...


def observed(executor: Executor, observers: Observers, check: LastCheck, worker: str) -> Runner:
    """Return what runs jobs under these observers; the executor itself if there are none."""
    return ObservedExecutor(executor, observers, check, worker) if observers else executor


class ObservedExecutor:
    """Calls the observers around each run; belongs to one event loop."""

    def __init__(self, executor: Executor, observers: Observers, check: LastCheck, worker: str) -> None:
        self._executor = executor
        self._observers = observers
        self._check = check
        self._worker = worker

    async def run(self, run: Run) -> Outcome | None:
        if run.task.is_internal:
            return await self._executor.run(run)
        execution = self._execution([run])
        try:
            await self._get_ready([run], execution)
        except BaseException as error:  # noqa: BLE001 - the run was cancelled or halted meanwhile
            return self._executor.outcome_of(run, error)
        with self._observers.around(execution):
            outcome = await self._executor.run(run)
            execution.results = [Result(run.claim, outcome, run.error)]
        return outcome

    async def run_chunk(self, runs: list[Run], slot: asyncio.Task[None]) -> list[tuple[Run, Outcome | None]]:
        execution = self._execution(runs)
        try:
            await self._get_ready(runs, execution)
        except BaseException as error:  # noqa: BLE001 - as above
            return [(run, self._executor.outcome_of(run, error)) for run in runs]
        with self._observers.around(execution):
            outcomes = await self._executor.run_chunk(runs, slot)
            execution.results = [Result(run.claim, outcome, run.error) for run, outcome in outcomes]
        return outcomes

    def _execution(self, runs: Sequence[Run]) -> Execution:
        for run in runs:
            run.observed = True
        return Execution(tuple(run.claim for run in runs), self._worker, runs[0].started_at)

    async def _get_ready(self, runs: Sequence[Run], execution: Execution) -> None:
        """Let observers get ready. As this may take a while, check again whether the runs may start."""
        if await self._observers.before(execution) and not await self._check.still_permits(runs):
            hold_back(runs)
