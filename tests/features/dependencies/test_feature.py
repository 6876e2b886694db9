"""Jobs that come after others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Context, Discard, Mainspring, Status
from mainspring.errors import ConfigurationError, JobNotFound
from mainspring.ids import new_id
from mainspring.job import FINISHED
from mainspring.stores.protocol import Filter
from mainspring.testing import Kit
from tests.features.conftest import START
from tests.worker.working import ended, working


@pytest.fixture
def app() -> Mainspring:
    app = Mainspring("memory://")
    app.ran = []  # type: ignore[attr-defined]

    @app.task()
    async def work(name: str, fails: bool = False) -> None:
        app.ran.append(name)  # type: ignore[attr-defined]
        if fails:
            msg = "no use"
            raise Discard(msg)

    return app


async def put(app: Mainspring, name: str, *, fails: bool = False, **using: Any) -> str:
    return (await app.tasks["work"].using(**using).enqueue(name=name, fails=fails)).id


async def test_a_job_starts_after_the_last_job_before_it(app: Mainspring, kit: Kit) -> None:
    soon, later = await put(app, "soon", delay=5), await put(app, "later", delay=30)
    last = await put(app, "last", after=[later, soon])
    assert (await app.jobs.get(last)).status is Status.SUSPENDED
    await kit.time.advance(seconds=29)
    assert app.ran == ["soon"]  # type: ignore[attr-defined]
    await kit.time.advance(seconds=1)
    assert app.ran == ["soon", "later", "last"]  # type: ignore[attr-defined]


async def test_after_takes_handles_jobs_and_ids(app: Mainspring, kit: Kit) -> None:
    handle = await app.tasks["work"].enqueue(name="a")
    for after in ([handle], [await handle.get()], [handle.id], (handle,), handle, handle.id):
        await put(app, "b", after=after)
    await kit.drain()
    assert app.ran == ["a", *"bbbbbb"]  # type: ignore[attr-defined]


async def test_a_finished_job_is_not_waited_for(app: Mainspring, kit: Kit) -> None:
    first = await put(app, "a")
    await kit.drain()
    assert (await app.jobs.get(await put(app, "b", after=[first]))).status is Status.PENDING
    await kit.drain()
    assert app.ran == ["a", "b"]  # type: ignore[attr-defined]


async def test_a_job_is_cancelled_with_a_reason_if_one_before_it_fails(app: Mainspring, kit: Kit) -> None:
    good, bad = await put(app, "good"), await put(app, "bad", fails=True)
    job = await app.jobs.get(await put(app, "after", after=[bad, good]))
    last = await app.jobs.get(await put(app, "after that", after=[job]))
    await kit.drain()
    assert app.ran == ["good", "bad"]  # type: ignore[attr-defined]
    job, last = await app.jobs.get(job.id), await app.jobs.get(last.id)
    assert (job.status, job.reason) == (Status.CANCELLED, f"job {bad}, which comes before, is dead_letter")
    assert (last.status, last.reason) == (Status.CANCELLED, f"job {job.id}, which comes before, is cancelled")


async def test_a_job_with_on_failed_run_runs_although_one_before_it_failed(app: Mainspring, kit: Kit) -> None:
    bad = await put(app, "bad", fails=True)
    await put(app, "after", after=[bad], on_failed="run")
    await kit.drain()
    assert app.ran == ["bad", "after"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_a_job_ended_by_hand_is_not_waited_for(app: Mainspring, kit: Kit, how: str) -> None:
    """One that is gone counts as finished, like those that retention has removed."""
    first = await put(app, "a", delay=3600)
    job = await put(app, "b", after=[first])
    await getattr(app.jobs, how)(first)
    await kit.drain()
    expected = Status.CANCELLED if how == "cancel" else Status.COMPLETED
    assert (await app.jobs.get(job)).status is expected


async def test_a_job_with_a_delay_waits_for_its_time_and_the_jobs_before_it(app: Mainspring, kit: Kit) -> None:
    first = await put(app, "a", delay=5)
    await put(app, "b", after=[first], delay=60)
    await put(app, "c", after=[first], run_at=START + timedelta(seconds=2))
    await kit.time.advance(seconds=59)
    assert app.ran == ["a", "c"]  # type: ignore[attr-defined]
    await kit.time.advance(seconds=1)
    assert app.ran == ["a", "c", "b"]  # type: ignore[attr-defined]


async def test_prepared_jobs_wait_too(app: Mainspring, kit: Kit) -> None:
    task = app.tasks["work"]
    first = task.using(delay=5).prepare(name="a")
    await app.enqueue_all([task.using(after=[first]).prepare(name="b"), first])
    await kit.time.advance(seconds=5)
    assert app.ran == ["a", "b"]  # type: ignore[attr-defined]


async def test_a_job_that_ends_just_before_the_insert_is_not_waited_for(
    app: Mainspring, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The insert itself finds that the other has ended, so that nothing is lost if the process dies after it."""
    first = await put(app, "a")
    insert = app.store.insert

    async def while_the_other_ends(*args: Any) -> Any:
        await kit.drain()
        return await insert(*args)

    monkeypatch.setattr(app.store, "insert", while_the_other_ends)
    job = await put(app, "b", after=[first])
    assert (await app.jobs.get(job)).status is Status.PENDING
    await kit.drain()
    assert app.ran == ["a", "b"]  # type: ignore[attr-defined]


async def test_a_job_that_waits_long_checks_less_and_less_often(app: Mainspring, kit: Kit) -> None:
    first = await put(app, "a", delay=timedelta(days=2))
    job = await put(app, "b", after=[first])
    await kit.time.advance(days=2)
    found = await app.jobs.get(job)
    assert (found.status, found.attempts) == (Status.COMPLETED, 1)
    assert 48 < found.token < 56  # once an hour in the end


async def test_unknown_jobs_are_refused(app: Mainspring, kit: Kit) -> None:
    known = await put(app, "a")
    with pytest.raises(JobNotFound, match="no job nothing to come after"):
        await put(app, "b", after=[known, "nothing"])
    with pytest.raises(JobNotFound, match="no job nothing to come after"):
        await put(app, "b", after="nothing")


async def test_unknown_jobs_are_refused_wherever_prepared_jobs_come_in(new_app: Callable[[], Mainspring]) -> None:
    app = new_app()

    @app.task()
    async def work(name: str) -> None: ...

    @app.task()
    async def parent(ctx: Context) -> None:
        await ctx.spawn(work.using(after="nothing"), name="child")

    first, lost = work.prepare(name="a"), work.using(after="nothing").prepare(name="b")
    unknown = new_id()
    for put_in in (
        app.enqueue_all([first, lost]),
        app.chain(first, lost),
        app.batch([lost]),
        app.batch([first], on_success=work.using(after=[first, unknown]).prepare(name="c")),
    ):
        with pytest.raises(JobNotFound, match=f"no job (nothing|{unknown}) to come after"):
            await put_in
    assert await app.store.count(Filter()) == 0
    job = await parent.using(max_attempts=1).enqueue()
    async with working(app):
        (failed,) = await ended(app, job.id)
    assert failed.failure is not None
    assert (failed.failure.type, await app.store.count(Filter())) == ("JobNotFound", 1)


async def test_a_prepared_job_that_may_turn_out_to_be_another_is_refused(app: Mainspring, kit: Kit) -> None:
    task = app.tasks["work"]
    first = task.using(dedupe_key="once").prepare(name="a")
    with pytest.raises(ConfigurationError, match="come after its handle"):
        await app.enqueue_all([first, task.using(after=first).prepare(name="b")])
    assert await kit.drain() == []


@pytest.mark.parametrize(
    ("using", "says"),
    [
        ({"after": 7}, "a job or its id, or a list of them, not 7"),
        ({"after": [str(number) for number in range(1001)]}, "up to 1000"),
        ({"on_failed": "run"}, "on_failed needs after"),
        ({"after": [], "on_failed": "explode"}, '"cancel" or "run"'),
    ],
)
def test_invalid_options_are_refused(app: Mainspring, using: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        app.tasks["work"].using(**using)


async def test_no_concurrent_job_starts_early_or_never(new_app: Callable[[], Mainspring]) -> None:
    apps = [new_app(), new_app()]
    done: list[int] = []
    early: list[tuple[int, int]] = []

    async def work(number: int, before: list[int]) -> None:
        early.extend((number, earlier) for earlier in before if earlier not in done)
        await asyncio.sleep(0.001)
        done.append(number)

    first, second = (app.task()(work) for app in apps)
    ids: list[str] = []
    async with working(apps[0]), working(apps[1]):
        for number in range(24):
            before = [earlier for earlier in (number // 2 - 1, number - 3) if earlier >= 0]
            using = (first, second)[number % 2].using(after=[ids[earlier] for earlier in before])
            ids.append((await using.enqueue(number=number, before=before)).id)
        jobs = await ended(apps[0], *ids)
    assert {job.status for job in jobs} <= FINISHED
    assert (sorted(done), early) == (list(range(24)), [])


async def test_after_takes_a_generator(app: Mainspring, kit: Kit) -> None:
    task: Any = app.tasks["work"]
    others = [await task.using(delay=60).enqueue(name=name) for name in "ab"]
    await task.using(after=(other for other in others)).enqueue(name="last")
    await kit.drain()
    assert app.ran == []  # type: ignore[attr-defined]
    await kit.time.advance(seconds=60)
    assert app.ran == ["a", "b", "last"]  # type: ignore[attr-defined]


def test_a_task_instead_of_a_job_is_refused(app: Mainspring) -> None:
    task: Any = app.tasks["work"]
    with pytest.raises(ConfigurationError, match="but <Task work> is not one"):
        task.using(after=[task])
