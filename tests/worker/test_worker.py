"""How a worker stops: what it finishes, what it hands back, and how long that takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mainspring import Chunk, Context, Mainspring
from mainspring.clock import Millis
from mainspring.errors import StoreBusy, StoreReadOnly
from mainspring.events import JobReleased, JobStarted, WorkerStopped
from mainspring.feature import Candidate, Refusal
from mainspring.ids import new_id
from mainspring.job import NewJob, Status
from mainspring.options import LONGEST_WAIT
from mainspring.stores.sqlite import MemoryStore
from mainspring.worker import Worker, slots
from mainspring.worker import worker as worker_module
from tests.worker.test_admission import Doorman
from tests.worker.working import DEADLINE, QUICK, FaultyStore, ended, eventually, new_app, reached, record, working

pytestmark = pytest.mark.slow


@pytest.fixture
def app() -> Mainspring:
    return new_app()


@pytest.fixture
def short_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "STOP_TIMEOUT", 0.2)
    monkeypatch.setattr(slots, "CANCEL_TIMEOUT", 0.1)


async def test_a_stopping_worker_finishes_running_jobs_and_claims_no_more(app: Mainspring) -> None:
    gate = asyncio.Event()

    @app.task()
    async def work() -> str:
        await gate.wait()
        return "finished"

    async with working(app) as worker:
        running = await work.enqueue()
        await eventually(lambda: len(worker.parts.runs.running) == 1)
        worker.stop()
        late = await work.enqueue()
        await asyncio.sleep(0.05)  # time in which it could claim
        gate.set()
    assert (await running.get()).result == "finished"
    assert (await late.get()).status is Status.PENDING


async def test_jobs_that_outlast_the_grace_are_handed_back_without_using_an_attempt(app: Mainspring) -> None:
    events = record(app, JobReleased, WorkerStopped)

    @app.task()
    async def on_loop() -> None:
        await asyncio.sleep(3600)

    @app.task()
    async def translates() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise ConnectionError("a library's own word for it") from None

    @app.task()
    def in_thread(ctx: Context) -> None:
        ctx.wait_cancelled(30)
        ctx.raise_if_cancelled()

    async with working(app, grace=0.05) as worker:
        jobs = [await on_loop.enqueue(), await translates.enqueue(), await in_thread.enqueue()]
        await eventually(lambda: len(worker.parts.runs.running) == 3)
    found = [await job.get() for job in jobs]
    assert [(job.status, job.attempts, job.crashes) for job in found] == [(Status.PENDING, 0, 0)] * 3
    assert [type(event).__name__ for event in events] == ["JobReleased"] * 3 + ["WorkerStopped"]
    assert events[-1].released == 3


async def test_a_second_stop_does_not_wait_for_the_grace(app: Mainspring) -> None:
    @app.task()
    async def work() -> None:
        await asyncio.sleep(3600)

    async with working(app, grace=3600) as worker:
        job = await work.enqueue()
        await eventually(lambda: len(worker.parts.runs.running) == 1)
        worker.stop()
        worker.stop()
    assert (await job.get()).status is Status.PENDING


async def test_a_stopping_worker_hands_back_jobs_that_have_not_started(app: Mainspring) -> None:
    gate, began = asyncio.Event(), []

    @app.task()
    async def work(n: int) -> None:
        began.append(n)
        await gate.wait()

    async with working(app, concurrency=1) as worker:
        worker.parts.intake.prefetch.ahead = 10
        jobs = await work.enqueue_many([{"n": n} for n in range(4)])
        await eventually(lambda: len(worker.parts.runs.ready) == 3)
        worker.stop()
        waiting = await reached(app, *[job.id for job in jobs[1:]], statuses=(Status.PENDING,))
        assert [job.attempts for job in waiting] == [0, 0, 0]
        assert (await jobs[0].get()).status is Status.RUNNING
        gate.set()
    assert began == [0]
    assert (await jobs[0].get()).status is Status.COMPLETED


async def test_jobs_of_a_claim_under_way_at_the_stop_are_handed_back() -> None:
    class Slow(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.claimed, self.answer = asyncio.Event(), asyncio.Event()

        async def claim(self, *args: Any, **kwargs: Any) -> Any:
            claims = await super().claim(*args, **kwargs)
            if claims.jobs:
                self.claimed.set()
                await self.answer.wait()
            return claims

    store = Slow()
    app = Mainspring(store)
    events = record(app, JobStarted)

    @app.task()
    async def work() -> None: ...

    async with working(app) as worker:
        jobs = await work.enqueue_many([{}] * 3)
        await store.claimed.wait()
        worker.stop()
        await asyncio.sleep(0)
        store.answer.set()
    assert [(await job.get()).status for job in jobs] == [Status.PENDING] * 3
    assert [(await job.get()).attempts for job in jobs] == [0] * 3
    assert events == []


@pytest.mark.usefixtures("short_last_words")
async def test_jobs_admitted_after_the_stop_are_handed_back(app: Mainspring) -> None:
    """It would have to wait for other jobs of its chunk, and none is claimed any more."""
    asked, answer = asyncio.Event(), asyncio.Event()

    class Slow(Doorman):
        async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
            asked.set()
            await answer.wait()
            return await super().admit(jobs, now)

    door = Slow()
    app.runtime.features.add(door)

    @app.task(chunk=Chunk(10, wait=LONGEST_WAIT))
    async def work(numbers: list[int]) -> None: ...

    await app.runtime.pipeline.insert([NewJob(new_id(), "work", "1", options='{"door": "in"}')])
    async with working(app, grace=3600) as worker:
        await asked.wait()
        worker.stop()
        answer.set()
        await eventually(lambda: not worker.parts.runs.held, within=LONGEST_WAIT.total_seconds() / 2)
    (job,) = [found async for found in app.jobs.all()]
    assert (job.status, job.attempts) == (Status.PENDING, 0)
    assert door.left == [job.id]
    assert worker._abandoned == 0


async def test_a_thread_that_ignores_the_stop_is_abandoned(app: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    release, ends = threading.Event(), []

    @app.task()
    def deaf() -> None:
        release.wait(30)
        ends.append("of the thread")

    async with working(app, grace=0.05) as worker:
        job = await deaf.enqueue()
        await eventually(lambda: len(worker.parts.runs.running) == 1)
    assert worker._abandoned == 1
    assert (await job.get()).status is Status.PENDING
    release.set()
    await eventually(lambda: ends)
    assert (await job.get()).status is Status.PENDING


@pytest.mark.slow
@pytest.mark.usefixtures("short_last_words")
async def test_a_coroutine_that_swallows_its_cancellation_does_not_keep_the_worker(app: Mainspring) -> None:
    release = asyncio.Event()

    @app.task()
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with working(app, grace=0.05) as worker:
        job = await stubborn.enqueue()
        await eventually(lambda: len(worker.parts.runs.running) == 1)
    assert (await job.get()).status is Status.PENDING
    release.set()


async def test_a_worker_can_be_stopped_before_it_serves(app: Mainspring) -> None:
    worker = Worker(app, **QUICK)
    worker.stop()
    await asyncio.wait_for(worker.serve(), DEADLINE)


async def test_a_worker_can_be_stopped_while_the_store_is_away() -> None:
    store = FaultyStore()
    store.fail("open", fault=StoreBusy())
    worker = Worker(Mainspring(store), **QUICK)
    serving = asyncio.create_task(worker.serve())
    await eventually(lambda: store.failed["open"] >= 3)
    worker.stop()
    await asyncio.wait_for(serving, DEADLINE)


async def test_a_store_that_cannot_be_used_raises_at_once() -> None:
    store = FaultyStore()
    store.fail("open", fault=StoreReadOnly("no"))
    with pytest.raises(StoreReadOnly):
        await Worker(Mainspring(store), **QUICK).serve()


@pytest.mark.parametrize("fault", [StoreBusy(), StoreReadOnly()])
async def test_a_store_that_is_away_at_the_end_does_not_keep_the_worker(fault: Exception) -> None:
    store = FaultyStore()
    app = Mainspring(store)
    events = record(app, WorkerStopped)
    async with working(app):
        store.fail("claim", "ack", "heartbeat", "reap", "leave", fault=fault)
    assert len(events) == 1


@pytest.mark.usefixtures("short_last_words")
async def test_a_cancelled_worker_claims_no_more_and_hands_back_its_jobs(app: Mainspring) -> None:
    began = []

    @app.task()
    async def work() -> None:
        began.append(True)
        await asyncio.sleep(3600)

    worker = Worker(app, **QUICK)
    serving = asyncio.create_task(worker.serve())
    job = await work.enqueue()
    await eventually(lambda: began)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert (await job.get()).status is Status.PENDING
    another = await work.enqueue()
    await asyncio.sleep(0.1)  # time in which it could claim
    assert (await another.get()).status is Status.PENDING
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("mainspring")]


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/jobs.db"])
async def test_stopping_needs_no_thread_of_the_default_executor(url: str, tmp_path: Path) -> None:
    app, release = Mainspring(url.format(tmp_path)), threading.Event()
    busy = [asyncio.get_running_loop().run_in_executor(None, release.wait) for _ in range(64)]
    try:
        async with asyncio.timeout(60), working(app):
            pass
        async with asyncio.timeout(60):
            await app.close()
    finally:
        release.set()
        await asyncio.gather(*busy)


async def test_outcomes_are_written_before_the_worker_leaves(app: Mainspring) -> None:
    gate, ran = asyncio.Event(), []

    @app.task()
    async def quick() -> None:
        ran.append(True)

    @app.task()
    async def slow() -> None:
        await gate.wait()

    async with working(app, ack_delay=3600):
        jobs = [await slow.enqueue(), *await quick.enqueue_many([{}] * 20)]
        await eventually(lambda: len(ran) == 20)
        assert {(await job.get()).status for job in jobs} == {Status.RUNNING}
        gate.set()
    assert {(await job.get()).status for job in jobs} == {Status.COMPLETED}


# -- drain ----------------------------------------------------------------------------------------


async def test_drain_runs_due_jobs_and_those_that_follow(app: Mainspring) -> None:
    ran: list[int] = []

    @app.task()
    async def work(ctx: Context, n: int) -> None:
        ran.append(n)
        if n:
            ctx.follow_up(work.prepare(n=n - 1))

    await work.enqueue(n=3)
    later = await work.using(delay=3600).enqueue(n=0)
    assert await Worker(app, **QUICK).drain() == 4
    assert ran == [3, 2, 1, 0]
    assert (await later.get()).status is Status.PENDING
    assert await Worker(app, **QUICK).drain() == 0


async def test_a_worker_can_drain_several_times(app: Mainspring) -> None:
    @app.task()
    async def work() -> None: ...

    worker = Worker(app, concurrency=2, **QUICK)
    for _ in range(3):
        jobs = await work.enqueue_many([{}] * 5)
        assert await worker.drain() == 5
        await ended(app, *[job.id for job in jobs])
