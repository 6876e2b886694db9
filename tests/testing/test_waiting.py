from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import ConfigurationError, Mainspring, Task, testing

app = Mainspring("sqlite:////nowhere/jobs.db")


@app.task()
async def double(number: int) -> int:
    return 2 * number


@app.task(max_attempts=1)
async def double_twice(number: int) -> int:
    return 2 * await (await double.enqueue(number=number)).result()


@app.task(max_attempts=1)
def double_twice_sync(number: int) -> int:
    return 2 * double.enqueue_sync(number=number).result_sync()


async def test_the_result_of_a_job_that_the_test_has_not_run_is_an_error_at_once() -> None:
    async with testing.manual(app) as kit:
        handle = await double.enqueue(number=2)
        for job in (handle, app.job(handle.id)):
            with pytest.raises(ConfigurationError, match=r"'double' is pending, but .* run due jobs with kit.drain"):
                await job.result()
        with pytest.raises(ConfigurationError, match="nothing runs by itself"):
            await asyncio.to_thread(handle.result_sync, timeout=60)
        await kit.drain()
        assert await handle.result() == 4


async def test_inline_the_result_of_a_job_for_later_is_an_error_at_once() -> None:
    async with testing.inline(app) as kit:
        assert await (await double.enqueue(number=2)).result() == 4
        later = await double.using(delay=60).enqueue(number=3)
        with pytest.raises(ConfigurationError, match=r"kit.time.advance\(…\), before you ask for the result"):
            await later.result()
        await kit.time.advance(minutes=1)
        assert await later.result() == 6


@pytest.mark.parametrize("task", [double_twice, double_twice_sync], ids=["coroutine", "thread"])
async def test_a_handler_that_waits_for_another_job_fails_instead_of_hanging(task: Task[[int], int, Any]) -> None:
    async with testing.manual(app) as kit:
        await task.enqueue(2)
        first, second = await kit.drain()
        assert "a handler cannot wait for another job" in str(first.error)
        assert second.job.result == 4


async def test_a_result_may_be_waited_for_while_the_kit_runs_jobs() -> None:
    async with testing.manual(app) as kit:
        handle = await double.enqueue(number=2)
        started = asyncio.Event()

        @app.task(name="signal_start")
        async def signal_start() -> int:
            started.set()
            await asyncio.sleep(0)
            return 1

        first = await signal_start.using(priority="urgent").enqueue()
        draining = asyncio.create_task(kit.drain())
        await started.wait()
        assert await handle.result() == 4
        assert await first.result() == 1
        await draining


async def test_outside_of_a_kit_results_are_waited_for_again() -> None:
    async with testing.manual(app):
        assert app.runtime.services.before_waiting is not None
    assert app.runtime.services.before_waiting is None
