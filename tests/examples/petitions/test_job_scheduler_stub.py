"""The stub keeps the rules of the real queue, and remembers what was asked of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from examples.petitions.application.ports import JobNotClaimedError, SystemHaltedError
from examples.petitions.domain.models import JobStatus
from examples.petitions.infrastructure.stubs import JobSchedulerStub

START = datetime(2026, 1, 19, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


async def test_due_jobs_are_claimed_once_in_the_order_of_their_times() -> None:
    stub = JobSchedulerStub(Clock())
    late, early, future = [
        await stub.schedule("referral_timeout", {"n": n}, START + timedelta(seconds=n)) for n in (-1, -2, 1)
    ]
    assert [job.id for job in await stub.get_pending_jobs(1)] == [early]
    (job,) = await stub.get_pending_jobs(10)
    assert (job.id, job.status, job.attempts, job.last_attempt_at) == (late, JobStatus.PROCESSING, 1, START)
    assert await stub.get_pending_jobs(10) == []
    assert stub.scheduled == [late, early, future]


async def test_only_a_waiting_job_is_cancelled() -> None:
    stub = JobSchedulerStub(Clock())
    waiting = await stub.schedule("a", {}, START + timedelta(seconds=1))
    assert await stub.cancel(waiting)
    assert not await stub.cancel(waiting)
    assert not await stub.cancel(uuid4())
    running = await stub.schedule("a", {}, START)
    await stub.get_pending_jobs(1)
    assert not await stub.cancel(running)
    assert stub.cancelled == [waiting]


async def test_a_completed_job_is_over() -> None:
    stub = JobSchedulerStub(Clock())
    job_id = await stub.schedule("a", {}, START)
    with pytest.raises(JobNotClaimedError):
        await stub.mark_completed(job_id)
    await stub.get_pending_jobs(1)
    await stub.mark_completed(job_id)
    assert (stub.completed, stub.jobs[job_id].status) == ([job_id], JobStatus.COMPLETED)
    with pytest.raises(JobNotClaimedError):
        await stub.mark_failed(job_id, "too late")


async def test_a_failed_job_is_retried_after_30_and_60_seconds_and_then_a_dead_letter() -> None:
    clock = Clock()
    stub = JobSchedulerStub(clock)
    job_id = await stub.schedule("a", {"n": 1}, START)
    for delay in (30, 60):
        await stub.get_pending_jobs(1)
        await stub.mark_failed(job_id, "no")
        clock.advance(delay - 0.001)
        assert await stub.get_pending_jobs(1) == []
        clock.advance(0.001)
    await stub.get_pending_jobs(1)
    await stub.mark_failed(job_id, "no, no")
    (letter,) = stub.dead_letters
    assert (letter.original_job_id, letter.failure_reason, letter.attempts) == (job_id, "no, no", 3)
    assert [reason for _, reason in stub.failed] == ["no", "no", "no, no"]
    assert stub.jobs[job_id].status is JobStatus.FAILED


async def test_a_released_job_uses_no_attempt() -> None:
    stub = JobSchedulerStub(Clock())
    job_id = await stub.schedule("a", {}, START)
    await stub.get_pending_jobs(1)
    await stub.release(job_id)
    assert stub.released == [job_id]
    assert [job.attempts for job in await stub.get_pending_jobs(1)] == [1]


async def test_a_halt_stops_schedules_and_claims() -> None:
    stub = JobSchedulerStub(Clock())
    await stub.schedule("a", {}, START)
    stub.halted = True
    with pytest.raises(SystemHaltedError):
        await stub.schedule("a", {}, START)
    assert await stub.get_pending_jobs(1) == []
