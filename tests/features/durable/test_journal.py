"""The rule for changed code, and names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import Context, Mainspring, Retry
from mainspring.errors import ConfigurationError, DuplicateStep, StepsChanged
from mainspring.features.durable.journal import Journal
from mainspring.job import Step
from mainspring.testing.kit import Kit

AGAIN = Retry(max_attempts=10, base=0, jitter_share=0)


def journal(*recorded: Step) -> Journal:
    made = Journal("j1")
    made.load(recorded)
    return made


def recorded(*names: str) -> list[Step]:
    return [Step(name, number) for number, name in enumerate(names, 1)]


def test_new_steps_follow_the_recorded_ones() -> None:
    book = journal(*recorded("a", "b"))
    assert [book.ask(name, "step", 5).number for name in ("a", "b", "c", "d")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("asks", "asked", "left"),
    [
        (("a", "x"), "x", "b"),  # renamed, or put in between
        (("x",), "x", "a"),  # before all others
        (("a", "c", "d"), "d", "b"),  # one was taken out, and it is noticed where the record ends
    ],
)
def test_a_new_step_before_recorded_ones_means_changed_code(asks: tuple[str, ...], asked: str, left: str) -> None:
    book = journal(*recorded("a", "b", "c"))
    *fine, last = asks
    for name in fine:
        book.ask(name, "step", 0)
    with pytest.raises(StepsChanged) as raised:
        book.ask(last, "step", 0)
    said = str(raised.value)
    assert f"step '{asked}'" in said
    assert f"step '{left}'" in said
    for way in ("Restore the function", "version=2", f"mainspring jobs retry j1 --from-step '{left}'"):
        assert way in said


def test_another_kind_under_the_name_is_a_change() -> None:
    book = journal(Step("a", 1, "sleep", "7"))
    with pytest.raises(StepsChanged, match="asks for step 'a', but an earlier run recorded sleep 'a'"):
        book.ask("a", "step", 0)


def test_recorded_steps_may_change_places() -> None:
    book = journal(*recorded("a", "b"))
    assert [book.ask(name, "step", 0).number for name in ("b", "a", "c")] == [2, 1, 3]


def test_the_order_of_branches_is_chance() -> None:
    """a1 a2 b1 b2 were recorded by branches; another run asks for a3 before it comes to the others."""
    book = journal(*(Step(name, number, "side step") for number, name in enumerate(("a1", "b1", "b2", "a2"), 1)))
    assert [book.ask(name, "step", 0, main=False).number for name in ("a1", "a2", "a3", "b1", "b2")] == [1, 4, 5, 2, 3]
    assert book.ask("end", "step", 0).number == 6


def test_a_name_stands_for_one_thing() -> None:
    book = journal()
    book.ask("send", "step", 0)
    with pytest.raises(DuplicateStep, match=r'ctx.step\(f"send \{item.id\}"'):
        book.ask("send", "step", 0)


@pytest.mark.parametrize("name", ["", "  ", "n" * 201, "a\nb", "\x00", "\udc80", None, 7])
def test_invalid_names_are_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="one line of 1 to 200 printable characters"):
        journal().ask(name, "step", 0)


# -- in flight --------------------------------------------------------------------------------------


def two_steps(app: Mainspring, first: str, second: str, **options: Any) -> Any:
    async def nothing() -> None: ...

    async def work(ctx: Context) -> str:
        await ctx.step(first, nothing)
        await ctx.sleep(60)
        await ctx.step(second, nothing)
        return second

    app.tasks.pop("work", None)
    return app.task(name="work", retry=AGAIN, **options)(work)


async def test_a_function_that_changed_under_a_job_raises_steps_changed(quick: Kit) -> None:
    job = await two_steps(quick.app, "prepare", "render").enqueue()
    await quick.drain(raise_errors=True)
    two_steps(quick.app, "get ready", "render")
    ran, *_ = await quick.time.advance(61)
    assert isinstance(ran.error, StepsChanged)
    two_steps(quick.app, "prepare", "another end")  # behind the record everything may change
    await quick.app.jobs.retry(job.id)
    await quick.drain(raise_errors=True)
    assert (await job.get()).result == "another end"


async def test_versions_live_side_by_side(quick: Kit) -> None:
    app = quick.app
    ran: list[str] = []

    @app.task(name="no_show")
    async def old(ctx: Context) -> None:
        await ctx.sleep(60)
        ran.append("old")

    @app.task(name="no_show", version=2)
    async def new(ctx: Context) -> None:
        await ctx.sleep(30)
        ran.append("new")

    jobs = [await old.enqueue(), await new.enqueue()]
    await quick.time.advance(60, raise_errors=True)
    assert ran == ["new", "old"]
    assert [(await job.get()).task for job in jobs] == ["no_show", "no_show@2"]


def test_a_version_is_taken_once() -> None:
    app = Mainspring("memory://")

    def define(version: Any) -> Any:
        @app.task(name="work", version=version)
        async def work() -> None: ...

        return work

    def define_again(version: Any) -> Any:
        @app.task(name="work", version=version)
        async def work() -> None: ...

        return work

    for version in (1, 2, 3):
        define(version)
    with pytest.raises(ConfigurationError, match="two tasks are named 'work@2'"):
        define_again(2)
    for nonsense in (0, -1, "2"):
        with pytest.raises(ConfigurationError, match="whole number"):
            define(nonsense)


def test_two_tasks_of_one_name_and_version_are_refused() -> None:
    app = Mainspring("memory://")

    @app.task(version=2)
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match="two tasks are named 'work@2'"):

        @app.task(version=2)
        async def work() -> None: ...


async def test_background_branches_do_not_look_like_a_change(quick: Kit) -> None:
    """The handler goes on while a branch of its own does, and in the next run they come in another order."""
    failed: list[int] = []

    async def nothing(pause: float = 0) -> None:
        await asyncio.sleep(pause)

    @quick.app.task(retry=AGAIN)
    async def work(ctx: Context) -> None:
        async def branch() -> None:
            for number in range(3):
                await ctx.step(f"side {number}", nothing)

        beside = asyncio.create_task(branch())
        await ctx.step("slow", nothing, 0.05)
        await ctx.step("next", nothing)
        if not failed:
            failed.append(1)
            raise RuntimeError
        await ctx.step("last", nothing)
        await beside

    job = await work.enqueue()
    ran = await quick.drain()
    assert [run.status for run in ran] == ["retrying", "completed"], ran[-1].error
    assert (await job.get()).attempts == 2
