"""Whether all is well, told alike on every store, with and without an event loop."""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.errors import ConfigurationError, StoreUnavailable
from mainspring.events import StoreBack, StoreLost, StoreThrottled, ThrottlingOver
from mainspring.health import State, judge
from mainspring.stores.protocol import Stats, WorkerInfo
from mainspring.stores.sqlite import MemoryStore
from mainspring.task import Task
from mainspring.testing.clock import ManualClock
from tests.postgres import RecycledStore
from tests.worker.working import member, record

STORES = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Mainspring]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}
    app = Mainspring(urls.get(request.param) or RecycledStore(clock=clock), clock=clock)
    yield app
    app.run(app.close())


def send(app: Mainspring) -> Task[..., Any, Any]:
    @app.task(queue="mail")
    async def send() -> None: ...

    return send


def join(app: Mainspring) -> None:
    app.run(app.store.join(member(), lambda _: None))


# -- on every store -------------------------------------------------------------------------------


def test_an_empty_store_is_healthy(app: Mainspring) -> None:
    health = app.run(app.health())
    assert (health.state, health.problems, health.reachable) == (State.OK, (), True)
    assert (health.workers, health.oldest_due, health.halted) == (0, None, False)
    assert health.store == app.store.url
    assert health.at == app.now()
    assert replace(app.run(app.health()), measures=health.measures) == health


def test_due_jobs_that_no_worker_takes_degrade_health(app: Mainspring) -> None:
    send(app).using(delay=60).enqueue_sync()
    assert app.run(app.health()).state is State.OK
    send(app).enqueue_sync()
    health = app.run(app.health())
    assert health.state is State.DEGRADED
    assert health.unattended == ("mail",)
    assert health.problems == ("jobs are due that no worker takes, in: mail",)
    assert (health.oldest_due, health.oldest_in) == (app.now(), "mail")


def test_a_worker_of_a_pattern_attends_to_its_queues(app: Mainspring) -> None:
    app.run(app.store.join(replace(member(), queues=("p/acme/*",)), lambda _: None))
    send(app).using(queue="p/acme/mail").enqueue_sync()
    assert app.run(app.health()).unattended == ()
    send(app).enqueue_sync()
    assert app.run(app.health()).unattended == ("mail",)


def test_due_jobs_of_tasks_that_no_worker_knows_degrade_health(app: Mainspring) -> None:
    app.run(app.store.join(replace(member(), tasks=("other",)), lambda _: None))
    send(app).using(delay=60).enqueue_sync()
    assert app.run(app.health()).state is State.OK
    send(app).enqueue_sync()
    health = app.run(app.health())
    assert health.state is State.DEGRADED
    assert [(task.task, task.queue, task.due) for task in health.unknown_tasks] == [(send(app).name, "mail", 1)]
    assert health.problems == (f"no live worker of queue mail knows task {send(app).name} (1 due)",)
    assert (health.oldest_due, health.oldest_in) == (app.now(), "mail")
    app.run(app.pause("mail", "deployment", wait=0))
    assert app.run(app.health()).problems == ()
    app.run(app.resume("mail"))
    app.run(app.store.join(replace(member("new"), tasks=(send(app).name,)), lambda _: None))
    assert app.run(app.health()).problems == ()
    app.run(app.store.leave("new"))
    assert len(app.run(app.health()).problems) == 1


def test_a_worker_of_another_queue_does_not_make_a_task_known(app: Mainspring) -> None:
    app.run(app.store.join(replace(member(), tasks=("other",)), lambda _: None))
    app.run(app.store.join(replace(member("new"), queues=("sms",), tasks=(send(app).name,)), lambda _: None))
    send(app).enqueue_sync()
    assert [task.task for task in app.run(app.health()).unknown_tasks] == [send(app).name]


def test_due_jobs_beyond_max_lateness_degrade_health(app: Mainspring, clock: ManualClock) -> None:
    join(app)
    send(app).enqueue_sync()
    clock.advance(20)
    health = app.run(app.health())
    assert (health.state, health.workers, health.unattended) == (State.OK, 1, ())
    for length in (timedelta(seconds=10), 10):
        health = app.run(app.health(max_lateness=length, timeout=length))
        assert health.state is State.DEGRADED
        assert health.problems == ("the oldest job of queue mail has been due for 20 s",)
    with pytest.raises(ConfigurationError, match="is not a length of time"):
        app.run(app.health(max_lateness="10"))  # type: ignore[arg-type]


def test_halted_and_paused_queues_are_healthy(app: Mainspring) -> None:
    send(app).enqueue_sync()
    app.run(app.pause("mail"))
    assert (app.run(app.health()).state, app.run(app.health()).halted) == (State.OK, False)
    app.run(app.resume("mail"))
    assert app.run(app.health()).state is State.DEGRADED
    app.run(app.halt())
    assert (app.run(app.health()).state, app.run(app.health()).halted) == (State.OK, True)


# -- what a report is made of ---------------------------------------------------------------------


def test_dead_workers_do_not_count_and_polling_ones_do(clock: ManualClock) -> None:
    now = Mainspring("memory://", clock=clock).now()
    dead, deaf = WorkerInfo("a", "h", 1, ("*",), alive=False), WorkerInfo("b", "h", 2, ("mail",), polling=True)
    health = judge(Stats([], {}, {"mail": now, "video": now}, [dead, deaf], []), now, "memory://")
    assert (health.workers, health.polling, health.unattended) == (1, ("b",), ("video",))
    assert health.problems[-1] == "workers are not notified of new jobs and poll for them: b"


def test_lessees_without_a_worker_degrade_health(app: Mainspring) -> None:
    """Nothing would take over their jobs if they died, and no schedule fires."""
    with app.leases.lessee("printer", queues=["mail"]):
        health = app.run(app.health())
        assert health.state is State.DEGRADED
        assert "only programs that lease jobs are alive" in health.problems[0]
        join(app)
        assert app.run(app.health()).state is State.OK


@pytest.mark.parametrize("remote", [False, True])
def test_a_dead_worker_degrades_health_until_a_live_one_can_take_over(clock: ManualClock, *, remote: bool) -> None:
    now = Mainspring("memory://", clock=clock).now()
    dead, alive = WorkerInfo("a", "h", 1, ("*",), alive=False, remote=remote), WorkerInfo("b", "h", 2, ("mail",))
    health = judge(Stats([], {}, {}, [dead], []), now, "memory://")
    assert health.state is State.DEGRADED
    assert "no worker takes over the jobs of workers that have died: a." in health.problems[0]
    assert judge(Stats([], {}, {}, [dead, alive], []), now, "memory://").state is State.OK


async def test_throttling_emits_one_event_and_degrades_health(clock: ManualClock) -> None:
    app = Mainspring("memory://", clock=clock)
    events = record(app, StoreThrottled, ThrottlingOver)
    calm, strained = {"throttling": 0.0, "throttled": 7, "calls": 9000}, {"throttling": 1.0, "throttled": 7, "calls": 9}
    for measures in ({}, calm, strained, strained, calm, calm):
        app.runtime.contact.measured(measures)
    await app.runtime.bus.flush()
    assert [(type(event), event.store, event.measures) for event in events] == [
        (StoreThrottled, "memory://", strained),
        (ThrottlingOver, "memory://", calm),
    ]
    assert judge(Stats([], {}, {}, [], [], measures=calm), app.now(), "memory://").state is State.OK
    health = judge(Stats([], {}, {}, [], [], measures=strained), app.now(), "memory://")
    assert (health.state, health.measures) == (State.DEGRADED, strained)
    assert health.problems == ("the store's service throttles this process: 7 of 9 calls so far",)
    await app.close()


# -- a store that does not answer -----------------------------------------------------------------


class SilentStore(MemoryStore):
    silence: StoreUnavailable | float = 0.0  # what it says, or for how long it says nothing

    async def stats(self, within: Sequence[str] = ()) -> Stats:
        if isinstance(self.silence, StoreUnavailable):
            raise self.silence
        await asyncio.sleep(self.silence)
        return await super().stats(within)


@pytest.fixture
def store() -> SilentStore:
    return SilentStore()


async def test_an_unreachable_store_is_reported_with_its_time_and_error(store: SilentStore) -> None:
    app = Mainspring(store)
    events = record(app, StoreLost, StoreBack)
    store.silence = StoreUnavailable("the database cannot be reached")
    first = await app.health()
    assert (first.state, first.reachable, first.workers) == (State.DOWN, False, None)
    assert first.problems == ("the store does not answer: the database cannot be reached",)
    store.silence = StoreUnavailable("it is starting up")
    second = await app.health()
    assert second.lost_at == first.lost_at is not None
    assert (first.error, second.error) == (
        "StoreUnavailable: the database cannot be reached",
        "StoreUnavailable: it is starting up",
    )
    store.silence = 0.0
    assert (await app.health()).state is State.OK
    assert (await app.health()).reachable
    await app.runtime.bus.flush()
    lost, back = events
    assert (type(lost), lost.store, lost.error) == (StoreLost, "memory://", first.error)
    assert (type(back), back.store) == (StoreBack, "memory://")
    assert 0 <= back.gone_for < 60
    await app.close()


async def test_a_store_that_does_not_answer_is_not_waited_for(store: SilentStore) -> None:
    app = Mainspring(store)
    store.silence = 3600.0
    began = time.monotonic()
    health = await app.health(timeout=0.02)
    assert time.monotonic() - began < 60
    assert health.state is State.DOWN
    assert health.error == "StoreUnavailable: no answer within 0.02 s"
    asking = asyncio.create_task(app.health())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert asking.cancelled()
    await app.close()


async def test_any_error_makes_health_down(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Mainspring("memory://")

    async def stats() -> Stats:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(app.store, "stats", stats)
    assert (await app.health()).error == "OSError: [Errno 24] Too many open files"
    await app.close()


async def test_health_is_down_if_the_file_has_vanished(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")
    await send(app).enqueue()
    (tmp_path / "jobs.db").rename(tmp_path / "elsewhere.db")
    health = await app.health()
    assert (health.state, health.error.partition(":")[0]) == (State.DOWN, "StoreVanished")
    (tmp_path / "elsewhere.db").rename(tmp_path / "jobs.db")
    assert (await app.health()).reachable
    await app.close()


async def test_health_is_down_while_the_file_stays_locked(tmp_path: Path) -> None:
    """As one does that was stopped in the middle of a commit."""
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")
    assert (await app.health()).state is State.OK
    with (tmp_path / "jobs.db-lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        health = await app.health(timeout=0.5)
    assert (health.state, health.reachable) == (State.DEGRADED, True)
    assert "another process has kept the store locked for 0.5 s" in health.problems[0]
    assert (await app.health()).state is State.OK
    await app.close()
