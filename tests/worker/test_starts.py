"""A claim counts as a start in the numbers once the job's handler is called, whatever comes before that."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Chunk, Mainspring, RunCall
from mainspring.job import Status
from mainspring.stores.sqlite import MemoryStore
from tests.worker import wrapped
from tests.worker.waiting import Waiting
from tests.worker.working import DEADLINE, ended, eventually, new_app, reached, working


async def starts(app: Mainspring) -> int:
    return (await app.numbers()).total.started


KINDS = ["coroutine", "chunk", "thread"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_that_is_halted_behind_its_middleware_counts_no_start(kind: str) -> None:
    app = new_app()
    waiting = Waiting(app, kind)
    async with working(app):
        (job_id,) = await waiting.enqueue(1)
        assert (await app.halt()).confirmed
        waiting.go.set()
        await reached(app, job_id, statuses=(Status.PENDING,))
        assert (waiting.calls, await starts(app)) == ([], 0)
        await app.resume()
        await ended(app, job_id)
    assert (waiting.calls, await starts(app)) == ([0], 1)


@pytest.mark.parametrize("kind", ["coroutine", "chunk"])
async def test_a_job_whose_worker_stops_while_its_middleware_waits_counts_no_start(kind: str) -> None:
    app = new_app()
    waiting = Waiting(app, kind)
    async with working(app, grace=0.01):
        (job_id,) = await waiting.enqueue(1)
    assert (await app.jobs.get(job_id)).status is Status.PENDING
    assert (waiting.calls, await starts(app)) == ([], 0)


async def test_a_job_that_is_cancelled_while_its_middleware_waits_counts_no_start() -> None:
    app = new_app()
    waiting = Waiting(app, "coroutine")
    async with working(app):
        (job_id,) = await waiting.enqueue(1)
        await app.jobs.cancel(job_id)
        (job,) = await ended(app, job_id)
    assert (job.status, waiting.calls, await starts(app)) == (Status.CANCELLED, [], 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_that_ends_early_after_its_handler_was_called_counts_as_a_start(kind: str) -> None:
    app = new_app()
    called, go = threading.Event(), threading.Event()

    async def handle(number: int) -> None:
        called.set()
        await asyncio.sleep(DEADLINE)

    async def handle_several(numbers: list[int]) -> None:
        await handle(numbers[0])

    def handle_in_thread(number: int) -> None:
        called.set()
        go.wait(DEADLINE)
        raise OSError("the worker stops, so this is no failure")

    work: Any
    if kind == "chunk":
        work = app.task(chunk=Chunk(size=1))(handle_several)
    else:
        work = app.task()(handle if kind == "coroutine" else handle_in_thread)
    async with working(app, grace=0.01) as worker:
        job = await work.enqueue(1)
        await eventually(called.is_set)
        if kind == "thread":  # it is only told to stop
            worker.stop()
            await eventually(lambda: any(run.stop is not None for run in worker.parts.runs.running))
            go.set()
    assert (await job.get()).status is Status.PENDING
    assert await starts(app) == 1


@pytest.mark.slow
@pytest.mark.parametrize("task", [wrapped.isolated, wrapped.isolated_coroutine], ids=["plain", "coroutine"])
async def test_a_job_that_is_halted_behind_the_middleware_of_its_child_counts_no_start(
    task: Any, tmp_path: Path
) -> None:
    app = wrapped.app
    app.runtime.store = MemoryStore()
    async with working(app, child_processes=1):
        job = await task.using(headers={"wait in": str(tmp_path)}).enqueue()
        await eventually((tmp_path / "begun").exists)
        assert (await app.halt()).confirmed
        (tmp_path / "go").touch()
        await reached(app, job.id, statuses=(Status.PENDING,))
        assert await starts(app) == 0
        await app.resume()
        await ended(app, job.id)
    assert await starts(app) == 1


@pytest.mark.parametrize(
    ("how", "status"),
    [("shutdown", Status.PENDING), ("cancellation", Status.CANCELLED), ("timeout", Status.DEAD_LETTER)],
)
@pytest.mark.parametrize("kind", ["coroutine", "chunk"])
async def test_middleware_that_catches_everything_does_not_complete_a_job_that_was_stopped_before_its_handler(
    kind: str, how: str, status: Status
) -> None:
    app = new_app()

    @app.around_run
    async def swallow(_call: RunCall) -> AsyncIterator[None]:
        with contextlib.suppress(BaseException):
            yield

    timeout: dict[str, Any] = {"timeout": 0.01, "max_attempts": 1} if how == "timeout" else {}
    waiting = Waiting(app, kind, **timeout)
    async with working(app, grace=0.01):
        (job_id,) = await waiting.enqueue(1)
        if how != "shutdown":
            if how == "cancellation":
                await app.jobs.cancel(job_id)
            await ended(app, job_id)
    assert ((await app.jobs.get(job_id)).status, waiting.calls) == (status, [])
