"""What the port promises, on the stub and on PostgreSQL. So a test with the stub tells what the real queue does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID, uuid4

import pytest

from examples.petitions.application.ports import (
    InvalidRequestError,
    JobNotClaimedError,
    SystemHaltedError,
    UnknownJobTypeError,
)
from examples.petitions.domain.models import DeadLetterJob, JobStatus
from examples.petitions.infrastructure.stubs import JobSchedulerStub
from examples.petitions.system import PetitionSystem
from tests.examples.petitions.conftest import Outside
from tests.examples.petitions.test_story import until

JOB_TYPE = "deliberation_timeout"
JOB_TYPES = ("referral_timeout", "deliberation_timeout", "escalation_check")


class Queue(Protocol):
    """A scheduler, and what a test needs to know about its jobs."""

    scheduler: Any

    async def make_due(self, job_id: UUID) -> None: ...

    async def status(self, job_id: UUID) -> JobStatus | None: ...

    async def dead_letter(self, job_id: UUID) -> DeadLetterJob | None: ...

    async def halt(self) -> None: ...


class StubQueue:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.scheduler = JobSchedulerStub(lambda: self.now, JOB_TYPES)

    async def make_due(self, job_id: UUID) -> None:
        self.now = max(self.now, self.scheduler.jobs[job_id].scheduled_for)

    async def status(self, job_id: UUID) -> JobStatus | None:
        job = self.scheduler.jobs.get(job_id)
        return job.status if job else None

    async def dead_letter(self, job_id: UUID) -> DeadLetterJob | None:
        return next((letter for letter in self.scheduler.dead_letters if letter.id == job_id), None)

    async def halt(self) -> None:
        self.scheduler.halted = True


class PostgresQueue:
    def __init__(self, system: PetitionSystem, outside: Outside) -> None:
        self.system = system
        self.outside = outside
        self.scheduler = system.scheduler

    async def make_due(self, job_id: UUID) -> None:
        await self.system.app.jobs.reschedule(str(job_id))

    async def status(self, job_id: UUID) -> JobStatus | None:
        rows = await self.outside.rows("SELECT status FROM petitions.scheduled_jobs WHERE id = %s", job_id)
        return JobStatus(rows[0][0]) if rows else None

    async def dead_letter(self, job_id: UUID) -> DeadLetterJob | None:
        return await self.system.dead_letters.get(job_id)

    async def halt(self) -> None:
        self.outside.control_room.halt("fire drill")
        await until(self.system.app.halts)  # the last answer of the control room is used for a moment


NewQueue = Callable[[], Awaitable[Queue]]


@pytest.fixture(params=["stub", pytest.param("postgres", marks=pytest.mark.slow)])
def new_queue(request: pytest.FixtureRequest) -> NewQueue:
    if request.param == "stub":
        return new_stub
    outside, new_system = request.getfixturevalue("outside"), request.getfixturevalue("new_system")

    async def new() -> Queue:
        return PostgresQueue(await new_system(), outside)

    return new


async def new_stub() -> Queue:
    return StubQueue()


def at(seconds: float = 0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def schedule(queue: Queue, seconds: float = -1) -> UUID:
    job_id: UUID = await queue.scheduler.schedule(JOB_TYPE, {"petition_id": str(uuid4())}, at(seconds))
    return job_id


async def claim(queue: Queue, job_id: UUID) -> None:
    assert [job.id for job in await queue.scheduler.get_pending_jobs(10)] == [job_id]


async def fail(queue: Queue, job_id: UUID, times: int) -> None:
    """Claim the job and let it fail, `times` times. After each failure, make its next attempt due, if it has one."""
    for number in range(1, times + 1):
        await claim(queue, job_id)
        await queue.scheduler.mark_failed(job_id, f"failure {number}")
        if await queue.status(job_id) is JobStatus.PENDING:
            await queue.make_due(job_id)


# -- cancel ---------------------------------------------------------------------------------------


async def test_a_cancel_that_comes_too_late_leaves_the_running_job_its_retries_and_its_dead_letter(
    new_queue: NewQueue,
) -> None:
    queue = await new_queue()
    job_id = await schedule(queue)
    for number in (1, 2, 3):
        await claim(queue, job_id)
        assert await queue.scheduler.cancel(job_id) is False
        assert await queue.status(job_id) is JobStatus.PROCESSING
        await queue.scheduler.mark_failed(job_id, f"failure {number}")
        assert await queue.status(job_id) is (JobStatus.PENDING if number < 3 else JobStatus.FAILED)
        if number < 3:
            await queue.make_due(job_id)
    letter = await queue.dead_letter(job_id)
    assert letter is not None
    assert (letter.failure_reason, letter.attempts) == ("failure 3", 3)


async def test_a_job_that_waits_for_its_time_or_its_retry_is_cancelled(new_queue: NewQueue) -> None:
    queue = await new_queue()
    later, retried = await schedule(queue, 60), await schedule(queue)
    await fail(queue, retried, 1)
    for job_id in (later, retried):
        assert await queue.scheduler.cancel(job_id) is True
        assert await queue.status(job_id) is None
        assert await queue.scheduler.cancel(job_id) is False
    assert await queue.scheduler.get_pending_jobs(10) == []


async def test_a_job_that_has_finished_or_does_not_exist_is_not_cancelled(new_queue: NewQueue) -> None:
    queue = await new_queue()
    done = await schedule(queue)
    await claim(queue, done)
    await queue.scheduler.mark_completed(done)
    dead = await schedule(queue)
    await fail(queue, dead, 3)
    assert [await queue.scheduler.cancel(job_id) for job_id in (done, dead, uuid4())] == [False] * 3
    assert (await queue.status(done), await queue.status(dead)) == (JobStatus.COMPLETED, JobStatus.FAILED)


async def test_a_job_can_be_cancelled_during_a_halt(new_queue: NewQueue) -> None:
    queue = await new_queue()
    job_id = await schedule(queue)
    await queue.halt()
    assert await queue.scheduler.cancel(job_id) is True
    assert await queue.status(job_id) is None


# -- schedule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job_type", "payload", "run_at"),
    [
        (JOB_TYPE, {"petition_id": object()}, at()),
        (JOB_TYPE, ["petition_id"], at()),
        (JOB_TYPE, {"petition_id": str(uuid4())}, at().replace(tzinfo=None)),
        (JOB_TYPE, {"petition_id": str(uuid4())}, "soon"),
        ("", {"petition_id": str(uuid4())}, at()),
    ],
    ids=["not JSON", "not an object", "no time zone", "not a time", "no type"],
)
async def test_a_job_that_makes_no_sense_is_refused_with_an_error_of_the_port(
    new_queue: NewQueue, job_type: str, payload: Any, run_at: Any
) -> None:
    queue = await new_queue()
    with pytest.raises(InvalidRequestError, match=r"\w{4}"):
        await queue.scheduler.schedule(job_type, payload, run_at)
    assert await queue.scheduler.get_pending_jobs(10) == []


async def test_a_type_of_job_without_a_handler_is_refused(new_queue: NewQueue) -> None:
    queue = await new_queue()
    with pytest.raises(UnknownJobTypeError, match="mystery"):
        await queue.scheduler.schedule("mystery", {}, at())


async def test_what_was_scheduled_does_not_change_with_the_callers_payload(new_queue: NewQueue) -> None:
    queue = await new_queue()
    payload = {"petition_id": (before := str(uuid4()))}
    await queue.scheduler.schedule(JOB_TYPE, payload, at(-1))
    payload["petition_id"] = "another"
    (job,) = await queue.scheduler.get_pending_jobs(1)
    assert job.payload == {"petition_id": before}


async def test_a_halt_refuses_new_jobs_and_hands_none_out_but_what_runs_may_end(new_queue: NewQueue) -> None:
    queue = await new_queue()
    runs = await schedule(queue)
    await claim(queue, runs)
    await schedule(queue)
    await queue.halt()
    with pytest.raises(SystemHaltedError):
        await schedule(queue)
    assert await queue.scheduler.get_pending_jobs(10) == []
    await queue.scheduler.mark_completed(runs)
    assert await queue.status(runs) is JobStatus.COMPLETED


# -- get_pending_jobs -----------------------------------------------------------------------------


async def test_due_jobs_come_once_the_earliest_first_and_up_to_the_limit(new_queue: NewQueue) -> None:
    queue = await new_queue()
    by_age = {age: await schedule(queue, -age) for age in (20, 50, 10, 40, 30)}
    await schedule(queue, 60)
    oldest_first = [by_age[age] for age in sorted(by_age, reverse=True)]
    jobs = [job for limit in (2, 10) for job in await queue.scheduler.get_pending_jobs(limit)]
    assert [job.id for job in jobs] == oldest_first
    assert {(job.status, job.attempts, job.job_type) for job in jobs} == {(JobStatus.PROCESSING, 1, JOB_TYPE)}
    assert await queue.scheduler.get_pending_jobs(10) == []


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_limit_out_of_bounds_is_refused_with_an_error_of_the_port(new_queue: NewQueue, limit: int) -> None:
    queue = await new_queue()
    with pytest.raises(InvalidRequestError, match=f"limit is {limit}; give a whole number from 1 to 1000"):
        await queue.scheduler.get_pending_jobs(limit)


# -- mark and release -----------------------------------------------------------------------------


ENDS: dict[str, Callable[[Any, UUID], Awaitable[None]]] = {
    "completed": lambda scheduler, job_id: scheduler.mark_completed(job_id),
    "failed": lambda scheduler, job_id: scheduler.mark_failed(job_id, "no"),
    "released": lambda scheduler, job_id: scheduler.release(job_id),
}


@pytest.mark.parametrize("state", ["unknown", "waiting", "cancelled", *ENDS])
async def test_only_a_claimed_job_can_be_marked_or_released(new_queue: NewQueue, state: str) -> None:
    queue = await new_queue()
    job_id = uuid4() if state == "unknown" else await schedule(queue)
    if state == "cancelled":
        await queue.scheduler.cancel(job_id)
    elif state in ENDS:
        await claim(queue, job_id)
        await ENDS[state](queue.scheduler, job_id)
    before = await queue.status(job_id)
    for end in ENDS.values():
        with pytest.raises(JobNotClaimedError):
            await end(queue.scheduler, job_id)
    assert await queue.status(job_id) is before


async def test_a_failure_without_a_reason_is_refused_and_the_job_still_runs(new_queue: NewQueue) -> None:
    queue = await new_queue()
    job_id = await schedule(queue)
    await claim(queue, job_id)
    with pytest.raises(InvalidRequestError, match="the reason is empty"):
        await queue.scheduler.mark_failed(job_id, "")
    assert await queue.status(job_id) is JobStatus.PROCESSING
    await queue.scheduler.mark_completed(job_id)


async def test_a_released_job_can_be_claimed_again_and_has_used_no_attempt(new_queue: NewQueue) -> None:
    queue = await new_queue()
    job_id = await schedule(queue)
    await claim(queue, job_id)
    await queue.scheduler.release(job_id)
    (job,) = await queue.scheduler.get_pending_jobs(1)
    assert (job.id, job.attempts) == (job_id, 1)
