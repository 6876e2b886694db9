"""A job queue in memory, for unit tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from examples.petitions.application.ports import (
    InvalidRequestError,
    JobNotClaimedError,
    SystemHaltedError,
    UnknownJobTypeError,
)
from examples.petitions.domain.models import DeadLetterJob, JobStatus, ScheduledJob

MAX_LIMIT = 1000  # jobs in one claim
RETRY_DELAYS = (timedelta(seconds=30), timedelta(seconds=60))


class JobSchedulerStub:
    """Implements JobSchedulerProtocol and JobReleaseProtocol, with the same rules as the real queue.

    `job_types` are the types of jobs that have a handler; None stands for all.
    """

    def __init__(
        self, now: Callable[[], datetime] = lambda: datetime.now(UTC), job_types: Collection[str] | None = None
    ) -> None:
        self._now = now
        self._job_types = job_types
        self.halted = False
        self.jobs: dict[UUID, ScheduledJob] = {}  # all that were ever scheduled, except for cancelled ones
        self.scheduled: list[UUID] = []
        self.cancelled: list[UUID] = []
        self.completed: list[UUID] = []
        self.released: list[UUID] = []
        self.failed: list[tuple[UUID, str]] = []  # every attempt that failed
        self.dead_letters: list[DeadLetterJob] = []

    async def schedule(self, job_type: str, payload: dict[str, Any], run_at: datetime) -> UUID:
        if self.halted:
            raise SystemHaltedError("the system is halted; schedule the job once it is resumed")
        job = self._new_job(job_type, payload, run_at)
        self.jobs[job.id] = job
        self.scheduled.append(job.id)
        return job.id

    def _new_job(self, job_type: str, payload: dict[str, Any], run_at: datetime) -> ScheduledJob:
        try:
            stored = json.loads(json.dumps(payload, allow_nan=False))
            job = ScheduledJob(uuid4(), job_type, stored, run_at, self._now())
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidRequestError(str(error)) from error
        if self._job_types is not None and job_type not in self._job_types:
            raise UnknownJobTypeError(f"no handler for jobs of type {job_type!r}; there are: {self._job_types}")
        return job

    async def cancel(self, job_id: UUID) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.status is not JobStatus.PENDING:
            return False
        del self.jobs[job_id]
        self.cancelled.append(job_id)
        return True

    async def get_pending_jobs(self, limit: int) -> list[ScheduledJob]:
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidRequestError(f"limit is {limit!r}; give a whole number from 1 to {MAX_LIMIT}")
        if self.halted:
            return []
        now = self._now()
        due = [job for job in self.jobs.values() if job.status is JobStatus.PENDING and job.scheduled_for <= now]
        due.sort(key=lambda job: job.scheduled_for)
        return [
            self._set(job, status=JobStatus.PROCESSING, attempts=job.attempts + 1, last_attempt_at=now)
            for job in due[:limit]
        ]

    async def mark_completed(self, job_id: UUID) -> None:
        self._set(self._held(job_id), status=JobStatus.COMPLETED)
        self.completed.append(job_id)

    async def mark_failed(self, job_id: UUID, reason: str) -> None:
        if not reason:
            raise InvalidRequestError("the reason is empty; say why the job failed (CT-11)")
        job, now = self._held(job_id), self._now()
        self.failed.append((job_id, reason))
        if job.attempts <= len(RETRY_DELAYS):
            self._set(job, status=JobStatus.PENDING, scheduled_for=now + RETRY_DELAYS[job.attempts - 1])
            return
        self._set(job, status=JobStatus.FAILED)
        self.dead_letters.append(DeadLetterJob(job.id, job.id, job.job_type, job.payload, reason, now, job.attempts))

    async def release(self, job_id: UUID) -> None:
        job = self._held(job_id)
        self._set(job, status=JobStatus.PENDING, attempts=job.attempts - 1)
        self.released.append(job_id)

    def _held(self, job_id: UUID) -> ScheduledJob:
        job = self.jobs.get(job_id)
        if job is None or job.status is not JobStatus.PROCESSING:
            raise JobNotClaimedError(f"job {job_id} is not claimed; claim it with get_pending_jobs")
        return job

    def _set(self, job: ScheduledJob, **changes: Any) -> ScheduledJob:
        self.jobs[job.id] = changed = replace(job, **changes)
        return changed
