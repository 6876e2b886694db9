from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import (
    Cancel,
    Chunk,
    ConfigurationError,
    Context,
    Discard,
    EnqueueCall,
    Interval,
    Item,
    Mainspring,
    Retry,
    RunCall,
    Snooze,
    Status,
    SystemHalted,
)
from mainspring.debug.run import DebugRun, Listener
from mainspring.testing import inline, manual
from tests.worker import wrapped
from tests.worker.working import DEADLINE, ended, eventually, working

current: ContextVar[str] = ContextVar("current", default="nothing")


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://")


# -- around runs ----------------------------------------------------------------------------------


def test_what_yields_in_the_way_of_a_fixture_is_middleware_and_stays_the_function_that_it_was(app: Mainspring) -> None:
    async def session(_call: RunCall) -> AsyncIterator[None]:
        yield

    def tenant(_call: EnqueueCall) -> Iterator[None]:
        yield

    assert app.around_run(session) is session
    assert app.around_enqueue(tenant) is tenant


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_the_first_registered_is_the_outermost(app: Mainspring, kind: str) -> None:
    seen: list[str] = []

    def around(name: str) -> Callable[[RunCall], Iterator[None]]:
        def middleware(_call: RunCall) -> Iterator[None]:
            seen.append(f"{name} begins")
            yield
            seen.append(f"{name} ends")

        return middleware

    app.around_run(around("first"))
    app.around_run(around("second"))

    @app.task()
    async def coroutine() -> None:
        seen.append("handler")

    @app.task()
    def thread() -> None:
        seen.append("handler")

    async with inline(app):
        await (coroutine if kind == "coroutine" else thread).enqueue()
    assert seen == ["first begins", "second begins", "handler", "second ends", "first ends"]


async def test_plain_and_asynchronous_middleware_wrap_a_coroutine_in_the_order_of_registration(app: Mainspring) -> None:
    seen: list[str] = []

    @app.around_run
    def plain(_call: RunCall) -> Iterator[None]:
        seen.append("plain")
        yield

    @app.around_run
    async def asynchronous(_call: RunCall) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        seen.append("asynchronous")
        yield
        await asyncio.sleep(0)
        seen.append("asynchronous ends")

    @app.task()
    async def work() -> None:
        seen.append("handler")

    async with inline(app):
        await work.enqueue()
    assert seen == ["plain", "asynchronous", "handler", "asynchronous ends"]


async def test_a_plain_handler_has_plain_middleware_in_its_thread_and_the_other_on_the_loop(app: Mainspring) -> None:
    threads: dict[str, int] = {}

    @app.around_run
    def plain(_call: RunCall) -> Iterator[None]:
        threads["plain"] = threading.get_ident()
        assert current.get() == "set on the loop"
        yield

    @app.around_run
    async def asynchronous(_call: RunCall) -> AsyncIterator[None]:
        threads["asynchronous"] = threading.get_ident()
        current.set("set on the loop")
        yield

    @app.task()
    def work() -> str:
        threads["handler"] = threading.get_ident()
        return current.get()

    async with inline(app):
        assert await (await work.enqueue()).result() == "set on the loop"
    assert threads["plain"] == threads["handler"] != threads["asynchronous"] == threading.get_ident()


async def test_what_middleware_sets_is_gone_in_the_next_run(app: Mainspring) -> None:
    @app.around_run
    def number(call: RunCall) -> Iterator[None]:
        if call.task == "first":
            current.set("first")
        yield

    @app.task()
    async def first() -> str:
        return current.get()

    @app.task()
    async def second() -> str:
        return current.get()

    async with manual(app) as kit:
        await first.enqueue()
        await second.enqueue()
        assert [run.job.result for run in await kit.drain()] == ["first", "nothing"]


async def test_middleware_knows_the_job_and_can_do_what_a_handler_can(app: Mainspring) -> None:
    known: list[Any] = []

    @app.around_run
    async def look(call: RunCall) -> AsyncIterator[None]:
        known.append((call.task, call.ctx.job_id, call.ctx.attempt, call.ctx.queue, len(call.contexts), call.is_async))
        yield

    @app.task(queue="mail")
    async def work() -> None: ...

    @app.task()
    def threaded() -> None: ...

    async with inline(app):
        first, second = await work.enqueue(), await threaded.enqueue()
    assert known == [("work", first.id, 1, "mail", 1, True), ("threaded", second.id, 1, "default", 1, False)]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_an_error_of_the_handler_passes_through_and_can_be_told(app: Mainspring, kind: str) -> None:
    told: list[BaseException] = []

    @app.around_run
    def report(_call: RunCall) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            told.append(error)
            raise

    @app.task(max_attempts=1)
    async def coroutine() -> None:
        raise LookupError("in vain")

    @app.task(max_attempts=1)
    def thread() -> None:
        raise LookupError("in vain")

    async with manual(app) as kit:
        await (coroutine if kind == "coroutine" else thread).enqueue()
        (run,) = await kit.drain()
    assert (run.status, [str(error) for error in told]) == (Status.DEAD_LETTER, ["in vain"])
    assert run.error is told[0]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_error_of_middleware_fails_the_run_as_one_of_the_handler_does(app: Mainspring, when: str) -> None:
    @app.around_run
    async def fail(_call: RunCall) -> AsyncIterator[None]:
        if when == "before":
            raise ConnectionError("no session")
        yield
        raise ConnectionError("no session")

    @app.task(retry=Retry.delays(30))
    async def work() -> None: ...

    async with manual(app) as kit:
        await work.enqueue()
        assert [run.status for run in await kit.time.advance(minutes=1)] == [Status.RETRYING, Status.DEAD_LETTER]
        (job,) = kit.jobs()
    assert job.failure is not None
    assert (job.failure.type, job.failure.message) == ("ConnectionError", "no session")


@pytest.mark.parametrize(
    ("wish", "status"),
    [(Snooze(60), Status.PENDING), (Cancel("no such tenant"), Status.CANCELLED), (Discard("no"), Status.DEAD_LETTER)],
)
async def test_middleware_may_end_the_run_before_the_handler(app: Mainspring, wish: Exception, status: Status) -> None:
    ran = []

    @app.around_run
    def refuse(_call: RunCall) -> Iterator[None]:
        raise wish
        yield

    @app.task()
    async def work() -> None:
        ran.append(1)

    async with manual(app) as kit:
        await work.enqueue()
        (run,) = await kit.drain()
        started = (await app.numbers()).total.started
    assert (run.status, ran) == (status, [])
    assert started == (1 if status is Status.DEAD_LETTER else 0)  # a failed attempt counts


async def test_an_error_that_middleware_swallows_is_none(app: Mainspring) -> None:
    @app.around_run
    def swallow(_call: RunCall) -> Iterator[None]:
        with suppress(LookupError):
            yield

    @app.task()
    async def work() -> int:
        raise LookupError

    @app.task()
    def threaded() -> int:
        raise LookupError

    async with manual(app) as kit:
        await work.enqueue()
        await threaded.enqueue()
        assert [(run.status, run.job.result) for run in await kit.drain()] == [(Status.COMPLETED, None)] * 2


async def test_a_timeout_unwinds_middleware_too(app: Mainspring) -> None:
    closed = []

    @app.around_run
    async def session(_call: RunCall) -> AsyncIterator[None]:
        try:
            yield
        finally:
            closed.append("session")

    @app.task(timeout=0.01, max_attempts=1)
    async def endless() -> None:
        await asyncio.Event().wait()

    async with manual(app) as kit:
        await endless.enqueue()
        (run,) = await kit.drain()
    assert (run.status, closed) == (Status.DEAD_LETTER, ["session"])


async def test_a_chunk_handler_is_wrapped_once_for_all_its_jobs(app: Mainspring) -> None:
    calls: list[list[str]] = []

    @app.around_run
    async def look(call: RunCall) -> AsyncIterator[None]:
        calls.append([ctx.headers["n"] for ctx in call.contexts])
        yield

    @app.task(chunk=Chunk(size=10, wait=0))
    async def index(numbers: list[int]) -> list[int]:
        return [number + 1 for number in numbers]

    @app.task(chunk=Chunk(size=10, wait=0))
    def index_items(items: list[Item[int]]) -> None:
        for item in items:
            item.done(item.ctx.headers["n"])

    async with manual(app) as kit:
        for task in (index, index_items):
            handles = await task.enqueue_many([task.using(headers={"n": str(n)}).prepare(n) for n in range(3)])
            await kit.drain()
            results = [await handle.result() for handle in handles]
            assert results in ([1, 2, 3], ["0", "1", "2"])
    assert [sorted(call) for call in calls] == [["0", "1", "2"]] * 2


async def test_each_run_of_a_durable_function_is_wrapped_and_its_suspension_is_no_error(app: Mainspring) -> None:
    seen: list[str] = []

    @app.around_run
    def report(_call: RunCall) -> Iterator[None]:
        seen.append("run")
        try:
            yield
        except Exception as error:
            seen.append(repr(error))
            raise

    @app.task()
    async def lasting(ctx: Context) -> str:
        await ctx.step("once", lambda: seen.append("step"))
        await ctx.sleep(timedelta(days=1))
        return ctx.headers["tenant"]

    async with manual(app) as kit:
        handle = await lasting.using(headers={"tenant": "7"}).enqueue()
        await kit.time.advance(days=2)
        assert await handle.result() == "7"
    assert seen == ["run", "step", "run"]


async def test_the_jobs_of_a_batch_are_wrapped_but_not_the_job_that_waits_for_them(app: Mainspring) -> None:
    seen: list[str] = []

    @app.around_run
    def look(call: RunCall) -> Iterator[None]:
        seen.append(call.task)
        yield

    @app.around_enqueue
    def look_too(call: EnqueueCall) -> Iterator[None]:
        seen.append(f"enqueue {call.task}")
        yield

    @app.task()
    async def part() -> None: ...

    @app.task()
    async def finish() -> None: ...

    async with manual(app) as kit:
        await app.batch([part.prepare()], on_success=finish.prepare())
        await kit.drain()
    assert seen == ["enqueue part", "enqueue finish", "part", "finish"]


@pytest.mark.slow
@pytest.mark.parametrize("task", [wrapped.isolated, wrapped.isolated_coroutine], ids=["plain", "coroutine"])
async def test_in_a_child_process_middleware_wraps_the_handler_over_there(task: Any) -> None:
    async with working(wrapped.app, child_processes=1):
        tenant, pid, *trail = await (await task.using(headers={"tenant": "7"}).enqueue()).result(timeout=DEADLINE)
    assert tenant == f"7 of {pid}"
    assert sorted(trail) == [f"async {task.name}", "plain"]


@pytest.mark.slow
async def test_a_child_process_that_cannot_find_the_middleware_does_not_run_the_job() -> None:
    wrapped.register_late()
    app = wrapped.Elsewhere.app
    async with working(app, child_processes=1):
        (job,) = await ended(app, (await wrapped.lonely.enqueue()).id)
    assert job.failure is not None
    assert "wrapped.register_late.<locals>.late is not registered in the child process" in job.failure.message


async def test_a_debug_run_is_wrapped_as_well() -> None:
    class Silent(Listener):
        pass

    async with manual(wrapped.app) as kit:
        handle = await wrapped.threaded.using(headers={"tenant": "7"}).enqueue()
        await kit.drain()
        debug_run = await DebugRun.find(wrapped.app, handle.id, Silent())
        result = await asyncio.to_thread(debug_run.run)
    assert result.error is None
    assert result.result[0].startswith("7 of ")


@pytest.mark.parametrize("wrong", ["coroutine", "function", "contextmanager", "object"])
def test_what_cannot_be_middleware_is_refused_and_explained(app: Mainspring, wrong: str) -> None:
    async def coroutine(_call: Any) -> None: ...

    def function(_call: Any) -> None: ...

    @contextmanager
    def managed(_call: Any) -> Iterator[None]:
        yield

    given: Any = {"coroutine": coroutine, "function": function, "contextmanager": managed, "object": 5}[wrong]
    hint = " without @contextmanager" if wrong == "contextmanager" else ""
    with pytest.raises(ConfigurationError, match=f"@app.around_run takes .* with one `yield`{hint}: def"):
        app.around_run(given)
    with pytest.raises(ConfigurationError, match=f"@app.around_enqueue takes a plain .* one `yield`{hint}: def"):
        app.around_enqueue(given)


def test_middleware_around_an_enqueue_is_plain_as_code_without_a_loop_enqueues_too(app: Mainspring) -> None:
    async def asynchronous(_call: EnqueueCall) -> AsyncIterator[None]:
        yield

    with pytest.raises(ConfigurationError, match="code without an event loop enqueues too"):
        app.around_enqueue(asynchronous)  # type: ignore[type-var]


# -- around enqueues ------------------------------------------------------------------------------


def with_tenant(app: Mainspring) -> list[EnqueueCall]:
    calls: list[EnqueueCall] = []

    @app.around_enqueue
    def tenant(call: EnqueueCall) -> Iterator[None]:
        call.headers.setdefault("tenant", current.get())
        yield
        calls.append(call)

    return calls


async def test_headers_that_middleware_sets_arrive_at_the_run(app: Mainspring) -> None:
    calls = with_tenant(app)

    @app.task(queue="mail")
    async def work(ctx: Context) -> dict[str, str]:
        return dict(ctx.headers)

    async with manual(app) as kit:
        current.set("seven")
        handle = await work.using(headers={"trace": "t1"}).enqueue()
        await kit.drain()
        assert await handle.result() == (await handle.get()).headers == {"trace": "t1", "tenant": "seven"}
    assert calls == [EnqueueCall("work", "mail", {"trace": "t1", "tenant": "seven"}, [handle.id])]


@pytest.mark.parametrize("store", ["memory://", "sqlite"])
def test_every_way_to_enqueue_is_wrapped(store: str, tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db" if store == "sqlite" else store)
    calls = with_tenant(app)
    current.set("seven")

    @app.task()
    async def work(number: int = 0) -> None: ...

    async def enqueue() -> list[str]:
        many = await work.enqueue_many([{"number": 1}, {"number": 2}])
        chain = await app.chain(work.prepare(), work.prepare())
        together = await app.enqueue_all([work.prepare()])
        first = await work.enqueue()
        debounced = await work.using(replace="key").enqueue()
        return [first.id, debounced.id, *(job.id for job in [*many, *chain]), *(job.id for job in together)]

    ids = app.run(enqueue())
    ids += [job.id for job in [work.enqueue_sync(), *work.enqueue_many_sync([{"number": 3}])]]
    jobs = app.run(app.store.get(ids))
    assert len(jobs) == len(ids) == 9
    assert {job.headers["tenant"] for job in jobs} == {"seven"}
    assert sorted(job_id for call in calls for job_id in call.job_ids) == sorted(ids)
    app.run(app.close())


async def test_what_a_handler_enqueues_is_wrapped_in_its_own_context(app: Mainspring) -> None:
    """A tenant that arrives with a job goes on to the jobs that it makes."""
    with_tenant(app)

    @app.around_run
    def tenant(call: RunCall) -> Iterator[None]:
        current.set(call.headers["tenant"])
        yield

    @app.task()
    async def leaf() -> None: ...

    @app.task()
    async def parent(ctx: Context) -> None:
        ctx.follow_up(leaf.prepare())
        await leaf.enqueue()
        await ctx.spawn(leaf)

    @app.task()
    def threaded(ctx: Context) -> None:
        ctx.follow_up(leaf.prepare())
        leaf.enqueue_sync()

    async with manual(app) as kit:
        await parent.using(headers={"tenant": "seven"}).enqueue()
        await threaded.using(headers={"tenant": "seven"}).enqueue()
        await kit.drain()
        jobs = kit.jobs(leaf)
    assert [job.headers["tenant"] for job in jobs] == ["seven"] * 5


async def test_jobs_of_schedules_are_not_wrapped_but_keep_headers_of_their_own(app: Mainspring) -> None:
    calls = with_tenant(app)

    @app.every(Interval("1h"))
    async def hourly() -> None: ...

    @app.task()
    async def report() -> None: ...

    async with manual(app) as kit:
        await app.schedules.put("report", "every 1h", report.using(headers={"tenant": "9"}).prepare())
        await kit.time.advance(hours=1)
        assert {job.task: dict(job.headers) for job in kit.jobs()} == {"hourly": {}, "report": {"tenant": "9"}}
    assert [call.task for call in calls] == ["report"]  # by its `prepare`


async def test_an_error_before_the_yield_enqueues_nothing(app: Mainspring) -> None:
    @app.around_enqueue
    def refuse(_call: EnqueueCall) -> Iterator[None]:
        raise PermissionError("not for this tenant")
        yield

    @app.task()
    async def work() -> None: ...

    async with manual(app) as kit:
        with pytest.raises(PermissionError):
            await work.enqueue()
        with pytest.raises(PermissionError):
            work.prepare()
        assert kit.jobs() == []


async def test_middleware_sees_that_an_enqueue_failed_and_cannot_hide_it(app: Mainspring) -> None:
    told: list[BaseException] = []

    @app.around_enqueue
    def report(_call: EnqueueCall) -> Iterator[None]:
        try:
            yield
        except SystemHalted as error:
            told.append(error)

    @app.task()
    async def work() -> None: ...

    async with manual(app):
        await app.halt(reject_new=True)
        with pytest.raises(RuntimeError, match="caught its error; raise it again"):
            await work.enqueue()
    assert len(told) == 1


@pytest.mark.parametrize("headers", [{"tenant": 7}, {7: "tenant"}, ["tenant"], "tenant"])
async def test_headers_that_are_no_strings_are_refused(app: Mainspring, headers: Any) -> None:
    @app.task()
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match="headers must be a mapping of strings to strings"):
        work.using(headers=headers)
    if not isinstance(headers, dict):
        return

    @app.around_enqueue
    def wrong(call: EnqueueCall) -> Iterator[None]:
        call.headers |= headers
        yield

    with pytest.raises(ConfigurationError, match="headers must be a mapping of strings to strings"):
        await work.enqueue()


@pytest.mark.parametrize("headers", [{"name": "\ud800"}, {"\udfff": "value"}, {"name": "a\0b"}])
async def test_headers_that_no_store_can_keep_are_refused(app: Mainspring, headers: dict[str, str]) -> None:
    @app.task()
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match="leave out NUL and halves of surrogate pairs"):
        work.using(headers=headers)


async def test_a_job_with_headers_that_cannot_be_read_holds_up_no_other(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(breaker="mail")
    async def work() -> str:
        return "done"

    monkeypatch.setattr("mainspring.options.check_headers", lambda _: None)  # as an older version was
    handles = [await work.using(headers={"name": "\ud800"}).enqueue(), await work.enqueue()]
    async with working(app):
        assert [await handle.result(timeout=DEADLINE) for handle in handles] == ["done", "done"]


async def test_headers_outlive_a_retry(app: Mainspring) -> None:
    @app.task(retry=Retry.delays(5))
    async def work(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise LookupError
        return ctx.headers["Zoë"]

    async with manual(app) as kit:
        handle = await work.using(headers={"Zoë": "grüßt"}).enqueue()
        await kit.time.advance(minutes=1)
        assert await handle.result() == "grüßt"


def test_a_job_without_headers_has_none(app: Mainspring) -> None:
    @app.task()
    async def work() -> None: ...

    assert work.prepare().options is None
    assert work.using(headers={}).prepare().options is None
    assert Context.detached().headers == {}
    assert Context.detached(options='{"headers": {"a": "b"}}').headers == {"a": "b"}


async def test_a_job_that_is_halted_before_its_thread_starts_is_no_error_for_middleware(app: Mainspring) -> None:
    seen: list[str] = []

    @app.around_run
    async def halting(_call: RunCall) -> AsyncIterator[None]:
        try:
            await app.halt("while the middleware of a run is at work")
            yield
        except Exception as error:
            seen.append(repr(error))
            raise

    @app.around_run
    def plain(_call: RunCall) -> Iterator[None]:
        seen.append("plain middleware")
        yield

    @app.task()
    def work() -> None:
        seen.append("handler")

    async with working(app) as worker:
        handle = await work.enqueue()
        await eventually(app.halts)
        await eventually(lambda: not worker.parts.runs.held)
    assert (await handle.get()).status is Status.PENDING
    assert seen == []
