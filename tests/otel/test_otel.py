"""Spans of enqueues and runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from mainspring import (
    Cancel,
    Chunk,
    ConfigurationError,
    Context,
    Discard,
    InvalidPayload,
    Item,
    Mainspring,
    Retry,
    RunCall,
    Snooze,
    Status,
)
from mainspring.leases import Lease
from mainspring.observer import Observer
from mainspring.otel import instrument, instrument_by_setting, sdk
from mainspring.stores.protocol import TakeoverCause
from mainspring.telemetry import flag, turn_on_by_environment
from mainspring.testing import manual
from mainspring.testing.clock import ManualClock
from mainspring.trace import EXAMPLE
from tests.conformance.scenario import by_silence
from tests.otel.conftest import Spans


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_id(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None


def context_of(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def trace_id(span: ReadableSpan) -> int:
    return context_of(span).trace_id


def span_id(span: ReadableSpan) -> int:
    return context_of(span).span_id


def current() -> int:
    return trace.get_current_span().get_span_context().span_id


# -- one trace ------------------------------------------------------------------------------------


async def test_a_run_is_a_child_of_its_enqueue(app: Mainspring, spans: Spans) -> None:
    @app.task(queue="mail", max_attempts=3)
    async def welcome(guest: str) -> None: ...

    async with manual(app) as kit:
        job = await welcome.enqueue("Ada")
        await kit.drain(raise_errors=True)
    sent, ran = spans.one("send mail"), spans.one("process welcome")
    assert (sent.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert (parent_id(sent), parent_id(ran), trace_id(ran)) == (None, span_id(sent), trace_id(sent))
    assert attributes(sent) == {
        "messaging.system": "mainspring",
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "mainspring.task": "welcome",
    }
    found = attributes(ran)
    assert found.pop("mainspring.worker").startswith("test-")
    assert found == {
        "messaging.system": "mainspring",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "messaging.message.body.size": len('{"guest":"Ada"}'),
        "mainspring.task": "welcome",
        "mainspring.attempt": 1,
        "mainspring.max_attempts": 3,
        "mainspring.crashes": 0,
        "mainspring.wait_seconds": 0.0,
        "mainspring.outcome": "completed",
    }
    assert ran.status.status_code is StatusCode.UNSET


async def test_the_span_is_current_in_coroutines_threads_and_what_they_enqueue(app: Mainspring, spans: Spans) -> None:
    seen: dict[str, int] = {}

    @app.task(queue="leaves")
    async def leaf() -> None: ...

    @app.task()
    async def on_loop(ctx: Context) -> None:
        await asyncio.sleep(0)
        seen["on_loop"] = current()
        await leaf.enqueue()
        ctx.follow_up(leaf.prepare())

    @app.task()
    def in_thread() -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen["in_thread"] = current()
        leaf.enqueue_sync()

    async with manual(app) as kit:
        await on_loop.enqueue()
        await in_thread.enqueue()
        await kit.drain(raise_errors=True)
    runs = {name: spans.one(f"process {name}") for name in seen}
    assert seen == {name: span_id(span) for name, span in runs.items()}
    senders = [parent_id(span) for span in spans.named("send leaves")]
    assert senders == [seen["on_loop"], seen["on_loop"], seen["in_thread"]]
    assert [trace_id(span) for span in spans.named("process leaf")].count(trace_id(runs["on_loop"])) == 2


async def test_jobs_that_were_prepared_before_the_run_join_it_too(spans: Spans) -> None:
    app = Mainspring("memory://")

    @app.task()
    async def leaf() -> None: ...

    made = leaf.prepare()  # without a span
    instrument(app, tracer_provider=spans.provider)

    @app.task()
    async def parent(ctx: Context) -> None:
        ctx.follow_up(made)

    async with manual(app) as kit:
        await parent.enqueue()
        await kit.drain(raise_errors=True)
    assert parent_id(spans.one("process leaf")) == span_id(spans.one("process parent"))


async def test_middleware_runs_inside_the_span(app: Mainspring, spans: Spans) -> None:
    seen: list[int] = []

    @app.around_run
    def middleware(call: RunCall) -> Iterator[None]:
        seen.append(current())
        yield

    @app.task()
    def work() -> None: ...

    async with manual(app) as kit:
        await work.enqueue()
        await kit.drain(raise_errors=True)
    assert seen == [span_id(spans.one("process work"))]


async def test_an_enqueue_joins_the_current_span_or_the_trace_that_it_is_given(app: Mainspring, spans: Spans) -> None:
    @app.task()
    async def work() -> None: ...

    tracer = spans.provider.get_tracer("test")
    async with manual(app):
        with tracer.start_as_current_span("request") as request:
            await work.enqueue()
            own = request.get_span_context()
            nearer = f"00-{own.trace_id:032x}-00f067aa0ba902b7-01"
            await work.using(trace={"traceparent": nearer}).enqueue()
            given = await work.using(trace={"traceparent": EXAMPLE, "x-tenant": "7"}).enqueue()
        stored = (await given.get()).trace
    parents = [parent_id(span) for span in spans.named("send default")]
    assert parents == [own.span_id, own.span_id, int(EXAMPLE.split("-")[2], 16)]
    assert stored["x-tenant"] == "7"
    assert stored["traceparent"].startswith(EXAMPLE[:36])
    assert stored["traceparent"] != EXAMPLE


async def test_baggage_of_others_stays(app: Mainspring, spans: Spans) -> None:
    from opentelemetry import baggage, context

    @app.task()
    async def work() -> None: ...

    async with manual(app):
        token = context.attach(baggage.set_baggage("tenant", "7"))
        job = await work.using(trace={"baggage": "sentry-release=1,tenant=6"}).enqueue()
        context.detach(token)
        assert (await job.get()).trace["baggage"] == "sentry-release=1,tenant=7"


@pytest.mark.parametrize(
    ("link_after", "seconds", "linked"),
    [(3600, 3599, False), (3600, 3600, True), (None, 10**7, False), (0, 0, True)],
)
async def test_a_job_that_waited_for_long_begins_a_trace_with_a_link(
    spans: Spans, link_after: float | None, seconds: float, linked: bool
) -> None:
    app = Mainspring("memory://")
    instrument(app, tracer_provider=spans.provider, link_after=link_after)

    @app.task()
    async def work() -> None: ...

    async with manual(app) as kit:
        await work.using(delay=seconds).enqueue()
        await kit.time.advance(seconds=seconds)
        await kit.drain(raise_errors=True)
    sent, ran = spans.one("send default"), spans.one("process work")
    assert [link.context.span_id for link in ran.links] == ([span_id(sent)] if linked else [])
    assert (trace_id(ran) == trace_id(sent)) is not linked
    assert parent_id(ran) == (None if linked else span_id(sent))


async def test_a_fire_of_a_schedule_begins_a_trace(app: Mainspring, spans: Spans) -> None:
    @app.task()
    async def sync() -> None: ...

    @app.every("1h", id="hourly")
    async def hourly() -> None: ...

    async with manual(app) as kit:
        await app.schedules.put("minutely", "every 1min", sync.prepare())
        await kit.time.advance(hours=1)
    ran = spans.named("process sync")
    assert len({trace_id(span) for span in ran}) == len(ran) >= 59
    assert {link.context.span_id for span in ran for link in span.links} == {span_id(spans.one("send default"))}
    assert attributes(ran[0])["mainspring.schedule"] == "minutely"
    assert spans.one("process hourly").parent is None


async def test_a_chunk_is_one_span_with_a_link_to_each_of_its_jobs(app: Mainspring, spans: Spans) -> None:
    @app.task(chunk=Chunk(size=3, wait=0), max_attempts=1)
    async def rows(items: list[Item[int]]) -> None:
        items[1].fail(LookupError("second"))

    async with manual(app) as kit:
        jobs = [await rows.enqueue(n) for n in range(3)]
        await kit.drain()
    ran = spans.one("process rows")
    assert [link.context.span_id for link in ran.links] == [span_id(span) for span in spans.named("send default")]
    assert {(link.attributes or {})["messaging.message.id"] for link in ran.links} == {job.id for job in jobs}
    found = attributes(ran)
    assert (found["messaging.batch.message_count"], found["mainspring.failed_count"]) == (3, 1)
    assert (found["mainspring.outcome"], found["error.type"]) == ("dead_letter", "LookupError")


# -- how runs end -----------------------------------------------------------------------------------


async def test_each_failed_attempt_is_a_span_with_its_exception(app: Mainspring, spans: Spans) -> None:
    @app.task(retry=Retry.fixed(5, max_attempts=2))
    async def work() -> None:
        raise LookupError("no such guest")

    async with manual(app) as kit:
        await work.enqueue()
        await kit.time.advance(seconds=6)
    ran = spans.named("process work")
    found = [attributes(span) for span in ran]
    assert [(each["mainspring.attempt"], each["mainspring.outcome"]) for each in found] == [
        (1, "retry"),
        (2, "dead_letter"),
    ]
    assert found[0]["mainspring.delay_seconds"] == 5
    assert {each["error.type"] for each in found} == {"LookupError"}
    assert {(span.status.status_code, span.status.description) for span in ran} == {
        (StatusCode.ERROR, "LookupError: no such guest")
    }
    (event,) = ran[0].events
    assert event.attributes is not None
    assert (event.name, event.attributes["exception.message"]) == ("exception", "no such guest")
    assert "in work" in str(event.attributes["exception.stacktrace"])
    assert {parent_id(span) for span in ran} == {span_id(spans.one("send default"))}


@pytest.mark.parametrize(
    ("end", "outcome", "status"),
    [
        (Snooze(60, "too early"), "snooze", StatusCode.UNSET),
        (Cancel("not wanted"), "cancel", StatusCode.UNSET),
        (Discard("hopeless"), "dead_letter", StatusCode.ERROR),
    ],
)
async def test_ends_that_are_not_errors_are_told_apart(
    app: Mainspring, spans: Spans, end: Exception, outcome: str, status: StatusCode
) -> None:
    @app.task()
    async def work() -> None:
        raise end

    async with manual(app) as kit:
        await work.enqueue()
        await kit.drain()
    ran = spans.one("process work")
    assert (attributes(ran)["mainspring.outcome"], ran.status.status_code) == (outcome, status)


async def test_a_durable_function_has_a_span_for_each_stretch(app: Mainspring, spans: Spans) -> None:
    @app.task()
    async def order(ctx: Context) -> None:
        await ctx.sleep(60)

    async with manual(app) as kit:
        await order.enqueue()
        await kit.time.advance(seconds=61)
    assert [attributes(span)["mainspring.outcome"] for span in spans.named("process order")] == ["suspend", "completed"]


async def test_a_timeout_is_an_error(app: Mainspring, spans: Spans) -> None:
    @app.task(max_attempts=1, timeout=0.01)
    async def work() -> None:
        await asyncio.Event().wait()

    async with app.worker():
        job = await work.enqueue()
        with pytest.raises(Exception, match="timeout"):
            await job.result(10)
    ran = spans.one("process work")
    assert (attributes(ran)["error.type"], attributes(ran)["mainspring.outcome"]) == ("TimeoutError", "dead_letter")


async def test_an_enqueue_that_fails_is_an_error(app: Mainspring, spans: Spans) -> None:
    @app.task()
    async def work(n: int) -> None: ...

    async with manual(app):
        with pytest.raises(ValueError, match="n"):
            await work.using(queue="mail").enqueue("many")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="n"):
            await work.using(queue="mail").enqueue_many([{"n": 1}, {}])
        await work.enqueue_many([{"n": 1}, {"n": 2}])
    for span in spans.named("send mail"):
        assert attributes(span)["error.type"] == "InvalidPayload"
        assert span.status.status_code is StatusCode.ERROR
    assert attributes(spans.one("send default"))["messaging.batch.message_count"] == 2


# -- others -----------------------------------------------------------------------------------------


async def test_spans_have_no_secrets(app: Mainspring, spans: Spans) -> None:
    @app.task(max_attempts=1)
    async def work(password: str) -> None:
        raise LookupError(f"cannot log in with {password}")

    wrong: Any = ["canary-1"]
    async with manual(app) as kit:
        with pytest.raises(InvalidPayload):
            await work.enqueue(password=wrong)
        await work.enqueue(password="canary-2")
        await kit.drain()
    assert spans.named("send default")[0].status.description == "InvalidPayload"
    assert spans.one("process work").status.description == "LookupError: cannot log in with [redacted]"
    assert "canary" not in "".join(span.to_json() for span in spans.all)


async def test_a_lease_has_the_trace_of_its_job(app: Mainspring, spans: Spans) -> None:
    @app.task()
    async def work() -> None: ...

    async with manual(app):
        await work.enqueue()
        (lease,) = await app.leases.claim("w1")
        assert isinstance(lease, Lease)
        sent = context_of(spans.one("send default"))
        assert lease.trace == {"traceparent": f"00-{sent.trace_id:032x}-{sent.span_id:016x}-{sent.trace_flags:02x}"}
        assert lease.to_data()["trace"] == lease.trace
        await lease.complete()
    assert spans.named("process work") == []  # the other program makes it


async def test_without_an_sdk_nothing_is_stored(app: Mainspring) -> None:
    plain = Mainspring("memory://")
    instrument(plain)

    @plain.task()
    async def work() -> None: ...

    async with manual(plain) as kit:
        job = await work.enqueue()
        await kit.drain(raise_errors=True)
        assert (await job.get()).trace == {}


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ("nothing", "OTEL_TRACES_EXPORTER is 'nothing', but no such exporter is installed; those that are: "),
        ("otlp", "install opentelemetry-exporter-otlp"),
    ],
)
def test_an_exporter_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch, named: str, error: str) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", named)
    with pytest.raises(ConfigurationError, match=error):
        list(sdk.wanted_exporters())


def test_exporters_are_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console, none")
    assert [exporter.__name__ for exporter in sdk.wanted_exporters()] == ["ConsoleSpanExporter"]


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("True", True), ("off", False), ("", False)])
def test_traces_are_turned_on_by_the_environment(text: str, expected: bool) -> None:
    assert flag("MAINSPRING_OTEL", {"MAINSPRING_OTEL": text}) is expected


def test_a_setting_that_is_neither_true_nor_false_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="MAINSPRING_OTEL is 'maybe'; give true or false"):
        turn_on_by_environment(Mainspring("memory://"), {"MAINSPRING_OTEL": "maybe"})


def test_an_application_is_instrumented_once(app: Mainspring) -> None:
    with pytest.raises(ConfigurationError, match="makes spans already"):
        instrument(app)
    instrument_by_setting(app)  # the code has done it
    assert len(app.runtime.observers.all) == 1


async def test_an_observer_that_fails_does_not_affect_the_job(
    app: Mainspring, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Observer):
        async def before(self, execution: object) -> bool:
            raise RuntimeError("before")

        def around(self, execution: object) -> Any:
            raise RuntimeError("around")

        def ended(self, end: object) -> None:
            raise RuntimeError("ended")

    app.runtime.observers.all.append(Broken())

    @app.task()
    async def work() -> int:
        return 7

    async with manual(app) as kit:
        job = await work.enqueue()
        await kit.drain(raise_errors=True)
        assert await job.result() == 7
    assert caplog.text.count("observer_failed") == 3
    assert spans.named("process work")


async def test_a_program_that_dies_with_its_lease_leaves_a_span(spans: Spans) -> None:
    clock = ManualClock()
    app = Mainspring("memory://", clock=clock)
    instrument(app, tracer_provider=spans.provider)

    @app.task()
    async def work() -> None: ...

    async with app:
        handle = await work.enqueue()
        await app.leases.claim("dead")
        (takeover,) = await by_silence(app.store, clock, "dead")
        job = await handle.get()
        app.runtime.observers.taken_over(job, takeover)
        app.runtime.observers.taken_over(job, replace(takeover, status=Status.DEAD_LETTER))
        app.runtime.observers.taken_over(job, replace(takeover, cause=TakeoverCause.STALLED))
    lost, dead, stalled = spans.named("process work")
    assert parent_id(lost) == span_id(spans.one("send default"))
    assert [attributes(span)["mainspring.outcome"] for span in (lost, dead, stalled)] == [
        "crash",
        "dead_letter",
        "stalled",
    ]
    found = attributes(lost)
    assert (found["mainspring.worker"], found["mainspring.crashes"], found["messaging.message.id"]) == (
        "dead",
        1,
        job.id,
    )
    assert lost.start_time is not None
    assert lost.end_time is not None
    assert lost.end_time - lost.start_time >= app.store.lease * 1_000_000_000
    assert lost.status.status_code is StatusCode.ERROR
