"""Why a job does not run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mainspring import Cancel, Context, Mainspring, Retry, Snooze, Status, Window
from mainspring.job import UNTIL_WOKEN, Move, NewJob, Outcome, ProgressReport, Step
from mainspring.stores.protocol import Want, WorkerInfo
from mainspring.testing import Kit, manual
from mainspring.why import Cause, Why, explain, inquire

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
WORKER = WorkerInfo("w1", "box", 42, ("mail",), tasks=("welcome", "other"))


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    app = Mainspring("memory://")

    @app.task(queue="mail", retry=Retry(max_attempts=3, base=600, jitter_share=0))
    async def welcome(guest: str) -> str:
        if guest == "later":
            raise Snooze(60, "asked for it")
        if guest == "never":
            raise Cancel("gone")
        if guest == "bad":
            raise LookupError(guest)
        return guest

    async with manual(app, start=NOON) as kit:
        await kit.store.join(WORKER, lambda _wake: None)
        yield kit


async def put(kit: Kit, guest: str = "ana", **options: object) -> str:
    return (await kit.app.tasks["welcome"].using(**options).enqueue(guest=guest)).id  # type: ignore[arg-type]


async def why(kit: Kit, job_id: str) -> Why:
    return await kit.app.jobs.why(job_id)


def causes(answer: Why) -> list[Cause]:
    return [reason.cause for reason in answer.reasons]


async def suspend(kit: Kit, **fields: object) -> str:
    job_id = await put(kit)
    [claim] = (await kit.store.claim("w1", [Want("mail", 1)])).jobs
    await kit.store.ack([Outcome(claim.id, claim.token, Move.SUSPEND, finished_at=kit.clock.now(), **fields)])  # type: ignore[arg-type]
    return job_id


async def test_why_explains_a_job_for_later(kit: Kit) -> None:
    answer = await why(kit, await put(kit, delay=timedelta(days=3)))
    assert str(answer) == "It is scheduled for later: due 2026-05-04 12:00:00 UTC (in 3 d)."
    assert answer.reasons[0].until == NOON + timedelta(days=3)


async def test_why_explains_a_snooze(kit: Kit) -> None:
    job = await put(kit, "later")
    await kit.drain()
    assert str(await why(kit, job)) == "It was put off until 2026-05-01 12:01:00 UTC (in 1 min): asked for it."


async def test_why_explains_a_snoozed_job_that_was_rescheduled_by_hand(kit: Kit) -> None:
    job = await put(kit, "later")
    await kit.drain()
    await kit.app.jobs.reschedule(job, delay=3600)
    assert str(await why(kit, job)) == "It is scheduled for later: due 2026-05-01 13:00:00 UTC (in 1 h)."


async def test_why_explains_a_retry(kit: Kit) -> None:
    job = await put(kit, "bad")
    await kit.drain()
    answer = await why(kit, job)
    assert causes(answer) == [Cause.RETRY]
    assert "attempt 1 of 3 failed, last with LookupError: bad." in str(answer)
    assert "(in 10 min)" in str(answer)


async def test_why_gives_the_decisive_reason_first(kit: Kit) -> None:
    later, now = await put(kit, delay=60), await put(kit)
    await kit.app.pause("mail", "template is wrong", until=NOON + timedelta(hours=1), actor="ana", wait=0)
    await kit.app.halt("maintenance", actor="ops", wait=0)
    await kit.app.pause("other", actor="ops", wait=0)
    await kit.store.leave("w1")
    assert causes(await why(kit, later)) == [Cause.LATER, Cause.HALTED, Cause.PAUSED, Cause.NO_WORKER]
    answer = await why(kit, now)
    assert causes(answer) == [Cause.HALTED, Cause.PAUSED, Cause.NO_WORKER]
    halted, paused, nobody = str(answer).splitlines()
    assert halted == "The system is halted by ops since 2026-05-01 12:00:00 UTC (now): maintenance."
    assert paused == (
        "Its queue 'mail' is paused by ana since 2026-05-01 12:00:00 UTC (now) until 2026-05-01 13:00:00 UTC (in 1 h):"
        " template is wrong."
    )
    assert nobody == "No worker is alive to take it from queue 'mail'."


async def test_why_explains_a_queue_without_workers(kit: Kit) -> None:
    answer = await why(kit, await put(kit, queue="reports"))
    assert str(answer) == "No live worker takes from its queue 'reports'; there are 1, for mail."


async def test_why_explains_a_task_that_no_worker_knows(kit: Kit) -> None:
    await kit.store.insert([job := NewJob("0190b2c4-0000-7000-8000-000000000001", "missing", "{}", queue="mail")])
    answer = await why(kit, job.id)
    assert causes(answer) == [Cause.UNKNOWN_TASK]
    assert "No live worker of its queue 'mail' knows task 'missing'" in str(answer)
    await kit.store.join(replace(WORKER, id="w2", queues=("*",), tasks=("missing",)), lambda _wake: None)
    assert causes(await why(kit, job.id)) == [Cause.TURN]


async def test_why_explains_a_wait_for_other_jobs_of_the_queue(kit: Kit) -> None:
    jobs = [await put(kit) for _ in range(3)]
    kit.clock.advance(timedelta(seconds=90))
    assert str(await why(kit, jobs[2])) == (
        "Nothing is in its way: it has been due since 2026-05-01 12:00:00 UTC (1.5 min ago) and waits for its turn,"
        " one of 3 in its queue; the oldest has been due since 2026-05-01 12:00:00 UTC (1.5 min ago)."
    )


async def test_why_explains_a_suspect(kit: Kit) -> None:
    job = await put(kit)
    [claim] = (await kit.store.claim("w1", [Want("mail", 1)])).jobs
    await kit.store.ack([Outcome(claim.id, claim.token, Move.CRASH)])
    answer = await why(kit, job)
    assert causes(answer) == [Cause.SUSPECT]
    assert str(answer).startswith("Its worker died once while it ran, so it runs alone")


async def test_why_explains_a_sleep(kit: Kit) -> None:
    job = await suspend(kit, delay=3_600_000, steps=(Step("prepare", 1),))
    kit.clock.advance(timedelta(minutes=20))
    answer = await why(kit, job)
    assert str(answer) == (
        "It sleeps until 2026-05-01 13:00:00 UTC (in 40 min), since 2026-05-01 12:00:00 UTC (20 min ago). It has done"
        " step 'prepare'."
    )
    kit.clock.advance(timedelta(minutes=50))
    assert causes(await why(kit, job)) == [Cause.TURN]


@pytest.mark.parametrize("timeout", [timedelta(hours=2), None])
async def test_why_explains_a_wait_for_a_signal(kit: Kit, timeout: timedelta | None) -> None:
    @kit.app.task(queue="mail", name="other")
    async def no_show(ctx: Context) -> None:
        await ctx.step("call", str)
        await ctx.wait_for("checked_in:r7", timeout=timeout)

    job = await no_show.enqueue()
    await kit.drain()
    kit.clock.advance(timedelta(seconds=20))
    answer = await why(kit, job.id)
    until = ", until 2026-05-01 14:00:00 UTC (in 2 h) at the latest" if timeout else ""
    assert str(answer) == (
        f"It waits for signal 'checked_in:r7', since 2026-05-01 12:00:00 UTC (20 s ago){until}."
        " It has done step 'call'."
    )
    assert answer.reasons[0].detail == {"signal": "checked_in:r7"}
    assert answer.reasons[0].until == (NOON + timeout if timeout else None)


async def test_why_says_since_when_a_job_waits(kit: Kit) -> None:
    @kit.app.task(queue="mail", name="other")
    async def no_show(ctx: Context) -> None:
        await ctx.sleep(60)
        await ctx.wait_for("checked_in:r7")

    job = await no_show.enqueue()
    await kit.drain()
    assert (await why(kit, job.id)).reasons[0].since == NOON
    await kit.time.advance(seconds=60)
    kit.clock.advance(20)
    assert (await why(kit, job.id)).reasons[0].since == NOON + timedelta(seconds=60)


async def test_why_explains_a_wait_for_another_job(kit: Kit) -> None:
    first = await put(kit, delay=600)
    second = await put(kit, after=[first])
    answer = await why(kit, second)
    assert causes(answer) == [Cause.JOB]
    assert answer.reasons[0].detail == {"job": first}
    assert f"the end of job {first} (task 'welcome', pending)" in str(answer)


async def test_why_explains_a_limit(kit: Kit) -> None:
    job = await suspend(kit, delay=UNTIL_WOKEN, waits_for="limit:api:c7", reason="2 of 2 run")
    answer = await why(kit, job)
    assert causes(answer) == [Cause.LIMIT]
    assert "blocked by limit 'api:c7'" in str(answer)
    assert str(answer).endswith(": 2 of 2 run.")
    assert "blocked by rate 'api'" in str(await why(kit, await suspend(kit, delay=UNTIL_WOKEN, waits_for="rate:api")))
    line = await why(kit, await suspend(kit, delay=UNTIL_WOKEN, waits_for="fair:api=c7"))
    assert "its turn in the line of 'api=c7'" in str(line)


async def test_why_explains_a_breaker(kit: Kit) -> None:
    job = await suspend(kit, delay=60_000, waits_for="breaker:mail")
    answer = await why(kit, job)
    assert causes(answer)[0] is Cause.BREAKER
    assert "until the circuit breaker 'mail' is closed" in str(answer)


async def test_why_explains_a_wait_for_any_other_key(kit: Kit) -> None:
    job = await suspend(kit, delay=UNTIL_WOKEN, waits_for="seat:9")
    assert causes(await why(kit, job)) == [Cause.KEY]


async def test_why_explains_a_running_job(kit: Kit) -> None:
    job = await put(kit)
    [claim] = (await kit.store.claim("w1", [Want("mail", 1)])).jobs
    await kit.store.report([ProgressReport(job, claim.token, 0.4, "page 2")])
    kit.clock.advance(timedelta(minutes=3))
    await kit.store.heartbeat("w1", {job: claim.token})
    assert str(await why(kit, job)) == (
        "It is running, on worker w1 (process 42 of box), since 2026-05-01 12:00:00 UTC (3 min ago), and is 40% through"
        " (page 2)."
    )
    await kit.app.jobs.cancel(job)
    assert "It was asked to stop." in str(await why(kit, job))


async def test_why_explains_a_silent_worker(kit: Kit) -> None:
    job = await put(kit)
    await kit.store.claim("w1", [Want("mail", 1)])
    await kit.store.join(replace(WORKER, id="w2", queues=("other",)), lambda _wake: None)
    kit.clock.advance(5)
    assert causes(await why(kit, job)) == [Cause.RUNNING]
    kit.clock.advance(7)
    answer = await why(kit, job)
    assert causes(answer) == [Cause.SILENT, Cause.RUNNING]
    assert str(answer).splitlines()[0] == (
        "Its worker is silent, last seen 2026-05-01 12:00:00 UTC (12 s ago); after 30 s of silence, in 18 s, the job"
        " is taken over."
    )
    assert answer.reasons[0].until == NOON + timedelta(seconds=30)
    kit.clock.advance(28)
    assert "(40 s ago); the job is taken over as soon as another worker looks." in str(await why(kit, job))
    await kit.store.leave("w2")
    assert "(40 s ago), and no other worker is alive to take the job over: start one." in str(await why(kit, job))


async def test_why_explains_a_dead_or_missing_worker(kit: Kit) -> None:
    """As a store tells that can prove it, or has forgotten it."""
    job = await put(kit)
    await kit.store.claim("w1", [Want("mail", 1)])
    found = await inquire(kit.app.runtime.services, await kit.app.jobs.get(job))
    dead, other = replace(WORKER, alive=False, seen_at=NOON - timedelta(seconds=2)), replace(WORKER, id="w2")
    died = explain(replace(found, stats=replace(found.stats, workers=[dead, other])))
    assert str(died).startswith("Its worker counts as dead, last seen 2026-05-01 11:59:58 UTC (2 s ago); the job is ")
    gone = explain(replace(found, stats=replace(found.stats, workers=[other])))
    assert str(gone).startswith("Its worker is gone; the job is taken over as soon as another worker looks.")


WINDOW = Window("08:00", "17:30", tz="America/New_York", days="mon-wed")  # it is Friday


async def test_why_explains_delivery_hours_applied_at_enqueue(kit: Kit) -> None:
    job = await put(kit, deliver=WINDOW)
    assert str(await why(kit, job)) == (
        "It was put off until 2026-05-04 12:00:00 UTC (in 3 d): outside of the hours for delivery,"
        " 08:00 to 17:30 on mon tue wed in America/New_York; they open 2026-05-04 08:00 there."
    )
    await kit.app.jobs.reschedule(job, run_at=NOON + timedelta(days=5))
    assert str(await why(kit, job)) == "It is scheduled for later: due 2026-05-06 12:00:00 UTC (in 5 d)."


async def test_why_explains_delivery_hours_applied_at_claim(kit: Kit) -> None:
    (job,) = await kit.app.enqueue_all([kit.app.tasks["welcome"].using(deliver=WINDOW).prepare(guest="ana")])
    await kit.drain()
    assert "08:00 to 17:30 on mon tue wed in America/New_York; they open 2026-05-04 08:00" in str(
        await why(kit, job.id)
    )


async def test_why_explains_how_a_job_ended(kit: Kit) -> None:
    done, gone, dead = await put(kit), await put(kit, "never"), await put(kit, "bad", max_attempts=1)
    await kit.drain()
    answers = [await why(kit, job) for job in (done, gone, dead)]
    assert [causes(answer) for answer in answers] == [[Cause.FINISHED]] * 3
    assert [answer.job.status for answer in answers] == [Status.COMPLETED, Status.CANCELLED, Status.DEAD_LETTER]
    assert str(answers[0]) == "It is done: it completed 2026-05-01 12:00:00 UTC (now)."
    assert "was cancelled 2026-05-01 12:00:00 UTC (now): gone." in str(answers[1])
    assert "after one attempt, last with LookupError: bad." in str(answers[2])
