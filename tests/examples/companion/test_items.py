"""Where the fields of the specification are in the table, and what a worker does to the lock."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.companion.application import JOBS_PER_POLL
from mainspring import Status, testing
from tests.examples.companion.conftest import ANA, NewWorld, World
from tests.examples.companion.test_story import MORNING

pytestmark = pytest.mark.slow  # `make test` runs it; it takes a server or several processes

HERE = Path(__file__).parent
README = (HERE.parents[2] / "examples" / "companion" / "README.md").read_text("utf-8")
DAY = date(2026, 7, 1)
FIELDS = [
    "PK", "SK", "job_type", "payload", "scheduled_for", "status", "locked_by", "lock_expires_at", "attempts",
    "last_error", "created_at", "completed_at",
]  # fmt: skip
STATUSES = ["pending", "in_progress", "completed", "failed", "dead_letter", "cancelled"]


def rows(heading: str) -> dict[str, str]:
    """Return the first two columns of a table of the README: the specification's name and ours."""
    section = README.partition(f"### {heading}\n")[2].partition("\n#")[0]
    return dict(re.findall(r"^\| `([\w ]+)` \| `([\w ]+)` \|", section, re.MULTILINE))


async def test_each_field_of_the_specification_is_where_the_table_says(world: World) -> None:
    companion, ours = world.companion, rows("The job's item")
    assert list(ours) == FIELDS
    async with testing.manual(companion.app, start=MORNING, store=world.settings.store, schedules=False) as kit:
        job = await companion.schedule_summary(ANA, DAY)
        pending = world.job_item(job.id)
        world.slack.fail(500, times=1)
        await kit.time.advance_to(ANA.summary_time(DAY))
        failed = world.job_item(job.id)
        await kit.time.advance(minutes=1)
        completed = world.job_item(job.id)

    missing_at_first = {"locked_by", "lock_expires_at", "last_error", "completed_at"}
    assert {name for name in FIELDS if ours[name] not in pending} == missing_at_first
    assert {name for name in FIELDS if ours[name] not in pending | failed | completed} == {"lock_expires_at"}
    assert re.fullmatch(r"jobs/job#\d{3}", pending["PK"]["S"])
    assert pending["SK"]["S"] == job.id
    assert json.loads(pending["payload"]["S"]) == {"user_id": "ana", "day": "2026-07-01"}
    assert pending["scheduled_for"]["S"] == "2026-07-01T17:00:00.000Z"
    assert pending["mainspring_rank"]["S"].split("#")[1:] == ["2026-07-01T17:00:00.000Z", job.id]
    assert (failed["attempts"]["N"], failed["scheduled_for"]["S"]) == ("1", "2026-07-01T17:01:00.000Z")
    assert "HTTP Error 500" in failed["last_error"]["S"]
    assert "in handle" in failed["traceback"]["S"]
    assert completed["completed_at"]["S"] == "2026-07-01T17:01:00.000Z"


async def test_the_dedupe_record_points_to_the_job(world: World) -> None:
    companion = world.companion
    async with testing.manual(companion.app, start=MORNING, store=world.settings.store, schedules=False):
        job = await companion.schedule_summary(ANA, DAY)
    (record,) = (item for item in world.items() if item["PK"]["S"].startswith("jobs/key#"))
    assert list(rows("The dedupe record")) == ["PK", "SK", "job_pk", "job_sk"]
    assert record["PK"]["S"] == "jobs/key#daily_summary#summary#ana#2026-07-01"
    item = world.job_item(job.id)
    assert {"S": f"jobs/{record['job_pk']['S']}"} == item["PK"]
    assert record["job_sk"] == item["SK"]


async def test_each_status_of_the_specification_is_where_the_table_says(world: World) -> None:
    companion, ours = world.companion, rows("The statuses")
    assert list(ours) == STATUSES
    seen = []
    async with testing.manual(companion.app, start=MORNING, store=world.settings.store, schedules=False) as kit:
        job = await companion.schedule_summary(ANA, DAY)
        seen.append(status_of(world, job.id))
        world.slack.fail(500)
        await kit.time.advance_to(ANA.summary_time(DAY))
        seen.append(status_of(world, job.id))
        await kit.time.advance(hours=1)
        seen.append(status_of(world, job.id))
        world.slack.recover()
        await companion.app.jobs.retry(job.id)
        await kit.drain()
        seen.append(status_of(world, job.id))
        other = await companion.schedule_summary(ANA, DAY + timedelta(days=1))
        await other.cancel()
        seen.append(status_of(world, other.id))
    assert seen == [ours[name] for name in ("pending", "failed", "dead_letter", "completed", "cancelled")]


async def test_a_worker_extends_the_lock_of_a_long_job(new_world: NewWorld) -> None:
    world = new_world("&lease=1&poll=0.1")
    companion, slack = world.companion, world.slack
    slack.slow(3600)
    async with companion.app, companion.app.worker(concurrency=JOBS_PER_POLL, prefetch=0, heartbeat_interval=0.2):
        job = await companion.schedule_summary(ANA, DAY)
        await slack.arrived(1)
        first = await asyncio.to_thread(world.job_item, job.id)
        later = first
        while lock_of(later) < lock_of(first) + timedelta(seconds=1):
            later = await asyncio.to_thread(world.job_item, job.id)
        assert (first["status"], first["locked_by"]) == ({"S": "in_progress"}, later["locked_by"])
        slack.slow(0)
        assert (await job.wait(timeout=60)).status is Status.COMPLETED
    assert len(slack.received) == 1  # no other run


def lock_of(item: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(item["lock_expires_at"]["S"])


def status_of(world: World, job_id: str) -> str:
    return str(world.job_item(job_id)["status"]["S"])
