"""Durable functions in unit tests: called directly, inline, and in a process where they cannot be."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring import Context, Mainspring, testing
from mainspring.errors import ConfigurationError, DuplicateStep, JobFailed
from mainspring.job import Status
from tests.worker.working import claim_of

app = Mainspring("memory://")


async def shout(text: str) -> str:
    return text.upper()


@app.task()
async def child(number: int) -> int:
    return number * 10


@app.task()
async def work(ctx: Context, text: str) -> list[Any]:
    said = await ctx.step("shout", shout, text)
    await ctx.sleep(timedelta(days=400))
    opened = await ctx.wait_for("door", timeout=60)
    again = await ctx.wait_for("door", timeout=60)
    one = await ctx.spawn(child, number=1)
    results = await ctx.gather(one, child.prepare(number=2))
    return [said, opened and opened.payload, again and again.payload, *results]


@app.task()
def plain_work(ctx: Context, text: str) -> list[Any]:
    said = ctx.step_sync("shout", shout, text)
    ctx.sleep_sync(timedelta(days=400))
    opened = ctx.wait_for_sync("door", timeout=60)
    return [said, opened and opened.payload, *ctx.gather_sync(ctx.spawn_sync(child, number=1))]


async def test_a_durable_function_can_be_called_directly() -> None:
    ctx = Context.detached(signals={"door": ["open", None]}, results={"child": lambda number: number * 10})
    assert await work(ctx, text="a") == ["A", "open", None, 10, 20]
    ctx = Context.detached(results={"child": 7})
    assert await work(ctx, text="a") == ["A", None, None, 7, 7]


def test_a_durable_function_can_be_called_directly_in_a_thread() -> None:
    ctx = Context.detached(signals={"door": "open"}, results={"child": 7})
    assert plain_work(ctx, text="a") == ["A", "open", 7]


async def test_failures_of_children_can_be_given_to_a_detached_context() -> None:
    failed = JobFailed("no")
    ctx = Context.detached(results={"child": failed})
    with pytest.raises(JobFailed):
        await ctx.gather(child.prepare(number=1))
    assert await ctx.gather(child.prepare(number=1), return_exceptions=True) == [failed]
    with pytest.raises(ConfigurationError, match=r"Context.detached\(results="):
        await Context.detached().gather(child.prepare(number=1))


async def test_names_are_checked_here_too() -> None:
    ctx = Context.detached()
    await ctx.step("a", shout, "a")
    with pytest.raises(DuplicateStep):
        await ctx.step("a", shout, "a")


async def test_children_run_at_once_inline_and_sleeps_wait() -> None:
    """Children run at once, sleep is for later."""
    async with testing.inline(app) as kit:

        @app.task(name="parent")
        async def parent(ctx: Context) -> list[Any]:
            results = await ctx.gather(child.prepare(number=1), child.prepare(number=2))
            await ctx.sleep(60)
            return results

        job = await parent.enqueue()
        assert [job.status for job in kit.jobs(child)] == [Status.COMPLETED] * 2
        assert (await job.get()).status is Status.SUSPENDED
        await kit.time.advance(minutes=1)
        assert (await job.get()).result == [10, 20]


async def test_durable_calls_in_a_process_of_their_own_are_refused() -> None:
    ctx = Context(claim_of())
    for call in (lambda: ctx.sleep(5), lambda: ctx.step("a", shout, "a"), lambda: ctx.wait_for("door")):
        with pytest.raises(ConfigurationError, match="in its own process"):
            await call()
