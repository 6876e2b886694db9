"""A worker as the program of its process: signals, and what handlers leave behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from mainspring import Mainspring
from mainspring.job import Status
from mainspring.worker import Worker
from mainspring.worker import program as program_module
from tests.worker.working import DEADLINE, QUICK, eventually, new_app, reached

pytestmark = pytest.mark.slow


@pytest.fixture
def app() -> Mainspring:
    return new_app()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals(app: Mainspring, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_handlers_leave_behind_cannot_keep_the_process(task: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVING, task], timeout=30, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "left_behind" in done.stderr
