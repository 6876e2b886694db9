"""Jobs as the petition system sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class JobStatus(StrEnum):
    PENDING = "pending"  # waits for its time, or for its next attempt
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"  # in the dead-letter queue


@dataclass(frozen=True, eq=True, slots=True)
class ScheduledJob:
    """A deadline that fires at `scheduled_for` (HP-1)."""

    id: UUID
    job_type: str
    payload: Mapping[str, Any] = field(hash=False)
    scheduled_for: datetime
    created_at: datetime
    attempts: int = 0
    last_attempt_at: datetime | None = None
    status: JobStatus = JobStatus.PENDING

    def __post_init__(self) -> None:
        check_common(self.job_type, self.payload, self.attempts)
        check_moment("scheduled_for", self.scheduled_for)
        check_moment("created_at", self.created_at)
        if self.last_attempt_at is not None:
            check_moment("last_attempt_at", self.last_attempt_at)
        JobStatus(self.status)


@dataclass(frozen=True, eq=True, slots=True)
class DeadLetterJob:
    """A job that has failed for good (HC-6). It keeps its id, so `id` and `original_job_id` are equal."""

    id: UUID
    original_job_id: UUID
    job_type: str
    payload: Mapping[str, Any] = field(hash=False)
    failure_reason: str
    failed_at: datetime
    attempts: int

    def __post_init__(self) -> None:
        check_common(self.job_type, self.payload, self.attempts)
        check_moment("failed_at", self.failed_at)
        if not self.failure_reason:
            raise ValueError("failure_reason is empty; say why the job failed (CT-11)")


def check_common(job_type: str, payload: Mapping[str, Any], attempts: int) -> None:
    if not job_type:
        raise ValueError("job_type is empty; name a type of job, such as 'referral_timeout'")
    if not isinstance(payload, Mapping):
        raise TypeError(f"payload must be a mapping, not {payload!r}")
    if attempts < 0:
        raise ValueError(f"attempts is {attempts}; it cannot be negative")


def check_moment(name: str, moment: datetime) -> None:
    if moment.utcoffset() is None:
        raise ValueError(f"{name} has no time zone ({moment.isoformat()}); a deadline without one is ambiguous")
