"""Spans for Sentry's Queues page."""

from __future__ import annotations

from typing import Any

import sentry_sdk

from mainspring import Chunk, Item, Mainspring, Retry
from mainspring.sentry import instrument
from mainspring.testing import manual
from mainspring.testing.fakes import FakeSentry
from mainspring.trace import EXAMPLE


def transactions(sentry: FakeSentry) -> dict[str, dict[str, Any]]:
    sentry_sdk.flush(10)
    return {each["transaction"]: each for each in sentry.transactions}


async def test_enqueue_and_run_are_one_trace(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task(queue="mail", retry=Retry.fixed(5, max_attempts=2))
    async def welcome(guest: str) -> None:
        if guest == "Bob":
            raise LookupError

    async with manual(app) as kit:
        with sentry_sdk.start_transaction(name="request", op="http.server"):
            job = await welcome.enqueue("Ada")
        await kit.time.advance(seconds=3)
        assert set((await job.get()).trace) == {"sentry-trace", "baggage"}
    request, run = transactions(sentry)["request"], transactions(sentry)["welcome"]
    (published,), (processed,) = request["spans"], run["spans"]
    assert run["contexts"]["trace"]["trace_id"] == request["contexts"]["trace"]["trace_id"]
    assert run["contexts"]["trace"]["parent_span_id"] == published["span_id"]
    assert (published["op"], processed["op"]) == ("queue.publish", "queue.process")
    expected = {"messaging.system": "mainspring", "messaging.destination.name": "mail", "messaging.message.id": job.id}
    assert expected.items() <= published["data"].items()
    more = {
        "messaging.message.receive.latency": 0,
        "messaging.message.retry.count": 0,
        "messaging.message.body.size": len('{"guest":"Ada"}'),
    }
    assert (expected | more).items() <= processed["data"].items()
    assert (run["contexts"]["trace"]["status"], processed["status"]) == ("ok", "ok")


async def test_what_a_handler_enqueues_is_in_its_trace_and_failures_are_told(
    app: Mainspring, sentry: FakeSentry
) -> None:
    instrument(app)

    @app.task()
    async def leaf() -> None: ...

    @app.task(retry=Retry.fixed(5, max_attempts=2))
    async def parent() -> None:
        await leaf.enqueue()
        raise LookupError

    async with manual(app) as kit:
        await parent.enqueue()
        await kit.drain()
    found = transactions(sentry)
    assert found["leaf"]["contexts"]["trace"]["trace_id"] == found["parent"]["contexts"]["trace"]["trace_id"]
    assert found["parent"]["contexts"]["trace"]["status"] == "internal_error"


async def test_a_job_keeps_the_trace_that_it_was_given(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task()
    async def work() -> None: ...

    given = {"sentry-trace": f"{EXAMPLE[3:35]}-00f067aa0ba902b7-1", "baggage": "tenant=7"}
    async with manual(app) as kit:
        job = await work.using(trace=given).enqueue()
        assert (await job.get()).trace == given
        await kit.drain()
    assert transactions(sentry)["work"]["contexts"]["trace"]["trace_id"] == EXAMPLE[3:35]


async def test_a_chunk_is_one_transaction(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task(chunk=Chunk(size=3, wait=0))
    async def rows(items: list[Item[int]]) -> None: ...

    async with manual(app) as kit:
        await rows.enqueue_many([1, 2])
        await kit.drain(raise_errors=True)
    sentry_sdk.flush(10)
    (run,) = sentry.transactions
    assert run["spans"][0]["data"]["messaging.batch.message_count"] == 2


async def test_spans_can_be_left_out(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app, queues=False)

    @app.task()
    async def work() -> None: ...

    async with manual(app) as kit:
        job = await work.enqueue()
        await kit.drain()
        assert (await job.get()).trace == {}
    assert transactions(sentry) == {}
