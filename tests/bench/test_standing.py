"""A clock that stands still while work is under way."""

from __future__ import annotations

import asyncio
import threading
import time

from bench.standing import here, run


def test_waiting_takes_time_and_no_patience() -> None:
    async def nap() -> float:
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(1800))
        return here().time()

    began = time.monotonic()
    assert round(run(nap())) == 3600
    assert time.monotonic() - began < 60


def test_work_takes_no_time_however_long_it_takes() -> None:
    order: list[str] = []

    async def work() -> None:
        with here().standing():
            await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.05)
            order.append("worked")

    async def wait() -> None:
        await asyncio.sleep(0.001)
        order.append("waited")

    async def both() -> float:
        await asyncio.gather(work(), wait())
        return here().time()

    assert round(run(both()), 6) == 0.001
    assert order == ["worked", "waited"]


def test_the_end_waits_for_threads_that_are_still_at_work() -> None:
    release = threading.Event()

    async def leave_a_thread_behind() -> None:
        here().run_in_executor(None, release.wait, 10)
        threading.Timer(0.05, release.set).start()

    run(leave_a_thread_behind())
    assert release.is_set()
