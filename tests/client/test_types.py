"""Type checkers know what each method of both clients takes and returns. mypy checks this file (`make types`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, assert_type

from mainspring.client import AsyncClient, Client, Event, Reset
from mainspring.client.models import BulkEnqueued, ClaimView, EnqueuedView, JobPage, JobView, Schedule


def blocking(client: Client) -> None:
    assert_type(client.enqueue("welcome", {"guest": "Ada"}, delay=timedelta(hours=1)), EnqueuedView)
    assert_type(client.enqueue_many([{"task": "welcome"}]), BulkEnqueued)
    assert_type(client.jobs.get(job_id="j1"), JobView)
    assert_type(client.jobs.page(queue="mail", count=True), JobPage)
    assert_type(client.jobs.list(status=["completed"]), Generator[JobView, None, None])
    assert_type(client.jobs.wait("j1", timeout=3), JobView)
    assert_type(client.jobs.delete("j1"), None)
    assert_type(client.events(kind="completed"), Generator[Event | Reset, None, None])
    assert_type(client.schedules.get("s").etag, str)
    assert_type(client.leases.claim("w", wait=3.0), ClaimView)


async def awaiting(client: AsyncClient) -> None:
    assert_type(await client.enqueue("welcome", {"guest": "Ada"}, delay=timedelta(hours=1)), EnqueuedView)
    assert_type(await client.enqueue_many([{"task": "welcome"}]), BulkEnqueued)
    job = client.jobs.get(job_id="j1")
    working: Coroutine[Any, Any, JobView] = job
    assert_type(await working, JobView)
    assert_type(await client.jobs.page(queue="mail", count=True), JobPage)
    assert_type(client.jobs.list(status=["completed"]), AsyncGenerator[JobView, None])
    assert_type(await client.jobs.wait("j1", timeout=3), JobView)
    assert_type(await client.jobs.delete("j1"), None)
    assert_type(client.events(kind="completed"), AsyncGenerator[Event | Reset, None])
    assert_type(await client.schedules.put("s", "every 90s", {"task": "t"}, overlap="skip"), Schedule)


if TYPE_CHECKING:

    def mistakes_are_found(client: Client) -> None:
        client.enqueue("welcome", queu="mail")  # type: ignore[call-arg]
        client.enqueue("welcome", priority="highest")  # type: ignore[arg-type]
        client.jobs.get(7)  # type: ignore[arg-type]
        client.jobs.list(stat="completed")  # type: ignore[call-arg]
        client.enqueue_many([{"payload": {}}])  # type: ignore[typeddict-item]
        client.schedules.put("s", "every 90s")  # type: ignore[call-arg]


def test_this_file_is_checked_by_mypy() -> None:
    assert blocking.__name__ != awaiting.__name__
