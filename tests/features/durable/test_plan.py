"""Plans: the steps that an enqueue asks for, what a handler saves of them, and how long each may take."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Context, Mainspring, StepPlan
from mainspring.copying import Copy
from mainspring.errors import CannotStoreResult, ClaimLost, ConfigurationError
from mainspring.job import Move, Outcome, Status
from mainspring.options import Chunk
from mainspring.retry import Retry
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing import manual
from tests.features.conftest import START, NewApp
from tests.worker.working import ended, eventually, working

AT_ONCE = Retry.fixed(0, max_attempts=2, jitter_share=0)


def states(steps: list[Any]) -> list[tuple[str, str, Any]]:
    return [(step.name, str(step.state), step.saved) for step in steps]


async def test_the_plan_of_an_enqueue_is_stored_and_shown_while_the_job_runs(new_app: NewApp) -> None:
    """Another process reads the plan, the steps that are done and what is saved of the one that runs."""
    app, reader = new_app(), new_app()
    seen: list[Any] = []

    async def render(ctx: Context) -> str:
        await ctx.save_state("render", {"frame": 1})
        await ctx.save_state("render", {"frame": 900})
        seen.append(states(await reader.jobs.steps(ctx.job_id)))
        return "a.mp4"

    @app.task(retry=AT_ONCE)
    async def video(ctx: Context) -> list[str]:
        seen.append([(name, ctx.plan.timeout(name)) for name in ctx.plan])
        return [
            str(await ctx.step(name, render, ctx) if name == "render" else await ctx.step(name, str))
            for name in ctx.plan
        ]

    async with app:
        job = await video.using(steps={"prepare": 300, "render": timedelta(hours=1), "upload": None}).enqueue()
        assert (await job.get()).planned_steps == ("prepare", "render", "upload")
        assert [step.state for step in await job.steps()] == ["to come"] * 3
        async with working(app):
            assert await job.result(15) == ["", "a.mp4", ""]
        assert seen == [
            [("prepare", 300.0), ("render", 3600.0), ("upload", None)],
            [("prepare", "done", None), ("render", "running", {"frame": 900}), ("upload", "to come", None)],
        ]
        assert states(await job.steps())[1] == ("render", "done", {"frame": 900})
        assert [step.timeout for step in await job.steps()] == [300.0, 3600.0, None]


async def test_the_next_attempt_reads_the_saved_state_and_skips_finished_steps(new_app: NewApp) -> None:
    app = new_app()
    calls: list[Any] = []

    @app.task(retry=AT_ONCE)
    async def video(ctx: Context) -> None:
        calls.append(await ctx.step_state("render"))
        await ctx.step("prepare", calls.append, "prepare")
        await ctx.step("render", render, ctx)

    async def render(ctx: Context) -> None:
        await ctx.save_state("render", ["attempt", ctx.attempt])
        if ctx.attempt == 1:
            raise OSError("disk")

    async with manual(app, start=START) as kit:
        job = await video.using(steps=["prepare", "render"]).enqueue()
        await kit.drain()
        assert calls == [None, "prepare", ["attempt", 1]]
        assert (await job.get()).status is Status.COMPLETED
        assert [entry.what for entry in await app.jobs.timeline(job.id)].count("state") == 0


async def test_a_run_that_lost_its_claim_cannot_save_a_state(new_app: NewApp) -> None:
    """Its job was taken from it while it worked on a step. The next run finds what was saved before."""
    app, other = new_app(), new_app()
    lost: list[type] = []

    @app.task()
    async def work(ctx: Context) -> None:
        await ctx.save_state("render", "ours")
        held = await other.jobs.get(ctx.job_id)
        await other.store.ack([Outcome(held.id, held.token, Move.SNOOZE, delay=3_600_000)])
        try:
            await ctx.save_state("render", "a zombie's")
        except ClaimLost as error:
            lost.append(type(error))

    async with working(app, heartbeat_interval=30.0):  # a heartbeat would cancel the run before it saves
        job = await work.using(steps=["render"]).enqueue()
        await eventually(lambda: lost)
    assert lost == [ClaimLost]
    assert states(await other.jobs.steps(job.id)) == [("render", "to come", "ours")]
    assert (await other.jobs.get(job.id)).status is Status.PENDING


async def test_saved_states_are_copied_to_another_store(new_app: NewApp) -> None:
    app, target = new_app(), MemoryStore("memory://target")

    @app.task(retry=Retry.fixed(3600))
    async def work(ctx: Context) -> None:
        await ctx.step("prepare", str)
        await ctx.save_state("render", {"frame": 900})
        raise OSError("disk")

    async with manual(app) as kit:
        job = await work.using(steps=["prepare", "render"]).enqueue()
        await kit.drain()
        before = states(await app.jobs.steps(job.id))
        assert (await Copy(app.store, target).run()).done
        copied = Mainspring(target)
        assert states(await copied.jobs.steps(job.id)) == before
        assert before[1][2] == {"frame": 900}
        await copied.close()


async def test_a_retry_from_a_step_forgets_the_state_saved_since(new_app: NewApp) -> None:
    app = new_app()
    seen: list[Any] = []

    @app.task(max_attempts=1)
    async def video(ctx: Context) -> None:
        seen.append((await ctx.step_state("prepare"), await ctx.step_state("render")))
        for name in ("prepare", "render"):
            await ctx.step(name, ctx.save_state, name, "saved")
        await ctx.step("upload", fail)

    def fail() -> None:
        raise OSError("down")

    async with manual(app, start=START) as kit:
        job = await video.enqueue()
        await kit.drain()
        await app.jobs.retry(job.id, from_step="render")
        await kit.drain()
        assert seen == [(None, None), ("saved", None)]


async def test_a_step_outside_of_the_plan_or_twice_is_an_error(new_app: NewApp) -> None:
    app = new_app()

    @app.task(max_attempts=1)
    def video(ctx: Context, names: list[str], saves: str = "") -> None:
        if saves:
            ctx.save_state_sync(saves, 1)
        for name in names:
            ctx.step_sync(name, str)

    async with manual(app, start=START) as kit:
        planned = video.using(steps=["prepare", "render"])
        jobs = [
            await planned.enqueue(names=["upload"]),
            await planned.enqueue(names=["prepare", "prepare"]),
            await planned.enqueue(names=[], saves="upload"),
        ]
        await kit.drain()
        failures = [(await job.get()).failure for job in jobs]
    assert [failure.type for failure in failures if failure] == ["UnplannedStep", "DuplicateStep", "UnplannedStep"]
    assert failures[0] is not None
    assert "step 'upload' is not in the job's plan, which has: prepare, render" in failures[0].message


@pytest.mark.parametrize("kind", ["coroutine", "thread", "plan", "deaf"])
async def test_a_step_over_its_time_fails_the_attempt(new_app: NewApp, kind: str) -> None:
    app = new_app()

    def wait(ctx: Context) -> None:
        assert ctx.wait_cancelled(30)
        ctx.raise_if_cancelled()

    def deaf(ctx: Context) -> str:
        while not ctx.cancelled:
            threading.Event().wait(0.005)
        return "done all the same"

    @app.task(retry=AT_ONCE)
    async def video(ctx: Context) -> Any:
        if kind == "plan":
            return await ctx.step("render", asyncio.sleep, 30)
        steps = ctx.using(timeout=0.1)
        if kind == "coroutine":
            return await steps.step("render", asyncio.sleep, 30)
        return await steps.step("render", deaf if kind == "deaf" else wait, ctx)

    async with working(app):
        job = await video.using(steps={"render": 0.1}).enqueue()
        (found,) = await ended(app, job.id)
    if kind == "deaf":  # finished work counts, as with a job's timeout
        assert (found.status, found.result) == (Status.COMPLETED, "done all the same")
        return
    assert (found.status, found.attempts, found.reason) == (Status.DEAD_LETTER, 2, "step render failed")
    assert found.failure is not None
    assert (found.failure.type, found.failure.message) == (
        "StepTimeout",
        "step 'render' ran longer than its timeout of 0.1 s",
    )


async def test_a_plain_handler_is_told_in_its_own_thread_that_its_step_is_over(new_app: NewApp) -> None:
    """The next step has its own time."""
    app = new_app()

    @app.task()
    def video(ctx: Context) -> list[Any]:
        try:
            ctx.using(timeout=0.05).step_sync("render", hang, ctx)
        except TimeoutError as error:
            return [str(error), ctx.cancelled, ctx.step_sync("upload", ctx.wait_cancelled, 0)]
        return []

    def hang(ctx: Context) -> None:
        ctx.wait_cancelled(30)
        raise OSError("a library turned it into its own error")

    async with working(app):
        job = await video.enqueue()
        assert await job.result(15) == ["step 'render' ran longer than its timeout of 0.05 s", False, False]


def test_plans_are_checked_at_the_enqueue() -> None:
    app = Mainspring("memory://")

    @app.task()
    async def video(ctx: Context) -> None: ...

    @app.task()
    async def plain() -> None: ...

    @app.task(chunk=Chunk(size=2))
    async def many(items: list[int]) -> None: ...

    wrong: list[tuple[Any, str]] = [
        ("render", "steps must be a list of names"),
        (["a", "a"], "a step is declared twice"),
        ([""], "a step's name is one line"),
        ({"a": 0}, "the timeout of step 'a' is 0; give at least a millisecond"),
        ({"a": "soon"}, "is not a length of time"),
        ([str(number) for number in range(1001)], "at most 1,000 steps"),
        (7, "steps must be a list of names"),
    ]
    for steps, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            video.using(steps=steps)
    for task in (plain, many):
        with pytest.raises(ConfigurationError, match="cannot run the steps of a plan"):
            task.using(steps=["a"])
    with pytest.raises(ConfigurationError, match=r"the timeout of step 'ctx\.using"):
        Context.detached().using(timeout=-1)


async def test_a_detached_context_has_a_plan_and_states() -> None:
    ctx = Context.detached(steps=["prepare"])
    await ctx.step("prepare", ctx.save_state, "prepare", {"a": 1})
    assert await ctx.step_state("prepare") == {"a": 1}
    assert list(ctx.plan) == ["prepare"]
    with pytest.raises(CannotStoreResult, match="the state of step 'prepare'"):
        await ctx.save_state("prepare", float("nan"))
    assert list(StepPlan.of({"a": 1, "b": None})) == ["a", "b"]
