"""The whole application, end to end: what people do, what the clock does, and what the world outside sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from examples.petitions.application.ports import Execution, ExecutionOutcome, SystemHaltedError, Work
from examples.petitions.application.services import WrongState
from examples.petitions.domain.models import Notice, Petition, PetitionState, ReferralState, ScheduledJob
from examples.petitions.infrastructure.adapters import PostgresExecutionAudit
from examples.petitions.system import PetitionSystem
from mainspring.events import WorkerHeartbeat
from tests.examples.petitions.conftest import Outside

pytestmark = pytest.mark.slow  # `make test` runs it; it takes a server or several processes

SOON = 60.0  # seconds; only a failing test waits this long
EXECUTIONS = "SELECT outcome FROM petitions.job_executions WHERE job_id = %s ORDER BY number"
EFFECTS = "SELECT count(*) FROM petitions.job_effects WHERE job_id = %s"


@pytest.fixture
async def system(outside: Outside) -> AsyncIterator[PetitionSystem]:
    async with PetitionSystem(outside.settings(retry_delays=(0.05, 0.1))).running() as system:
        yield system


def soon(seconds: float = 0.0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    """Return what `look` finds, once it finds something."""
    async with asyncio.timeout(SOON):
        while not (found := await look()):  # noqa: ASYNC110 - what is looked at is in a database
            await asyncio.sleep(0.02)
    return found


async def until_rows(outside: Outside, query: str, *values: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = await until(lambda: outside.rows(query, *values))
    return found


async def until_state(outside: Outside, petition: Petition, state: str) -> None:
    await until_rows(outside, "SELECT 1 FROM petitions.petitions WHERE id = %s AND state = %s", petition.id, state)


async def until_job(outside: Outside, job_id: UUID, status: str) -> None:
    await until_rows(outside, "SELECT 1 FROM petitions.scheduled_jobs WHERE id = %s AND status = %s", job_id, status)


async def executions(outside: Outside, job_id: UUID, count: int) -> list[str]:
    """Wait until `count` executions of the job are recorded; return how each of them ended."""

    async def look() -> list[tuple[str]] | None:
        rows = await outside.rows(EXECUTIONS, job_id)
        return rows if len(rows) >= count else None

    return [outcome for (outcome,) in await until(look)]


async def accepted(outside: Outside, petition: Petition) -> str:
    """Return the text of the one notice about a petition, once the mail server has it."""

    def about(document: Any) -> bool:
        return bool(document["petition_id"] == str(petition.id))

    document = await asyncio.to_thread(outside.mail.wait_accepted_that, about, timeout=SOON)
    return str(document["text"])


async def test_deadlines_fire_once_and_only_if_nobody_was_in_time(system: PetitionSystem, outside: Outside) -> None:
    petitions = system.petitions
    bridge, well, mill, fair, road = [
        await petitions.submit(title) for title in ("a bridge", "a well", "a mill", "a fair", "a road")
    ]
    _, bridge_job = await petitions.refer(bridge.id, "Sir Gawain", soon(0.3))
    well_job = await petitions.deliberate(well.id, soon(0.3))
    referral, mill_job = await petitions.refer(mill.id, "Sir Lancelot", soon(0.3))
    await petitions.answer(referral, mill_job)
    for name in ("Ann", "Bob", "Ann", "Cid"):
        await petitions.cosign(fair.id, name)
    road_job = await petitions.deliberate(road.id, soon(60))
    await petitions.decide(road.id, road_job)

    await until_state(outside, bridge, "referral_expired")
    await until_state(outside, well, "escalated")
    await until_state(outside, fair, "escalated")
    assert await accepted(outside, bridge) == "Sir Gawain has not answered in time"
    assert await accepted(outside, well) == "“a well” was not decided in time, and is escalated"
    assert await accepted(outside, fair) == "“a fair” has enough co-signers, and is escalated"
    await until_job(outside, bridge_job, "completed")
    await until_job(outside, well_job, "completed")
    assert await outside.rows(EFFECTS, bridge_job) == await outside.rows(EFFECTS, well_job) == [(1,)]
    assert await executions(outside, bridge_job, 1) == await executions(outside, well_job, 1) == ["completed"]
    assert await outside.rows(EXECUTIONS, mill_job) == await outside.rows(EXECUTIONS, road_job) == []
    states = dict(await outside.rows("SELECT title, state FROM petitions.petitions"))
    assert (states["a mill"], states["a road"]) == ("received", "decided")
    assert len(outside.mail.accepted) == 3
    assert outside.pager.received == []


async def test_each_escalation_check_is_audited(system: PetitionSystem, outside: Outside) -> None:
    query = "SELECT outcome FROM petitions.job_executions WHERE job_type = 'escalation_check'"
    assert set(await until_rows(outside, query)) == {("completed",)}
    await until_rows(outside, "SELECT 1 FROM petitions.scheduled_jobs WHERE job_type = 'escalation_check'")


class Broken:
    """A deadline that changes something and fails then, so that its transaction is rolled back."""

    async def fire(self, work: Work, job: ScheduledJob) -> Sequence[Notice]:
        await work.petitions.add(Petition(uuid4(), "a forgery", PetitionState.RECEIVED))
        raise RuntimeError("no ink")


async def test_each_execution_of_a_failing_escalation_check_is_audited(
    system: PetitionSystem, outside: Outside
) -> None:
    system.deadlines["escalation_check"] = Broken()
    await outside.pager.arrived(2, timeout=SOON)
    dead = [job_id for (job_id,) in await outside.rows("SELECT id FROM petitions.dead_letter_queue")]
    assert len(dead) >= 2
    for job_id in dead:
        assert await executions(outside, job_id, 3) == ["failed"] * 3
    query = "SELECT DISTINCT error_type, reason FROM petitions.job_executions WHERE job_id = ANY (%s)"
    assert await outside.rows(query, dead) == [("RuntimeError", "no ink")]
    assert await outside.rows("SELECT * FROM petitions.petitions") == []


async def test_each_execution_that_runs_out_of_time_is_audited(outside: Outside) -> None:
    async with PetitionSystem(outside.settings(retry_delays=(0.05, 0.1), job_timeout=0.1)).running() as system:
        async with system.database.begin() as work:
            await work.petitions.add(well := Petition(uuid4(), "a well", PetitionState.DELIBERATING))
        async with system.database.begin() as work:
            await work.petitions.get(well.id)  # locks it
            job_id = await system.scheduler.schedule("deliberation_timeout", {"petition_id": str(well.id)}, soon())
            assert await executions(outside, job_id, 3) == ["failed"] * 3
    ((reason,),) = await outside.rows("SELECT DISTINCT reason FROM petitions.job_executions WHERE job_id = %s", job_id)
    assert reason == "it took longer than 0.1 s"


async def test_a_job_that_is_given_back_before_it_was_begun_or_cancelled_was_not_executed(
    system: PetitionSystem, outside: Outside
) -> None:
    system.job_worker.stop()
    payload = {"petition_id": str(uuid4())}
    kept, cancelled = [await system.scheduler.schedule("deliberation_timeout", payload, soon()) for _ in range(2)]
    await system.scheduler.cancel(cancelled)
    for _ in range(2):
        (job,) = await until(lambda: system.scheduler.get_pending_jobs(10))
        await system.scheduler.release(job.id)
    (job,) = await until(lambda: system.scheduler.get_pending_jobs(10))
    await system.scheduler.mark_completed(job.id)
    assert await executions(outside, kept, 1) == ["completed"]
    assert await outside.rows(EXECUTIONS, cancelled) == []


async def test_an_execution_that_is_reported_twice_has_one_row(system: PetitionSystem, outside: Outside) -> None:
    audit, job_id = PostgresExecutionAudit(outside.database), uuid4()
    ends = [
        Execution(f"change-{number}", job_id, "deliberation_timeout", ExecutionOutcome.FAILED, soon(), None, "no")
        for number in range(3)
    ]
    for execution in (*ends, *ends):
        await audit.record(execution)
    query = "SELECT change_id, number FROM petitions.job_executions WHERE job_id = %s ORDER BY number"
    assert await outside.rows(query, job_id) == [("change-0", 1), ("change-1", 2), ("change-2", 3)]


async def test_a_deadline_that_lost_the_race_changes_nothing(system: PetitionSystem, outside: Outside) -> None:
    """The knight answers, and the process dies before the deadline is cancelled: here, nothing cancels it."""
    mill = await system.petitions.submit("a mill")
    referral, job_id = await system.petitions.refer(mill.id, "Sir Lancelot", soon(0.2))
    async with system.database.begin() as work:
        await work.petitions.set_referral_state(referral.id, ReferralState.ANSWERED)
    await until_job(outside, job_id, "completed")
    assert await outside.rows("SELECT state FROM petitions.petitions") == [("referred",)]
    with pytest.raises(WrongState, match="is answered; only an open one can be answered"):
        await system.petitions.answer(referral, job_id)
    assert outside.mail.received == []


async def test_what_the_petitions_state_forbids_schedules_nothing(system: PetitionSystem, outside: Outside) -> None:
    mill = await system.petitions.submit("a mill")
    await system.petitions.deliberate(mill.id, soon(60))
    with pytest.raises(WrongState, match="is deliberating; it must be received for this"):
        await system.petitions.refer(mill.id, "Sir Kay", soon())
    with pytest.raises(LookupError, match="there is no petition"):
        await system.petitions.deliberate(uuid4(), soon())
    query = "SELECT count(*) FROM petitions.scheduled_jobs WHERE job_type <> 'escalation_check'"
    assert await outside.rows(query) == [(1,)]


async def test_a_dead_letter_raises_an_alert_with_its_fields_depth_and_age(
    system: PetitionSystem, outside: Outside
) -> None:
    with capture_logs() as logs:
        job_id = await system.scheduler.schedule("deliberation_timeout", {"petition_id": str(uuid4())}, soon())
        (alert,) = await asyncio.to_thread(outside.pager.wait_accepted, 1, timeout=SOON)
    age = alert.pop("oldest_age_seconds")
    reason = alert["failure_reason"]
    assert alert == {
        "alert": "dead_letter",
        "job_id": str(job_id),
        "job_type": "deliberation_timeout",
        "failure_reason": reason,
        "attempt_count": 3,
        "depth": 1,
    }
    assert reason.startswith("LookupError: there is no petition")
    assert 0 <= age < SOON
    (line,) = [entry for entry in logs if entry["event"] == "dead_letter_alert"]
    assert line["log_level"] == "error"
    assert {name: line[name] for name in ("job_id", "job_type", "failure_reason", "attempt_count", "depth")} == {
        name: alert[name] for name in ("job_id", "job_type", "failure_reason", "attempt_count", "depth")
    }
    assert await executions(outside, job_id, 3) == ["failed"] * 3


async def test_the_pager_may_be_away_when_a_job_dies(system: PetitionSystem, outside: Outside) -> None:
    outside.pager.fail(None, times=1, after=True)  # the pager has the alert, but the application does not know it
    await system.scheduler.schedule("deliberation_timeout", {"petition_id": str(uuid4())}, soon())
    await outside.pager.arrived(2, timeout=SOON)
    keys = {request.headers["idempotency-key"] for request in outside.pager.received}
    assert (len(keys), len(outside.pager.accepted)) == (1, 1)


async def test_the_mail_server_may_fail_when_a_deadline_fires(system: PetitionSystem, outside: Outside) -> None:
    outside.mail.fail(503, times=2)
    well = await system.petitions.submit("a well")
    job_id = await system.petitions.deliberate(well.id, soon())
    await until_job(outside, job_id, "completed")
    assert await executions(outside, job_id, 3) == ["failed", "failed", "completed"]
    assert await outside.rows(EFFECTS, job_id) == [(1,)]
    assert (len(outside.mail.received), len(outside.mail.accepted)) == (3, 1)


async def test_nothing_fires_during_a_halt_heartbeats_continue_and_all_fires_after_it(
    system: PetitionSystem, outside: Outside
) -> None:
    beats: list[bool] = []
    system.app.on(WorkerHeartbeat)(lambda event: beats.append(event.halted))
    well = await system.petitions.submit("a well")
    job_id = await system.petitions.deliberate(well.id, soon(1.5))
    with capture_logs() as logs:
        outside.control_room.halt("fire drill")
        heartbeat = "SELECT beats FROM petitions.worker_heartbeats WHERE halted"
        ((first,),) = await until_rows(outside, heartbeat)
        await until_rows(outside, f"{heartbeat} AND beats > %s", first + 2)
        await until_rows(
            outside, "SELECT 1 FROM petitions.scheduled_jobs WHERE id = %s AND scheduled_for < now()", job_id
        )
        with pytest.raises(SystemHaltedError, match="fire drill"):
            await system.petitions.refer((await system.petitions.submit("a mill")).id, "Sir Kay", soon())
        await until(lambda: asyncio.sleep(0, True in beats))
        assert await outside.rows("SELECT status FROM petitions.scheduled_jobs WHERE id = %s", job_id) == [("pending",)]
    assert "Job worker paused due to system halt" in {entry["event"] for entry in logs}
    assert await outside.rows("SELECT title FROM petitions.petitions WHERE state = 'referred'") == []
    outside.control_room.resume()
    await until_state(outside, well, "escalated")
    await until_job(outside, job_id, "completed")
    await until_rows(outside, "SELECT 1 FROM petitions.worker_heartbeats WHERE NOT halted")


async def test_a_worker_of_mainspring_fires_deadlines_in_one_commit_with_their_jobs(
    system: PetitionSystem, outside: Outside
) -> None:
    """Should one serve the queue of deadlines, it does the same as the job worker."""
    system.job_worker.stop()
    well = await system.petitions.submit("a well")
    async with system.app.worker(queues=["deadlines"]):
        job_id = await system.petitions.deliberate(well.id, soon())
        await until_state(outside, well, "escalated")
        assert await outside.rows(EFFECTS, job_id) == [(1,)]
        assert await outside.rows("SELECT status FROM petitions.scheduled_jobs WHERE id = %s", job_id) == [
            ("completed",)
        ]
        assert await executions(outside, job_id, 1) == ["completed"]
        assert await accepted(outside, well) == "“a well” was not decided in time, and is escalated"
