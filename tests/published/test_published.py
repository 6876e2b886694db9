"""Tasks that workers publish, and enqueues by name in programs that do not have them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field
from pydantic_core import core_schema

from mainspring import (
    Chunk,
    ConfigurationError,
    Context,
    EnqueueCall,
    Fair,
    InvalidPayload,
    Limit,
    Mainspring,
    Priority,
    Retention,
    Retry,
    UnknownTask,
    Window,
)
from mainspring.job import Job, Status
from mainspring.options import EnqueueOptions
from mainspring.published.api import FRESH_FOR
from mainspring.published.description import describe
from mainspring.testing import manual
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import new_job
from tests.worker.working import eventually

MODEL_URL = "sqlite:///{}/jobs.db"


class Scene(BaseModel):
    id: int
    shots: list[str] = []


class Odd:
    """A type that Pydantic can check, but not describe."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(int)


@pytest.fixture
async def studio(tmp_path: Path) -> AsyncIterator[Mainspring]:
    """The program with the code."""
    app = Mainspring(MODEL_URL.format(tmp_path), timeout=30, retention=Retention(dead="forever"))
    app.queue("renders", timeout=600, retry=Retry.fixed(60, max_attempts=7), priority="low")
    async with app:
        yield app


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Mainspring]:
    """A program without it, on the same store."""
    async with Mainspring(MODEL_URL.format(tmp_path)) as app:
        yield app


async def publish(app: Mainspring, worker: str = "w1") -> int:
    return await app.published.publish(app.tasks.values(), worker)


def as_enqueued(job: Job) -> dict[str, Any]:
    """What two enqueues of the same job have in common."""
    names = ("task", "queue", "priority", "payload", "max_attempts", "timeout", "tags", "options", "status", "target")
    return {name: getattr(job, name) for name in names}


# -- enqueuing by name ------------------------------------------------------------------------------


OPTIONS: list[EnqueueOptions] = [
    {},
    {"queue": "renders"},
    {"queue": "renders", "max_attempts": 2, "timeout": 5},
    {
        "retry": Retry.delays(1, 2),
        "priority": "urgent",
        "tags": ["b"],
        "headers": {"a": "b"},
        "trace": {"baggage": "a"},
    },
    {"expires": 60, "delay": 5, "target": ("room", "7"), "retention": Retention(completed=1)},
    {"isolation": "process", "breaker": "other", "deliver": Window("00:00", "00:01")},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_the_job_is_the_one_that_the_function_would_enqueue(
    studio: Mainspring, web: Mainspring, options: EnqueueOptions
) -> None:
    @studio.task(
        queue="film", tags=["a"], expires=timedelta(hours=1), breaker="gpu", priority="high",
        retry=Retry(only=(LookupError,), max_attempts=4), deliver=Window("00:00", "23:59"),
    )  # fmt: skip
    async def render(scene: int, name: str = "x") -> None: ...

    await publish(studio)
    ours = await render.using(**options).enqueue(scene=7)
    theirs = await web.enqueue("render", {"scene": 7}, **options)
    first, second = await ours.get(), await theirs.get()
    assert as_enqueued(first) | {"options": {}} == as_enqueued(second) | {"options": {}}
    moments = {"put_off"}  # when the hours open next is the same unless they open between the two
    assert {k: v for k, v in first.options.items() if k not in moments} == {
        k: v for k, v in second.options.items() if k not in moments
    }
    assert ("put_off" in first.options) == ("put_off" in second.options)


async def test_retention_and_defaults_of_the_application_come_with_the_task(
    studio: Mainspring, web: Mainspring
) -> None:
    @studio.task(retention=Retention(completed=0))
    async def render() -> None: ...

    @studio.task()
    async def cut() -> None: ...

    await publish(studio)
    for task in (cut, render):
        remote = await web.published.task(task.name)
        assert replace(remote.using().prepare(), id="") == replace(task.prepare(), id="")


async def test_a_worker_runs_the_job(studio: Mainspring, web: Mainspring) -> None:
    @studio.task()
    async def render(scene: int, at: datetime, by: UUID) -> str:
        return f"{scene} {at:%H:%M} {by.int}"

    await publish(studio)
    payload = {"scene": 7, "at": datetime(2026, 5, 1, 9, 30, tzinfo=UTC), "by": UUID(int=5)}
    handle = await web.enqueue("render", payload)
    await studio.worker().drain()
    assert await handle.result() == "7 09:30 5"


async def test_a_program_with_the_task_uses_its_own(studio: Mainspring) -> None:
    @studio.task(queue="film")
    async def render(scene: int, at: datetime | None = None) -> None: ...

    handle = await studio.enqueue("render", {"scene": "7"}, priority="high")  # Pydantic makes a number of it
    job = await handle.get()
    assert (job.payload, job.queue, job.priority) == ({"scene": 7}, "film", Priority.HIGH)
    with pytest.raises(InvalidPayload, match="scene"):
        await studio.enqueue("render", {"scene": "x"})
    assert await studio.published.list() == []


async def test_a_model_is_given_in_the_form_in_which_it_is_stored(studio: Mainspring, web: Mainspring) -> None:
    @studio.task()
    async def render(scene: Scene) -> None: ...

    await publish(studio)
    for app in (studio, web):
        for payload in ({"id": 7}, Scene(id=7)):
            assert (await (await app.enqueue("render", payload)).get()).payload["id"] == 7
        with pytest.raises(InvalidPayload, match="id"):
            await app.enqueue("render", {"scene": {"id": 7}})


async def test_chunk_tasks_take_any_json(studio: Mainspring, web: Mainspring) -> None:
    @studio.task(chunk=Chunk(size=10))
    async def index(words: list[str]) -> None: ...

    await publish(studio)
    for app in (studio, web):
        assert (await (await app.enqueue("index", "word")).get()).payload == "word"
        with pytest.raises(InvalidPayload):
            await app.enqueue("index", 5)
        with pytest.raises(ConfigurationError, match="chunk task"):
            await app.enqueue("index", "word", isolation="process")


def test_from_code_without_an_event_loop(tmp_path: Path) -> None:
    studio, web = Mainspring(MODEL_URL.format(tmp_path)), Mainspring(MODEL_URL.format(tmp_path))

    @studio.task()
    def render(scene: int) -> int:
        return scene

    studio.run(publish(studio))
    for app in (studio, web):
        first = app.enqueue_sync("render", {"scene": 1})
        more = app.enqueue_many_sync("render", ({"scene": n} for n in (2, 3)), tags=["a"])
        assert [handle.get_sync().payload["scene"] for handle in (first, *more)] == [1, 2, 3]
        assert more[0].get_sync().tags == ("a",)
        with pytest.raises(InvalidPayload, match=r"number 2 of the payloads.*scene"):
            app.enqueue_many_sync("render", [{"scene": 4}, {}])
        with pytest.raises(UnknownTask, match="do you mean 'render'"):
            app.enqueue_sync("rendr")
        app.run(app.close())


def test_in_the_callers_transaction(tmp_path: Path) -> None:
    studio, web = Mainspring(MODEL_URL.format(tmp_path)), Mainspring(MODEL_URL.format(tmp_path))

    @studio.task()
    def render(scene: int) -> None: ...

    studio.run(publish(studio))
    studio.run(studio.close())
    connection = sqlite3.connect(tmp_path / "jobs.db")
    for end in (connection.rollback, connection.commit):
        connection.execute("BEGIN IMMEDIATE")
        web.enqueue_sync("render", {"scene": 1}, connection=connection)
        end()
    connection.close()
    assert web.run(web.jobs.count()) == 1
    web.run(web.close())


async def test_many_are_checked_first_and_none_is_enqueued_if_one_is_wrong(studio: Mainspring, web: Mainspring) -> None:
    @studio.task()
    async def render(scene: int) -> None: ...

    await publish(studio)
    for app in (studio, web):
        with pytest.raises(InvalidPayload, match=r"number 3 of the payloads.*scene"):
            await app.enqueue_many("render", [{"scene": 1}, {"scene": 2}, {"scene": "x"}])
    assert await web.jobs.count() == 0
    assert len(await web.enqueue_many("render", [{"scene": n} for n in range(5)])) == 5


async def test_middleware_wraps_it(studio: Mainspring, web: Mainspring) -> None:
    @studio.task(queue="film")
    async def render() -> None: ...

    @web.around_enqueue
    def tenant(call: EnqueueCall) -> Iterator[None]:
        call.headers["to"] = f"{call.task} in {call.queue}"
        yield

    await publish(studio)
    assert (await (await web.enqueue("render")).get()).headers == {"to": "render in film"}


async def test_remote_jobs_can_be_prepared_for_batches_and_children(studio: Mainspring, web: Mainspring) -> None:
    @studio.task()
    async def render(scene: int) -> int:
        return scene

    @web.task()
    async def film(ctx: Context) -> list[int]:
        remote = await web.published.task("render")
        return await ctx.gather(*(remote.using().prepare(scene=n) for n in (1, 2)))

    await publish(studio)
    handle = await film.enqueue()
    for _ in range(3):
        await web.worker().drain()
        await studio.worker().drain()
    assert await handle.result() == [1, 2]


# -- what depends on the code --------------------------------------------------------------------------


async def test_limits_and_turns_hold_for_jobs_from_elsewhere(studio: Mainspring, web: Mainspring) -> None:
    running: list[int] = []
    most = 0

    @studio.task(limits=Limit(1, key=lambda p: p.tenant), fair=Fair(key=lambda p: p.tenant))
    async def render(tenant: str, n: int) -> None:
        nonlocal most
        running.append(n)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(n)

    await publish(studio)
    await web.enqueue_many("render", [{"tenant": "a", "n": n} for n in range(5)])
    async with studio.worker(id="w2"):
        await eventually(lambda: all_done(web, 5))
    assert most == 1


async def all_done(app: Mainspring, number: int) -> bool:
    return [job.status for job in (await app.jobs.find()).jobs] == [Status.COMPLETED] * number


async def test_a_key_of_a_queue_here_does_not_stop_a_task_of_elsewhere(studio: Mainspring, web: Mainspring) -> None:
    @studio.task(queue="film")
    async def render() -> None: ...

    web.limit_queue("film", Limit(1, key=lambda p: p.tenant))
    await publish(studio)
    assert (await web.enqueue("render")).created


async def test_hours_of_a_person_whom_the_code_finds_are_left_to_the_worker(
    studio: Mainspring, web: Mainspring
) -> None:
    @studio.task(deliver=Window.of_person(lambda p: p.person))
    async def greet(person: str) -> None: ...

    await publish(studio)
    job = await (await web.enqueue("greet", {"person": "ana"})).get()
    assert job.options == {"deliver": None}  # the worker asks the task's own hours


async def test_a_payload_that_has_no_schema_is_refused_unless_that_is_accepted(
    studio: Mainspring, web: Mainspring
) -> None:
    @studio.task(queue="film")
    async def render(scene: Odd) -> None: ...

    await publish(studio)
    with pytest.raises(InvalidPayload, match="cannot be checked without its code: a type of its payload has no JSON"):
        await web.enqueue("render", {"scene": 1})
    job = await (await web.enqueue("render", {"scene": 1}, allow_unknown=True)).get()
    assert job.queue == "film"


# -- unknown names -------------------------------------------------------------------------------------


async def test_an_unknown_name_is_refused_with_near_ones(studio: Mainspring, web: Mainspring) -> None:
    @studio.task()
    async def render_scene() -> None: ...

    with pytest.raises(UnknownTask, match="none is published at all"):
        await web.enqueue("render")
    await publish(studio)
    with pytest.raises(UnknownTask, match=r"no task is named 'render_scen'.*do you mean 'render_scene'\?") as raised:
        await web.enqueue("render_scen")
    assert raised.value.nearest == raised.value.known == ("render_scene",)
    with pytest.raises(UnknownTask, match="known are 'render_scene'"):
        await web.enqueue("bill")
    with pytest.raises(ConfigurationError, match="characters"):
        await web.enqueue("x" * 300)
    assert await web.jobs.count() == 0


async def test_an_unknown_name_can_be_allowed(web: Mainspring) -> None:
    job = await (await web.enqueue("later", {"a": [1]}, allow_unknown=True, queue="q")).get()
    assert (job.task, job.payload, job.queue, job.max_attempts) == ("later", {"a": [1]}, "q", 3)
    with pytest.raises(InvalidPayload, match="NaN"):
        await web.enqueue("later", {"a": float("nan")}, allow_unknown=True)
    with pytest.raises(InvalidPayload, match="cannot be JSON"):
        await web.enqueue("later", {"a": object()}, allow_unknown=True)


async def test_tasks_of_mainspring_itself_are_refused(web: Mainspring) -> None:
    (name,) = web.runtime.internal_tasks
    with pytest.raises(ConfigurationError, match="Mainspring's own"):
        await web.enqueue(name, {}, allow_unknown=True)


async def test_wrong_options_are_refused_as_by_using(studio: Mainspring, web: Mainspring) -> None:
    @studio.task()
    async def render() -> None: ...

    await publish(studio)
    for app in (studio, web):
        with pytest.raises(ConfigurationError, match="do you mean 'delay'"):
            await app.enqueue("render", {}, delai=5)  # type: ignore[call-arg]


# -- publishing ----------------------------------------------------------------------------------------


async def test_a_worker_publishes_its_tasks_when_it_starts_and_writes_only_what_changed(
    studio: Mainspring, web: Mainspring
) -> None:
    @studio.task(queue="renders", steps=["a", "b"])
    async def render(ctx: Context, scene: Annotated[int, Field(ge=1)]) -> None:
        """Render a scene.

        More of it.
        """

    async with studio.worker(id="first"):
        await eventually(lambda: is_published(web, 1))
    (found,) = await web.published.list()
    assert (found.name, found.summary, found.queue, found.steps) == ("render", "Render a scene.", "renders", ("a", "b"))
    assert (found.worker, found.published_at is not None) == ("first", True)
    assert await publish(studio, "second") == 0
    assert await web.published.list() == [found]


async def is_published(app: Mainspring, number: int) -> bool:
    return len(await app.published.list()) == number


async def test_the_worker_that_starts_last_has_its_way_and_none_publishes_again(
    tmp_path: Path, studio: Mainspring, web: Mainspring
) -> None:
    @studio.task(queue="old")
    async def render() -> None: ...

    newer = Mainspring(MODEL_URL.format(tmp_path))

    @newer.task(name="render", queue="new")
    async def render_better(scene: int = 1) -> None: ...

    async def queue_is(name: str) -> bool:
        return [task.queue for task in await web.published.list()] == [name]

    async with newer, studio.worker(id="old"):
        await eventually(lambda: queue_is("old"))
        async with newer.worker(id="new") as worker:
            await eventually(lambda: queue_is("new"))
            before = await web.published.list()
            with pytest.raises(TimeoutError):  # it has nothing more to do
                await asyncio.wait_for(worker.parts.publication.step(), 0.01)
        assert await web.published.list() == before


async def test_workers_that_start_together_do_not_fail(tmp_path: Path) -> None:
    apps = [Mainspring(MODEL_URL.format(tmp_path)) for _ in range(4)]
    for number, app in enumerate(apps):

        @app.task(name="render", queue=f"q{number % 2}")
        async def render() -> None: ...

    await asyncio.gather(*(publish(app, f"w{number}") for number, app in enumerate(apps)))
    (found,) = await apps[0].published.list()
    assert found.queue in {"q0", "q1"}
    for app in apps:
        await app.close()


async def test_a_new_description_is_noticed_at_once_when_a_payload_does_not_fit_and_else_soon(tmp_path: Path) -> None:
    clock = ManualClock(datetime(2026, 5, 1, tzinfo=UTC))
    studio, web = (Mainspring(MODEL_URL.format(tmp_path), clock=clock) for _ in range(2))
    newer = Mainspring(MODEL_URL.format(tmp_path), clock=clock)

    @studio.task()
    async def render(scene: int) -> None: ...

    @newer.task(name="render", queue="new")
    async def render_better(scene: int, name: str = "") -> None: ...

    await publish(studio)
    await web.enqueue("render", {"scene": 1})
    await publish(newer)
    assert (await (await web.enqueue("render", {"scene": 1})).get()).queue == "default"
    assert (await (await web.enqueue("render", {"scene": 1, "name": "a"})).get()).queue == "new"
    assert (await (await web.enqueue("render", {"scene": 1})).get()).queue == "new"
    await publish(studio)
    clock.advance(timedelta(milliseconds=FRESH_FOR))
    assert (await (await web.enqueue("render", {"scene": 1})).get()).queue == "default"
    for app in (studio, web, newer):
        await app.close()


async def test_a_description_can_be_forgotten(studio: Mainspring, web: Mainspring) -> None:
    @studio.task()
    async def render() -> None: ...

    await publish(studio)
    await web.enqueue("render")
    await web.published.forget("render", reason="gone")
    with pytest.raises(UnknownTask):
        await web.enqueue("render")
    with pytest.raises(UnknownTask):
        await web.published.forget("render")
    assert [(entry.action, entry.reason) for entry in await web.audit()] == [("task.forget", "gone")]
    assert await publish(studio) == 1


async def test_a_huge_schema_is_not_published(studio: Mainspring) -> None:
    words: Any = Literal[tuple(f"word number {n}" for n in range(8000))]

    @studio.task()
    async def render(word: words) -> None: ...

    described = describe(render)
    assert described.schema is None
    assert "at most 100,000" in described.problem


# -- in tests ------------------------------------------------------------------------------------------


async def test_in_the_test_kit(studio: Mainspring) -> None:
    web = Mainspring("memory://")

    @web.task()
    async def own(n: int) -> int:
        return n

    @studio.task(queue="film")
    async def render(scene: int) -> None: ...

    async with manual(web) as kit:
        handle = await web.enqueue("own", {"n": 7})
        await kit.drain()
        assert await handle.result() == 7
        with pytest.raises(UnknownTask):
            await web.enqueue("render", {"scene": 1})
        kit.publish(render)
        assert (await (await web.enqueue("render", {"scene": 1})).get()).queue == "film"
        with pytest.raises(InvalidPayload, match="scene: must be a whole number"):
            await web.enqueue("render", {"scene": "x"})


# -- completion -------------------------------------------------------------------------------------


async def test_keys_of_a_rare_task_are_completed_behind_many_jobs_of_others(
    studio: Mainspring, web: Mainspring
) -> None:
    @studio.task(name="rare_task")
    async def rare(sprite: str, speed: int = 1, colour: str = "") -> None: ...

    await publish(studio)
    await studio.store.insert([new_job(task="rare_task", payload='{"sprite": "a", "speed": 2}')])
    await studio.store.insert([new_job(task="busy", payload='{"spam": 1}') for _ in range(6_000)])
    assert await web.jobs.complete("payload_key", "sp", task="rare_task") == ["speed", "sprite"]
    assert await web.jobs.complete("payload_key", "sp", task="unknown") == []
    assert await web.jobs.within("p/acme/*").complete("payload_key", "sp", task="rare_task") == []
