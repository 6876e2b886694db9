"""Companion's worker on a real table."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import date, timedelta

import pytest

from examples.companion.application import JOBS_PER_POLL
from mainspring import Status
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
