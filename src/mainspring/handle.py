"""A handle of one job: what an enqueue returns, and what `task.handle(job_id)` and `app.job(job_id)` make."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from mainspring.clock import Length, duration
from mainspring.errors import JobFailed, JobNotFound
from mainspring.features.durable.states import StepState
from mainspring.job import Job, Status
from mainspring.jobs import Jobs
from mainspring.services import JobTask

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


@dataclass(slots=True)
class JobHandle(Generic[R_co]):
    """One job, by its id."""

    id: str
    created: bool  # False: another job already held the dedupe key, or the handle was made for an existing job
    _jobs: Jobs = field(repr=False)
    _task: JobTask | None = field(repr=False)  # None: the job may be of any task

    async def get(self) -> Job:
        """Read the job. Raise JobNotFound if it is gone, or if it is a job of another task than this handle's."""
        job = await self._jobs.get(self.id)
        if self._task is not None and job.task != self._task.name:
            msg = f"job {self.id} is of task {job.task!r}, not {self._task.name!r}; use app.job(…) for jobs of any task"
            raise JobNotFound(msg)
        return job

    def get_sync(self) -> Job:
        return self._run(self.get())

    async def status(self) -> Status:
        return (await self.get()).status

    def status_sync(self) -> Status:
        return self._run(self.status())

    async def steps(self) -> list[StepState]:
        """Return the steps of a durable function and their states."""
        return await self._jobs.steps(self.id)

    def steps_sync(self) -> list[StepState]:
        return self._run(self.steps())

    async def cancel(self, *, reason: str = "", actor: str | None = None) -> bool:
        """Cancel a waiting job at once and return True; ask a running job to stop and return False."""
        return await self._jobs.cancel(self.id, reason=reason, actor=actor)

    def cancel_sync(self, *, reason: str = "", actor: str | None = None) -> bool:
        return self._run(self.cancel(reason=reason, actor=actor))

    async def result(self, timeout: Length | None = None) -> R_co:
        """Wait until the job has finished, and return its result as the type that its task returns.

        Raise JobFailed if it did not complete. For the rest, see `wait`.
        """
        return self._result_of(await self.wait(timeout))

    def result_sync(self, timeout: Length | None = None) -> R_co:
        return self._run(self.result(timeout))

    async def wait(self, timeout: Length | None = None) -> Job:
        """Wait until the job has finished, in whatever way, and return it.

        Raise TimeoutError if it took longer than `timeout`. In a test under `testing.manual(app)` nothing runs by
        itself, so an unfinished job raises an error at once.
        """
        limit = None if timeout is None else duration(timeout) / 1000
        wait = asyncio.timeout(limit)
        try:
            async with wait:
                return await self._finished()
        except TimeoutError:
            if not wait.expired():
                raise
            msg = (
                f"job {self.id}{self._of_task()} has not finished within {limit:g} s; is a worker running? "
                f"`mainspring jobs why {self.id}` shows what it waits for"
            )
            raise TimeoutError(msg) from None

    def wait_sync(self, timeout: Length | None = None) -> Job:
        return self._run(self.wait(timeout))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._jobs.services.run(work)

    async def _finished(self) -> Job:
        pause = 0.005
        while not (job := await self.get()).finished:
            if self._jobs.services.before_waiting is not None:
                self._jobs.services.before_waiting(job)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.25)
        return job

    def _result_of(self, job: Job) -> R_co:
        if job.status is not Status.COMPLETED:
            detail = f"{job.failure.type}: {job.failure.message}" if job.failure else job.reason
            msg = f"job {job.id} of task {job.task!r} ended as {job.status}: {detail}"
            raise JobFailed(msg, job_id=job.id, status=job.status, failure=job.failure)
        task = self._task or self._jobs.services.tasks.get(job.task)
        return cast("R_co", job.result if task is None else task.payload.load_result(job.result))

    def _of_task(self) -> str:
        return "" if self._task is None else f" of task {self._task.name!r}"
