"""Numbers over time, the state of the system, and completions, over HTTP."""

from __future__ import annotations

import pytest

from mainspring import Mainspring
from mainspring.testing.clock import ManualClock
from tests.service.resources.client import Client
from tests.service.resources.conftest import fail


async def test_numbers_are_counted_over_time(app: Mainspring, client: Client, clock: ManualClock) -> None:
    await app.tasks["greet"].enqueue(name="Ada")
    await fail(app, 2)
    clock.advance(1)
    numbers = await client.get("/v1/numbers?last=7200")
    total = numbers["total"]
    assert (total["enqueued"], total["completed"], total["failed"], total["dead"]) == (3, 1, 2, 2)
    assert total["failure_rate"] == pytest.approx(2 / 3)
    assert total["duration"]["count"] == 3
    assert len(total["wait"]["buckets"]) == len(numbers["bounds"]) + 1
    assert sum(step["enqueued"] for step in numbers["series"]) == 3
    assert numbers["groups"] == {}


async def test_numbers_are_counted_by_queue_or_task(app: Mainspring, client: Client, clock: ManualClock) -> None:
    await fail(app, 1)
    clock.advance(1)
    by_task = await client.get("/v1/numbers?by=task&step=minute&last=3600")
    assert by_task["groups"]["greet"]["total"]["dead"] == 1
    assert (await client.get("/v1/numbers?by=queue"))["groups"]["default"]["total"]["dead"] == 1
    assert (await client.get("/v1/numbers?task=other"))["total"]["dead"] == 0


@pytest.mark.parametrize(
    "query",
    [
        "step=week",
        "zone=Mars/Base",
        "since=2999-01-01T00:00:00Z",
        "since=2001-01-01T00:00:00Z",
        "last=60&since=2026-01-01T00:00:00Z",
        "by=task&step=minute&last=100000",
        "by=status",
        "last=0",
    ],
)
async def test_wrong_questions_about_numbers_are_refused(client: Client, query: str) -> None:
    assert await client.problem("GET", f"/v1/numbers?{query}") == (422, "invalid_request")


async def test_numbers_end_now_whatever_is_asked_for(client: Client) -> None:
    until_now, until_later = [
        await client.get(f"/v1/numbers?step=minute{until}") for until in ("", "&until=2999-01-01T00:00:00Z")
    ]
    assert until_later["series"] == until_now["series"]


async def test_the_state_of_the_system_is_shown(app: Mainspring, client: Client) -> None:
    await fail(app, 1)
    await app.tasks["greet"].enqueue(name="Ada")
    await app.pause("mail", "storm", actor="ana")
    stats = await client.get("/v1/stats")
    (queue,) = (queue for queue in stats["queues"] if queue["queue"] == "default")
    assert (queue["pending"], queue["dead_letter"], queue["due"]) == (1, 1, 1)
    assert [task["task"] for task in stats["due_tasks"]] == ["greet"]
    assert [halt["queue"] for halt in stats["halts"]] == ["mail"]
    assert (stats["stalled"], stats["stuck"], stats["unknown_tasks"]) == (0, 0, [])


async def test_values_are_completed(app: Mainspring, client: Client) -> None:
    await app.tasks["greet"].using(tags=["blue", "black", "red"]).enqueue(name="Ada")
    await fail(app, 1)
    assert (await client.get("/v1/complete/tag?prefix=bl"))["values"] == ["black", "blue"]
    assert (await client.get("/v1/complete/tag?limit=1"))["values"] == ["black"]
    assert (await client.get("/v1/complete/task?prefix=g"))["values"] == ["greet"]
    assert (await client.get("/v1/complete/payload_key?task=greet"))["values"] == ["name"]
    assert (await client.get("/v1/complete/error_type"))["values"] == ["LookupError"]
    assert await client.problem("GET", "/v1/complete/colour") == (422, "invalid_request")
