"""The worker: it polls for due jobs and calls their handlers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import structlog

from examples.petitions.application.ports import (
    HaltCheckerProtocol,
    Heartbeat,
    HeartbeatPort,
    JobNotClaimedError,
    JobReleaseProtocol,
    JobSchedulerProtocol,
)
from examples.petitions.domain.models import ScheduledJob

log = structlog.get_logger("petitions.worker")

PAUSED = "Job worker paused due to system halt"
LATE = "job_worker_is_late"
JobHandler = Callable[[ScheduledJob], Awaitable[None]]
REPORT_PAUSE = 1.0  # seconds between two tries to report an end


class JobWorkerService:
    """Runs jobs with at-least-once delivery. Several workers may run beside each other.

    Each cycle: check the halt, claim due jobs, run them one after the other, and give a sign of life. The halt is
    checked again before each job. A halt checker that cannot answer counts as a halt.

    The queue gives a claimed job twice the `job_timeout`, counted from the claim. So a job that has waited behind slow
    ones for longer than one `job_timeout` is given back, and claimed again with its full time.
    """

    def __init__(
        self,
        scheduler: JobSchedulerProtocol,
        halt_checker: HaltCheckerProtocol,
        handlers: Mapping[str, JobHandler],
        *,
        heartbeat: HeartbeatPort,
        releaser: JobReleaseProtocol,
        name: str = "job-worker",
        poll_interval: float = 10.0,
        batch_size: int = 10,
        job_timeout: float = 60.0,
        heartbeat_interval: float = 5.0,
    ) -> None:
        self._scheduler = scheduler
        self._halt_checker = halt_checker
        self._handlers = dict(handlers)
        self._heartbeat = heartbeat
        self._releaser = releaser
        self.name = name
        self._poll_interval = poll_interval
        self._batch_size = batch_size
        self._job_timeout = job_timeout
        self._heartbeat_interval = heartbeat_interval
        self._stopping = asyncio.Event()
        self.processed = 0

    async def run(self) -> None:
        """Work until `stop` is called. A cycle that fails is logged, and the next one tries again."""
        while not self._stopping.is_set():
            began, processed = time.monotonic(), 0
            try:
                processed = await self.poll_once()
            except Exception as error:
                log.warning("job_worker_poll_failed", worker=self.name, error=described(error))
            if not processed:
                await self._sleep(self._poll_interval - (time.monotonic() - began))

    def stop(self) -> None:
        """Finish the job in progress, give back what was claimed beyond it, and end."""
        self._stopping.set()

    async def poll_once(self) -> int:
        """Run one cycle; return the number of jobs that were run."""
        if await self._is_halted():
            log.warning(PAUSED, worker=self.name)
            await self._beat(halted=True)
            return 0
        jobs = await self._claim()
        done, why = await self._process_all(jobs)
        await self._beat(halted=why == PAUSED)
        return done

    # -- a cycle --------------------------------------------------------------------------------

    async def _is_halted(self) -> bool:
        try:
            return await self._halt_checker.is_halted()
        except Exception as error:
            log.warning("halt_check_failed", worker=self.name, error=str(error), meaning="treated as a halt")
            return True

    async def _claim(self) -> Sequence[ScheduledJob]:
        """Claim due jobs. The scheduler may wait for them, but not for longer than this worker works."""
        claim = asyncio.ensure_future(self._scheduler.get_pending_jobs(self._batch_size))
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([claim, stop], return_when=asyncio.FIRST_COMPLETED)
            return claim.result() if claim.done() else []
        finally:
            stop.cancel()
            claim.cancel()  # has no effect if it is done; otherwise its jobs are given back
            await asyncio.wait([claim])

    async def _process_all(self, jobs: Sequence[ScheduledJob]) -> tuple[int, str | None]:
        """Run jobs one after the other. Return how many, and why the others were given back."""
        claimed_at = time.monotonic()
        for number, job in enumerate(jobs):
            if why := await self._reason_to_release(claimed_at):
                await self._release(jobs[number:], why)
                return number, why
            await self._process(job)
            self.processed += 1
        return len(jobs), None

    async def _reason_to_release(self, claimed_at: float) -> str | None:
        if self._stopping.is_set():
            return "job_worker_stops"
        if time.monotonic() - claimed_at >= self._job_timeout:
            return LATE
        return PAUSED if await self._is_halted() else None

    async def _release(self, jobs: Sequence[ScheduledJob], why: str) -> None:
        log.warning(why, worker=self.name, released=len(jobs))
        for job in jobs:
            await self._report(job, lambda job=job: self._releaser.release(job.id))  # type: ignore[misc]

    async def _process(self, job: ScheduledJob) -> None:
        beating = asyncio.create_task(self._keep_beating())
        try:
            reason = await self._call(job)
            if reason is None:
                await self._report(job, lambda: self._scheduler.mark_completed(job.id))
            else:
                await self._fail(job, reason)
        finally:
            beating.cancel()
            await asyncio.wait([beating])

    async def _call(self, job: ScheduledJob) -> str | None:
        """Call the job's handler. Return why it failed, or None."""
        handler = self._handlers.get(job.job_type)
        if handler is None:
            return f"no handler for jobs of type {job.job_type!r}; there are: {', '.join(sorted(self._handlers))}"
        limit = asyncio.timeout(self._job_timeout)
        try:
            async with limit:
                await handler(job)
        except Exception as error:
            return f"it took longer than {self._job_timeout:g} s" if limit.expired() else described(error)
        return None

    async def _fail(self, job: ScheduledJob, reason: str) -> None:
        log.warning("job_failed", job_id=str(job.id), job_type=job.job_type, attempt=job.attempts, reason=reason)
        await self._report(job, lambda: self._scheduler.mark_failed(job.id, reason))

    async def _report(self, job: ScheduledJob, send: Callable[[], Awaitable[None]]) -> None:
        """Report what became of a job, again and again while the queue does not answer: else it would stay claimed."""
        while True:
            try:
                await send()
            except JobNotClaimedError as error:
                log.warning("job_lost", job_id=str(job.id), job_type=job.job_type, reason=str(error))
            except Exception as error:
                log.warning("job_report_failed", job_id=str(job.id), error=str(error), retry_in=REPORT_PAUSE)
                await self._sleep(REPORT_PAUSE)
                if not self._stopping.is_set():
                    continue
            return

    # -- signs of life --------------------------------------------------------------------------

    async def _beat(self, *, halted: bool) -> None:
        await self._heartbeat.beat(Heartbeat(self.name, halted, self.processed))

    async def _keep_beating(self) -> None:
        """Give signs of life while a handler runs: it may take longer than its lease."""
        while True:
            await asyncio.sleep(self._heartbeat_interval)
            try:
                await self._beat(halted=False)
            except Exception as error:
                log.warning("heartbeat_failed", worker=self.name, error=str(error))

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stopping.wait()


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
