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
from mainspring.worker.executor import Executor
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
        self._make_executor = partial(RecordingExecutor, self)
        self.waiting = waiting or Waiting()
        self.followed: Callable[[list[str]], None] = lambda _ids: None  # called with the ids of jobs that follow a run
        self.errors: dict[str, BaseException] = {}  # what handlers raised, by job id
        self.finished: list[str] = []  # ids of jobs that have run, and are not in `ran` yet

    @asynccontextmanager
    async def draining(self) -> AsyncIterator[Callable[[], Awaitable[Claims]]]:
        with self.waiting.draining():
            async with super().draining() as run_due:
                yield partial(self._step, run_due)

    async def _step(self, run_due: Callable[[], Awaitable[Claims]]) -> Claims:
        claims = await run_due()
        await self.runtime.bus.flush()  # what event subscribers do belongs to the same step
        await self._remember()
        return claims

    async def _remember(self) -> None:
        if self.finished:
            jobs = await self.runtime.store.get(self.finished)
            self.finished.clear()
            self.ran += [Ran(job, self._error_of(job)) for job in jobs]

    def _error_of(self, job: Job) -> BaseException | None:
        raised = self.errors.pop(job.id, None)
        if job.status not in FAILURES:
            return None
        if raised is None or isinstance(raised, asyncio.CancelledError):  # not raised by the handler, e.g. a timeout
            message = f"{job.failure.type}: {job.failure.message}" if job.failure else job.reason
            return JobFailed(message, job_id=job.id, status=job.status, failure=job.failure)
        return raised


class RecordingExecutor(Executor):
    """Runs the jobs of a `Recorder`, and reports each run to it."""

    def __init__(self, recorder: Recorder, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recorder = recorder

    async def run(self, run: Run) -> Outcome | None:
        with self._recorder.waiting.handling():
            outcome = await super().run(run)
        self._record(run, outcome)
        return outcome

    async def run_chunk(self, runs: list[Run], slot: asyncio.Task[None]) -> list[tuple[Run, Outcome | None]]:
        with self._recorder.waiting.handling():
            outcomes = await super().run_chunk(runs, slot)
        for run, outcome in outcomes:
            self._record(run, outcome)
        return outcomes

    def _raised(self, run: Run, error: BaseException) -> Outcome | None:
        self._recorder.errors[run.claim.id] = error
        return super()._raised(run, error)

    def _record(self, run: Run, outcome: Outcome | None) -> None:
        self._recorder.finished.append(run.claim.id)
        if outcome is not None:
            spawned = run.durable.spawned if run.durable is not None else []
            again = [run.claim.id] if outcome.move is Move.SUSPEND else []  # it may only wait for its children
            self._recorder.followed([*(job.id for job in outcome.follow_ups), *spawned, *again])


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
