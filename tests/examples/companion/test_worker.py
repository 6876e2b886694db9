"""Companion's worker on a real table."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from examples.companion.application import JOBS_PER_POLL, make
from examples.companion.handlers import DailySummaryPayload
from examples.companion.settings import DEFAULT_STORE
from mainspring import Status
from mainspring.stores.protocol import Wake
from tests.examples.companion.conftest import ANA, NewWorld

pytestmark = pytest.mark.slow  # `make test` runs it; it takes a server or several processes

DAY = date(2026, 7, 1)
MANY = JOBS_PER_POLL + 5


async def test_a_worker_holds_at_most_25_jobs(new_world: NewWorld) -> None:
    world = new_world("&poll=0.1")
    companion, slack = world.companion, world.slack
    slack.slow(3600)
    jobs = [await companion.schedule_summary(ANA, DAY + timedelta(days=n)) for n in range(MANY)]
    async with companion.app, companion.app.worker(queues=["default"], concurrency=JOBS_PER_POLL, prefetch=0):
        await slack.arrived(JOBS_PER_POLL)
        items = await asyncio.to_thread(world.items)
        ids = {job.id for job in jobs}  # the plan may have scheduled others meanwhile
        statuses = Counter(item["status"]["S"] for item in items if "status" in item and item["SK"]["S"] in ids)
        slack.slow(0)
        ended = [await job.wait(timeout=60) for job in jobs]
    assert {job.status for job in ended} == {Status.COMPLETED}
    assert statuses == {"in_progress": JOBS_PER_POLL, "pending": MANY - JOBS_PER_POLL}
    assert len({message.client_msg_id for message in slack.messages}) == len(slack.messages) == MANY


async def test_overdue_jobs_run_in_the_order_of_their_times(new_world: NewWorld) -> None:
    """All of them are due when the worker starts, and were enqueued in another order."""
    world = new_world("&poll=0.1")
    task, now = world.companion.tasks["daily_summary"], datetime.now(UTC)
    ages = list(range(1, 13))
    random.Random(7).shuffle(ages)
    jobs = []
    for hours in ages:
        payload = DailySummaryPayload(user_id="ana", day=DAY - timedelta(days=hours))
        jobs.append(await task.using(run_at=now - timedelta(hours=hours)).enqueue(payload))
    async with world.companion.app, world.companion.app.worker(queues=["default"], concurrency=1, prefetch=0):
        assert {(await job.wait(timeout=60)).status for job in jobs} == {Status.COMPLETED}
    days = [message.text.rpartition(" ")[2] for message in world.slack.messages]
    assert days == [f"{DAY - timedelta(days=hours)}." for hours in sorted(ages, reverse=True)]


POLL = parse_qs(urlsplit(DEFAULT_STORE).query)["poll"][0]


@pytest.mark.parametrize(("poll", "seconds"), [(POLL, 30.0), ("7", 7.0)], ids=["default", "configured"])
async def test_an_idle_worker_polls_every_thirty_seconds_or_as_the_store_says(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch, poll: str, seconds: float
) -> None:
    """The pauses between two polls are recorded, and passed over. A poll finds the job of another process."""
    world, pauses = new_world(f"&poll={poll}"), list[float]()
    loop = asyncio.get_running_loop()
    later, polled = loop.call_later, asyncio.Event()

    def skip(delay: float, call: Any, *args: Any, **options: Any) -> Any:
        if args == (Wake.JOBS,):
            pauses.append(delay)
            delay = 0.001
            if pauses[-3:] == [seconds] * 3:
                polled.set()
        return later(delay, call, *args, **options)

    monkeypatch.setattr(loop, "call_later", skip)
    other = make(world.settings)
    async with other.app, world.companion.app, world.companion.app.worker(queues=["default"], prefetch=0):
        async with asyncio.timeout(60):
            await polled.wait()
        assert max(pauses) == seconds
        job = await other.sync_user("ana")
        assert (await job.wait(timeout=60)).status is Status.COMPLETED
