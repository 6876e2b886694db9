"""The states of a job's steps, and retries from a step."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Context, Mainspring, Retry, Status
from mainspring.errors import ConfigurationError, IllegalMove, JobNotFound, StepNotFound
from mainspring.events import JobProgressed
from mainspring.features.durable.states import State, StepState
from mainspring.job import Progress
from mainspring.testing.kit import Kit
from tests.features.durable.conftest import START
from tests.worker.working import eventually, new_app, reached, record, working

DECLARED = ["prepare", "render", "upload"]


def film_task(app: Mainspring, done: list[str], broken: set[str]) -> Any:
    async def work(what: str) -> str:
        if what in broken:
            raise RuntimeError(f"{what} is broken")
        done.append(what)
        return f"{what} done"

    @app.task(steps=DECLARED, max_attempts=1)
    async def film(ctx: Context) -> None:
        await ctx.step("prepare", work, "prepare")
        await ctx.step("something else", work, "something else")
        await ctx.sleep(60, name="pause")
        await ctx.step("render", work, "render")
        await ctx.step("upload", work, "upload")

    return film


def brief(steps: list[StepState]) -> list[tuple[str, str]]:
    return [(step.name, step.state) for step in steps]


async def test_each_step_of_a_job_has_its_state(kit: Kit) -> None:
    broken = {"upload"}
    film = film_task(kit.app, [], broken)
    job = await film.enqueue()
    assert brief(await job.steps()) == [(name, "to come") for name in DECLARED]
    await kit.drain(raise_errors=True)
    steps = await kit.app.jobs.steps(job.id)
    assert brief(steps) == [
        ("prepare", "done"),
        ("something else", "done"),
        ("pause", "waiting"),
        ("render", "to come"),
        ("upload", "to come"),
    ]
    assert steps[0] == StepState("prepare", State.DONE, "step", "prepare done", START, START)
    assert steps[2] == StepState("pause", State.WAITING, "sleep", (START + timedelta(minutes=1)).isoformat(), START)
    assert (await job.get()).progress == Progress(1 / 3, "prepare")
    await kit.time.advance(minutes=1)
    assert await kit.app.jobs.step_state(job.id) == {
        "prepare": "done",
        "something else": "done",
        "pause": "done",
        "render": "done",
        "upload": "failed",
    }
    broken.clear()
    await kit.app.jobs.retry(job.id)
    await kit.drain(raise_errors=True)
    assert {step.state for step in await job.steps()} == {State.DONE}


async def test_the_step_that_runs_is_seen() -> None:
    app = new_app()
    events = record(app, JobProgressed)
    go_on = asyncio.Event()

    async def quickly() -> None: ...

    @app.task(steps=DECLARED)
    async def film(ctx: Context) -> None:
        await ctx.step("prepare", quickly)
        await ctx.step("render", go_on.wait)

    async with working(app):
        job = await film.enqueue()
        await eventually(lambda: events)
        assert brief(await job.steps()) == [("prepare", "done"), ("render", "running"), ("upload", "to come")]
        go_on.set()
        await reached(app, job.id, statuses=(Status.COMPLETED,))
    assert brief(await job.steps())[-1] == ("upload", "skipped")
    assert (events[0].fraction, events[0].note) == (1 / 3, "prepare")


async def test_waits_and_children_have_states(quick: Kit) -> None:
    @quick.app.task()
    async def child() -> int:
        return 7

    @quick.app.task()
    async def work(ctx: Context) -> None:
        await ctx.wait_for("door", timeout=60)
        one = await ctx.spawn(child.using(delay=60))
        await ctx.gather(one, name="children")

    job = await work.enqueue()
    await quick.drain(raise_errors=True)
    assert brief(await job.steps()) == [("wait for door", "waiting")]
    await quick.app.signal("door", "open")
    await quick.drain(raise_errors=True)
    waited, spawned, gathered = await job.steps()
    (one,) = quick.jobs(child)
    assert (waited.state, waited.output) == (State.DONE, "open")
    assert (spawned.kind, spawned.output) == ("spawn", one.id)
    assert (gathered.state, gathered.output) == (State.WAITING, [one.id])
    await quick.time.advance(minutes=2, raise_errors=True)
    assert (await job.steps())[-1].output == [7]


async def test_a_gather_of_a_child_that_failed_is_what_failed(quick: Kit) -> None:
    @quick.app.task(max_attempts=1)
    async def child() -> None:
        raise RuntimeError("no")

    @quick.app.task(retry=Retry.delays(60))
    async def work(ctx: Context) -> None:
        await ctx.gather(child.prepare())

    job = await work.enqueue()
    await quick.drain()
    assert ((await job.get()).status, brief(await job.steps())) == (Status.RETRYING, [("gather", "failed")])
    await quick.time.advance(minutes=1)
    assert ((await job.get()).status, brief(await job.steps())) == (Status.DEAD_LETTER, [("gather", "failed")])


async def test_a_cancelled_wait_waits_no_more(quick: Kit) -> None:
    @quick.app.task()
    async def work(ctx: Context) -> None:
        await ctx.wait_for("door")

    job = await work.enqueue()
    await quick.drain(raise_errors=True)
    await quick.app.jobs.cancel(job.id)
    assert brief(await job.steps()) == [("wait for door", "skipped")]


# -- from a step ------------------------------------------------------------------------------------


async def test_a_retry_may_begin_at_a_step(kit: Kit) -> None:
    done: list[str] = []
    broken = {"upload"}
    job = await film_task(kit.app, done, broken).enqueue()
    await kit.time.advance(minutes=1)
    assert (await job.get()).status is Status.DEAD_LETTER
    broken.clear()
    await kit.app.jobs.retry(job.id, from_step="render")
    await kit.drain(raise_errors=True)
    assert done == ["prepare", "something else", "render", "render", "upload"]


async def test_a_retry_may_begin_at_the_step_that_failed(kit: Kit) -> None:
    done: list[str] = []
    broken = {"render"}
    job = await film_task(kit.app, done, broken).enqueue()
    await kit.time.advance(minutes=1)
    assert (await job.get()).status is Status.DEAD_LETTER
    broken.clear()
    await kit.app.jobs.retry(job.id, from_step="render")
    await kit.drain(raise_errors=True)
    assert done == ["prepare", "something else", "render", "upload"]


async def test_a_step_that_failed_is_known_though_it_was_not_declared(kit: Kit) -> None:
    broken = {"something else"}
    done: list[str] = []
    job = await film_task(kit.app, done, broken).enqueue()
    await kit.drain()
    assert brief(await job.steps()) == [
        ("prepare", "done"), ("something else", "failed"), ("render", "to come"), ("upload", "to come")
    ]  # fmt: skip
    assert (await job.get()).reason == "step something else failed"
    broken.clear()
    await kit.app.jobs.retry(job.id, from_step="something else")
    await kit.time.advance(minutes=1)
    assert ((await job.get()).status, done) == (Status.COMPLETED, ["prepare", "something else", "render", "upload"])


async def test_a_retry_from_an_unknown_step_is_refused(quick: Kit) -> None:
    job = await film_task(quick.app, [], {"render"}).enqueue()
    await quick.time.advance(minutes=1)
    said = "not done a step 'upload'; it has done: prepare, something else, pause, render"
    with pytest.raises(StepNotFound, match=said):
        await quick.app.jobs.retry(job.id, from_step="upload")
    with pytest.raises(JobNotFound):
        await quick.app.jobs.retry("00000000-0000-7000-8000-000000000000", from_step="render")
    assert (await job.get()).status is Status.DEAD_LETTER


async def test_a_running_or_sleeping_job_is_not_retried(quick: Kit) -> None:
    job = await film_task(quick.app, [], set()).enqueue()
    await quick.drain()
    with pytest.raises(IllegalMove):
        await quick.app.jobs.retry(job.id, from_step="prepare")


@pytest.mark.parametrize("steps", ["prepare", ["a", "a"], [""]])
def test_invalid_declarations_are_refused(steps: Any) -> None:
    app = Mainspring("memory://")
    with pytest.raises(ConfigurationError):
        app.task(steps=steps)(test_invalid_declarations_are_refused)
