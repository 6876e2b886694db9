"""The queue on PostgreSQL, through the port; and how it looks in the views."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

from examples.petitions.application.ports import JobNotClaimedError, SystemHaltedError, UnknownJobTypeError
from examples.petitions.domain.models import JobStatus
from examples.petitions.infrastructure.adapters import migrate
from examples.petitions.infrastructure.adapters.persistence.dead_letters import DEPTH
from examples.petitions.system import PetitionSystem
from mainspring import Job
from mainspring.jobs import Jobs
from tests.examples.petitions.conftest import NewSystem, Outside
from tests.examples.petitions.test_story import until

pytestmark = pytest.mark.slow  # `make test` runs it; it takes a server or several processes

ROOT = Path(__file__).parents[3]
PAYLOAD = {"petition_id": str(uuid4())}


def now() -> datetime:
    return datetime.now(UTC)


async def schedule(system: PetitionSystem, seconds: float = 0) -> UUID:
    return await system.scheduler.schedule("deliberation_timeout", PAYLOAD, now() + timedelta(seconds=seconds))


async def claim(system: PetitionSystem) -> UUID:
    (job,) = await system.scheduler.get_pending_jobs(10)
    return job.id


async def test_a_scheduled_job_is_handed_out_when_it_is_due(new_system: NewSystem) -> None:
    system = await new_system()
    job_id, _later = await schedule(system), await schedule(system, 60)
    (job,) = await system.scheduler.get_pending_jobs(10)
    assert (job.id, job.job_type, job.payload) == (job_id, "deliberation_timeout", PAYLOAD)
    assert (job.attempts, job.status) == (1, JobStatus.PROCESSING)
    assert await system.scheduler.get_pending_jobs(10) == []


async def test_a_cancelled_job_does_not_fire_and_stays_on_record(new_system: NewSystem, outside: Outside) -> None:
    system = await new_system()
    job_id = await schedule(system)
    assert await system.scheduler.cancel(job_id)
    assert not await system.scheduler.cancel(job_id)
    assert not await system.scheduler.cancel(uuid4())
    assert await system.scheduler.get_pending_jobs(10) == []
    assert await outside.rows("SELECT * FROM petitions.scheduled_jobs") == []
    assert [entry.actor for entry in await system.app.audit()] == ["petitions"]


async def test_a_job_that_runs_or_has_run_is_not_cancelled(new_system: NewSystem) -> None:
    system = await new_system()
    job_id = await schedule(system)
    await claim(system)
    assert not await system.scheduler.cancel(job_id)
    await system.scheduler.mark_completed(job_id)
    assert not await system.scheduler.cancel(job_id)


async def test_a_job_that_is_claimed_in_the_middle_of_its_cancellation_runs_on(
    new_system: NewSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = await new_system()
    jobs: Jobs = system.app.jobs
    job_id, looks = await schedule(system), list[Job | None]()
    look = jobs.get_or_none

    async def look_and_lose(name: str) -> Job | None:
        looks.append(found := await look(name))
        if len(looks) == 1:
            await claim(system)
        return found

    monkeypatch.setattr(type(jobs), "get_or_none", lambda _self, name: look_and_lose(name))
    assert not await system.scheduler.cancel(job_id)
    assert [job and (job.status, job.cancel_requested) for job in looks] == [("pending", False), ("running", False)]
    await system.scheduler.mark_completed(job_id)


async def test_a_completed_job_is_over(new_system: NewSystem, outside: Outside) -> None:
    system = await new_system()
    job_id = await schedule(system)
    await claim(system)
    await system.scheduler.mark_completed(job_id)
    assert await outside.rows("SELECT id, status FROM petitions.scheduled_jobs") == [(job_id, "completed")]
    with pytest.raises(JobNotClaimedError, match="not claimed by this worker"):
        await system.scheduler.mark_completed(job_id)


async def test_a_failed_job_is_retried_after_30_and_60_seconds_and_then_a_dead_letter(
    new_system: NewSystem, outside: Outside
) -> None:
    system = await new_system()
    job_id = await schedule(system)
    for attempt, delay in ((1, 30), (2, 60)):
        await claim(system)
        before = now()
        await system.scheduler.mark_failed(job_id, f"failure {attempt}")
        ((due, status, attempts),) = await outside.rows(
            "SELECT scheduled_for, status, attempts FROM petitions.scheduled_jobs"
        )
        assert (status, attempts) == ("pending", attempt)
        assert delay <= (due - before).total_seconds() < delay + 5
        assert await system.scheduler.get_pending_jobs(10) == []
        await system.app.jobs.reschedule(str(job_id))  # instead of waiting
    await claim(system)
    await system.scheduler.mark_failed(job_id, "failure 3")
    letter = await system.dead_letters.get(job_id)
    assert letter is not None
    assert (letter.original_job_id, letter.job_type, letter.payload) == (job_id, "deliberation_timeout", PAYLOAD)
    assert (letter.failure_reason, letter.attempts) == ("failure 3", 3)
    depth = await system.dead_letters.depth()
    assert (depth.count, timedelta() <= depth.oldest_age < timedelta(minutes=1)) == (1, True)
    assert await outside.rows("SELECT status FROM petitions.scheduled_jobs") == [("failed",)]


async def test_the_views_show_when_a_job_was_created_and_last_attempted(
    new_system: NewSystem, outside: Outside
) -> None:
    query = "SELECT created_at, last_attempt_at, attempts FROM petitions.scheduled_jobs"
    system, before = await new_system(), now()
    job_id = await schedule(system)
    ((created, attempted, attempts),) = await outside.rows(query)
    assert (attempted, attempts) == (None, 0)
    assert timedelta(milliseconds=-1) <= created - before < timedelta(minutes=1)
    for number in (1, 2):
        before = now()
        await claim(system)
        await system.scheduler.mark_failed(job_id, "no")
        ((still_created, attempted, attempts),) = await outside.rows(query)
        assert (still_created, attempts) == (created, number)
        assert timedelta(milliseconds=-1) <= attempted - before < timedelta(minutes=1)
        await system.app.jobs.reschedule(str(job_id))  # instead of waiting


async def test_the_depth_of_the_dead_letter_queue_is_counted(new_system: NewSystem) -> None:
    system = await new_system(retry_delays=(0.001,))
    jobs = [await schedule(system, 60) for _ in range(3)]
    for number, job_id in enumerate(jobs, 1):
        for _ in range(2):
            await system.app.jobs.reschedule(str(job_id))  # instead of waiting
            await claim(system)
            await system.scheduler.mark_failed(job_id, "no")
        assert (await system.dead_letters.depth()).count == number
    await system.app.jobs.delete(str(jobs[0]))
    assert (await system.dead_letters.depth()).count == 2


async def test_an_empty_dead_letter_queue_has_no_age(new_system: NewSystem) -> None:
    system = await new_system()
    depth = await system.dead_letters.depth()
    assert (depth.count, depth.oldest_age) == (0, timedelta())
    assert await system.dead_letters.get(uuid4()) is None


async def test_two_workers_never_get_the_same_job(new_system: NewSystem) -> None:
    one, two = await new_system(), await new_system()
    ids = {await schedule(one) for _ in range(40)}
    claims = await asyncio.gather(*[system.scheduler.get_pending_jobs(5) for system in (one, two) * 4])
    got = [job.id for jobs in claims for job in jobs]
    assert (len(got), set(got)) == (40, ids)


async def test_a_worker_cannot_mark_what_another_one_holds(new_system: NewSystem) -> None:
    one, two = await new_system(), await new_system()
    job_id = await schedule(one)
    await claim(one)
    with pytest.raises(JobNotClaimedError):
        await two.scheduler.mark_completed(job_id)
    await one.scheduler.release(job_id)
    assert await claim(two) == job_id
    with pytest.raises(JobNotClaimedError):
        await one.scheduler.mark_failed(job_id, "late")
    await two.scheduler.mark_completed(job_id)


async def test_a_zombie_cannot_mark_a_job_that_was_taken_from_it(new_system: NewSystem) -> None:
    zombie, heir = await new_system(), await new_system()
    job_id = await schedule(zombie)
    await claim(zombie)
    await zombie.app.leases.leave(zombie.scheduler.worker)  # as if its lease had run out
    assert await claim(heir) == job_id
    with pytest.raises(JobNotClaimedError, match="another lessee or worker"):
        await zombie.scheduler.mark_completed(job_id)
    await heir.scheduler.mark_completed(job_id)


async def test_a_released_job_uses_no_attempt(new_system: NewSystem) -> None:
    system = await new_system()
    job_id = await schedule(system)
    await claim(system)
    await system.scheduler.release(job_id)
    (job,) = await system.scheduler.get_pending_jobs(1)
    assert job.attempts == 1


async def test_nothing_is_scheduled_or_handed_out_during_a_halt_but_reads_work(
    new_system: NewSystem, outside: Outside
) -> None:
    system = await new_system()
    job_id = await schedule(system)
    outside.control_room.halt("fire drill")
    await until(system.app.halts)  # the last answer of the control room is used for a moment
    with pytest.raises(SystemHaltedError, match="fire drill"):
        await schedule(system)
    assert await system.scheduler.get_pending_jobs(10) == []
    assert await outside.rows("SELECT id, status FROM petitions.scheduled_jobs") == [(job_id, "pending")]


@pytest.mark.parametrize("fault", ["error", "down"])
async def test_a_control_room_that_does_not_answer_counts_as_a_halt(
    new_system: NewSystem, outside: Outside, fault: str
) -> None:
    outside.control_room.fail(503) if fault == "error" else outside.control_room.down()
    system = await new_system()
    with pytest.raises(SystemHaltedError, match="the halt check failed"):
        await schedule(system)
    assert await system.scheduler.get_pending_jobs(10) == []


async def test_an_unknown_type_of_job_is_refused_when_it_is_scheduled(new_system: NewSystem) -> None:
    system = await new_system()
    with pytest.raises(UnknownJobTypeError, match="do you mean 'referral_timeout'"):
        await system.scheduler.schedule("referral_timeouts", {}, now())


async def test_a_deadline_exists_only_if_the_transaction_commits(new_system: NewSystem, outside: Outside) -> None:
    system = await new_system()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is the transaction
        async with system.database.begin() as work:
            await work.schedule("deliberation_timeout", PAYLOAD, now())
            raise ZeroDivisionError
    assert await outside.rows("SELECT * FROM petitions.scheduled_jobs") == []
    async with system.database.begin() as work:
        job_id = await work.schedule("deliberation_timeout", PAYLOAD, now())
    assert await claim(system) == job_id


async def test_a_worker_that_waits_gets_a_job_as_soon_as_it_is_due(new_system: NewSystem) -> None:
    system = await new_system(poll_interval=30.0)
    waiting = asyncio.create_task(system.scheduler.get_pending_jobs(1))
    job_id = await schedule(system, 0.1)
    async with asyncio.timeout(10):
        (job,) = await waiting
    assert job.id == job_id


# -- the migration ------------------------------------------------------------------------------------

COLUMNS = {
    "scheduled_jobs": {
        "id": "uuid", "job_type": "text", "payload": "jsonb", "scheduled_for": "timestamp with time zone",
        "created_at": "timestamp with time zone", "attempts": "integer",
        "last_attempt_at": "timestamp with time zone", "status": "text",
    },
    "dead_letter_queue": {
        "id": "uuid", "original_job_id": "uuid", "job_type": "text", "payload": "jsonb", "failure_reason": "text",
        "failed_at": "timestamp with time zone", "attempts": "integer",
    },
}  # fmt: skip


@pytest.mark.parametrize("view", COLUMNS)
async def test_the_views_have_the_columns_of_the_story_and_comments(
    new_system: NewSystem, outside: Outside, view: str
) -> None:
    await new_system()
    rows = await outside.rows(
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = 'petitions' AND table_name = %s ORDER BY ordinal_position",
        view,
    )
    assert dict(rows) == COLUMNS[view]
    assert [name for name, _ in rows] == list(COLUMNS[view])
    ((comment,),) = await outside.rows(f"SELECT obj_description('petitions.{view}'::regclass)")
    assert comment


async def test_the_views_show_the_queue_of_another_schema(new_system: NewSystem, outside: Outside) -> None:
    system = await new_system(queue_schema="petition_queue", retry_delays=(0.001,))
    job_id = await schedule(system)
    for _ in range(2):
        await system.app.jobs.reschedule(str(job_id))  # instead of waiting
        await claim(system)
        await system.scheduler.mark_failed(job_id, "no")
    assert await outside.rows("SELECT id, status FROM petitions.scheduled_jobs") == [(job_id, "failed")]
    assert (await system.dead_letters.depth()).count == 1
    assert await outside.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'mainspring'") == []


async def test_the_payload_can_be_searched_as_jsonb(new_system: NewSystem, outside: Outside) -> None:
    system = await new_system()
    job_id = await schedule(system, 60)
    query = "SELECT id FROM petitions.scheduled_jobs WHERE payload @> jsonb_build_object('petition_id', %s::text)"
    assert await outside.rows(query, PAYLOAD["petition_id"]) == [(job_id,)]
    assert await outside.rows(query, "another") == []


async def test_dead_letters_are_found_by_an_index(new_system: NewSystem, database: str) -> None:
    await new_system()
    async with await psycopg.AsyncConnection.connect(database) as connection:
        await connection.execute("SET enable_seqscan = off")  # the table is empty here
        plan = await (await connection.execute(f"EXPLAIN {DEPTH}".encode())).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert "status_id_idx" in text or "queue_finished_at_idx" in text
    assert "Seq Scan" not in text


MIGRATE = """
import asyncio, sys
from examples.petitions.infrastructure.adapters import migrate
sys.stdin.read()
print(len(asyncio.run(migrate(sys.argv[1]))))
"""


async def test_migrations_are_applied_once_even_by_several_programs(outside: Outside) -> None:
    """The programs start to migrate a database without any of the files at the same moment."""
    async with PetitionSystem(outside.settings()).app:  # makes Mainspring's own tables
        pass
    command = (sys.executable, "-c", MIGRATE, outside.database)
    programs = [
        await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(4)
    ]
    answers = await asyncio.gather(*[program.communicate(b"") for program in programs])
    assert sorted(output for output, _ in answers) == [b"0\n"] * 3 + [b"2\n"]
    assert [program.returncode for program in programs] == [0] * 4
    assert await migrate(outside.database) == []
    names = await outside.rows("SELECT name FROM petitions.migrations ORDER BY name")
    assert [name for (name,) in names] == ["014_create_job_queue_views.sql", "015_create_petitions.sql"]
