"""Slots whose jobs were told to stop and do not end: seen everywhere, and a reason to exit if that is wanted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from mainspring import Chunk, Mainspring, Retry
from mainspring.cli.exits import Exit
from mainspring.errors import ConfigurationError, WorkerStuck
from mainspring.events import JobReleased, WorkerHeartbeat
from mainspring.health import State
from mainspring.job import Status
from mainspring.stores.protocol import WorkerInfo
from mainspring.why import Cause
from mainspring.worker import Worker, WorkerSettings, program, slots
from tests.in_memory import execute
from tests.worker.working import (
    DEADLINE,
    QUICK,
    ended,
    eventually,
    fields_of,
    new_app,
    reached,
    record,
    working,
)

pytestmark = pytest.mark.slow

GRACE = 50  # milliseconds


@pytest.fixture
def app() -> Mainspring:
    return new_app(stall_grace=GRACE)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Opened in the end, so that no thread outlives its test."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture(autouse=True)
def _short_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "CANCEL_TIMEOUT", 0.1)


async def info_of(worker: Worker) -> WorkerInfo:
    (info,) = [other for other in (await worker.runtime.store.stats()).workers if other.id == worker.id]
    return info


async def stuck_in(worker: Worker, slots: int) -> bool:
    """What the store knows."""
    return (await info_of(worker)).stuck == slots


async def test_a_thread_that_ignores_its_timeout_is_reported_everywhere(
    app: Mainspring, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    beats = record(app, WorkerHeartbeat)

    @app.task(timeout=0.05, max_attempts=1)
    def hang_here() -> None:
        gate.wait()

    async with working(app, concurrency=4) as worker:
        caplog.set_level("INFO", logger="mainspring")
        job = await hang_here.enqueue()
        await eventually(lambda: stuck_in(worker, 1))
        (line,) = fields_of(caplog, "slot_stuck")
        assert (line["task"], line["job_id"], line["worker"]) == (hang_here.name, job.id, worker.id)
        assert "in hang_here: gate.wait()" in line["stack"].splitlines()[0]
        assert "in wait:" in line["stack"].splitlines()[-1]
        shown = structlog.dev.ConsoleRenderer(colors=False)(None, "warning", {"event": "slot_stuck", **line})
        assert "in hang_here: gate.wait()" in shown
        health = await app.health()
        assert (health.state, dict(health.stuck)) == (State.DEGRADED, {worker.id: 1})
        told = f"1 of 4 slots of worker {worker.id} is stuck: its job was told to stop but does not end"
        assert health.problems == (told,)
        await eventually(lambda: beats[-1].stuck == 1)
        (found,) = await ended(app, job.id)
        assert found.status is Status.DEAD_LETTER
        gate.set()
        await eventually(lambda: stuck_in(worker, 0))
        assert fields_of(caplog, "slot_free_again")
        assert (await app.health()).state is State.OK


async def test_a_coroutine_that_swallows_its_cancellation_is_stuck(
    app: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()

    async def swallow() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    @app.task(timeout=0.05, max_attempts=1)
    async def stubborn() -> None:
        await swallow()

    async with working(app) as worker:
        await stubborn.enqueue()
        await eventually(lambda: stuck_in(worker, 1))
        (line,) = fields_of(caplog, "slot_stuck")
        stack = line["stack"].splitlines()
        assert ["in stubborn: await swallow()" in stack[0], "in swallow:" in stack[1]] == [True, True]
        gate.set()
        await eventually(lambda: stuck_in(worker, 0))


async def test_a_cancelled_thread_that_goes_on_is_stuck(
    app: Mainspring, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task()
    def hang() -> None:
        gate.wait()

    async with working(app) as worker:
        caplog.set_level("INFO", logger="mainspring")
        job = await hang.enqueue()
        await reached(app, job.id, statuses=(Status.RUNNING,))
        assert (await info_of(worker)).stuck == 0
        await app.jobs.cancel(job.id)
        await eventually(lambda: stuck_in(worker, 1))
        assert [reason.cause for reason in (await app.jobs.why(job.id)).reasons] == [Cause.RUNNING, Cause.STUCK]
    assert (await job.get()).status is Status.CANCELLED  # the worker stopped, and said so for it
    assert fields_of(caplog, "thread_abandoned")
    assert not fields_of(caplog, "slot_free_again")


async def test_a_thread_that_a_stopping_worker_has_left_behind_is_not_found_again(
    app: Mainspring, gate: threading.Event
) -> None:
    @app.task()
    def hang() -> None:
        gate.wait()

    async with working(app) as worker:
        job = await hang.enqueue()
        await reached(app, job.id, statuses=(Status.RUNNING,))
        await app.jobs.cancel(job.id)
        await eventually(lambda: stuck_in(worker, 1))
        runs = worker.parts.runs
        (run,) = runs.running
        runs.abandon(run)
        runs.look_for_stuck()
        assert runs.stuck.runs == set()
        gate.set()


async def test_a_thread_that_takes_a_moment_to_stop_is_not_stuck(gate: threading.Event) -> None:
    app = new_app(stall_grace=3_600_000)

    @app.task(timeout=0.03, max_attempts=1)
    def slow() -> None:
        gate.wait()

    async with working(app) as worker:
        job = await slow.enqueue()
        await eventually(lambda: any(run.stop is not None for run in worker.parts.runs.running))
        worker.parts.runs.look_for_stuck()
        assert worker.parts.runs.stuck.slots == 0
        gate.set()
        await ended(app, job.id)


async def test_a_stuck_chunk_counts_as_one_slot(
    app: Mainspring, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(timeout=0.05, max_attempts=1, chunk=Chunk(3, wait=20))
    def hang(numbers: list[int]) -> None:
        del numbers
        gate.wait()

    async with working(app) as worker:
        await hang.enqueue_many([1, 2, 3])
        await eventually(lambda: stuck_in(worker, 1))
        (line,) = fields_of(caplog, "slot_stuck")
        assert "in hang: gate.wait()" in line["stack"].splitlines()[0]


async def test_stuck_slots_stay_in_use_even_if_the_worker_gets_the_same_job_again(
    app: Mainspring, gate: threading.Event
) -> None:
    released = record(app, JobReleased)

    @app.task(timeout=0.05, max_attempts=2, retry=Retry.fixed(0))
    def hang() -> None:
        gate.wait()

    @app.task()
    async def other() -> None: ...

    async with working(app, concurrency=2) as worker:
        await hang.enqueue()
        await eventually(lambda: stuck_in(worker, 2))  # both attempts
        assert worker.parts.intake.free() <= 0
        waiting = await other.enqueue()
        (reason,) = (await app.jobs.why(waiting.id)).reasons
        assert reason.cause is Cause.STUCK
        assert f"All slots of the workers of its queue 'default' are stuck: 2 of 2 of worker {worker.id}" in reason.text
        assert dict(reason.detail["stuck"]) == {worker.id: 2}
        assert not released
        gate.set()
        await ended(app, waiting.id)


async def test_why_also_names_a_worker_with_some_stuck_slots(app: Mainspring) -> None:
    @app.task()
    async def work() -> None: ...

    job = await work.enqueue()
    await app.store.join(WorkerInfo("w", "host", 1, ("*",), concurrency=3), lambda _: None)
    await app.store.heartbeat("w", {}, stuck=1)
    turn, stuck = (await app.jobs.why(job.id)).reasons
    assert (turn.cause, stuck.cause) == (Cause.TURN, Cause.STUCK)
    assert "1 of 3 of worker w" in stuck.text


async def test_a_worker_that_stops_does_not_wait_for_stuck_slots(app: Mainspring, gate: threading.Event) -> None:
    @app.task(timeout=0.05, max_attempts=1)
    def hang() -> None:
        gate.wait()

    async with asyncio.timeout(DEADLINE), working(app, grace=3600) as worker:
        await hang.enqueue()
        await eventually(lambda: stuck_in(worker, 1))
    assert worker.exit_code == program.EXIT_ABANDONED


async def test_a_suspect_runs_although_a_slot_is_stuck(app: Mainspring, gate: threading.Event) -> None:
    @app.task(timeout=0.05, max_attempts=1)
    def hang() -> None:
        gate.wait()

    @app.task()
    async def other() -> None: ...

    async with working(app) as worker:
        await hang.enqueue()
        await eventually(lambda: stuck_in(worker, 1))
        await app.pause("fragile")
        suspect = await other.using(queue="fragile").enqueue()
        execute(app.store, "UPDATE mainspring_jobs SET crashes = 1 WHERE id = ?", suspect.id)
        await app.resume("fragile")
        await ended(app, suspect.id)


# -- exiting --------------------------------------------------------------------------------------


async def test_a_stuck_worker_hands_back_its_jobs_and_exits(
    app: Mainspring, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    finishing = asyncio.Event()

    @app.task(timeout=0.05, max_attempts=1)
    def hang() -> None:
        gate.wait()

    @app.task()
    async def healthy() -> str:
        await finishing.wait()
        return "done"

    worker = Worker(app, **QUICK, concurrency=3, exit_when_stuck=0.6)
    serving = asyncio.create_task(worker.serve())
    good = await healthy.enqueue()
    await reached(app, good.id, statuses=(Status.RUNNING,))
    await hang.enqueue()
    await eventually(lambda: stuck_in(worker, 1))
    assert not worker._stopping.is_set()  # one of three is less than the share
    await hang.enqueue()
    await eventually(worker._stopping.is_set)
    late = await healthy.enqueue()
    finishing.set()
    with pytest.raises(WorkerStuck):
        await asyncio.wait_for(serving, DEADLINE)
    assert ((await good.get()).status, (await late.get()).status) == (Status.COMPLETED, Status.PENDING)
    (line,) = fields_of(caplog, "worker_exits_stuck")
    assert (line["stuck"], line["slots"], line["exit_code"]) == (2, 3, program.EXIT_STUCK)
    assert worker.exit_code == program.EXIT_STUCK


async def test_a_signal_while_a_stuck_worker_exits_leaves_the_grace(app: Mainspring) -> None:
    worker = Worker(app, exit_when_stuck=0.5)
    worker._begin_stopping()
    worker.stop()
    assert not worker._stop_now.is_set()
    worker.stop()
    assert worker._stop_now.is_set()


async def test_a_stuck_worker_goes_on_without_exit_when_stuck(app: Mainspring, gate: threading.Event) -> None:
    @app.task(timeout=0.05, max_attempts=1)
    def hang() -> None:
        gate.wait()

    @app.task()
    async def other() -> None: ...

    async with working(app, concurrency=2) as worker:
        await hang.enqueue()
        await eventually(lambda: stuck_in(worker, 1))
        await ended(app, (await other.enqueue()).id)


@pytest.mark.parametrize("share", [0, -0.5, 1.1, float("nan")])
def test_a_share_out_of_range_is_refused(share: Any) -> None:
    with pytest.raises(ConfigurationError, match="share of the slots: give a number above 0 and up to 1"):
        WorkerSettings(exit_when_stuck=share)


def test_the_command_line_knows_the_exit_code() -> None:
    assert program.EXIT_STUCK == Exit.STUCK
