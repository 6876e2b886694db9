"""Jobs whose worker died run alone: what they kill along is only themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import Context, Mainspring
from mainspring.events import JobDeadLettered, JobRetrying
from mainspring.job import Move, Outcome, Status
from mainspring.stores.protocol import Claims, Want
from mainspring.testing.clock import ManualClock
from mainspring.worker import Worker, intake
from tests.in_memory import execute
from tests.worker.working import DEADLINE, QUICK, ended, eventually, member, new_app, reached, record, working

pytestmark = pytest.mark.slow


@pytest.fixture
def app() -> Mainspring:
    return new_app()


async def make_suspect(app: Mainspring, job_id: str, crashes: int = 1) -> None:
    """As if workers had died with it."""
    for number in range(crashes):
        claims = await app.store.claim("dead", [Want("*", 100)], solo=number > 0)
        for claim in claims.jobs:
            move = Move.CRASH if claim.id == job_id else Move.RELEASE
            await app.store.ack([Outcome(claim.id, claim.token, move)])


@pytest.mark.slow
async def test_nothing_runs_beside_a_suspect_and_all_get_their_turn(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake.SoloTurns, "HOLD_BACK", 0.02)
    monkeypatch.setattr(intake.SoloTurns, "TURN_LENGTH", 0.0)  # one suspect per turn
    now: set[str] = set()
    beside: list[set[str]] = []
    ran: list[str] = []

    @app.task()
    async def work(name: str) -> None:
        now.add(name)
        if any(one.startswith("suspect") for one in now):
            beside.append(set(now))
        await asyncio.sleep(0.02)
        if any(one.startswith("suspect") for one in now):
            beside.append(set(now))
        now.remove(name)
        ran.append(name)

    suspects = [await work.enqueue(name=f"suspect {n}") for n in range(3)]
    for job in suspects:
        await make_suspect(app, job.id)
    others = await work.enqueue_many([{"name": f"other {n}"} for n in range(60)])
    async with working(app, concurrency=4):
        await ended(app, *[job.id for job in [*suspects, *others]])
    assert all(len(together) == 1 for together in beside)
    first = min(ran.index(f"suspect {n}") for n in range(3))
    last = max(ran.index(f"suspect {n}") for n in range(3))
    assert first < 60  # they did not have to wait for all others,
    assert last - first > 2  # nor did the others have to wait for all of them


async def test_a_suspect_that_is_the_last_of_its_kind_still_runs_alone(app: Mainspring) -> None:
    gate = asyncio.Event()
    began: list[str] = []

    @app.task()
    async def work(name: str) -> None:
        began.append(name)
        if name == "suspect":
            await gate.wait()

    suspect = await work.enqueue(name="suspect")
    await make_suspect(app, suspect.id)
    async with working(app, concurrency=10):
        await eventually(lambda: began == ["suspect"])
        other = await work.enqueue(name="other")
        await asyncio.sleep(0.1)  # time in which it could be claimed
        assert began == ["suspect"]
        gate.set()
        await ended(app, suspect.id, other.id)


async def test_a_long_job_does_not_keep_others_from_running_while_a_suspect_waits(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake.SoloTurns, "HOLD_BACK", 0.02)
    gate = asyncio.Event()

    @app.task()
    async def long() -> None:
        await gate.wait()

    @app.task()
    async def short() -> str:
        return "done"

    async with working(app, concurrency=5) as worker:
        running = await long.enqueue()
        await reached(app, running.id, statuses=(Status.RUNNING,))
        await app.pause("fragile")
        suspect = await short.using(queue="fragile").enqueue()
        execute(app.store, "UPDATE mainspring_jobs SET crashes = 1 WHERE id = ?", suspect.id)
        await app.resume("fragile")
        await eventually(lambda: worker.parts.intake.solo.patience > intake.SoloTurns.FIRST_PATIENCE)  # a turn in vain
        for _ in range(3):
            assert await (await short.enqueue()).result(10) == "done"
        assert (await suspect.get()).status is Status.PENDING
        gate.set()
        assert await suspect.result(10) == "done"


async def test_drain_runs_suspects_too(app: Mainspring) -> None:
    @app.task()
    async def work() -> None: ...

    jobs = await work.enqueue_many([{}] * 3)
    for job in jobs[:2]:
        await make_suspect(app, job.id)
    assert await Worker(app, **QUICK).drain() == 3


# -- taking over ----------------------------------------------------------------------------------


async def test_the_jobs_of_a_dead_worker_are_taken_over() -> None:
    app = new_app(lease=0.15)
    retrying = record(app, JobRetrying)

    @app.task()
    async def work(ctx: Context) -> str:
        return ctx.worker

    job = await work.enqueue()
    await app.store.join(member("silent"), lambda _wake: None)
    await app.store.claim("silent", [Want("*", 1)])
    async with working(app) as worker:
        assert await job.result(10) == worker.id
    assert ((await job.get()).crashes, (await job.get()).attempts) == (1, 1)
    assert [(event.worker, event.reason, event.max_attempts) for event in retrying] == [("silent", "crash", 3)]


async def test_three_dead_workers_are_enough() -> None:
    app = new_app(lease=0.1)
    dead = record(app, JobDeadLettered)

    @app.task()
    async def work() -> None:
        raise AssertionError("never run here")

    job = await work.enqueue()
    await make_suspect(app, job.id, crashes=2)
    await app.store.claim("silent", [Want("*", 1)], solo=True)
    async with working(app):
        found = (await ended(app, job.id))[0]
        await app.bus.flush()
    assert (found.status, found.crashes) == (Status.DEAD_LETTER, 3)
    assert [event.job_id for event in dead] == [job.id]


async def test_a_stalled_job_is_taken_from_a_worker_that_is_alive(caplog: pytest.LogCaptureFixture) -> None:
    from mainspring.events import JobStalled

    app = new_app(clock=ManualClock(), stall_grace=5000, lease=3600.0)  # the jump is no silence
    clock: Any = app.store.clock
    events = record(app, JobStalled, JobRetrying)
    runs: list[str] = []

    @app.task(timeout=60, max_attempts=2)
    async def work(ctx: Context) -> str:
        runs.append(ctx.worker)
        if len(runs) == 1:
            await asyncio.sleep(3600)
        return "done"

    async with working(app) as worker:
        job = await work.enqueue()
        await eventually(lambda: runs)
        await app.store.reap()  # sees the run: from now on its time is measured
        clock.advance(66)
        await eventually(lambda: events)
        clock.advance(3600)  # beyond the delay of its retry policy
        assert await job.result(DEADLINE) == "done"
        await app.bus.flush()
        await eventually(lambda: not worker.parts.runs.held)
    assert [type(event).__name__ for event in events] == ["JobStalled", "JobRetrying"]
    assert events[1].reason == "timeout"
    assert (await job.get()).attempts == 2


async def test_a_suspect_that_another_worker_took_does_not_delay_other_jobs(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.worker.outage.LONGEST_SLEEP", DEADLINE * 10)
    ran = asyncio.Event()

    @app.task()
    async def work() -> None:
        ran.set()

    await work.enqueue()
    claim, answers = app.store.claim, [Claims([], suspects=True), Claims([])]

    async def claim_late(*args: Any, **options: Any) -> Claims:
        return answers.pop(0) if answers else await claim(*args, **options)

    monkeypatch.setattr(app.store, "claim", claim_late)
    async with working(app):
        await asyncio.wait_for(ran.wait(), DEADLINE)
