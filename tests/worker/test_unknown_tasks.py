"""Jobs of tasks that a worker does not know stay due, delay no other job, and are reported."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.events import TaskUnknown
from mainspring.ids import new_id
from mainspring.job import NewJob, Status
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import Store, WorkerInfo
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.worker import unknown_tasks
from tests.postgres import RecycledStore
from tests.worker.working import ended, eventually, fields_of, new_app, record, working

JOB = "018f0000-0000-7000-8000-000000000001"
STORES = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)]


@pytest.fixture
def app() -> Mainspring:
    return new_app()


@pytest.fixture(params=STORES)
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Mainspring, Mainspring]]:
    """An old and a new version of one application, each with a store of its own as if in processes of their own."""
    kind = request.param
    shared = MemoryStore() if kind == "memory" else RecycledStore() if kind == "postgres" else None

    def store() -> Store:
        if isinstance(shared, PostgresStore):
            return PostgresStore(shared._dsn, schema_name=shared.schema)
        return shared or SqliteStore(tmp_path / "jobs.db")

    old, new = Mainspring(store()), Mainspring(store())
    for version in (old, new):

        @version.task(name="greet")
        async def greet() -> str:
            return "hello"

    @new.task(name="thank")
    async def thank() -> str:
        return "thanks"

    yield old, new
    await old.close()
    await new.close()
    if shared is not None:
        await shared.close()


async def test_old_and_new_workers_share_a_queue_without_delay(fleet: tuple[Mainspring, Mainspring]) -> None:
    """Each job of the new task is claimed once, by the new worker, although both are idle when it comes."""
    old, new = fleet
    async with working(old, concurrency=2), working(new, concurrency=2) as knowing:
        for number in range(10):
            job = await new.tasks[("thank", "greet")[number % 5 == 4]].enqueue()
            before = await job.get()
            [done] = await ended(new, job.id)
            assert (done.status, done.attempts, done.token) == (Status.COMPLETED, 1, 1)
            assert (done.run_at, done.reason) == (before.run_at, "")
            assert done.task == "greet" or done.worker == knowing.id


async def test_jobs_of_a_new_task_wait_for_a_worker_that_knows_it(fleet: tuple[Mainspring, Mainspring]) -> None:
    old, new = fleet
    told = record(old, TaskUnknown)
    async with working(old):
        jobs = [await new.tasks["thank"].enqueue() for _ in range(3)]
        await eventually(lambda: told)
        assert (await (await old.tasks["greet"].enqueue()).result(30)) == "hello"
        waiting = [await job.get() for job in jobs]
        assert [(job.status, job.token) for job in waiting] == [(Status.PENDING, 0)] * 3
        async with working(new):
            done = await ended(new, *[job.id for job in jobs])
    assert [(job.result, job.token) for job in done] == [("thanks", 1)] * 3
    assert [(event.task, event.queue) for event in told] == [("thank", "default")]


# -- telling --------------------------------------------------------------------------------------


async def test_an_unknown_task_is_reported_once(
    app: Mainspring, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_tasks, "LOOK_EVERY", 0.0)
    caplog.set_level(logging.WARNING)
    told = record(app, TaskUnknown)
    looks = count(monkeypatch, "look")

    async with working(app) as worker:
        await app.store.insert([NewJob(JOB, "thank", "{}", queue="mail")])
        await eventually(lambda: told)
        await app.store.insert([NewJob(new_id(), "thank", "{}", queue="mail")])
        seen = looks[0]
        await eventually(lambda: looks[0] > seen + 3)
    assert [(event.task, event.queue, event.due) for event in told] == [("thank", "mail", 1)]
    [line] = fields_of(caplog, "task_unknown")
    assert line == {"task": "thank", "queue": "mail", "due": 1, "worker": worker.id}


async def test_an_unknown_task_is_reported_again_after_a_worker_knew_it(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_tasks, "LOOK_EVERY", 0.0)
    told = record(app, TaskUnknown)
    looks = count(monkeypatch, "look")
    knowing = WorkerInfo("w2", "host", 1, ("*",), tasks=("thank",))
    async with working(app):
        await app.store.join(knowing, lambda _: None)
        await app.store.insert([NewJob(JOB, "thank", "{}")])
        await eventually(lambda: looks[0] > 3)
        assert told == []
        await app.store.leave("w2")
        await eventually(lambda: told)
        await app.store.join(knowing, lambda _: None)
        seen = looks[0]
        await eventually(lambda: looks[0] > seen + 3)
        await app.store.leave("w2")
        await eventually(lambda: len(told) == 2)


async def test_drain_reports_unknown_tasks(app: Mainspring) -> None:
    told = record(app, TaskUnknown)
    await app.store.insert([NewJob(JOB, "thank", "{}")])
    assert await app.worker().drain() == 0
    assert [event.task for event in told] == ["thank"]


async def test_a_worker_that_meets_unknown_tasks_does_not_spin() -> None:
    claims = 0

    class Counting(MemoryStore):
        async def claim(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal claims
            claims += 1
            return await super().claim(*args, **kwargs)

    app = Mainspring(Counting())

    @app.task()
    async def greet() -> None: ...

    told = record(app, TaskUnknown)
    async with working(app):
        await app.store.insert([NewJob(new_id(), "thank", "{}") for _ in range(50)])
        await eventually(lambda: told)
        before = claims
        for _ in range(5):
            await (await greet.enqueue()).result(30)
    assert claims - before < 50


# -- tasks that come and go -----------------------------------------------------------------------


async def test_a_task_that_is_defined_while_the_worker_runs_is_known_from_then_on(app: Mainspring) -> None:
    async with working(app) as worker:
        await app.store.insert([NewJob(JOB, "thank", "{}")])

        @app.task(name="thank")
        async def thank() -> str:
            return "thanks"

        await (await thank.enqueue()).result(30)
        [job] = await ended(app, JOB)
        [info] = [info for info in (await app.stats()).workers if info.id == worker.id]
    assert job.result == "thanks"
    assert "thank" in info.tasks


async def test_a_job_whose_task_was_removed_during_its_claim_is_released() -> None:
    class Late(MemoryStore):
        async def claim(self, *args: Any, **kwargs: Any) -> Any:
            claims = await super().claim(*args, **kwargs)
            if any(job.task == "thank" for job in claims.jobs):
                del late.tasks["thank"]
            return claims

    late = Mainspring(Late())

    @late.task()
    async def greet() -> str:
        return "hello"

    @late.task(name="thank")
    async def thank() -> None: ...

    job = await thank.enqueue()
    before = await job.get()
    async with working(late, concurrency=1):
        await eventually(lambda: "thank" not in late.tasks)
        assert await (await greet.enqueue()).result(30) == "hello"
        after = await job.get()
    assert (after.status, after.run_at, after.attempts, after.token) == (Status.PENDING, before.run_at, 0, 1)


def count(monkeypatch: pytest.MonkeyPatch, method: str) -> list[int]:
    """How often a method of UnknownTasks came to its end."""
    whole, times = getattr(unknown_tasks.UnknownTasks, method), [0]

    async def counted(self: unknown_tasks.UnknownTasks) -> None:
        await whole(self)
        times[0] += 1

    monkeypatch.setattr(unknown_tasks.UnknownTasks, method, counted)
    return times
