"""Leases on every store: claims, reports, what features do about them, and late or foreign reports."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Breaker, Context, Failure, HaltCheck, Job, JobHandle, Limit, Mainspring, Retry, Status
from mainspring.errors import ConfigurationError
from mainspring.events import JobCompleted, JobDeadLettered, JobRetrying
from mainspring.leases import (
    Cancelled,
    Complete,
    Fail,
    Heartbeat,
    Lease,
    PlannedStep,
    Progress,
    Release,
    Reply,
    SaveStep,
    Snooze,
)
from mainspring.stores.sqlite import MemoryStore

NewApp = Callable[[], Mainspring]
SOON = 10.0  # seconds; only a failing test waits this long


async def add_numbers(a: int, b: int = 1) -> int:
    return a + b


def tasks_of(app: Mainspring, **options: Any) -> Any:
    """Declare the task of these tests."""
    return app.task(name="add", **options)(add_numbers)


async def one(app: Mainspring, worker: str = "far", **more: Any) -> Lease:
    (lease,) = (await app.leases.claim(worker, wait=SOON, **more)).leases
    return lease


async def job_of(app: Mainspring, lease: Lease) -> Job:
    return await app.jobs.get(lease.id)


# -- claims -------------------------------------------------------------------------------------------


async def test_a_lease_has_all_that_a_worker_needs(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app, timeout=60)
    await add.using(tags=["new"], target=("guest", "7")).enqueue(a=4)
    lease = await one(app)
    assert (lease.task, lease.queue, lease.payload, lease.worker) == ("add", "default", {"a": 4}, "far")
    assert (lease.attempt, lease.max_attempts, lease.suspect) == (1, 3, False)
    assert (lease.tags, lease.target) == (("new",), ("guest", "7"))
    assert lease.deadline is not None
    assert timedelta(seconds=50) < lease.deadline - app.now() < timedelta(seconds=61)
    assert json.loads(json.dumps(lease.to_data()))["payload"] == {"a": 4}


async def test_a_claim_takes_up_to_its_limit_of_its_queues_and_tasks(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    for _ in range(3):
        await add.using(queue="mail").enqueue(a=1)
    await add.enqueue(a=2)
    assert len(await app.leases.claim("far", queues=["sms"], limit=10)) == 0
    assert len(await app.leases.claim("far", tasks=["other"], limit=10)) == 0
    assert len(await app.leases.claim("far", queues=["mail"], limit=2)) == 2
    assert len({(await one(app, tasks=["add"])).id for _ in range(2)}) == 2


async def test_a_claim_takes_nothing_if_it_should_not(new_app: NewApp) -> None:
    app = new_app()
    handle = await tasks_of(app).enqueue(a=4)

    async def unless() -> bool:
        return True

    assert len(await app.leases.claim("far", wait=SOON, unless=unless)) == 0
    assert (await app.jobs.get(handle.id)).status is Status.PENDING


async def test_a_waiting_claim_is_woken_by_a_new_job(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    async with app.leases.lessee("far", queues=["default"]) as lessee:
        waiting = asyncio.create_task(lessee.claim(5, wait=60))
        await asyncio.sleep(0.1)
        await add.enqueue(a=1)
        async with asyncio.timeout(SOON):
            assert len(await waiting) == 1


async def test_two_calls_of_one_lessee_may_wait_at_once(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    async with app.leases.lessee("far") as lessee:
        calls = [asyncio.create_task(lessee.claim(1, wait=60)) for _ in range(2)]
        await asyncio.sleep(0.1)
        for _ in calls:
            await add.enqueue(a=1)
        async with asyncio.timeout(SOON):
            assert [len(batch) for batch in await asyncio.gather(*calls)] == [1, 1]


async def test_a_claim_that_is_cancelled_leaves_no_job_claimed(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    call = asyncio.create_task(app.leases.claim("far", limit=5, wait=60))
    await asyncio.sleep(0.05)
    call.cancel()
    handle = await add.enqueue(a=1)
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await app.leases.held("far") == []
    assert await handle.status() is Status.PENDING


async def test_a_job_that_a_cancelled_claim_gives_back_counts_no_start(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app()
    handle = await tasks_of(app).enqueue(a=1)
    claim, claimed = app.store.claim, asyncio.Event()

    async def slowly(*arguments: Any, **options: Any) -> Any:
        taken = await claim(*arguments, **options)
        claimed.set()
        await asyncio.sleep(0.01)
        return taken

    monkeypatch.setattr(app.store, "claim", slowly)
    call = asyncio.create_task(app.leases.claim("far"))
    await claimed.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await handle.status() is Status.PENDING
    assert (await app.numbers()).total.started == 0
    monkeypatch.undo()
    await (await one(app)).release()
    assert (await app.numbers()).total.started == 1


async def test_nothing_is_claimed_during_a_halt_and_the_response_says_so(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    await add.enqueue(a=1)
    result = await app.halt("fire drill", actor="ana")
    batch = await app.leases.claim("far")
    assert (len(batch), batch.pulse.halted, batch.pulse.halts[0].reason) == (0, True, "fire drill")
    assert json.dumps(batch.to_data())
    assert result.confirmed
    await app.resume()
    assert len(await app.leases.claim("far")) == 1


async def test_nothing_is_claimed_while_another_system_halts_this_one(new_app: NewApp) -> None:
    halted = ["fire drill"]
    app = Mainspring(new_app().store, halted=HaltCheck(lambda: halted[0], every=0.001))
    await tasks_of(app).enqueue(a=1)
    batch = await app.leases.claim("far")
    assert (len(batch), batch.pulse.halted, batch.pulse.halts[0].reason) == (0, True, "fire drill")
    assert (await app.leases.heartbeat("far")).halted
    waiting = asyncio.create_task(one(app))
    await asyncio.sleep(0)
    halted[0] = ""
    assert (await waiting).attempt == 1


async def test_nothing_is_claimed_while_the_halt_check_fails(new_app: NewApp) -> None:
    def ask() -> bool:
        raise ConnectionError("no answer")

    app = Mainspring(new_app().store, halted=ask)
    await tasks_of(app).enqueue(a=1)
    batch = await app.leases.claim("far")
    assert (len(batch), batch.pulse.halts[0].reason) == (0, "the halt check failed: ConnectionError: no answer")


async def test_a_job_is_handed_back_if_another_system_halts_between_its_claim_and_its_lease(new_app: NewApp) -> None:
    halted = [""]
    app = Mainspring(new_app().store, halted=HaltCheck(lambda: halted[0], every=0.001))
    handle = await tasks_of(app).enqueue(a=1)
    real = app.store.claim

    async def slow_claim(*args: Any, **options: Any) -> Any:
        claims = await real(*args, **options)
        halted[0] = "fire drill"
        await asyncio.sleep(0.005)  # longer than an answer is used
        return claims

    app.runtime.store.claim = slow_claim  # type: ignore[method-assign]
    assert len(await app.leases.claim("far")) == 0
    job = await app.jobs.get(handle.id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)


async def test_a_claim_does_not_miss_a_halt_that_begins_right_after_its_first_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Mainspring(MemoryStore(lease=3 * SOON))
    tasks_of(app)
    look = app.leases.heartbeat

    async def look_then_halt(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(app.leases, "heartbeat", look)
        pulse = await look(*given, **more)
        await app.halt("fire drill", wait=0)
        for _ in range(10):  # the wake-up is on its way to this event loop
            await asyncio.sleep(0)
        return pulse

    monkeypatch.setattr(app.leases, "heartbeat", look_then_halt)
    async with app, asyncio.timeout(SOON / 2):
        assert (await app.leases.claim("far", wait=60)).pulse.halted


async def test_a_waiting_claim_returns_when_a_halt_begins_and_gets_jobs_when_it_ends(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    waiting = asyncio.create_task(app.leases.claim("far", wait=60))
    await asyncio.sleep(0.1)
    await app.halt("fire drill")
    async with asyncio.timeout(SOON):
        assert (await waiting).pulse.halted
    await add.enqueue(a=1)
    waiting = asyncio.create_task(app.leases.claim("far", wait=60))
    await asyncio.sleep(0.1)
    await app.resume()
    async with asyncio.timeout(SOON):
        assert len(await waiting) == 1


async def test_a_pause_is_told_to_lessees_of_that_queue_only(new_app: NewApp) -> None:
    app = new_app()
    await app.pause("mail")
    assert [halt.queue for halt in (await app.leases.heartbeat("far", queues=["mail"])).halts] == ["mail"]
    assert (await app.leases.heartbeat("far", queues=["sms"])).halts == ()


# -- ends ---------------------------------------------------------------------------------------------


async def test_a_job_is_completed_with_its_result(new_app: NewApp) -> None:
    app, heard = new_app(), list[JobCompleted]()
    add = tasks_of(app)
    app.on(JobCompleted)(heard.append)
    handle: JobHandle[int] = await add.enqueue(a=1)
    answer = await (await one(app)).complete(2)
    assert (answer.reply, answer.status) == (Reply.OK, Status.COMPLETED)
    assert await handle.result() == 2
    await app.runtime.bus.flush()
    assert [(event.job_id, event.worker, event.attempt) for event in heard] == [(handle.id, "far", 1)]


async def test_a_result_that_does_not_fit_is_refused_and_the_lease_goes_on(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    await add.enqueue(a=1)
    lease = await one(app)
    answer = await lease.complete({"not": "a number"})
    assert (answer.reply, answer.status) == (Reply.INVALID, Status.RUNNING)
    assert "does not fit its return type" in answer.message
    assert (await lease.complete(2)).reply is Reply.OK


async def test_a_failure_follows_the_retry_policy_of_the_task(new_app: NewApp) -> None:
    app, heard = new_app(), list[JobRetrying]()
    add = tasks_of(app, retry=Retry.delays(30, 60))
    app.on(JobRetrying)(heard.append)
    await add.enqueue(a=1)
    lease = await one(app)
    answer = await lease.fail(Failure("Overload", "too many guests", "line 1", code="E-7"))
    job = await job_of(app, lease)
    assert (answer.status, job.status, job.attempts) == (Status.RETRYING, Status.RETRYING, 1)
    assert job.failure == Failure("Overload", "too many guests", "line 1", code="E-7")
    assert timedelta(seconds=25) < job.run_at - app.now() <= timedelta(seconds=30)
    await app.runtime.bus.flush()
    assert [(event.delay, event.worker) for event in heard] == [(30.0, "far")]
    assert [event.failure and event.failure.code for event in heard] == ["E-7"]


async def test_a_code_that_is_given_is_checked(new_app: NewApp) -> None:
    app = new_app()
    await tasks_of(app).enqueue(a=1)
    with pytest.raises(ConfigurationError, match="is not the code of an error"):
        await (await one(app)).fail(Failure("Overload", "too many guests", code="x" * 101))


async def test_a_failure_by_name_meets_the_rules_of_the_policy(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app, retry=Retry(never=(ValueError,)))
    await add.enqueue(a=1)
    answer = await (await one(app)).fail(Failure("ValueError", "no such guest"))
    assert answer.status is Status.DEAD_LETTER


async def test_the_last_attempt_and_a_failure_without_retry_are_dead_letters(new_app: NewApp) -> None:
    app, heard = new_app(), list[JobDeadLettered]()
    add = tasks_of(app)
    app.on(JobDeadLettered)(heard.append)
    await add.using(retry=Retry(max_attempts=1)).enqueue(a=1)
    await add.enqueue(a=2)
    first, second = (await app.leases.claim("far", limit=2)).leases
    assert (await first.fail("broken")).status is Status.DEAD_LETTER
    assert (await second.fail("hopeless", retry=False)).status is Status.DEAD_LETTER
    await app.runtime.bus.flush()
    assert len(heard) == 2


async def test_a_job_of_a_task_that_only_other_programs_know(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    await add.using(retry=Retry.fixed(7)).enqueue(a=1)
    await add.enqueue(a=2)
    other = new_app()
    first, second = (await other.leases.claim("far", limit=2)).leases
    assert (await first.fail("broken")).status is Status.RETRYING
    assert timedelta(0) < (await job_of(app, first)).run_at - app.now() <= timedelta(seconds=7)
    assert (await second.complete({1, 2})).reply is Reply.INVALID
    assert (await second.complete({"any": ["JSON"]})).status is Status.COMPLETED
    assert (await job_of(app, second)).result == {"any": ["JSON"]}


async def test_snoozing_and_releasing_use_no_attempt(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    for number in range(3):
        await add.enqueue(a=number)
    first, second, third = (await app.leases.claim("far", limit=3)).leases
    assert (await first.snooze(60, reason="later")).status is Status.PENDING
    assert (await second.snooze(until=app.now() + timedelta(seconds=60))).status is Status.PENDING
    assert (await third.release()).status is Status.PENDING
    jobs = [await job_of(app, lease) for lease in (first, second, third)]
    assert [job.attempts for job in jobs] == [0, 0, 0]
    assert all(job.run_at > app.now() + timedelta(seconds=50) for job in jobs[:2])
    assert (await one(app)).id == third.id


async def test_steps_and_progress_outlast_an_attempt(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app, retry=Retry.fixed(0))
    await add.enqueue(a=1)
    lease = await one(app)
    assert (await lease.progress(0.5, "halfway")).reply is Reply.OK
    await lease.step("fetch", {"rows": 3})
    await lease.step("send")
    await lease.step("fetch", {"rows": 4})
    progress = (await job_of(app, lease)).progress
    assert progress is not None
    assert (progress.fraction, progress.note) == (0.5, "halfway")
    await lease.fail("broken")
    again = await one(app)
    assert [(step.name, step.number, step.output) for step in await again.steps()] == [
        ("fetch", 1, {"rows": 4}),
        ("send", 2, None),
    ]
    assert (await again.step("bad", {1})).reply is Reply.INVALID


async def test_a_lessee_sees_the_plan_of_a_job_and_cannot_leave_it(new_app: NewApp) -> None:
    app = new_app()

    @app.task(steps=["fetch", "send"])
    async def render(ctx: Context) -> None: ...

    await render.using(steps={"prepare": 0.2, "render": None}).enqueue()
    lease = await one(app)
    assert lease.plan == (PlannedStep("prepare", 0.2), PlannedStep("render"))
    answer = await lease.step("upload")
    assert answer.reply is Reply.INVALID
    assert answer.message.startswith("step 'upload' is not in the job's plan, which has: prepare, render.")
    assert (await lease.step("prepare", 1)).reply is Reply.OK
    assert [step.name for step in await lease.steps()] == ["prepare"]
    await lease.complete()

    await render.enqueue()
    declared = await one(app)
    assert declared.plan == (PlannedStep("fetch"), PlannedStep("send"))
    assert (await declared.step("upload")).reply is Reply.OK  # declared steps do not rule out others


async def test_a_failure_follows_the_retry_policy_that_was_set_after_the_claim(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.live_settings.FRESH_FOR", 0.0)
    app, elsewhere = new_app(), new_app()
    add = tasks_of(app, retry=Retry.fixed(10))
    tasks_of(elsewhere, retry=Retry.fixed(10))
    await add.enqueue(a=1)
    lease = await one(app)
    await elsewhere.settings.set(task=add.name, retry=Retry.fixed(300))
    await lease.fail("broken")
    job = await job_of(app, lease)
    assert (job.run_at - job.updated_at).total_seconds() == 300


async def test_what_a_durable_function_has_saved_and_caught_is_told_with_its_steps(new_app: NewApp) -> None:
    app = new_app()

    @app.task(retry=Retry(max_attempts=1))
    async def render(ctx: Context) -> None:
        async def fail() -> None:
            raise ValueError

        await ctx.step("fetch", asyncio.sleep, 0, {"rows": 3})
        with contextlib.suppress(ValueError):
            await ctx.step("thumbnail", fail)
        await ctx.step("pack", asyncio.sleep, 0)
        await ctx.save_state("fetch", {"page": 2})
        await ctx.save_state("upload", {"offset": 9})
        raise ConnectionError

    handle = await render.enqueue()
    await app.worker().drain()
    await app.jobs.retry(handle.id)
    lease = await one(app, tasks=["render"])
    assert [(step.name, step.kind, step.state, step.output, step.saved) for step in await lease.steps()] == [
        ("fetch", "step", "done", {"rows": 3}, {"page": 2}),
        ("thumbnail", "step", "failed", None, None),
        ("pack", "step", "done", None, None),
        ("upload", "step", "begun", None, {"offset": 9}),
    ]


# -- cancellations --------------------------------------------------------------------------------------


async def test_a_cancellation_is_in_the_next_response(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    handle = await add.enqueue(a=1)
    async with app.leases.lessee("far") as lessee:
        (lease,) = (await lessee.claim(wait=SOON)).leases
        await handle.cancel(reason="no longer wanted")
        assert dict((await lessee.heartbeat()).cancelled) == {lease.id: "no longer wanted"}
        answer = await lease.progress(0.2)
        assert (answer.reply, answer.message) == (Reply.CANCELLED, "no longer wanted")
        assert dict((await lessee.claim()).pulse.cancelled) == {lease.id: "no longer wanted"}
        assert (await lease.cancelled()).status is Status.CANCELLED
        assert (await lessee.heartbeat()).cancelled == {}


async def test_a_cancellation_ends_the_wait_of_a_claim(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    handle = await add.enqueue(a=1)
    async with app.leases.lessee("far") as lessee:
        await lessee.claim(wait=SOON)
        waiting = asyncio.create_task(lessee.claim(wait=60))
        await asyncio.sleep(0.1)
        await handle.cancel()
        async with asyncio.timeout(SOON + 5):
            assert handle.id in (await waiting).pulse.cancelled


async def test_a_cancelled_job_may_still_complete(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    handle = await add.enqueue(a=1)
    lease = await one(app)
    await handle.cancel()
    assert (await lease.complete(2)).status is Status.COMPLETED


# -- stateless, stale and foreign -----------------------------------------------------------------------


async def test_another_process_takes_the_report(new_app: NewApp) -> None:
    claiming, reporting = new_app(), new_app()
    add = tasks_of(claiming)
    tasks_of(reporting)
    for number in range(7):
        await add.enqueue(a=number)
    leases = (await claiming.leases.claim("far", limit=7, wait=SOON)).leases
    ids = [(lease.id, lease.token) for lease in leases]
    report = await reporting.leases.report(
        "far",
        [
            Heartbeat(*ids[0]),
            Progress(*ids[0], 0.5),
            SaveStep(*ids[0], "one", 1),
            Complete(*ids[0], 2),
            Fail(*ids[1], "broken"),
            Snooze(*ids[2], 60),
            Release(*ids[3]),
            Cancelled(*ids[4], "pointless"),
            Complete(ids[5][0], ids[5][1] + 1, 2),
            Complete(*ids[6], "not a number"),
        ],
    )
    assert [answer.reply.value for answer in report.answers] == [*["ok"] * 8, "stale", "invalid"]
    assert [answer.status for answer in report.answers[3:8]] == [
        Status.COMPLETED,
        Status.RETRYING,
        Status.PENDING,
        Status.PENDING,
        Status.CANCELLED,
    ]
    assert json.dumps(report.to_data())


async def test_a_success_reported_twice_is_answered_as_at_first(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    await add.enqueue(a=1)
    lease = await one(app)
    assert [(await lease.complete(2)).status for _ in range(2)] == [Status.COMPLETED] * 2
    assert (await lease.fail("broken")).reply is Reply.STALE
    assert (await lease.progress(1)).reply is Reply.STALE


async def test_the_first_of_two_ends_in_one_report_counts(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    await add.enqueue(a=1)
    lease = await one(app)
    both = [Complete(lease.id, lease.token, 2), Fail(lease.id, lease.token, "broken")]
    report = await app.leases.report("far", both)
    assert [answer.reply for answer in report.answers] == [Reply.OK, Reply.STALE]


async def test_no_lessee_can_end_the_job_of_another(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    await add.enqueue(a=1)
    lease = await one(app)
    (answer,) = (await app.leases.report("other", [Complete(lease.id, lease.token, 2)])).answers
    assert (answer.reply, (await job_of(app, lease)).status) == (Reply.STALE, Status.RUNNING)
    (unknown,) = (await app.leases.report("far", [Heartbeat("not-even-an-id", 1)])).answers
    assert unknown.reply is Reply.STALE


async def test_two_lessees_of_one_name_are_two_lessees(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    await add.enqueue(a=1)
    async with app.leases.lessee("twin") as one_, app.leases.lessee("twin") as two:
        assert one_.id != two.id
        await one_.claim(wait=SOON)
        assert len(await two.claim()) == 0
        assert await two.recover() == []
        assert len(await one_.recover()) == 1


async def test_a_lessee_that_leaves_gives_its_jobs_back(new_app: NewApp) -> None:
    app = new_app()
    add = tasks_of(app)
    handle = await add.enqueue(a=1)
    async with app.leases.lessee("far") as lessee:
        (lease,) = (await lessee.claim(wait=SOON)).leases
    assert (await handle.status(), (await handle.get()).attempts) == (Status.PENDING, 0)
    assert (await lease.complete(2)).reply is Reply.STALE
    assert (await app.stats()).workers == []


async def test_a_restarted_lessee_goes_on_with_its_jobs(new_app: NewApp) -> None:
    before, after = new_app(), new_app()
    add = tasks_of(before)
    tasks_of(after)
    await add.enqueue(a=1)
    (first,) = (await (await before.leases.join("far", id="far-1")).claim(wait=SOON)).leases
    (again,) = await (await after.leases.join("far", id="far-1")).recover()
    assert (again.id, again.token, again.payload) == (first.id, first.token, first.payload)
    assert (await again.complete(2)).status is Status.COMPLETED


# -- features ---------------------------------------------------------------------------------------------


async def test_a_limit_counts_leases_and_any_process_frees_its_slots(new_app: NewApp) -> None:
    claiming, reporting = new_app(), new_app()
    add = tasks_of(claiming, limits=[Limit(2)])
    tasks_of(reporting, limits=[Limit(2)])
    for number in range(5):
        await add.enqueue(a=number)
    done = 0
    while done < 5:
        leases = (await claiming.leases.claim("far", limit=5, wait=SOON)).leases
        assert 1 <= len(leases) <= 2
        report = await reporting.leases.report("far", [Complete(lease.id, lease.token, 1) for lease in leases])
        assert all(answer.reply is Reply.OK for answer in report.answers)
        done += len(leases)


async def test_a_breaker_counts_the_failures_of_leases_in_any_process(new_app: NewApp) -> None:
    apps = [new_app(), new_app()]
    for app in apps:
        app.breakers.configure("mail", Breaker(min_calls=1, probes=1, open_for=1.1))
    adds = [tasks_of(app, breaker="mail") for app in apps]
    await adds[0].enqueue(a=1)
    lease = await one(apps[0])
    (answer,) = (await apps[1].leases.report("far", [Fail(lease.id, lease.token, "down")])).answers
    assert answer.status is Status.RETRYING
    assert (await apps[1].breakers.get("mail")).phase == "open"
    await adds[1].enqueue(a=2)
    probe = await one(apps[1])  # once the breaker is half open
    await apps[0].leases.report("far", [Complete(probe.id, probe.token, 3)])
    assert (await apps[0].breakers.get("mail")).phase == "closed"


# -- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("worker", ["", "../../etc/passwd", ".hidden", "a/b", "x" * 101, "tilde~1", 7])
async def test_an_id_that_cannot_be_part_of_a_file_name_is_refused(worker: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the id of a lessee"):
        await Mainspring("memory://").leases.claim(worker)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda leases: leases.claim("far", limit=0), "limit is 0"),
        (lambda leases: leases.claim("far", limit=True), "limit is True"),
        (lambda leases: leases.claim("far", wait=-1), "wait"),
        (lambda leases: leases.claim("far", wait=7200), "at most an hour"),
        (lambda leases: leases.claim("far", tasks="add"), "not a string"),
        (lambda leases: leases.claim("far", tasks=[]), "tasks is empty"),
        (lambda leases: leases.claim("far", queues=[]), "at least one queue"),
        (lambda leases: leases.claim("far", queues=["a\0b"]), "a queue has a control character"),
        (lambda leases: leases.report("far", Complete("a", 1)), "takes a list of items"),
        (lambda leases: leases.report("far", ["a"]), "takes a list of items"),
    ],
)
async def test_bad_calls_are_refused_with_what_is_allowed(call: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await call(Mainspring("memory://").leases)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Complete("", 1),
        lambda: Complete("a", "1"),  # type: ignore[arg-type]
        lambda: Complete("a", -1),
        lambda: Complete("a", 2**63),
        lambda: Progress("a", 1, 2.0),
        lambda: SaveStep("a", 1, ""),
        lambda: Fail("a", 1, None),  # type: ignore[arg-type]
        lambda: Snooze("a", 1),
        lambda: Snooze("a", 1, -5),
    ],
)
def test_bad_items_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_code_without_an_event_loop_has_the_same_calls() -> None:
    app = Mainspring("memory://")
    add = tasks_of(app)
    add.enqueue_sync(a=1)
    add.enqueue_sync(a=2)
    with app.leases.lessee("far") as lessee:
        first, second = lessee.claim_sync(2, wait=SOON).leases
        first.progress_sync(0.5)
        first.step_sync("one", 1)
        assert [step.name for step in first.steps_sync()] == ["one"]
        assert first.heartbeat_sync().reply is Reply.OK
        assert first.complete_sync(2).status is Status.COMPLETED
        assert lessee.heartbeat_sync().lost == ()
        assert lessee.report_sync([Fail(second.id, second.token, "broken")]).answers[0].accepted


@pytest.mark.parametrize(
    "make",
    [
        lambda: Snooze("a", 1, delay=1, reason=3),  # type: ignore[arg-type]
        lambda: Release("a", 1, reason=3),  # type: ignore[arg-type]
        lambda: Cancelled("a", 1, reason=None),  # type: ignore[arg-type]
        lambda: Progress("a", 1, 0.5, note=3),  # type: ignore[arg-type]
        lambda: Fail("a", 1, Failure(3, 4)),  # type: ignore[arg-type]
        lambda: Fail("a", 1, Failure("Error", "text", traceback=4)),  # type: ignore[arg-type]
    ],
)
def test_an_item_with_wrong_types_cannot_be_made(make: Callable[[], object]) -> None:
    """A report that failed in its middle would leave some of its items written and others not."""
    with pytest.raises(ConfigurationError, match="give text"):
        make()


@pytest.mark.parametrize("held", [["x"], {"x": "y"}, {"x": -1}, {"": 1}, 3])
async def test_held_jobs_are_ids_with_tokens(new_app: NewApp, held: Any) -> None:
    app = new_app()
    with pytest.raises(ConfigurationError):
        await app.leases.claim("far", held=held)
    with pytest.raises(ConfigurationError):
        await app.leases.heartbeat("far", held)
