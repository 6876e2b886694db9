"""Children: spawned once, waited for, cancelled with their parent."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from mainspring import Child, Context, Mainspring, Retry, Status
from mainspring.errors import ConfigurationError, JobFailed, StepsChanged
from mainspring.events import JobCreated
from mainspring.job import Save
from mainspring.stores.documents import By
from mainspring.stores.protocol import Action, Filter
from mainspring.testing.kit import Kit
from tests.worker.working import ended, eventually, new_app, reached, record, working

AGAIN = Retry(max_attempts=10, base=0, jitter_share=0)


class Clip(BaseModel):
    name: str
    seconds: int


def render_task(app: Mainspring, ran: list[str]) -> Any:
    @app.task(max_attempts=1)
    async def render(name: str) -> Clip:
        ran.append(name)
        if name == "broken":
            raise ValueError("no such clip")
        return Clip(name=name, seconds=len(name))

    return render


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_children_are_spawned_once_and_their_results_come_in_order(kit: Kit, plain: bool) -> None:
    ran: list[str] = []
    render = render_task(kit.app, ran)
    clips: list[list[Any]] = []

    @kit.app.task(name="film")
    async def film(ctx: Context) -> list[str]:
        one = await ctx.spawn(render, name="one")
        assert isinstance(one, Child)
        two = await ctx.spawn(render.using(priority="low"), "two")
        clips.append(await ctx.gather(two, one, render.prepare(name="three")))
        await ctx.sleep(60)
        return [clip.name for clip in clips[-1]]

    @kit.app.task(name="plain film")
    def plain_film(ctx: Context) -> list[str]:
        one = ctx.spawn_sync(render, name="one")
        two = ctx.spawn_sync(render.using(priority="low"), "two")
        clips.append(ctx.gather_sync(two, one, render.prepare(name="three")))
        ctx.sleep_sync(60)
        return [clip.name for clip in clips[-1]]

    job = await (plain_film if plain else film).enqueue()
    await kit.drain(raise_errors=True)
    await kit.time.advance(minutes=1, raise_errors=True)
    assert (await job.get()).result == ["two", "one", "three"]
    assert sorted(ran) == ["one", "three", "two"]
    expected = [Clip(name=name, seconds=len(name)) for name in ("two", "one", "three")]
    assert clips == [expected, expected]  # also from the record


async def test_a_parent_is_rarely_woken(quick: Kit) -> None:
    """For the last of its children, not for each."""
    render = render_task(quick.app, [])

    @quick.app.task()
    async def film(ctx: Context) -> int:
        return len(await ctx.gather(*(render.prepare(name=f"clip {n}") for n in range(20))))

    await film.enqueue()
    ran = await quick.drain(raise_errors=True)
    assert [run.status for run in ran if run.task == "film"] == ["suspended", "completed"]


async def test_a_child_that_failed_is_named_and_may_be_retried(kit: Kit) -> None:
    ran: list[str] = []
    render = render_task(kit.app, ran)

    @kit.app.task(max_attempts=1)
    async def film(ctx: Context) -> list[str]:
        return [clip.name for clip in await ctx.gather(render.prepare(name="fine"), render.prepare(name="broken"))]

    job = await film.enqueue()
    runs = await kit.drain()
    error = runs[-1].error
    assert isinstance(error, JobFailed)
    (broken,) = kit.jobs(render, status=Status.DEAD_LETTER)
    assert error.job_id == broken.id
    assert str(error) == f"child {broken.id} of task 'render' ended as dead_letter: ValueError: no such clip"
    await kit.app.jobs.retry(broken.id)
    await kit.app.jobs.edit(broken.id, payload={"name": "repaired"})
    await kit.app.jobs.retry(job.id)
    await kit.drain(raise_errors=True)
    assert (await job.get()).result == ["fine", "repaired"]
    assert ran == ["fine", "broken", "repaired"]


async def test_gather_can_return_the_error_of_a_failed_child(quick: Kit) -> None:
    render = render_task(quick.app, [])
    seen: list[list[Any]] = []

    @quick.app.task()
    async def film(ctx: Context) -> None:
        jobs = [render.prepare(name="broken"), render.prepare(name="fine")]
        seen.append(await ctx.gather(*jobs, return_exceptions=True))
        await ctx.sleep(1)

    await film.enqueue()
    await quick.time.advance(minutes=1)
    for failed, fine in seen:
        assert isinstance(failed, JobFailed)
        assert fine == Clip(name="fine", seconds=4)
    assert len(seen) == 2


async def test_a_deleted_child_is_an_error_for_its_parent(quick: Kit) -> None:
    render = render_task(quick.app, [])

    @quick.app.task(max_attempts=1)
    async def film(ctx: Context) -> None:
        child = await ctx.spawn(render, name="one")
        await ctx.sleep(timedelta(days=30))
        await ctx.gather(child)

    await film.enqueue()
    await quick.drain()
    await quick.time.advance(days=8)
    while await quick.store.prune():
        pass
    (ran,) = await quick.time.advance(days=30)
    assert isinstance(ran.error, JobFailed)
    assert "retention" in str(ran.error)


async def test_with_a_dedupe_key_another_job_may_be_the_child(kit: Kit) -> None:
    render = render_task(kit.app, [])
    once = render.using(dedupe_key="one", delay=60)

    @kit.app.task()
    async def film(ctx: Context) -> str:
        child = await ctx.spawn(once, name="one")
        (clip,) = await ctx.gather(child)
        return f"{child.id} {clip.name}"

    other = await once.enqueue(name="one")
    job = await film.enqueue()
    await kit.time.advance(minutes=1, raise_errors=True)
    assert (await job.get()).result == f"{other.id} one"


@pytest.mark.parametrize("call", ["spawn", "gather"])
async def test_a_repeated_run_finds_the_holder_of_the_childs_key(quick: Kit, call: str) -> None:
    render = render_task(quick.app, [])
    once = render.using(dedupe_key="one", delay=60)
    saved: list[Save] = []
    real = quick.store.save

    async def save(saves: Any) -> Any:
        saved.extend(saves)
        answer = await real(saves)
        if len(saved) == 1:
            raise RuntimeError("killed")
        return answer

    quick.store.save = save  # type: ignore[method-assign]

    @quick.app.task(retry=AGAIN)
    async def film(ctx: Context) -> Any:
        if call == "spawn":
            return (await ctx.spawn(once, name="one")).id
        return [clip.name for clip in await ctx.gather(once.prepare(name="another"))]

    other = await once.enqueue(name="one")
    job = await film.enqueue()
    await quick.time.advance(minutes=2)
    assert (await job.get()).result == (other.id if call == "spawn" else ["one"])
    assert len(quick.jobs(render)) == 1


async def test_a_child_that_is_gone_is_not_spawned_again(quick: Kit) -> None:
    ran: list[str] = []
    render = render_task(quick.app, ran)

    @quick.app.task()
    async def film(ctx: Context) -> None:
        await ctx.spawn(render.using(dedupe_key="one"), name="one")
        await ctx.sleep(timedelta(days=30))

    await film.enqueue()
    await quick.time.advance(days=20)
    while await quick.store.prune():
        pass
    await quick.time.advance(days=20, raise_errors=True)
    assert ran == ["one"]


async def test_another_number_of_children_is_a_change(quick: Kit) -> None:
    later = render_task(quick.app, []).using(delay=60)
    names = ["one", "two"]

    @quick.app.task(max_attempts=1)
    async def film(ctx: Context) -> None:
        await ctx.gather(*(later.prepare(name=name) for name in names))

    await film.enqueue()
    await quick.drain(raise_errors=True)
    names.append("three")
    (error,) = [run.error for run in await quick.time.advance(minutes=2) if run.error]
    assert isinstance(error, StepsChanged)
    assert "gathers 3 children, but had 2 before" in str(error)


async def test_a_job_can_have_many_children_at_once(kit: Kit) -> None:
    """More than a transaction of DynamoDB takes."""
    later = render_task(kit.app, []).using(delay=3600)

    @kit.app.task()
    async def film(ctx: Context) -> None:
        await ctx.gather(*(later.prepare(name=f"clip {number}") for number in range(120)))

    job = await film.enqueue()
    await kit.drain(raise_errors=True)
    children = kit.jobs("render")
    assert len(children) == 120
    assert (await job.get()).waits_for == f"job:{children[-1].id}"


async def test_a_spawned_child_emits_job_created(quick: Kit) -> None:
    render = render_task(quick.app, [])
    events = record(quick.app, JobCreated)

    @quick.app.task()
    async def film(ctx: Context) -> None:
        await ctx.spawn(render, name="one")

    await film.enqueue()
    await quick.drain(raise_errors=True)
    assert [event.task for event in events] == ["film", "render"]


# -- cancelling -------------------------------------------------------------------------------------


def family(app: Mainspring, ran: list[str]) -> Any:
    """A grandparent, a parent and two children, one of which is to outlast them."""

    @app.task()
    async def child(ctx: Context, name: str) -> None:
        await ctx.sleep(3600)
        ran.append(name)

    @app.task()
    async def parent(ctx: Context) -> None:
        await ctx.spawn(child.prepare(name="outlasts"), cancel_children=False)
        await ctx.gather(child.prepare(name="ends with it"))

    @app.task()
    async def grandparent(ctx: Context) -> None:
        await ctx.gather(parent.prepare())

    return grandparent


async def test_cancelling_a_parent_cancels_its_children(kit: Kit) -> None:
    ran: list[str] = []
    job = await family(kit.app, ran).enqueue()
    await kit.drain(raise_errors=True)
    assert await kit.app.jobs.cancel(job.id)
    statuses = {(job.task, job.payload.get("name")): job.status for job in kit.jobs()}
    assert statuses == {
        ("grandparent", None): Status.CANCELLED,
        ("parent", None): Status.CANCELLED,
        ("child", "ends with it"): Status.CANCELLED,
        ("child", "outlasts"): Status.SUSPENDED,
    }
    await kit.time.advance(hours=2, raise_errors=True)
    assert ran == ["outlasts"]


async def test_a_child_whose_canceller_died_finds_out_itself(kit: Kit) -> None:
    ran: list[str] = []
    await family(kit.app, ran).enqueue()
    await kit.drain(raise_errors=True)
    (parent,) = kit.jobs("parent")
    await kit.store.change(Action.CANCEL, Filter(ids=(parent.id,)), By("ana"))  # and no more than that
    await kit.time.advance(hours=2)
    assert ran == ["outlasts"]
    (child,) = [job for job in kit.jobs("child") if job.payload["name"] == "ends with it"]
    assert (child.status, child.reason) == (Status.CANCELLED, f"its parent, job {parent.id}, was cancelled")


async def test_cancelling_a_running_parent_cancels_its_children() -> None:
    app = new_app()
    ran: list[str] = []

    @app.task()
    async def child(ctx: Context) -> None:
        await ctx.sleep(3600)
        ran.append("child")

    @app.task()
    async def parent(ctx: Context) -> None:
        await ctx.spawn(child)
        await asyncio.sleep(60)

    async with working(app):
        job = await parent.enqueue()
        (found,) = await reached(app, job.id, statuses=(Status.RUNNING,))
        children = await eventually_children(app)
        await reached(app, children[0].id, statuses=(Status.SUSPENDED,))
        await app.jobs.cancel(found.id)
        await ended(app, found.id, children[0].id)
    assert (await app.jobs.get(children[0].id)).status is Status.CANCELLED


async def eventually_children(app: Mainspring) -> list[Any]:
    async def found() -> list[Any]:
        return (await app.jobs.find(Filter(tasks=("child",)))).jobs

    children: list[Any] = await eventually(found)
    return children


# -- what is no child ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda ctx, _: ctx.spawn(str, name="a"), "give a task and its arguments, or a prepared job"),
        (lambda ctx, render: ctx.gather(render), r"takes children \(from ctx.spawn\) and prepared jobs"),
        (lambda ctx, render: ctx.gather([render.prepare(name="a")]), r"not a list; unpack it with \*"),
        (lambda ctx, _: ctx.step("a", str(1)), "give the function and then its arguments"),
        (lambda ctx, _: ctx.step("a", asyncio.sleep(0)), "give the function and then its arguments"),
        (lambda ctx, _: ctx.sleep("5m"), "'5m' is not a length of time"),
    ],
)
async def test_invalid_calls_are_refused_with_the_reason(call: Any, said: str) -> None:
    app = Mainspring("memory://")
    render = render_task(app, [])
    with pytest.raises(ConfigurationError, match=said):
        await call(Context.detached(), render)


async def test_a_task_in_place_of_a_prepared_job_is_refused() -> None:
    app = Mainspring("memory://")
    render: Any = render_task(app, [])
    for call in (app.enqueue_all([render]), app.batch([render]), app.batch([], on_success=render), app.chain(render)):
        with pytest.raises(ConfigurationError, match=r"takes prepared jobs, made with task.prepare\(…\), not <Task"):
            await call
