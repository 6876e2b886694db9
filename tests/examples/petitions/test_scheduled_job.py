"""The domain's own rules about jobs."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from examples.petitions.domain.models import DeadLetterJob, JobStatus, ScheduledJob

NOW = datetime(2026, 1, 19, tzinfo=UTC)
JOB = ScheduledJob(uuid4(), "referral_timeout", {"petition_id": "7"}, NOW, NOW)
LETTER = DeadLetterJob(JOB.id, JOB.id, JOB.job_type, JOB.payload, "no such petition", NOW, 3)


def test_a_new_job_waits_and_has_not_been_attempted() -> None:
    assert (JOB.status, JOB.attempts, JOB.last_attempt_at) == (JobStatus.PENDING, 0, None)


def test_the_statuses_are_those_of_the_story() -> None:
    assert [status.value for status in JobStatus] == ["pending", "processing", "completed", "failed"]


@pytest.mark.parametrize("job", [JOB, LETTER])
def test_jobs_are_frozen_and_compared_by_value(job: ScheduledJob | DeadLetterJob) -> None:
    assert job == replace(job)
    assert hash(job) == hash(replace(job))
    assert job != replace(job, attempts=2)
    with pytest.raises(FrozenInstanceError):
        job.attempts = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"job_type": ""}, "job_type is empty"),
        ({"attempts": -1}, "attempts is -1; it cannot be negative"),
        ({"payload": "text"}, "payload must be a mapping"),
        ({"scheduled_for": datetime(2026, 1, 19)}, "scheduled_for has no time zone"),  # noqa: DTZ001
        ({"created_at": datetime(2026, 1, 19)}, "created_at has no time zone"),  # noqa: DTZ001
        ({"last_attempt_at": datetime(2026, 1, 19)}, "last_attempt_at has no time zone"),  # noqa: DTZ001
        ({"status": "lost"}, "'lost' is not a valid JobStatus"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises((ValueError, TypeError), match=problem):
        replace(JOB, **changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"failure_reason": ""}, "failure_reason is empty"),
        ({"failed_at": datetime(2026, 1, 19)}, "failed_at has no time zone"),  # noqa: DTZ001
        ({"job_type": ""}, "job_type is empty"),
    ],
)
def test_a_dead_letter_that_makes_no_sense_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        replace(LETTER, **changes)
