from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

import pytest

import mainspring
from mainspring import (
    Context,
    Discard,
    JobHandle,
    Limit,
    Mainspring,
    Priority,
    Retention,
    Schedule,
    Status,
    Task,
    Worker,
)
from mainspring.errors import ConfigurationError, SystemHalted, UnknownTask, UnsupportedStore
from mainspring.features.batches.api import Batches, BatchHandle
from mainspring.features.breakers.api import Breakers
from mainspring.features.limits import Limits
from mainspring.features.people.api import People
from mainspring.features.schedules.api import Schedules
from mainspring.jobs import Jobs
from mainspring.published import PublishedTasks
from mainspring.stores.protocol import Halt
from mainspring.task import Enqueuer
from mainspring.testing import Kit, VirtualTime, assert_enqueued, inline, manual

# -- tasks and their names ------------------------------------------------------------------------


def test_a_task_is_known_by_its_name_wherever_its_code_lies() -> None:
    app = Mainspring("memory://")

    @app.task()
    async def welcome() -> None: ...

    @app.task(name="goodbye")
    def see_off() -> None: ...

    assert {name: task.function.__name__ for name, task in app.tasks.items()} == {
        "welcome": "welcome", "goodbye": "see_off",
    }  # fmt: skip
    assert app.runtime.find_task("goodbye") is app.tasks["goodbye"]
    assert repr(app) == "<Mainspring memory://, 2 tasks>"
    with pytest.raises(UnknownTask, match="no task is named 'see_off' here; known are: goodbye, welcome"):
        app.runtime.find_task("see_off")
    with pytest.raises(UnknownTask, match="known are: none"):
        Mainspring("memory://").runtime.find_task("x")


def module_with_a_task(app: Mainspring, module: str, function: str = "send") -> None:
    """As if this module were imported (again)."""
    exec(f"@app.task(name='send')\ndef {function}() -> None: ...", {"app": app, "__name__": module})  # noqa: S102


def test_a_task_cannot_have_the_name_of_the_task_for_batches() -> None:
    app = Mainspring("memory://")
    with pytest.raises(ConfigurationError, match="a task of Mainspring's own"):
        app.task(name="mainspring.batch")(lambda: None)
    assert not app.tasks


def test_two_tasks_of_one_name_are_refused_but_a_module_may_be_loaded_again() -> None:
    app = Mainspring("memory://")
    module_with_a_task(app, "shop.mail")
    first = app.tasks["send"]
    module_with_a_task(app, "shop.mail")
    assert app.tasks["send"] is not first
    for module, function in (("shop.sms", "send"), ("shop.mail", "send_it")):
        with pytest.raises(ConfigurationError, match="two tasks are named 'send': give one of them another"):
            module_with_a_task(app, module, function)


def test_functions_that_cannot_be_tasks_are_refused() -> None:
    app = Mainspring("memory://")

    def pages() -> Iterator[int]:
        yield 1

    async def lines() -> AsyncIterator[int]:
        yield 1

    for function in (pages, lines):
        with pytest.raises(ConfigurationError, match=rf"{function.__name__} yields, but a task returns its result"):
            app.task()(function)
    with pytest.raises(ConfigurationError, match="a lambda has no name"):
        app.task()(lambda: 1)
    app.task(name="one")(lambda: 1)
    assert list(app.tasks) == ["one"]


async def test_a_task_without_options_needs_no_parentheses() -> None:
    app = Mainspring("memory://")

    @app.task
    async def send(ctx: Context, guest: str) -> str:
        return f"{guest} {ctx.attempt}"

    @app.task
    def add(one: int, two: int) -> int:
        return one + two

    with inline(app):
        assert await (await send.enqueue(guest="ana")).result() == "ana 1"
        handle = await add.enqueue(1, two=2)
        assert_type(handle, JobHandle[int])
        assert await handle.result() == 3


def test_an_option_in_the_wrong_place_is_refused_with_the_right_one() -> None:
    app = Mainspring("memory://")
    for given, told in (
        ({"delay": 5}, r"task.using\(delay=…\)"),
        ({"quue": "mail"}, "do you mean 'queue'"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            app.task(**given)
    task = app.task(name="send")(lambda: 1)
    with pytest.raises(ConfigurationError, match=r"write @app.task\(limits=…\)"):
        task.using(limits=[Limit(1)])  # type: ignore[call-arg]


SYNC_TWINS = (Task, Enqueuer, JobHandle, BatchHandle, Context, Kit, VirtualTime)


@pytest.mark.parametrize("kind", SYNC_TWINS, ids=lambda kind: kind.__name__)
def test_tasks_handles_contexts_and_the_kit_have_a_synchronous_twin_of_each_method(kind: type) -> None:
    methods = {name for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction) if name[0] != "_"}
    assert methods
    assert {f"{name}_sync" for name in methods} <= set(dir(kind))


BY_NAME = ["enqueue_many_sync", "enqueue_sync"]  # as of a task: the caller's connection belongs to its thread


def test_everything_else_is_called_through_run() -> None:
    apis = (Mainspring, Jobs, Batches, Breakers, Limits, Schedules, People, PublishedTasks)
    assert [name for api in apis for name in dir(api) if name[0] != "_" and name.endswith("_sync")] == BY_NAME


def test_decorators_say_how_they_are_written() -> None:
    app = Mainspring("memory://")
    for given in ({"tz": "Asia/Tokyo"}, {"overlap": "skip"}):
        with pytest.raises(ConfigurationError, match=f"{'tz' if 'tz' in given else 'overlap'} .* part of a Schedule"):
            app.every(Schedule("@daily"), **given)  # type: ignore[arg-type]
    assert app.tasks == {}


async def test_a_job_of_an_unknown_task_waits_for_a_worker_that_knows_it_and_burns_no_attempt() -> None:
    """As while a deployment is half done."""
    new, old = Mainspring("memory://"), Mainspring("memory://")

    @new.task()
    async def invented() -> str:
        return "done"

    with manual(new) as kit:
        old.runtime.store = new.store
        job = await invented.enqueue()
        before = await job.get()
        assert await old.worker().drain() == 0
        assert await job.get() == before
        (ran,) = await kit.drain()
        assert (ran.status, ran.job.attempts, ran.job.token, ran.job.result) == (Status.COMPLETED, 1, 1, "done")


# -- enqueuing ------------------------------------------------------------------------------------


async def test_jobs_of_several_tasks_are_enqueued_together_or_not_at_all(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(queue="mail")
    async def welcome(guest: str) -> None: ...

    @app.task(queue="rooms")
    async def clean(room: int) -> None: ...

    async with app:
        jobs = [welcome.prepare(guest="ana"), clean.using(priority="low").prepare(room=7)]
        inserted = await app.enqueue_all(jobs)
        assert [(result.id, result.created) for result in inserted] == [(job.id, True) for job in jobs]
        assert_enqueued(app, welcome, queue="mail")
        assert_enqueued(app, clean, priority=Priority.LOW)

        await app.store.halt(Halt("ana", "no", app.now(), queue="rooms", accept=False))
        with pytest.raises(SystemHalted):
            await app.enqueue_all([welcome.prepare(guest="bob"), clean.prepare(room=8)])
        assert await app.jobs.count() == 2


def test_how_long_finished_jobs_are_kept_is_said_by_the_task_or_else_the_application() -> None:
    app = Mainspring("memory://", retention=Retention(completed=60, dead=timedelta(minutes=2)))

    @app.task()
    async def plain() -> None: ...

    @app.task(retention=Retention(completed=1, dead=2))
    async def own() -> None: ...

    assert (plain.prepare().keep, plain.prepare().keep_dead) == (60_000, 120_000)
    assert (own.prepare().keep, own.prepare().keep_dead) == (1000, 2000)


@pytest.mark.parametrize("length", ["forever", timedelta.max, timedelta(days=365_000), 1e12, float("inf")])
async def test_jobs_may_be_kept_for_ever(length: Any) -> None:
    app = Mainspring("memory://", retention=Retention(dead=length))

    @app.task()
    async def work() -> None:
        raise Discard

    with manual(app) as kit:
        job = await work.enqueue()
        await kit.drain()
        dead = await app.jobs.get(job.id)
        assert (dead.id, dead.status, dead.expires_at) == (job.id, Status.DEAD_LETTER, None)


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ("ever", 'or "forever"'),
        (None, "give a timedelta"),
        (-1, "give a length of 0 or more"),
        (timedelta(-1), "give a length of 0 or more"),
        (float("nan"), "give a length of 0 or more"),
    ],
)
def test_a_retention_that_cannot_be_is_refused(length: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        Retention(completed=length)


# -- the store ------------------------------------------------------------------------------------


def test_the_store_of_an_application_cannot_be_replaced() -> None:
    app = Mainspring("memory://")
    with pytest.raises(AttributeError, match="store"):
        app.store = app.store  # type: ignore[misc]


async def test_the_store_is_opened_at_first_use_and_can_be_used_again_after_closing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    app = Mainspring(f"sqlite:///{path}")

    @app.task()
    async def note() -> None: ...

    assert not path.exists()
    await note.enqueue()
    await app.close()
    async with app as same:
        assert same is app
        assert await app.jobs.count() == 1


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("redis://localhost", UnsupportedStore, "no store for 'redis'"),
        ("jobs.db", UnsupportedStore, "no store for 'jobs.db'"),
        (None, ConfigurationError, "must be a URL or a store object, not None; use one of sqlite:///jobs.db"),
        (Path("jobs.db"), ConfigurationError, "must be a URL or a store object, not .*Path"),
        ("sqlite://jobs.db", ConfigurationError, "names no file; write sqlite:///relative.db"),
        ("sqlite:///jobs.db?lese=3", ConfigurationError, "unknown setting 'lese'"),
        ("sqlite:///jobs.db?lease=long", ConfigurationError, "must be a number of seconds, not 'long'"),
    ],
)
def test_a_url_that_names_no_store_is_explained(url: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Mainspring(url)


def test_public_names_are_importable_from_the_top() -> None:
    names = "ClaimLost InvalidPayload JobFailed JobNotFound SystemHalted StoreUnavailable UnknownTask Worker"
    for name in names.split():
        assert name in mainspring.__all__
    for name in mainspring.__all__:
        assert getattr(mainspring, name).__name__ == name
        assert name in dir(mainspring)


def test_a_worker_is_imported_from_the_top_and_typed() -> None:
    app = Mainspring("memory://")
    assert_type(app.worker(concurrency=3), mainspring.Worker)
    assert app.worker(queues=["mail"], id="w").settings == Worker(app, queues=["mail"], id="w").settings
    with pytest.raises(ConfigurationError):
        app.worker(concurency=3)  # type: ignore[call-arg]


# -- the whole system -----------------------------------------------------------------------------


async def test_a_halt_stops_everything_and_keeps_or_refuses_new_jobs() -> None:
    app = Mainspring("memory://")

    @app.task()
    async def note() -> None: ...

    with manual(app) as kit:
        await app.halt("fire drill", actor="ana")
        await note.enqueue()
        assert await kit.drain() == []
        (halt,) = await app.halts()
        assert (halt.actor, halt.reason, halt.since, halt.queue, halt.accept) == (
            "ana", "fire drill", kit.time.now(), None, True,
        )  # fmt: skip
        assert (await app.stats()).halts == [halt]
        await app.halt("fire", reject_new=True)
        with pytest.raises(SystemHalted):
            await note.enqueue()
        assert await app.resume(reason="it is out", actor="ana")
        assert not await app.resume()
        assert len(await kit.drain()) == 1
        trail = [(entry.actor, entry.action, entry.reason) for entry in await app.audit()]
        assert trail[0] == ("ana", "resume", "it is out")
        assert [action for _, action, _ in trail] == ["resume", "halt", "halt"]


@pytest.mark.parametrize("queue", [None, "", "*"])
async def test_an_invalid_queue_name_pauses_nothing(queue: Any) -> None:
    app = Mainspring("memory://")
    with pytest.raises(ConfigurationError, match="is not a name for a queue"):
        await app.pause(queue)
    assert await app.halts() == []


async def test_a_pause_stops_one_queue_until_its_time_is_over() -> None:
    app = Mainspring("memory://")

    @app.task(queue="mail")
    async def write() -> None: ...

    @app.task(queue="rooms")
    async def clean() -> None: ...

    with manual(app) as kit:
        await app.pause("mail", "the provider is down", until=kit.time.now() + timedelta(hours=1))
        await app.enqueue_all([write.prepare(), clean.prepare()])
        assert [run.task for run in await kit.drain()] == ["clean"]
        assert [run.task for run in await kit.time.advance(hours=1)] == ["write"]
        await app.pause("mail")
        assert not await app.resume()
        assert await app.resume("mail")


async def test_stats_count_jobs_and_workers() -> None:
    app = Mainspring("memory://")

    @app.task(queue="mail")
    async def write(ok: bool) -> None:
        assert ok

    with manual(app) as kit:
        await write.enqueue_many([{"ok": True}, {"ok": False}])
        await write.using(delay=60).enqueue(ok=True)
        await kit.drain()
        await write.enqueue(ok=True)
        stats = await app.stats()
        (counts,) = stats.queues
        assert (counts.queue, dict(counts.by_status)) == (
            "mail", {Status.COMPLETED: 1, Status.RETRYING: 1, Status.PENDING: 2},
        )  # fmt: skip
        assert stats.due == {"mail": 1}
        assert stats.oldest_due == {"mail": kit.time.now()}


async def test_now_is_the_stores_time() -> None:
    app = Mainspring("memory://")
    with manual(app) as kit:
        await kit.time.advance(days=1)
        assert app.now() == kit.time.now()


def test_everything_can_be_done_from_code_without_a_loop() -> None:
    app = Mainspring("memory://")

    @app.task()
    def note(ctx: Context, text: str) -> str:
        return f"{ctx.task}: {text}"

    with inline(app):
        handle = note.enqueue_sync(text="x")
        assert app.run(app.jobs.get(handle.id)).status is Status.COMPLETED
        assert handle.result_sync() == "note: x"
    app.run(app.close())
