from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import assert_type

import pytest

from mainspring import ConfigurationError, Mainspring, StoreError, Worker
from mainspring.job import Status

from .working import DEADLINE, eventually, new_app


async def test_a_worker_in_the_background_has_joined_on_entry_and_left_on_exit() -> None:
    app = new_app()

    @app.task()
    async def double(number: int) -> int:
        return 2 * number

    async with app.worker(heartbeat_interval=0.05) as worker:
        assert_type(worker, Worker)
        assert [one.id for one in (await app.stats()).workers] == [worker.id]
        assert await (await double.enqueue(number=4)).result(timeout=DEADLINE) == 8
    assert (await app.stats()).workers == []
    waits = await double.enqueue(number=5)
    assert (await waits.get()).status is Status.PENDING


async def test_a_web_applications_lifespan_runs_the_worker_of_its_queues() -> None:
    app = new_app()

    @app.task(queue="mail")
    async def welcome(guest: str) -> str:
        return f"Welcome, {guest}!"

    @contextlib.asynccontextmanager
    async def lifespan(_web: object) -> AsyncIterator[None]:
        async with app, app.worker(queues=["mail"], concurrency=10):
            yield

    async with lifespan(None):
        assert await (await welcome.enqueue(guest="Ada")).result(timeout=DEADLINE) == "Welcome, Ada!"


async def test_running_jobs_have_the_grace_to_finish_on_exit() -> None:
    app, started, go_on = new_app(), asyncio.Event(), asyncio.Event()

    @app.task()
    async def slow() -> str:
        started.set()
        await go_on.wait()
        return "finished"

    async with app.worker(heartbeat_interval=0.05, grace=DEADLINE):
        handle = await slow.enqueue()
        await started.wait()
        asyncio.get_running_loop().call_later(0.01, go_on.set)
    assert (await handle.get()).result == "finished"


async def test_a_job_that_outlasts_the_grace_is_handed_back() -> None:
    app, started = new_app(), asyncio.Event()

    @app.task()
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    async with app.worker(heartbeat_interval=0.05, grace=0):
        handle = await endless.enqueue()
        await started.wait()
    job = await handle.get()
    assert (job.status, job.attempts) == (Status.PENDING, 0)


async def test_the_blocks_own_error_comes_out_and_the_worker_has_stopped() -> None:
    app = new_app()

    async def fail() -> None:
        async with app.worker():
            msg = "the program's own"
            raise LookupError(msg)

    with pytest.raises(LookupError, match="the program's own"):
        await fail()
    assert (await app.stats()).workers == []


async def test_a_store_that_cannot_be_used_is_an_error_on_entry(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError):
        await enter(Mainspring(f"sqlite:///{tmp_path}/jobs.db").worker())


async def test_a_start_that_is_given_up_leaves_no_worker_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    app, joining = new_app(), asyncio.Event()

    async def never(*_: object) -> None:
        joining.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(app.store, "join", never)
    entering = asyncio.create_task(enter(app.worker()))
    await joining.wait()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert not [task for task in asyncio.all_tasks() if "worker" in task.get_name()]


@pytest.mark.parametrize("name", ["mainspring-claim", "mainspring-maintenance"])
async def test_a_worker_that_dies_is_logged_at_once_and_raised_on_exit(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def lose_a_loop() -> None:
        async with new_app().worker():
            (loop,) = (task for task in asyncio.all_tasks() if task.get_name() == name)
            loop.cancel()
            with caplog.at_level(logging.ERROR, "mainspring.worker"):
                await eventually(lambda: "worker_died" in caplog.text)

    with pytest.raises(RuntimeError, match=name):
        await lose_a_loop()


async def test_a_worker_whose_task_is_cancelled_by_others_is_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    async def lose_it() -> None:
        async with new_app().worker() as worker:
            (task,) = (task for task in asyncio.all_tasks() if task.get_name() == f"mainspring-worker-{worker.id}")
            task.cancel()
            with caplog.at_level(logging.ERROR, "mainspring.worker"):
                await eventually(lambda: "worker_died" in caplog.text)

    with pytest.raises(RuntimeError, match="was cancelled"):
        await lose_it()


async def test_a_worker_is_entered_once() -> None:
    worker = new_app().worker()
    await enter(worker)
    with pytest.raises(ConfigurationError, match="make another one with"):
        await enter(worker)


async def enter(worker: Worker) -> None:
    async with worker:
        pass
