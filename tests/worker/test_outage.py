"""A store that fails for a while: the worker goes on when it is back; nothing is lost and nothing acked twice."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import Any, cast

import pytest

from mainspring import Context, Mainspring, Retry
from mainspring.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreVanished,
)
from mainspring.events import StoreBack, StoreLost
from mainspring.health import Contact, State
from mainspring.job import Status
from mainspring.worker import Worker
from mainspring.worker.outage import FIRST_REMINDER, LONGEST_REMINDER, Backoff, Outage, supervised
from tests.worker.working import QUICK, FakeContact, FaultyStore, ended, eventually, fields_of, record, working


class Watch:
    """Shows the time that it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def outage(watch: Watch) -> Outage:
    return Outage("w", monotonic=watch)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="mainspring")
    return caplog


def warnings(log: Any) -> list[tuple[str, float]]:
    """Of which loop, and how long the store had been away."""
    return [(line["loop"], line["gone_for"]) for line in fields_of(log, "store_unavailable")]


def test_an_outage_is_logged_at_growing_intervals(outage: Outage, watch: Watch, log: pytest.LogCaptureFixture) -> None:
    for second in range(4000):
        watch.now = float(second)
        outage.failed("claim", StoreUnavailable())
    moments = [gone_for for _, gone_for in warnings(log)]
    pauses = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert pauses == [min(FIRST_REMINDER * 2**n, LONGEST_REMINDER) for n in range(len(pauses))]
    assert pauses[-1] == LONGEST_REMINDER


def test_an_outage_is_logged_for_the_first_of_several_loops(outage: Outage, log: pytest.LogCaptureFixture) -> None:
    for loop in ("heartbeat", "claim", "maintenance", "heartbeat"):
        outage.failed(loop, StoreUnavailable())
    assert warnings(log) == [("heartbeat", 0.0)]


def test_another_kind_of_error_is_logged_at_once(outage: Outage, log: pytest.LogCaptureFixture) -> None:
    for error in (StoreVanished("gone"), StoreFull("full"), StoreVanished("gone"), StoreFull("full")):
        outage.failed("claim", error)
    assert [line["error"] for line in fields_of(log, "store_unavailable")] == ["StoreVanished: gone", "StoreFull: full"]


def test_the_end_is_logged_when_all_loops_have_reached_the_store(
    outage: Outage, watch: Watch, log: pytest.LogCaptureFixture
) -> None:
    outage.failed("claim", StoreUnavailable())
    watch.now = 3.0
    outage.failed("heartbeat", StoreUnavailable())
    watch.now = 4.0
    outage.worked("heartbeat")
    outage.worked("maintenance")  # which had not tried
    assert not fields_of(log, "store_back")
    watch.now = 8.0  # it waited before it tried again
    outage.worked("claim")
    outage.worked("claim")
    assert fields_of(log, "store_back") == [{"worker": "w", "gone_for": 4.0, "failures": 2}]


def test_an_outage_goes_on_if_a_loop_fails_again_before_its_end(
    outage: Outage, watch: Watch, log: pytest.LogCaptureFixture
) -> None:
    outage.failed("claim", StoreUnavailable())
    outage.failed("acks", StoreUnavailable())
    outage.worked("claim")
    watch.now = 2.0
    outage.failed("claim", StoreUnavailable())
    watch.now = 5.0
    outage.worked("claim")
    outage.worked("acks")
    assert fields_of(log, "store_back") == [{"worker": "w", "gone_for": 5.0, "failures": 3}]


def test_the_next_outage_is_logged_anew(outage: Outage, watch: Watch, log: pytest.LogCaptureFixture) -> None:
    for second in (0.0, 1.0):
        watch.now = second
        outage.failed("claim", StoreUnavailable())
        outage.worked("claim")
    assert warnings(log) == [("claim", 0.0), ("claim", 0.0)]
    assert len(fields_of(log, "store_back")) == 2


async def test_the_contact_is_notified_of_each_failure_and_of_the_end() -> None:
    contact, full = FakeContact(), StoreFull()
    outage = Outage("w", cast("Contact", contact))
    outage.worked("claim")
    outage.failed("claim", full)
    outage.failed("acks", full)
    outage.worked("claim")
    await eventually(lambda: contact.told == [full, full])
    outage.worked("acks")
    await eventually(lambda: contact.told == [full, full, None])


# -- loops ----------------------------------------------------------------------------------------


async def test_backoff_doubles_up_to_its_maximum_and_can_be_reset() -> None:
    backoff, waits = Backoff(first=0.001, most=0.004), []
    for _ in range(4):
        waits.append(backoff.next)
        await backoff.wait()
    assert waits == [0.001, 0.002, 0.004, 0.004]
    backoff.reset()
    assert backoff.next == 0.001


async def test_backoff_ends_early_for_an_event() -> None:
    told, began = asyncio.Event(), time.monotonic()
    told.set()
    await Backoff(first=30).wait(unless=told)
    assert time.monotonic() - began < 5


@pytest.mark.slow
async def test_a_loop_survives_whatever_its_step_raises() -> None:
    errors: list[BaseException] = [ValueError(), OSError(), asyncio.CancelledError(), RuntimeError()]
    seen = asyncio.Event()

    async def step() -> None:
        if errors:
            raise errors.pop()
        seen.set()
        await asyncio.sleep(0)

    loop = asyncio.create_task(supervised("test", step, Outage("w")))
    async with asyncio.timeout(10):
        await seen.wait()
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop


# -- a worker whose store fails -------------------------------------------------------------------


METHODS = ["claim", "ack", "heartbeat", "reap", "report", "prune", "halts"]


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def app(store: FaultyStore) -> Mainspring:
    return Mainspring(store)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [StoreFull(), StoreBusy(), StoreVanished()], ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("method", ["claim", "ack", "heartbeat", "reap", "report"])
async def test_a_worker_survives_failures_of_one_store_method(
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
async def test_a_worker_survives_failures_of_the_whole_store(app: Mainspring, store: FaultyStore) -> None:
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


@pytest.mark.slow
async def test_an_outage_is_logged_once_however_many_loops_meet_it(
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


@pytest.mark.slow
async def test_events_tell_of_an_outage_and_of_its_end(app: Mainspring, store: FaultyStore) -> None:
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


@pytest.mark.slow
async def test_health_forgets_the_outage_of_a_worker_that_has_left(app: Mainspring, store: FaultyStore) -> None:
    async with working(app):
        store.fail("heartbeat", fault=StoreVanished())
        await eventually(lambda: store.failed["heartbeat"])
    assert (await app.health()).state is State.OK
    store.fail("open", fault=StoreVanished())
    worker = Worker(app, **QUICK)
    serving = asyncio.create_task(worker.serve())
    await eventually(lambda: app.runtime.contact.lost_at)
    worker.stop()
    await serving
    assert app.runtime.contact.lost_at is None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["open", "join"])
async def test_a_worker_waits_for_a_store_that_is_not_there_yet(
    app: Mainspring, store: FaultyStore, method: str
) -> None:
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


@pytest.mark.slow
async def test_a_cancelled_store_call_does_not_end_a_loop(app: Mainspring, store: FaultyStore) -> None:
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


@pytest.mark.slow
async def test_jobs_run_on_while_heartbeats_fail(
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("ack", ["grouped", "sync"])
async def test_an_outcome_that_cannot_be_written_does_not_block_others(
    app: Mainspring, store: FaultyStore, ack: Any
) -> None:
    real = store.ack

    async def refusing(outcomes: Any) -> Any:
        if any(outcome.result == '"poison"' for outcome in outcomes):
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
