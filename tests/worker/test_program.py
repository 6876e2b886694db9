from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import assert_type

import pytest

from mainspring import ConfigurationError, Mainspring, StoreError
from mainspring.job import Status
from mainspring.worker import Worker
from mainspring.worker import program as program_module
from tests.worker.working import DEADLINE, QUICK, eventually, new_app, reached


@pytest.fixture
def app() -> Mainspring:
    return new_app()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_stops_after_the_grace_and_the_second_at_once(
    app: Mainspring, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task()
    async def work() -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(program_module, "SAME_SIGNAL_WITHIN", 3600.0)  # however long this machine takes between the two
    worker = Worker(app, **{**QUICK, "grace": 3600})
    program = program_module.Program(worker)
    running = asyncio.create_task(program.serve())
    job = await work.enqueue()
    await reached(app, job.id, statuses=(Status.RUNNING,))
    os.kill(os.getpid(), number)
    await eventually(worker._stopping.is_set)
    os.kill(os.getpid(), number)  # the same wish, told to the process and to its group
    await asyncio.sleep(0.05)
    assert not running.done()
    monkeypatch.setattr(program_module, "SAME_SIGNAL_WITHIN", 0.0)
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(running, DEADLINE) == 0
    program.be_patient()  # as `run` is when all has ended in order; else this process would end
    assert (await job.get()).status is Status.PENDING


LEAVING = """
import asyncio, os, signal, sys, threading, time
from mainspring import Mainspring
from mainspring.worker import Worker, program, slots, worker
worker.STOP_TIMEOUT = program.LEFT_BEHIND_TIMEOUT = slots.CANCEL_TIMEOUT = 0.2
app = Mainspring("memory://")

@app.task()
async def swallows():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

@app.task()
async def hangs_in_a_thread():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    await asyncio.to_thread(time.sleep, 3600)

asyncio.run(app.tasks[sys.argv[1]].enqueue())
sys.exit(Worker(app, grace=0.1).run())
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["swallows", "hangs_in_a_thread"])
def test_the_process_ends_although_handlers_go_on(task: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVING, task], timeout=30, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "left_behind" in done.stderr


# -- in the background ---------------------------------------------------------------------------


async def test_a_worker_in_the_background_joins_on_entry_and_leaves_on_exit() -> None:
    app = new_app()

    @app.task()
    async def double(number: int) -> int:
        return 2 * number

    async with app.worker(heartbeat_interval=0.05) as worker:
        assert_type(worker, Worker)
        assert [info.id for info in (await app.stats()).workers] == [worker.id]
        assert await (await double.enqueue(number=4)).result(timeout=DEADLINE) == 8
    assert (await app.stats()).workers == []
    waits = await double.enqueue(number=5)
    assert (await waits.get()).status is Status.PENDING


async def test_a_worker_runs_inside_the_lifespan_of_a_web_application() -> None:
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


async def test_an_error_of_the_block_is_raised_after_the_worker_has_stopped() -> None:
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


async def test_a_cancelled_start_leaves_no_worker_behind(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_cancelled_worker_task_is_logged_and_raised(caplog: pytest.LogCaptureFixture) -> None:
    async def lose_it() -> None:
        async with new_app().worker() as worker:
            (task,) = (task for task in asyncio.all_tasks() if task.get_name() == f"mainspring-worker-{worker.id}")
            task.cancel()
            with caplog.at_level(logging.ERROR, "mainspring.worker"):
                await eventually(lambda: "worker_died" in caplog.text)

    with pytest.raises(RuntimeError, match="was cancelled"):
        await lose_it()


async def test_a_worker_cannot_be_entered_twice() -> None:
    worker = new_app().worker()
    await enter(worker)
    with pytest.raises(ConfigurationError, match="make another one with"):
        await enter(worker)


async def enter(worker: Worker) -> None:
    async with worker:
        pass
