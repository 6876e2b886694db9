"""A halt that another system decides: `Mainspring(halted=…)`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mainspring import Chunk, HaltCheck, Mainspring, RunCall, halt_check
from mainspring.clock import since_boot
from mainspring.errors import ConfigurationError, SystemHalted
from mainspring.events import Halted, Resumed, WorkerHeartbeat
from mainspring.halt_check import OutsideHalt
from mainspring.job import Status
from mainspring.stores.sqlite import MemoryStore
from mainspring.worker import gate
from tests.features.conftest import NewApp, new_app  # noqa: F401 - a fixture
from tests.worker import wrapped
from tests.worker.working import DEADLINE, eventually, reached, record, working

QUICK = {"every": 0.02, "timeout": 1.0}


class Switch:
    """Another system's halt, as a test sets it."""

    def __init__(self) -> None:
        self.answer: Any = False
        self.asked = 0

    def __call__(self) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def later(self) -> Any:
        await asyncio.sleep(0)
        return self()


def follow(app: Mainspring, ask: Any, **options: Any) -> OutsideHalt:
    """Have the application follow another system, as `Mainspring(halted=…)` does."""
    app.runtime.services.outside_halt = halt = OutsideHalt(HaltCheck(ask, **{**QUICK, **options}))
    return halt


async def test_jobs_start_although_the_store_answers_more_slowly_than_the_check_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, passed = Mainspring(MemoryStore()), [0.0]
    follow(app, Switch().later, every=0.25, timeout=0.25)
    halts = app.store.halts

    async def slow() -> Any:
        passed[0] += 1.0
        return await halts()

    for module in (gate, halt_check):
        monkeypatch.setattr(module, "since_boot", lambda: since_boot() + passed[0])
    monkeypatch.setattr(app.store, "halts", slow)

    @app.task()
    async def work() -> None: ...

    async with working(app):
        job = await work.enqueue()
        await reached(app, job.id, statuses=(Status.COMPLETED,))


@pytest.mark.parametrize("style", ["plain", "coroutine"])
async def test_nothing_starts_while_another_system_halts_and_work_goes_on_after_it(
    new_app: NewApp,  # noqa: F811
    style: str,
) -> None:
    app, switch, ran = new_app(), Switch(), []
    follow(app, switch if style == "plain" else switch.later)
    halted, resumed, beats = record(app, Halted), record(app, Resumed), record(app, WorkerHeartbeat)

    @app.task()
    async def work(number: int) -> None:
        ran.append(number)

    switch.answer = "fire drill"
    async with working(app) as worker:
        await eventually(lambda: halted)
        jobs = await work.enqueue_many([{"number": number} for number in range(5)])
        since, asked = len(beats), switch.asked
        await eventually(lambda: len(beats) > since + 2 and switch.asked > asked + 2)
        assert ran == []
        assert (await app.health()).halted
        assert (await app.health()).halt_reason == "fire drill"
        assert [(halt.actor, halt.reason) for halt in await app.halts()] == [("another system", "fire drill")]
        assert (await app.stats()).halts == await app.halts()
        assert "halted by another system" in str(await app.jobs.why(jobs[0].id))
        assert [(job.status, job.attempts) for job in [await job.get() for job in jobs]] == [(Status.PENDING, 0)] * 5
        switch.answer = False
        await eventually(lambda: sorted(ran) == [0, 1, 2, 3, 4], within=5)
        assert worker.parts.gate.clear
    assert [event.reason for event in halted] == ["fire drill"]
    assert len(resumed) == 1


@pytest.mark.parametrize("kind", ["coroutine", "thread", "chunk"])
async def test_a_job_behind_slow_middleware_does_not_start(
    new_app: NewApp,  # noqa: F811
    kind: str,
) -> None:
    """It was claimed before the halt, and is handed back without using an attempt."""
    app, switch, ran = new_app(), Switch(), []
    follow(app, switch)
    waiting, go = asyncio.Event(), asyncio.Event()

    @app.around_run
    async def slow(call: RunCall) -> AsyncIterator[None]:
        waiting.set()
        await go.wait()
        yield

    if kind == "chunk":

        @app.task(chunk=Chunk(size=2, wait=0))
        async def work(items: list[int]) -> None:
            ran.extend(items)

    elif kind == "thread":

        @app.task()
        def work(number: int) -> None:
            ran.append(number)

    else:

        @app.task()
        async def work(number: int) -> None:
            ran.append(number)

    async with working(app) as worker:
        job = await work.enqueue(1)
        await waiting.wait()
        switch.answer = SimpleNamespace(halted=True, reason="stop")
        await eventually(lambda: worker.parts.gate.halted)
        go.set()
        (found,) = await reached(app, job.id, statuses=(Status.PENDING, Status.COMPLETED))
        assert ran == []
        assert (found.status, found.attempts, found.reason) == (Status.PENDING, 0, "it was halted before it started")
        switch.answer = SimpleNamespace(halted=False)
        await eventually(lambda: ran == [1])


@pytest.mark.slow
async def test_a_child_process_whose_middleware_waits_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app, switch = wrapped.app, Switch()
    monkeypatch.setattr(app.runtime, "store", MemoryStore())
    monkeypatch.setattr(app.runtime.services, "outside_halt", OutsideHalt(HaltCheck(switch, every=0.02, timeout=1.0)))
    async with working(app, child_processes=1) as worker:
        job = await wrapped.isolated.using(headers={"wait in": str(tmp_path)}).enqueue()
        await eventually((tmp_path / "begun").exists)
        switch.answer = True
        await eventually(lambda: worker.parts.gate.halted)
        (tmp_path / "go").touch()
        (found,) = await reached(app, job.id, statuses=(Status.PENDING, Status.COMPLETED))
        assert (found.status, found.attempts) == (Status.PENDING, 0)
        switch.answer = False
        assert await job.result(DEADLINE)


@pytest.mark.parametrize("strict", [True, False])
async def test_a_check_that_fails_is_a_halt_unless_it_is_not_strict(
    new_app: NewApp,  # noqa: F811
    strict: bool,
) -> None:
    app, switch, ran = new_app(), Switch(), []
    follow(app, switch, strict=strict)

    @app.task()
    async def work() -> None:
        ran.append(1)

    switch.answer = OSError("no route to host")
    async with working(app) as worker:
        await eventually(lambda: worker.parts.gate.halted_outside or not strict)
        await work.enqueue()
        health = await app.health()
        effect = "no job starts" if strict else "jobs start without it"
        assert f"the halt check failed, so {effect}: OSError: no route to host" in health.problems
        assert (health.state, health.halted) == ("degraded", strict)
        if strict:
            asked = switch.asked
            await eventually(lambda: switch.asked > asked + 2)
            assert ran == []
            switch.answer = None
        await eventually(lambda: ran == [1])


async def test_a_check_that_hangs_is_a_halt_and_is_asked_once() -> None:
    """One question at a time: a function that hangs does not pile up threads."""
    asked, go = [], threading.Event()

    def hang() -> bool:
        asked.append(1)
        go.wait(30)
        return False

    halt = OutsideHalt(HaltCheck(hang, every=0.001, timeout=0.05))
    for _ in range(3):
        assert (await halt.verdict()).error == "it has not answered within 0.05 s"
        await asyncio.sleep(0.002)
    assert asked == [1]
    go.set()

    async def answers() -> bool:
        return (await halt.verdict()).is_clear

    await eventually(answers)


@pytest.mark.parametrize("error", [StopIteration, asyncio.CancelledError])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_check_that_raises_a_special_error_has_failed_and_is_asked_again(
    error: type[BaseException], is_async: bool
) -> None:
    errors = [error()]

    def plain() -> bool:
        if errors:
            raise errors.pop()
        return False

    async def coroutine() -> bool:
        return plain()

    halt = OutsideHalt(HaltCheck(coroutine if is_async else plain, every=0.001, timeout=1.9))
    verdict = await halt.verdict()
    assert "not answered" not in verdict.error
    assert verdict.error

    async def answers() -> bool:
        return (await halt.verdict()).is_clear

    await eventually(answers)


async def test_a_worker_whose_check_hangs_starts_nothing_until_it_answers(new_app: NewApp) -> None:  # noqa: F811
    app, go, ran = new_app(), threading.Event(), []
    follow(app, lambda: not go.wait(DEADLINE), every=0.01, timeout=0.05)

    @app.task()
    async def work() -> None:
        ran.append(1)

    async with working(app) as worker:
        await eventually(lambda: worker.parts.gate.halted_outside)
        await work.enqueue()
        health = await app.health()
        assert "the halt check failed, so no job starts: it has not answered within 0.05 s" in health.problems
        assert ran == []
        go.set()
        await eventually(lambda: ran == [1])


async def test_answers_are_used_again_and_several_callers_share_a_question() -> None:
    switch = Switch()
    halt = OutsideHalt(HaltCheck(switch, every=1.0))
    await asyncio.gather(*(halt.verdict() for _ in range(10)))
    assert switch.asked == 1


async def test_no_job_starts_on_an_answer_that_is_too_old_even_if_another_part_had_asked() -> None:
    """The gate may use an answer that a health check got a moment ago. It is as old as that question."""
    app = Mainspring("memory://")
    halt = follow(app, Switch(), every=1.0, timeout=1.0)
    async with app, working(app) as worker:
        gate = worker.parts.gate
        await halt.verdict()
        asked_at = halt.asked_at
        await gate.look()
        assert halt.asked_at == asked_at
        assert gate.open_until == asked_at + halt.check.trusted_for


async def test_new_jobs_are_rejected_if_the_check_says_so(new_app: NewApp) -> None:  # noqa: F811
    app, switch = new_app(), Switch()
    app.runtime.pipeline.refuse = follow(app, switch, every=0.001, reject_new=True).refuse

    @app.task()
    async def work() -> None: ...

    async with app:
        switch.answer = "fire drill"
        with pytest.raises(SystemHalted, match="another system has halted this one \\(fire drill\\)"):
            await work.enqueue()
        with pytest.raises(SystemHalted):
            await asyncio.to_thread(work.enqueue_sync)
        switch.answer = False
        await asyncio.sleep(0.002)
        assert (await work.enqueue()).created


def test_checks_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="halted must be a function"):
        Mainspring("memory://", halted=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"every=0\): give at least a millisecond"):
        HaltCheck(bool, every=0)
    with pytest.raises(ConfigurationError, match="every and timeout are 6 s together; give at most 2 s"):
        HaltCheck(bool, every=1, timeout=5)
