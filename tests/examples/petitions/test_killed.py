"""The application is killed in the middle of its work, and another process goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from uuid import uuid4

import pytest

from examples.petitions.infrastructure.adapters import migrate
from examples.petitions.system import PetitionSystem, Settings
from tests.examples.petitions.conftest import Outside
from tests.examples.petitions.test_story import (
    EFFECTS,
    EXECUTIONS,
    executions,
    soon,
    until_job,
    until_rows,
    until_state,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
LATER = 60.0  # seconds: a subscriber's place is taken over 15 s after its process has died


def environment(settings: Settings) -> dict[str, str]:
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value) for name, value in values.items()
    }
    return {**os.environ, **{f"PETITIONS_{name.upper()}": text for name, text in texts.items()}}


@contextmanager
def served(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """Run the application as a process of its own; end it by SIGTERM if it still runs."""
    command = [sys.executable, "-m", "examples.petitions.serve"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(settings), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "ready\n":
            assert line, "the application did not start"
        try:
            yield process
        finally:
            process.terminate()


async def test_a_killed_application_loses_nothing_and_repeats_nothing(outside: Outside) -> None:
    settings = outside.settings(retry_delays=(0.05, 0.1), lease=2.0)
    user = PetitionSystem(settings)  # a program that only schedules
    async with user.app:
        with served(settings) as first:
            outside.mail.slow(600)  # the mail server and the pager take what they get, and do not answer
            outside.pager.slow(600)
            await user.scheduler.schedule("deliberation_timeout", {"petition_id": str(uuid4())}, soon())
            await outside.pager.arrived(1, timeout=LATER)
            well, road = await user.petitions.submit("a well"), await user.petitions.submit("a road")
            well_job = await user.petitions.deliberate(well.id, soon())
            await outside.mail.arrived(1, timeout=LATER)
            road_job = await user.petitions.deliberate(road.id, soon(1))
            first.kill()
            first.wait()
        assert await outside.rows(EFFECTS, well_job) == [(1,)]
        assert await outside.rows("SELECT status FROM petitions.scheduled_jobs WHERE id = %s", well_job) == [
            ("processing",)
        ]
        outside.mail.recover()
        outside.pager.recover()
        with served(settings) as second:
            await until_job(outside, well_job, "completed")
            await until_job(outside, road_job, "completed")
            await until_state(outside, road, "escalated")
            await outside.pager.arrived(2, timeout=LATER)
            assert await executions(outside, well_job, 2) == ["killed", "completed"]
            assert await executions(outside, road_job, 1) == ["completed"]
            second.terminate()
            assert second.wait(LATER) == 0

    assert await outside.rows(EFFECTS, well_job) == await outside.rows(EFFECTS, road_job) == [(1,)]
    told = sorted(document["text"] for document in outside.mail.accepted)
    assert told == [f"“a {what}” was not decided in time, and is escalated" for what in ("road", "well")]
    assert len(outside.mail.received) == 3  # that of the well twice, with the same key
    assert len(outside.pager.accepted) == 1
    assert len({request.headers["idempotency-key"] for request in outside.pager.received}) == 1
    await until_rows(outside, "SELECT 1 FROM petitions.dead_letter_queue")


async def test_a_job_whose_workers_keep_dying_becomes_a_dead_letter_and_raises_an_alert(outside: Outside) -> None:
    """No handler reports such a death, so the alert must come from the queue itself (CT-11)."""
    async with PetitionSystem(outside.settings(retry_delays=(0.05, 0.1), lease=1.0)).running() as system:
        system.job_worker.stop()
        job_id = await system.scheduler.schedule("deliberation_timeout", {"petition_id": str(uuid4())}, soon())
        for number in range(3):  # each one takes the job, and is never heard of again
            assert len(await system.app.leases.claim(f"doomed-{number}", queues=["deadlines"], wait=LATER)) == 1
        await outside.pager.arrived(1, timeout=LATER)
        await executions(outside, job_id, 3)
    (alert,) = outside.pager.accepted
    assert (alert["job_id"], alert["job_type"]) == (str(job_id), "deliberation_timeout")
    assert alert["failure_reason"]
    assert alert["attempt_count"] == 3
    assert [outcome for (outcome,) in await outside.rows(EXECUTIONS, job_id)] == ["killed"] * 3


RUNNING_CHECK = "SELECT id FROM petitions.scheduled_jobs WHERE job_type = 'escalation_check' AND status = 'processing'"
BLOCKED = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def test_an_escalation_check_whose_process_is_killed_is_audited(outside: Outside) -> None:
    """The process dies in the middle of the check's transaction, so only the queue can tell."""
    settings = outside.settings(escalation_threshold=1)
    user = PetitionSystem(settings)
    async with user.app:
        await migrate(outside.database)
        fair = await user.petitions.submit("a fair")
        await user.petitions.cosign(fair.id, "Ann")
        async with user.database.begin() as work:
            await work.petitions.get(fair.id)  # locks it, so that the check waits
            with served(settings) as first:
                await until_rows(outside, BLOCKED)
                ((job_id,),) = await outside.rows(RUNNING_CHECK)
                first.kill()
        with served(settings):
            assert await executions(outside, job_id, 2) == ["killed", "completed"]
            await until_state(outside, fair, "escalated")
    query = "SELECT error_type FROM petitions.job_executions WHERE job_id = %s AND number = 1"
    assert await outside.rows(query, job_id) == [("WorkerCrashed",)]
