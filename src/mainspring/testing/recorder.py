"""A worker that runs one job after the other and records the runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from mainspring.app import Mainspring
from mainspring.errors import JobFailed
from mainspring.job import Job, Move, Outcome, Status
from mainspring.stores.protocol import Claims
from mainspring.testing.waiting import Waiting
from mainspring.worker import Worker
from mainspring.worker.chunker import PendingChunk
from mainspring.worker.run import Run

FAILURES = frozenset({Status.RETRYING, Status.DEAD_LETTER})
MAX_RUNS = 10_000  # at one moment of virtual time
numbers = count(1)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a job."""

    job: Job  # as it was right after this run
    error: BaseException | None = field(default=None, compare=False)  # what the handler raised, if the run failed

    @property
    def task(self) -> str:
        return self.job.task

    @property
    def args(self) -> Any:
        return self.job.payload

    @property
    def status(self) -> Status:
        return self.job.status


class Recorder(Worker):
    """A worker with one slot: with several slots, the order of the runs would be random."""

    def __init__(self, app: Mainspring, waiting: Waiting | None = None, *, schedules: bool = True) -> None:
        super().__init__(app, concurrency=1, prefetch=0, ack_delay=0.0, child_processes=1, id=f"test-{next(numbers)}")
        self.ran: list[Ran] = []
        self._reconciled = not schedules  # True keeps declared schedules out of the store
        self._waiting = waiting or Waiting()
        self.followed: Callable[[list[str]], None] = lambda _ids: None  # called with the ids of jobs that follow a run
        self._errors: dict[str, BaseException] = {}
        self._finished: list[str] = []

    @asynccontextmanager
    async def draining(self) -> AsyncIterator[Callable[[], Awaitable[Claims]]]:
        with self._waiting.draining():
            async with super().draining() as run_due:
                yield partial(self._step, run_due)

    async def _step(self, run_due: Callable[[], Awaitable[Claims]]) -> Claims:
        claims = await run_due()
        await self.app.bus.flush()  # what event subscribers do belongs to the same step
        await self._remember()
        return claims

    async def _execute(self, run: Run | PendingChunk, slot: asyncio.Task[None]) -> None:
        with self._waiting.handling():
            await super()._execute(run, slot)

    async def _remember(self) -> None:
        if self._finished:
            jobs = await self.store.get(self._finished)
            self._finished.clear()
            self.ran += [Ran(job, self._error_of(job)) for job in jobs]

    def _error_of(self, job: Job) -> BaseException | None:
        raised = self._errors.pop(job.id, None)
        if job.status not in FAILURES:
            return None
        if raised is None or isinstance(raised, asyncio.CancelledError):  # not raised by the handler, e.g. a timeout
            message = f"{job.failure.type}: {job.failure.message}" if job.failure else job.reason
            return JobFailed(message, job_id=job.id, status=job.status, failure=job.failure)
        return raised

    def _raised(self, run: Run, error: BaseException) -> Outcome | None:
        self._errors[run.claim.id] = error
        return super()._raised(run, error)

    def _finish(self, run: Run, outcome: Outcome | None) -> None:
        self._finished.append(run.claim.id)
        if outcome is not None:
            spawned = run.durable.spawned if run.durable is not None else []
            again = [run.claim.id] if outcome.move is Move.SUSPEND else []  # it may only wait for its children
            self.followed([*(job.id for job in outcome.follow_ups), *spawned, *again])
        super()._finish(run, outcome)


async def run_all(run_due: Callable[[], Awaitable[Claims]], limit: int = MAX_RUNS) -> Claims:
    """Run jobs until nothing is due; return the last, empty claims, which say when the next job is due."""
    for _ in range(limit + 1):
        claims = await run_due()
        if not claims.jobs:
            return claims
    msg = f"{limit} runs, and jobs are still due: does a job enqueue or snooze itself for ever? If not, raise limit"
    raise RuntimeError(msg)


def raise_failures(ran: list[Ran]) -> None:
    """Raise the errors of the runs: a single error as it is, several as a group."""
    errors = [run.error for run in ran if run.error is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        msg = f"{len(errors)} of {len(ran)} runs failed"
        raise BaseExceptionGroup(msg, errors)
