"""The port to the job queue."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from examples.petitions.domain.models import ScheduledJob


class SystemHaltedError(Exception):
    """The system is halted: no deadline is scheduled (ADR-3)."""


class InvalidRequestError(ValueError):
    """The request makes no sense. Nothing was changed; the message says what is allowed."""


class UnknownJobTypeError(InvalidRequestError):
    """No program handles this type of job, so its deadline would never fire (FM-7.1)."""


class JobNotClaimedError(Exception):
    """This worker does not hold the job, or not any more. Another worker may be running it."""


@runtime_checkable
class JobSchedulerProtocol(Protocol):
    """Schedules deadlines, and hands them out when they are due.

    - CT-11: a job that fails is never lost in silence. It is tried again, and at last becomes a dead letter.
    - CT-12: each attempt is on record.
    - HP-1: jobs survive the process that scheduled them, and the one that runs them.

    Each method names the errors that its caller can act on. Any other exception means that the queue does not answer;
    the caller may repeat the call later.
    """

    async def schedule(self, job_type: str, payload: dict[str, Any], run_at: datetime) -> UUID:
        """Store a job that is due at `run_at`.

        Raise SystemHaltedError during a halt, UnknownJobTypeError for a type without a handler, and InvalidRequestError
        if the payload is not JSON or does not fit the type of job, or if `run_at` is not a time with a zone.
        """
        ...

    async def cancel(self, job_id: UUID) -> bool:
        """Cancel a job that waits, also one that waits for its retry.

        Return False if there is no such job, if the job runs, or if it has finished. Nothing is changed then. If the
        attempt that runs fails, the job is retried or becomes a dead letter as usual.
        """
        ...

    async def get_pending_jobs(self, limit: int) -> list[ScheduledJob]:
        """Claim up to `limit` due jobs for this worker, those with the earliest times first.

        No other worker gets them until they are marked or released. Raise InvalidRequestError unless `limit` is from 1
        to 1,000.
        """
        ...

    async def mark_completed(self, job_id: UUID) -> None:
        """End a claimed job. Raise JobNotClaimedError if this worker does not hold it."""
        ...

    async def mark_failed(self, job_id: UUID, reason: str) -> None:
        """Record a failed attempt: the next one comes 30 s, then 60 s later; the third failure is a dead letter.

        Raise JobNotClaimedError if this worker does not hold the job, and InvalidRequestError if the reason is empty.
        """
        ...


@runtime_checkable
class JobReleaseProtocol(Protocol):
    """Takes back claimed jobs that were not begun, because a halt or a shutdown came in between."""

    async def release(self, job_id: UUID) -> None:
        """Let any worker claim the job again, without using an attempt.

        Raise JobNotClaimedError if this worker does not hold it.
        """
        ...
