"""Runs that are ended while they wait or run: cancelled, lost to another worker, or claimed anew."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mainspring import Context, Mainspring
from mainspring.job import Move, Outcome, Status
from tests.in_memory import execute
from tests.worker.working import ended, eventually, fields_of, new_app, reached, working

pytestmark = pytest.mark.slow


@pytest.fixture
def app() -> Mainspring:
    return new_app()


async def test_a_job_that_waits_in_the_worker_is_cancelled_before_it_begins(app: Mainspring) -> None:
    began: list[int] = []
    gate = asyncio.Event()

    @app.task()
    async def work(n: int) -> None:
        began.append(n)
        await gate.wait()

    async with working(app, concurrency=1) as worker:
        worker.parts.intake.prefetch.ahead = 10
        jobs = await work.enqueue_many([{"n": n} for n in range(3)])
        await eventually(lambda: len(worker.parts.runs.ready) == 2)
        await app.jobs.cancel(jobs[1].id)
        assert (await ended(app, jobs[1].id))[0].status is Status.CANCELLED
        gate.set()
        await ended(app, jobs[0].id, jobs[2].id)
    assert began == [0, 2]


async def test_a_run_whose_claim_was_lost_is_cancelled_and_writes_nothing(
    app: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[str] = []

    @app.task()
    async def work() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        return "zombie"

    async with working(app, maintenance_interval=60) as worker:
        job = await work.enqueue()
        await reached(app, job.id, statuses=(Status.RUNNING,))
        steal(app, job.id)
        await eventually(lambda: ends)
        await eventually(lambda: not worker.parts.runs.held)
        assert (await job.get()).worker == "thief"
        assert (await job.get()).status is Status.RUNNING


async def test_the_outcome_of_a_lost_claim_is_logged_and_not_written(
    app: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()

    @app.task()
    def work() -> str:
        gate.wait(10)
        return "zombie"

    async with working(app, heartbeat_interval=60, maintenance_interval=60):  # else the thief would be found dead
        job = await work.enqueue()
        await reached(app, job.id, statuses=(Status.RUNNING,))
        steal(app, job.id)
        gate.set()
        lines = await eventually(lambda: fields_of(caplog, "claim_lost"))
        assert (await job.get()).status is Status.RUNNING
    assert (lines[0]["job_id"], lines[0]["move"]) == (job.id, Move.DONE)


async def test_an_older_run_of_a_job_does_not_release_the_newer_one(app: Mainspring) -> None:
    gates = [threading.Event(), threading.Event()]
    runs: list[int] = []

    @app.task()
    def work(ctx: Context) -> int:
        number = len(runs)
        runs.append(number)
        gates[number].wait(10)
        return number

    async with working(app) as worker:
        job = await work.enqueue()
        await eventually(lambda: runs == [0])
        await app.store.ack([Outcome(job.id, (await job.get()).token, Move.RELEASE)])
        await eventually(lambda: runs == [0, 1])
        gates[0].set()
        await eventually(lambda: len(worker.parts.runs.running) == 1)
        assert list(worker.parts.runs.held) == [job.id]
        gates[1].set()
        assert await job.result(10) == 1


async def test_a_heartbeat_answer_about_an_older_claim_does_not_end_the_newer_one(app: Mainspring) -> None:
    """A heartbeat may be on its way while its job ends, is retried at once and claimed again."""
    gate = asyncio.Event()

    @app.task()
    async def work() -> str:
        await gate.wait()
        return "done"

    async with working(app) as worker:
        job = await work.enqueue()
        await reached(app, job.id, statuses=(Status.RUNNING,))
        token = worker.parts.runs.held[job.id].claim.token
        worker.parts.runs.heard(await app.store.heartbeat(worker.id, {job.id: token - 1}), {job.id: token - 1})
        gate.set()
        assert await job.result(10) == "done"


def steal(app: Mainspring, job_id: str) -> None:
    """As a takeover and a claim by another worker would."""
    execute(app.store, "UPDATE mainspring_jobs SET token = token + 1, worker = 'thief' WHERE id = ?", job_id)
