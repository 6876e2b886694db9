"""The trace context of jobs, and the jobs that inherit it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import (
    Chunk,
    ConfigurationError,
    Context,
    Debounce,
    EnqueueCall,
    Item,
    Mainspring,
    Retry,
    RunCall,
)
from mainspring.copying import Copy
from mainspring.job import NewJob
from mainspring.testing import manual
from mainspring.trace import EXAMPLE, MAX_TRACE_CHARS, is_traceparent

TRACE = {"traceparent": EXAMPLE, "tracestate": "vendor=1", "baggage": "tenant=7", "sentry-trace": "771a43a4192642f0"}
OTHER = {"traceparent": EXAMPLE.replace("4bf9", "5bf9")}


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://")


async def test_a_job_carries_its_trace_through_its_retries(app: Mainspring) -> None:
    seen: list[dict[str, str]] = []

    @app.task(retry=Retry.fixed(1, max_attempts=2))
    async def work(ctx: Context) -> None:
        seen.append(dict(ctx.trace))
        raise LookupError

    async with manual(app) as kit:
        handle = await work.using(trace=TRACE).enqueue()
        await kit.time.advance(seconds=5)
        assert (await handle.get()).trace == TRACE
    assert seen == [TRACE, TRACE]


async def test_a_job_without_a_trace_stores_nothing_of_it(app: Mainspring) -> None:
    @app.task()
    async def leaf(ctx: Context) -> None:
        assert ctx.trace == {}

    @app.task()
    async def parent() -> None:
        await leaf.enqueue()

    async with manual(app) as kit:
        await parent.using(headers={"a": "b"}).enqueue()
        await kit.drain(raise_errors=True)
        (job,) = kit.jobs(leaf)
    assert (job.options, job.trace) == ({}, {})
    assert leaf.prepare().options is None


async def test_whatever_a_handler_makes_joins_its_trace(app: Mainspring) -> None:
    made: list[NewJob] = []

    @app.task()
    async def leaf(n: int = 0) -> int:
        return n

    made = [leaf.prepare(n) for n in (7, 8)]  # before there is a trace

    @app.task()
    async def parent(ctx: Context) -> None:
        ctx.follow_up(made[0])
        await leaf.enqueue(1)
        await leaf.enqueue_many([{"n": 2}, {"n": 3}])
        await leaf.using(debounce=Debounce("key", wait=60)).enqueue(4)
        await app.enqueue_all([leaf.prepare(5)])
        await app.chain(leaf.prepare(6), leaf.prepare(6))
        await app.batch([leaf.prepare(9)], on_success=leaf.prepare(10))
        await ctx.gather(made[1])

    async with manual(app) as kit:
        await parent.using(trace=TRACE).enqueue()
        await kit.drain(raise_errors=True)
        jobs = {job.payload.get("n"): job.trace for job in kit.jobs(leaf)}
    assert jobs == dict.fromkeys(range(1, 11), TRACE)


async def test_plain_functions_pass_it_on_too(app: Mainspring) -> None:
    @app.task()
    async def leaf() -> None: ...

    @app.task()
    def parent(ctx: Context) -> None:
        leaf.enqueue_sync()
        leaf.enqueue_many_sync([{}])
        app.run(app.enqueue_all([leaf.prepare()]))
        ctx.follow_up(leaf.prepare())

    async with manual(app) as kit:
        await parent.using(trace=TRACE).enqueue()
        await kit.drain(raise_errors=True)
        assert [job.trace for job in kit.jobs(leaf)] == [TRACE] * 4


async def test_a_trace_of_its_own_wins_and_an_empty_one_means_none(app: Mainspring) -> None:
    @app.task()
    async def leaf() -> None: ...

    @app.task()
    async def parent(ctx: Context) -> None:
        await leaf.using(trace=OTHER).enqueue()
        ctx.follow_up(leaf.using(trace={}).prepare())

    async with manual(app) as kit:
        await parent.using(trace=TRACE).enqueue()
        await kit.drain(raise_errors=True)
        assert [job.trace for job in kit.jobs(leaf)] == [OTHER, {}]


async def test_follow_ups_of_an_item_join_its_own_trace(app: Mainspring) -> None:
    @app.task()
    async def leaf(n: int) -> None: ...

    @app.task(chunk=Chunk(size=2, wait=0))
    async def index(items: list[Item[int]]) -> None:
        for item in items:
            item.ctx.follow_up(leaf.prepare(item.payload))

    async with manual(app) as kit:
        await index.enqueue_many([index.using(trace=TRACE).prepare(1), index.using(trace=OTHER).prepare(2)])
        await kit.drain(raise_errors=True)
        assert {job.payload["n"]: job.trace for job in kit.jobs(leaf)} == {1: TRACE, 2: OTHER}


async def test_a_fire_begins_a_new_trace_unless_its_schedule_has_one(app: Mainspring) -> None:
    @app.task()
    async def report() -> None: ...

    @app.task()
    async def plan() -> None:
        await app.schedules.put("plain", "every 1h", report.prepare())
        await app.schedules.put("traced", "every 1h", report.using(trace=OTHER).prepare())

    async with manual(app) as kit:
        await plan.using(trace=TRACE).enqueue()
        await kit.drain(raise_errors=True)
        await kit.time.advance(hours=1)
        fired = {job.options["occurrence"]["schedule"]: job.trace for job in kit.jobs(report)}
    assert fired == {"plain": {}, "traced": OTHER}


async def test_middleware_gives_the_trace_of_the_moment(app: Mainspring) -> None:
    seen: list[dict[str, str]] = []

    @app.around_enqueue
    def inject(call: EnqueueCall) -> Iterator[None]:
        call.trace.update(OTHER)
        yield

    @app.around_run
    def extract(call: RunCall) -> Iterator[None]:
        seen.append(dict(call.trace))
        yield

    @app.task()
    async def work() -> None: ...

    async with manual(app) as kit:
        await work.enqueue()
        await work.using(trace={"baggage": "a=b"}, headers={"a": "b"}).enqueue()
        await kit.drain(raise_errors=True)
        assert [job.headers for job in kit.jobs()] == [{}, {"a": "b"}]
    assert seen == [OTHER, {**OTHER, "baggage": "a=b"}]


async def test_an_empty_trace_stays_one_under_middleware_that_only_sets_headers(app: Mainspring) -> None:
    @app.around_enqueue
    def tenant(call: EnqueueCall) -> Iterator[None]:
        call.headers["tenant"] = "7"
        yield

    @app.task()
    async def leaf() -> None: ...

    @app.task()
    async def parent() -> None:
        await leaf.using(trace={}).enqueue()

    async with manual(app) as kit:
        await parent.using(trace=TRACE).enqueue()
        await kit.drain(raise_errors=True)
        assert [(job.trace, job.headers) for job in kit.jobs(leaf)] == [({}, {"tenant": "7"})]


async def test_it_goes_with_the_jobs_into_another_store(tmp_path: Path) -> None:
    source, target = (Mainspring(f"sqlite:///{tmp_path}/{name}.db") for name in ("a", "b"))

    @source.task()
    async def work() -> None: ...

    async with source, target:
        handle = await work.using(trace=TRACE).enqueue()
        await Copy(source.store, target.store).run()
        assert (await target.jobs.get(handle.id)).trace == TRACE


@pytest.mark.parametrize(
    ("trace", "problem"),
    [
        ("00-1", "must be a mapping"),
        ({"Traceparent": EXAMPLE}, "in lower case"),
        ({"a b": "c"}, "the name 'a b'"),
        ({"baggage": 7}, "baggage is 7; give a string"),
        ({"baggage": "a=ü"}, "printable ASCII"),
        ({"baggage": "a=\r\nb"}, "printable ASCII"),
        ({"traceparent": "00-1-2-3"}, "in the form of the W3C"),
        ({"baggage": "x" * MAX_TRACE_CHARS}, "at most 16,384"),
    ],
)
def test_what_is_not_a_trace_is_refused(app: Mainspring, trace: Any, problem: str) -> None:
    @app.task()
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match=problem):
        work.using(trace=trace)

    @app.around_enqueue
    def inject(call: EnqueueCall) -> Iterator[None]:
        call.trace = trace
        yield

    with pytest.raises(ConfigurationError, match=problem):
        work.prepare()


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        (EXAMPLE, True),
        (EXAMPLE.replace("00-4", "cc-4") + "-more", True),
        (EXAMPLE + "-more", False),
        (EXAMPLE.upper(), False),
        (EXAMPLE.replace("00-4", "ff-4"), False),
        ("00-" + "0" * 32 + EXAMPLE[35:], False),
        (EXAMPLE[:36] + "0" * 16 + "-01", False),
    ],
)
def test_only_what_the_w3c_allows_is_a_traceparent(value: str, valid: bool) -> None:
    assert is_traceparent(value) is valid
