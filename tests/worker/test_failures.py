"""A store that fails for a while: the worker goes on when it is back; nothing is lost and nothing acked twice."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from mainspring import Context, Mainspring, Retry
from mainspring.errors import StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreReadOnly, StoreVanished
from mainspring.events import StoreBack, StoreLost
from mainspring.health import State
from mainspring.job import Status
from mainspring.worker import Worker
from tests.worker.working import QUICK, FaultyStore, ended, eventually, fields_of, record, working

pytestmark = pytest.mark.slow

METHODS = ["claim", "ack", "heartbeat", "reap", "report", "prune", "halts"]


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def app(store: FaultyStore) -> Mainspring:
    return Mainspring(store)


@pytest.mark.parametrize("fault", [StoreFull(), StoreBusy(), StoreVanished()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("method", ["claim", "ack", "heartbeat", "reap", "report"])
async def test_one_method_fails_for_a_while(
    app: Mainspring, store: FaultyStore, method: str, fault: StoreError
) -> None:
    runs: list[int] = []

    @app.task()
    async def work(ctx: Context, n: int) -> int:
        runs.append(n)
        ctx.progress(0.5)
        await asyncio.sleep(0.001)
        return n

    store.fail(method, fault=fault)
    async with working(app, concurrency=5):
        jobs = await work.enqueue_many([{"n": n} for n in range(20)])
        if method == "report":
            gate = asyncio.create_task(report_until(app, store))
            await gate
        await eventually(lambda: store.failed[method] >= 3)
        store.heal()
        found = await ended(app, *[job.id for job in jobs])
        await work.enqueue(n=99)
        await eventually(lambda: 99 in runs)
    assert {job.status for job in found} == {Status.COMPLETED}
    assert sorted(runs) == [*range(20), 99]
    assert set(store.written.values()) == {1}


async def report_until(app: Mainspring, store: FaultyStore) -> None:
    """Reports are only written while their jobs run."""

    @app.task(name="reporting")
    async def reporting(ctx: Context) -> None:
        ctx.progress(0.1)
        await eventually(lambda: store.failed["report"] >= 3)

    await reporting.enqueue()


@pytest.mark.slow
async def test_everything_fails_for_a_while(app: Mainspring, store: FaultyStore) -> None:
    @app.task(retry=Retry.fixed(0, max_attempts=5))
    async def work(ctx: Context, n: int) -> int:
        await asyncio.sleep(0.01)
        if n % 3 == ctx.attempt:
            raise OSError
        return n

    async with working(app, concurrency=5):
        jobs = await work.enqueue_many([{"n": n} for n in range(30)])
        for fault in (StoreFull(), StoreBusy(), StoreVanished(), StoreReadOnly(), StoreCorrupt()):
            before = store.failed["claim"] + store.failed["ack"]
            store.fail(*METHODS, fault=fault)
            await eventually(lambda: store.failed["claim"] + store.failed["ack"] > before)  # noqa: B023
            store.heal()
        found = await ended(app, *[job.id for job in jobs])
    assert {job.status for job in found} == {Status.COMPLETED}
    assert set(store.written.values()) == {1}


async def test_an_outage_is_told_of_once_however_many_loops_meet_it(
    app: Mainspring, store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="mainspring")

    @app.task()
    async def work() -> None:
        pass

    async with working(app):
        store.fail(*METHODS, fault=StoreVanished("gone"))
        await work.enqueue()  # so that it tries to claim
        await eventually(lambda: min(store.failed[method] for method in ("claim", "heartbeat", "reap")) >= 3)
        store.heal()
        (back,) = await eventually(lambda: fields_of(caplog, "store_back"))
    (lost,) = fields_of(caplog, "store_unavailable")
    assert lost["error"] == "StoreVanished: gone"
    assert back["failures"] >= 9
    assert not fields_of(caplog, "loop_failed")


async def test_an_outage_is_an_event_and_so_is_its_end(app: Mainspring, store: FaultyStore) -> None:
    events = record(app, StoreLost, StoreBack)
    async with working(app):
        store.fail("heartbeat", "reap", fault=StoreFull("no room"))
        await eventually(lambda: min(store.failed[method] for method in ("heartbeat", "reap")) >= 2)
        health = await app.health()  # the store can be read all the same
        assert (health.state, health.reachable) == (State.DEGRADED, True)
        assert health.problems == ("a worker here gets no answer: StoreFull: no room",)
        assert health.lost_at is not None
        store.heal()
        await eventually(lambda: len(events) >= 2)
        assert (await app.health()).state is State.OK
    lost, back = events
    assert (lost.error, lost.store) == ("StoreFull: no room", store.url)
    assert (type(back), back.store) == (StoreBack, store.url)


async def test_a_worker_that_is_gone_knows_no_more_of_it(app: Mainspring, store: FaultyStore) -> None:
    async with working(app):
        store.fail("heartbeat", fault=StoreVanished())
        await eventually(lambda: store.failed["heartbeat"])
    assert (await app.health()).state is State.OK
    store.fail("open", fault=StoreVanished())
    worker = Worker(app, **QUICK)
    serving = asyncio.create_task(worker.serve())
    await eventually(lambda: app.contact.lost_at)
    worker.stop()
    await serving
    assert app.contact.lost_at is None


@pytest.mark.parametrize("method", ["open", "join"])
async def test_it_waits_for_a_store_that_is_not_there_yet(app: Mainspring, store: FaultyStore, method: str) -> None:
    @app.task()
    async def work() -> str:
        return "done"

    store.fail(method, fault=StoreVanished())
    worker = Worker(app, **QUICK)
    serving = asyncio.create_task(worker.serve())
    await eventually(lambda: store.failed[method] >= 3)
    store.heal()
    assert await (await work.enqueue()).result(10) == "done"
    worker.stop()
    await serving


async def test_a_call_that_is_cancelled_underneath_ends_no_loop(app: Mainspring, store: FaultyStore) -> None:
    @app.task()
    async def work() -> str:
        return "done"

    async with working(app):
        for method in ("claim", "ack", "reap"):
            store.fail(method, fault=asyncio.CancelledError())
            job = await work.enqueue()
            await eventually(lambda: store.failed[method] >= 1)  # noqa: B023
            store.heal()
            assert await job.result(10) == "done"


async def test_a_dead_heartbeat_does_not_stop_the_work(
    app: Mainspring, store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task()
    async def work() -> str:
        return "done"

    async with working(app):
        store.fail("heartbeat", fault=StoreBusy("held by another"))
        lines = await eventually(lambda: fields_of(caplog, "store_unavailable"))
        assert await (await work.enqueue()).result(10) == "done"
        store.heal()
    assert lines[0]["loop"] == "heartbeat"
    assert "held by another" in lines[0]["error"]


async def test_progress_is_written_when_the_store_is_back(app: Mainspring, store: FaultyStore) -> None:
    gate = asyncio.Event()

    @app.task()
    async def work(ctx: Context) -> None:
        ctx.progress(0.25, "only once")
        await gate.wait()

    async def noted() -> bool:
        progress = (await job.get()).progress
        return progress is not None and progress.note == "only once"

    store.fail("report", fault=StoreFull())
    async with working(app):
        job = await work.enqueue()
        await eventually(lambda: store.failed["report"] >= 2)
        store.heal()
        await eventually(noted)
        gate.set()


@pytest.mark.parametrize("ack", ["grouped", "sync"])
async def test_an_outcome_that_no_store_takes_harms_no_other(app: Mainspring, store: FaultyStore, ack: Any) -> None:
    real = store.ack

    async def refusing(outcomes: Any) -> Any:
        if any(one.result == '"poison"' for one in outcomes):
            raise ValueError("not this one")
        return await real(outcomes)

    store.ack = refusing  # type: ignore[method-assign]

    @app.task(ack=ack)
    async def work(n: int) -> str:
        return "poison" if n == 3 else "fine"

    async with working(app, concurrency=2):
        jobs = await work.enqueue_many([{"n": n} for n in range(8)])
        found = await ended(app, *[job.id for job in jobs])
    assert [job.status for job in found].count(Status.COMPLETED) == 7
    assert found[3].status is Status.DEAD_LETTER
    assert found[3].failure is not None
    assert "not this one" in found[3].failure.message
