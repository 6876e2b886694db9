"""How much is claimed, from which queues, in which order."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.events import JobReleased
from mainspring.ids import new_id
from mainspring.job import NewJob, Outcome, Status
from mainspring.stores.sqlite import MemoryStore
from mainspring.worker import Subscription, intake, outage
from tests.worker.working import DEADLINE, ended, eventually, new_app, reached, record, working

pytestmark = pytest.mark.slow

NEVER = 3600.0  # seconds


class Gauge:
    """How many run at once, and the most there ever were."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def measure(self, name: str, seconds: float = 0.002) -> None:
        for key in (name, "all"):
            self.now[key] += 1
            self.most[key] = max(self.most[key], self.now[key])
        await asyncio.sleep(seconds)
        for key in (name, "all"):
            self.now[key] -= 1


@pytest.fixture
def app() -> Mainspring:
    return new_app()


async def test_no_more_jobs_at_once_than_the_worker_may(app: Mainspring) -> None:
    gauge = Gauge()

    @app.task()
    async def work() -> None:
        await gauge.measure("default")

    async with working(app, concurrency=7):
        await ended(app, *[job.id for job in await work.enqueue_many([{}] * 100)])
    assert gauge.most["all"] == 7


async def test_no_more_jobs_of_a_queue_at_once_than_it_may_and_no_waiting_in_between(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauge = Gauge()

    @app.task()
    async def work(queue: str) -> None:
        await gauge.measure(queue)

    monkeypatch.setattr(outage, "LONGEST_SLEEP", NEVER)  # it looks again when one has ended, not after a while
    async with working(app, queues=["slim", "wide", "free"], queue_concurrency={"slim": 1, "wide": 4}, concurrency=20):
        jobs = [
            await work.using(queue=queue).enqueue(queue=queue) for _ in range(60) for queue in ("slim", "wide", "free")
        ]
        await ended(app, *[job.id for job in jobs])
    assert (gauge.most["slim"], gauge.most["wide"]) == (1, 4)


async def test_a_limit_of_every_queue_holds_across_them(app: Mainspring) -> None:
    gauge = Gauge()

    @app.task()
    async def work(queue: str) -> None:
        await gauge.measure(queue)

    async with working(app, queues=[Subscription("*", concurrency=3)]):
        jobs = [await work.using(queue=queue).enqueue(queue=queue) for _ in range(15) for queue in "abc"]
        await ended(app, *[job.id for job in jobs])
    assert gauge.most["all"] == 3


async def test_only_from_its_queues(app: Mainspring) -> None:
    @app.task()
    async def work() -> None: ...

    async with working(app, queues=["mine"]):
        other = await work.using(queue="other").enqueue()
        await (await work.using(queue="mine").enqueue()).result(10)
        assert (await other.get()).status is Status.PENDING


async def order_of(app: Mainspring, number: int, **settings: Any) -> list[str]:
    """The queues, in the order in which their jobs ran, one at a time."""
    ran: list[str] = []

    @app.task()
    async def work(queue: str) -> None:
        ran.append(queue)

    jobs = [NewJob(new_id(), "work", f'{{"queue": "{queue}"}}', queue) for _ in range(number) for queue in "ab"]
    await app.store.insert(jobs)
    async with working(app, concurrency=1, prefetch=0, **settings) as worker:
        worker.parts.intake._random = random.Random(5)
        await eventually(lambda: len(ran) == 2 * number)
    return ran


async def test_strict_order_empties_the_first_queue_first(app: Mainspring) -> None:
    assert await order_of(app, 30, queues=["b", "a"], strict=True) == ["b"] * 30 + ["a"] * 30


async def test_weights_share_the_worker(app: Mainspring) -> None:
    ran = await order_of(app, 200, queues={"a": 4, "b": 1})
    first = Counter(ran[:200])
    assert 0.7 < first["a"] / 200 < 0.9
    assert first["b"] > 0


async def test_a_job_starts_at_once_when_enqueued_and_on_time_when_planned(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How soon that is on a machine that has nothing else to do, the benchmarks tell."""
    monkeypatch.setattr(outage, "LONGEST_SLEEP", NEVER)

    @app.task()
    async def work() -> float:
        return time.time()

    async with working(app):
        await (await work.enqueue()).result(DEADLINE)
        due = time.time() + 0.2
        assert await (await work.using(delay=0.2).enqueue()).result(DEADLINE) >= due - 0.002


async def test_idle_workers_do_not_ask_all_the_time() -> None:
    class Counting(MemoryStore):
        claims = 0

        async def claim(self, *args: Any, **kwargs: Any) -> Any:
            self.claims += 1
            return await super().claim(*args, **kwargs)

    store = Counting()
    app = Mainspring(store)
    async with working(app):
        await eventually(lambda: store.claims > 0)
        before = store.claims
        await asyncio.sleep(0.3)  # the time in which nothing happens is what is measured
        assert store.claims - before <= 2


# -- prefetch -------------------------------------------------------------------------------------


async def test_quick_jobs_are_claimed_ahead_and_slow_ones_are_not(app: Mainspring) -> None:
    gate, held = asyncio.Event(), []

    @app.task()
    async def quick() -> None: ...

    @app.task(queue="slow")
    async def slow() -> None:
        await gate.wait()

    async with working(app, concurrency=2) as worker:
        slow_jobs = await slow.enqueue_many([{}] * 10)
        await eventually(lambda: len(worker.parts.runs.running) == 2)
        held.append(len(worker.parts.runs.held))
        gate.set()
        await ended(app, *[job.id for job in slow_jobs])
        while not worker.parts.intake.prefetch.ahead:
            await ended(app, *[job.id for job in await quick.enqueue_many([{}] * 500)])
    assert held == [2]


async def test_what_was_claimed_ahead_and_does_not_start_is_handed_back(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MAX_BUFFER_WAIT", 0.05)
    events, gate = record(app, JobReleased), asyncio.Event()

    @app.task()
    async def work() -> None:
        await gate.wait()

    async with working(app, concurrency=1) as worker:
        worker.parts.intake.prefetch.ahead = 5
        jobs = await work.enqueue_many([{}] * 4)
        await eventually(lambda: len(events) == 3)
        assert worker.parts.intake.prefetch.ahead == 0
        assert len(worker.parts.runs.held) == 1
        waiting = await reached(app, *[job.id for job in jobs[1:]], statuses=(Status.PENDING,))
        assert [job.attempts for job in waiting] == [0, 0, 0]
        gate.set()
        await ended(app, *[job.id for job in jobs])


async def test_all_slots_are_used_again_after_everything_that_can_happen_to_jobs(app: Mainspring) -> None:
    """Whatever way runs end: no slot leaks."""

    @app.task(max_attempts=1, timeout=0.02)
    async def mixed(kind: int) -> None:
        if kind == 0:
            raise ValueError
        if kind == 1:
            await asyncio.sleep(3600)
        if kind == 2:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    @app.task(ack="sync", max_attempts=1)
    def synced(kind: int) -> None:
        if kind == 0:
            raise ValueError

    async with working(app, concurrency=4) as worker:
        jobs = await mixed.enqueue_many([{"kind": n % 4} for n in range(60)])
        jobs += await synced.enqueue_many([{"kind": n % 2} for n in range(20)])
        await app.store.insert([NewJob(new_id(), "unknown", "{}") for _ in range(10)])
        await ended(app, *[job.id for job in jobs])
        await eventually(lambda: len(worker.parts.runs.running) == 0 and not worker.parts.runs.held)
        together = asyncio.Barrier(4)

        @app.task()
        async def meet() -> None:
            await together.wait()

        await ended(app, *[job.id for job in await meet.enqueue_many([{}] * 4)])


class SlowToWrite(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        await self.go.wait()
        return await super().ack(outcomes)


async def test_no_more_is_run_than_the_store_can_be_told_of() -> None:
    store = SlowToWrite()
    app, ran = Mainspring(store), 0

    @app.task()
    async def quick() -> None:
        nonlocal ran
        ran += 1

    async with working(app, concurrency=5, prefetch=10) as worker:
        await quick.enqueue_many([{}] * 500)
        runs = worker.parts.runs
        await eventually(lambda: runs.acker.unwritten > 15 and not runs.held and not runs.room.is_set())
        assert ran <= 3 * (5 + 10)  # being written, waiting for that, and claimed just before it was too much
        store.go.set()
        await eventually(lambda: ran == 500)
