"""Sleep, for minutes or years, and what it costs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from mainspring import Context, Retry, Status
from mainspring.errors import ConfigurationError
from mainspring.events import JobSuspended
from mainspring.testing.kit import Kit
from tests.features.durable.conftest import START
from tests.worker.working import record

AGAIN = Retry(max_attempts=10, base=0, jitter_share=0)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_a_sleeping_job_is_not_in_a_worker(kit: Kit, plain: bool) -> None:
    woken: list[datetime] = []

    @kit.app.task(name="nap")
    def plain_nap(ctx: Context) -> None:
        ctx.sleep_sync(timedelta(days=400))
        woken.append(kit.time.now())
        ctx.sleep_sync(90)
        woken.append(kit.time.now())

    @kit.app.task(name="nap2")
    async def nap(ctx: Context) -> None:
        await ctx.sleep(timedelta(days=400))
        woken.append(kit.time.now())
        await ctx.sleep(90)
        woken.append(kit.time.now())

    job = await (plain_nap if plain else nap).enqueue()
    await kit.drain(raise_errors=True)
    found = await job.get()
    assert (found.status, found.run_at) == (Status.SUSPENDED, START + timedelta(days=400))
    ran = await kit.time.advance(days=399, raise_errors=True)
    assert (ran, woken) == ([], [])
    await kit.time.advance(days=2, raise_errors=True)
    later, last = START + timedelta(days=400), START + timedelta(days=400, seconds=90)
    assert woken == [later, last, last]  # what is not a step happens in each run
    assert (await job.get()).status is Status.COMPLETED


async def test_a_sleep_that_is_woken_early_continues(kit: Kit) -> None:
    @kit.app.task()
    async def nap(ctx: Context) -> None:
        await ctx.sleep(3600)

    job = await nap.enqueue()
    await kit.drain()
    real = (await job.get()).run_at
    kit.clock.shift(-1800)  # the clock is set back
    kit.clock.advance(3600)
    ran = await kit.drain(raise_errors=True)
    assert [run.status for run in ran] == []
    await kit.time.advance_to(real, raise_errors=True)
    assert (await job.get()).status is Status.COMPLETED


async def test_a_sleep_that_is_behind_stays_there_if_the_clock_is_set_back(quick: Kit) -> None:
    done: list[str] = []

    @quick.app.task(retry=AGAIN)
    async def nap(ctx: Context) -> None:
        await ctx.sleep(3600)
        await ctx.step("after", lambda: done.append("after"))
        if len(done) == 1:
            done.append("failed")
            quick.clock.shift(-7200)
            raise RuntimeError

    job = await nap.enqueue()
    await quick.drain()
    await quick.time.advance(hours=1)
    await quick.time.advance(hours=2)
    assert (await job.get()).status is Status.COMPLETED
    assert done == ["after", "failed"]


async def test_a_sleep_of_no_length_does_not_leave(quick: Kit) -> None:
    runs: list[int] = []

    @quick.app.task()
    async def nap(ctx: Context) -> None:
        runs.append(1)
        await ctx.sleep(0)
        await ctx.sleep_until(START - timedelta(days=1))

    job = await nap.enqueue()
    await quick.drain(raise_errors=True)
    assert runs == [1]
    assert [step.name for step in await quick.app.store.steps(job.id)] == ["sleep", "sleep (2)"]


async def test_a_sleep_that_begins_has_a_length_whatever_is_left_of_it_later(quick: Kit) -> None:
    end = START + timedelta(hours=1)

    @quick.app.task(max_attempts=1)
    async def nap(ctx: Context) -> None:
        await ctx.sleep(end - quick.app.now())

    in_time, late = await nap.enqueue(), await nap.using(run_at=end + timedelta(seconds=1)).enqueue()
    await quick.time.advance(hours=2)
    assert (await in_time.get()).status is Status.COMPLETED
    job = await late.get()
    assert job.failure is not None
    assert "the length of a sleep is" in job.failure.message
    assert "negative" in job.failure.message


async def test_sleeps_are_named_after_what_came_before(quick: Kit) -> None:
    @quick.app.task()
    async def nap(ctx: Context) -> None:
        await ctx.sleep(1)
        await ctx.step("call", asyncio.sleep, 0)
        await ctx.sleep(1)
        await ctx.sleep(1)
        await ctx.sleep(1, name="the last")

    job = await nap.enqueue()
    await quick.time.advance(10, raise_errors=True)
    names = [step.name for step in await quick.app.store.steps(job.id)]
    assert names == ["sleep", "call", "sleep after call", "sleep after call (2)", "the last"]


async def test_the_time_is_taken_once(quick: Kit) -> None:
    """Code that says "tomorrow" says another day in each run."""

    @quick.app.task()
    async def nap(ctx: Context) -> None:
        await ctx.sleep_until(quick.time.now() + timedelta(days=1))

    job = await nap.enqueue()
    await quick.drain()
    ran = await quick.time.advance(days=3, raise_errors=True)
    assert [run.status for run in ran] == ["completed"]
    assert (await job.get()).finished_at == START + timedelta(days=1)


@pytest.mark.parametrize(
    ("local", "fold", "utc"),
    [
        (datetime(2026, 7, 1, 23), "first", datetime(2026, 7, 1, 21, tzinfo=UTC)),
        (datetime(2026, 3, 29, 2, 30), "first", datetime(2026, 3, 29, 1, 30, tzinfo=UTC)),  # skipped: 03:30
        (datetime(2026, 10, 25, 2, 30), "first", datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),
        (datetime(2026, 10, 25, 2, 30), "second", datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
    ],
)
async def test_sleep_until_takes_local_times(quick: Kit, local: datetime, fold: str, utc: datetime) -> None:
    @quick.app.task()
    async def nap(ctx: Context) -> None:
        await ctx.sleep_until(local, tz="Europe/Berlin", fold=fold)  # type: ignore[arg-type]

    job = await nap.enqueue()
    await quick.drain(raise_errors=True)
    assert (await job.get()).run_at == utc


@pytest.mark.parametrize(
    ("moment", "tz", "problem"),
    [
        (datetime(2026, 7, 1), None, "has no time zone"),
        (datetime(2026, 7, 1, tzinfo=UTC), "Europe/Berlin", "has a time zone already"),
        (datetime(2026, 7, 1), "Berlin", "Europe/Berlin"),
        (datetime(9999, 12, 31, tzinfo=UTC), None, "9999"),
    ],
)
async def test_invalid_times_are_refused(quick: Kit, moment: datetime, tz: str | None, problem: str) -> None:
    @quick.app.task()
    async def nap(ctx: Context) -> None:
        with pytest.raises(ConfigurationError, match=problem):
            await ctx.sleep_until(moment, tz=tz)

    await nap.enqueue()
    await quick.drain(raise_errors=True)


async def test_except_exception_does_not_catch_a_sleep(quick: Kit) -> None:
    done: list[str] = []

    @quick.app.task()
    async def nap(ctx: Context) -> None:
        try:
            await ctx.sleep(60)
        except Exception:
            done.append("caught")
        finally:
            done.append("left")

    await nap.enqueue()
    await quick.time.advance(60, raise_errors=True)
    assert done == ["left", "left"]


async def test_a_handler_that_catches_the_suspension_still_sleeps(quick: Kit) -> None:
    done: list[str] = []

    @quick.app.task()
    async def nap(ctx: Context) -> None:
        try:
            await ctx.sleep(60)
        except BaseException:
            done.append("swallowed")
        try:
            await ctx.step("next", lambda: done.append("next"))
        except BaseException:
            done.append("swallowed")

    job = await nap.enqueue()
    await quick.drain()
    assert (await job.get()).status is Status.SUSPENDED
    await quick.time.advance(60, raise_errors=True)
    assert done == ["swallowed", "swallowed", "next"]


async def test_branches_that_sleep_side_by_side_sleep_at_once(quick: Kit) -> None:
    @quick.app.task()
    async def nap(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep(3600, name="one"), ctx.sleep(7200, name="two"))

    @quick.app.task()
    async def nap_in_group(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep(3600, name="one"))
            group.create_task(ctx.sleep(7200, name="two"))

    jobs = [await nap.enqueue(), await nap_in_group.enqueue()]
    await quick.time.advance(hours=1, raise_errors=True)
    await quick.time.advance(hours=1, raise_errors=True)
    assert [(await job.get()).status for job in jobs] == [Status.COMPLETED] * 2


async def test_a_sleep_in_one_branch_does_not_end_another(quick: Kit) -> None:
    """Woken early by a signal, the one that sleeps still has its time before it."""
    done: list[timedelta] = []

    @quick.app.task()
    async def nap(ctx: Context) -> None:
        async def sleeper() -> None:
            await ctx.sleep(3600, name="nap")
            done.append(quick.time.now() - START)

        await asyncio.gather(sleeper(), ctx.wait_for("door"))

    job = await nap.enqueue()
    await quick.drain(raise_errors=True)
    await quick.app.signal("door")
    await quick.drain(raise_errors=True)
    assert (await job.get()).status is Status.SUSPENDED
    await quick.time.advance(hours=1, raise_errors=True)
    assert done == [timedelta(hours=1)]


async def test_a_sleep_waits_for_steps_that_run_in_parallel(quick: Kit) -> None:
    done: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.02)
        done.append("slow")

    @quick.app.task()
    async def nap(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep(3600, name="nap"), ctx.step("slow", slow))

    await nap.enqueue()
    await quick.time.advance(hours=1, raise_errors=True)
    assert done == ["slow"]


async def test_a_sleep_in_a_branch_needs_a_name(quick: Kit) -> None:
    @quick.app.task()
    async def nap(ctx: Context) -> None:
        with pytest.raises(ConfigurationError, match="needs a name"):
            await asyncio.gather(ctx.sleep(5))

    await nap.enqueue()
    await quick.drain(raise_errors=True)


async def test_a_sleep_emits_job_suspended(quick: Kit) -> None:
    events = record(quick.app, JobSuspended)

    @quick.app.task()
    async def nap(ctx: Context) -> None:
        await ctx.sleep(60)

    job = await nap.enqueue()
    await quick.drain()
    (event,) = events
    assert (event.job_id, event.until, event.waits_for) == (job.id, START + timedelta(seconds=60), None)


async def test_each_stretch_between_sleeps_has_all_attempts(quick: Kit) -> None:
    failures = [2, 2]

    @quick.app.task(retry=Retry.delays(1, 1))
    async def nap(ctx: Context) -> None:
        stretch = 0 if (await quick.app.store.steps(ctx.job_id)) == [] else 1
        if failures[stretch]:
            failures[stretch] -= 1
            raise RuntimeError
        await ctx.sleep(60)

    job = await nap.enqueue()
    await quick.time.advance(minutes=5)
    assert (await job.get()).status is Status.COMPLETED
