"""The worker's own logic, with a scheduler in memory or a mocked one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from examples.petitions.application.ports import HaltStatus, Heartbeat, JobNotClaimedError
from examples.petitions.application.services import JobWorkerService
from examples.petitions.application.services.job_worker_service import LATE, PAUSED
from examples.petitions.domain.models import JobStatus, ScheduledJob
from examples.petitions.infrastructure.stubs import HaltCheckerStub, JobSchedulerStub

START = datetime(2026, 1, 19, tzinfo=UTC)
SOON = 10.0  # seconds; only a failing test waits this long


class Bench:
    """A worker and all that it talks to."""

    def __init__(self, scheduler: Any = None, **options: Any) -> None:
        self.scheduler: Any = scheduler or JobSchedulerStub(lambda: START)
        self.halt = HaltCheckerStub()
        self.handled: list[ScheduledJob] = []
        self.beats: list[Heartbeat] = []
        self.during: Callable[[ScheduledJob], None] = lambda _job: None
        self.beaten = asyncio.Event()
        self.worker = JobWorkerService(
            self.scheduler,
            self.halt,
            {"referral_timeout": self.handle},
            heartbeat=self,
            releaser=self.scheduler,
            **{"poll_interval": 10.0, **options},
        )

    async def handle(self, job: ScheduledJob) -> None:
        self.handled.append(job)
        self.during(job)

    async def beat(self, heartbeat: Heartbeat) -> None:
        self.beats.append(heartbeat)
        self.beaten.set()


def job(job_type: str = "referral_timeout") -> ScheduledJob:
    return ScheduledJob(uuid4(), job_type, {}, START, START, 1, START, JobStatus.PROCESSING)


def mocked(*jobs: ScheduledJob) -> AsyncMock:
    scheduler = AsyncMock()
    scheduler.get_pending_jobs.return_value = list(jobs)
    return scheduler


async def test_due_jobs_are_dispatched_by_type_and_completed() -> None:
    bench = Bench()
    job_id = await bench.scheduler.schedule("referral_timeout", {"petition_id": "7"}, START)
    assert await bench.worker.poll_once() == 1
    assert [(job.id, job.payload) for job in bench.handled] == [(job_id, {"petition_id": "7"})]
    assert bench.scheduler.completed == [job_id]
    assert bench.beats == [Heartbeat("job-worker", halted=False, processed=1)]


async def test_a_failing_handler_marks_its_job_failed_and_the_next_one_runs() -> None:
    bench = Bench(mocked(first := job(), second := job()))

    def fail(current: ScheduledJob) -> None:
        if current is first:
            raise LookupError("no such petition")

    bench.during = fail
    assert await bench.worker.poll_once() == 2
    bench.scheduler.mark_failed.assert_awaited_once_with(first.id, "LookupError: no such petition")
    bench.scheduler.mark_completed.assert_awaited_once_with(second.id)


async def test_a_job_without_a_handler_fails_loudly() -> None:
    bench = Bench(mocked(unknown := job("mystery")))
    await bench.worker.poll_once()
    ((job_id, reason),) = [call.args for call in bench.scheduler.mark_failed.await_args_list]
    assert (job_id, "no handler for jobs of type 'mystery'" in reason) == (unknown.id, True)


async def test_a_handler_that_takes_too_long_is_stopped_and_fails() -> None:
    bench = Bench(mocked(slow := job()), job_timeout=0.01)
    bench.worker._handlers["referral_timeout"] = lambda _job: asyncio.Event().wait()  # type: ignore[assignment,return-value]
    await bench.worker.poll_once()
    bench.scheduler.mark_failed.assert_awaited_once_with(slow.id, "it took longer than 0.01 s")


async def test_a_timeout_inside_a_handler_is_an_error_of_the_handler() -> None:
    bench = Bench(mocked(failed := job()))
    bench.worker._handlers["referral_timeout"] = AsyncMock(side_effect=TimeoutError)
    await bench.worker.poll_once()
    bench.scheduler.mark_failed.assert_awaited_once_with(failed.id, "TimeoutError")


async def test_a_halted_worker_claims_nothing_says_so_and_keeps_beating() -> None:
    bench = Bench(mocked(job()))
    bench.halt.status = HaltStatus(halted=True, reason="fire drill")
    with capture_logs() as logs:
        assert await bench.worker.poll_once() == 0
    bench.scheduler.get_pending_jobs.assert_not_awaited()
    assert [entry["event"] for entry in logs] == ["Job worker paused due to system halt"]
    assert bench.beats == [Heartbeat("job-worker", halted=True, processed=0)]


async def test_a_halt_checker_that_fails_counts_as_a_halt() -> None:
    bench = Bench(mocked(job()))
    bench.halt.error = ConnectionError("no answer")
    with capture_logs() as logs:
        assert await bench.worker.poll_once() == 0
    bench.scheduler.get_pending_jobs.assert_not_awaited()
    assert [entry["event"] for entry in logs] == ["halt_check_failed", PAUSED]


async def test_the_halt_is_checked_before_each_job_and_the_rest_is_given_back() -> None:
    bench = Bench()
    first, second, third = [await bench.scheduler.schedule("referral_timeout", {}, START) for _ in range(3)]

    def halt(_job: ScheduledJob) -> None:
        bench.halt.status = HaltStatus(halted=True)

    bench.during = halt
    assert await bench.worker.poll_once() == 1
    assert (bench.scheduler.completed, bench.scheduler.released) == ([first], [second, third])
    assert bench.beats[-1].halted


async def test_jobs_behind_a_slow_one_are_given_back_before_their_time_is_over() -> None:
    """Each job has twice the job timeout from its claim on. Ten slow ones in a row would take longer."""
    bench = Bench(job_timeout=0.02)
    first, second = [await bench.scheduler.schedule("referral_timeout", {}, START) for _ in range(2)]
    bench.during = lambda job: time.sleep(0.03) if job.id == first else None
    with capture_logs() as logs:
        assert await bench.worker.poll_once() == 1
    assert (bench.scheduler.completed, bench.scheduler.released) == ([first], [second])
    assert [line["event"] for line in logs] == [LATE]
    assert not bench.beats[-1].halted
    assert await bench.worker.poll_once() == 1
    assert bench.scheduler.completed == [first, second]


async def test_a_stopped_worker_finishes_its_job_and_gives_back_the_rest() -> None:
    bench = Bench()
    first, second = [await bench.scheduler.schedule("referral_timeout", {}, START) for _ in range(2)]
    bench.during = lambda _job: bench.worker.stop()
    async with asyncio.timeout(SOON):
        await bench.worker.run()
    assert (bench.scheduler.completed, bench.scheduler.released) == ([first], [second])


async def test_a_worker_that_waits_for_jobs_stops_at_once() -> None:
    bench = Bench(scheduler := AsyncMock())
    waiting = asyncio.Event()

    async def wait(_limit: int) -> list[ScheduledJob]:
        waiting.set()
        await asyncio.Event().wait()
        return []

    scheduler.get_pending_jobs.side_effect = wait
    running = asyncio.create_task(bench.worker.run())
    async with asyncio.timeout(SOON):
        await waiting.wait()
        bench.worker.stop()
        await running


async def test_a_cycle_that_fails_does_not_end_the_worker() -> None:
    bench = Bench(mocked(), poll_interval=0.001)
    bench.scheduler.get_pending_jobs.side_effect = [ConnectionError("database away"), *[[]] * 1000]
    running = asyncio.create_task(bench.worker.run())
    async with asyncio.timeout(SOON):
        with capture_logs() as logs:
            await bench.beaten.wait()
        bench.worker.stop()
        await running
    assert (logs[0]["event"], logs[0]["error"]) == ("job_worker_poll_failed", "ConnectionError: database away")
    assert "exc_info" not in logs[0]  # an outage is a line per cycle, not a page


async def test_an_end_is_reported_again_until_the_queue_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.petitions.application.services.job_worker_service.REPORT_PAUSE", 0.001)
    bench = Bench(mocked(done := job()))
    bench.scheduler.mark_completed.side_effect = [ConnectionError("database away"), None]
    await bench.worker.poll_once()
    assert [call.args for call in bench.scheduler.mark_completed.await_args_list] == [(done.id,)] * 2


async def test_a_job_that_another_worker_has_by_now_is_left_to_it() -> None:
    bench = Bench(mocked(lost := job()))
    bench.scheduler.mark_completed.side_effect = JobNotClaimedError("taken over")
    with capture_logs() as logs:
        await bench.worker.poll_once()
    bench.scheduler.mark_completed.assert_awaited_once_with(lost.id)
    assert logs[-1]["event"] == "job_lost"


async def test_heartbeats_continue_while_a_handler_runs() -> None:
    bench = Bench(mocked(job()), heartbeat_interval=0.001)

    async def work(_job: ScheduledJob) -> None:
        async with asyncio.timeout(SOON):
            await bench.beaten.wait()

    bench.worker._handlers["referral_timeout"] = work
    assert await bench.worker.poll_once() == 1
    assert bench.beats[0] == Heartbeat("job-worker", halted=False, processed=0)


def test_the_worker_polls_every_ten_seconds_by_default() -> None:
    worker = JobWorkerService(
        JobSchedulerStub(), HaltCheckerStub(), {}, heartbeat=AsyncMock(), releaser=JobSchedulerStub()
    )
    assert worker._poll_interval == 10.0
