"""A worker is killed in the middle of its work. Nothing is lost, and nothing is sent twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from mainspring import Status
from tests.examples.companion.conftest import ANA, BO, NewWorld, World

pytestmark = pytest.mark.slow  # `make test` runs it; it takes a server or several processes

ROOT = Path(__file__).parents[3]
DAY = date(2026, 7, 1)  # both users' summaries of this day have long been due


@contextmanager
def worker(world: World) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker as an operator would. It is ended with the block."""
    settings = world.settings
    environment = os.environ | {
        "COMPANION_STORE": settings.store,
        "COMPANION_SLACK_URL": settings.slack_url,
        "COMPANION_SLACK_TOKEN": settings.slack_token,
        "COMPANION_SENTRY_DSN": settings.sentry_dsn,
    }
    command = [sys.executable, "-m", "mainspring", "worker", "examples.companion.service:app"]
    limits = ["--concurrency", "25", "--prefetch", "0", "--log-level", "warning"]
    process = subprocess.Popen([*command, *limits], cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_a_killed_worker_loses_nothing_and_sends_nothing_twice(new_world: NewWorld) -> None:
    world = new_world("&lease=1&poll=0.2")
    companion, slack = world.companion, world.slack
    companion.memory.add_conversation("ana", datetime(2026, 7, 1, 9, 30, tzinfo=UTC), "The contract is signed")
    before = world.own_items()
    async with companion.app:
        slack.slow(60)  # Slack delivers the messages; the answers do not arrive before the worker is killed
        jobs = [await companion.schedule_summary(user, DAY) for user in (ANA, BO)]
        with worker(world) as first:
            await slack.arrived(2, timeout=60)  # a process has to start first
            first.send_signal(signal.SIGKILL)
            first.wait()
        assert [await job.status() for job in jobs] == [Status.RUNNING] * 2
        assert world.own_items() == before  # nothing says yet that they were sent

        slack.slow(0.0)
        with worker(world) as second:
            ended = [await job.wait(timeout=60) for job in jobs]
            second.send_signal(signal.SIGTERM)
            assert second.wait(timeout=60) == 0

    assert [(job.status, job.crashes) for job in ended] == [(Status.COMPLETED, 1)] * 2
    assert sorted(message.channel for message in slack.messages) == ["C-ana", "C-bo"]
    assert slack.duplicates == 2  # both were posted again, and recognised
    reports = [(event["tags"]["job_id"], event["exception"]["values"][0]["type"]) for event in world.sentry.events]
    assert sorted(reports) == sorted((job.id, "WorkerCrashed") for job in ended)
    after = world.own_items()
    assert {key: after[key] for key in before} == before
    assert after.keys() - before.keys() == {("summaries#ana", "2026-07-01"), ("summaries#bo", "2026-07-01")}
    assert all("summary_sent_at" in after[key] for key in after.keys() - before.keys())
