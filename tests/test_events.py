from __future__ import annotations

import asyncio
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mainspring import Cancel, Context, Discard, Mainspring, Retry, Snooze, Status
from mainspring.events import (
    Bus,
    Event,
    Halted,
    JobCancelled,
    JobCompleted,
    JobCreated,
    JobDeadLettered,
    JobDeduplicated,
    JobEvent,
    JobProgressed,
    JobRetrying,
    JobSnoozed,
    JobStalled,
    JobStarted,
    Resumed,
    TaskUnknown,
    WorkerHeartbeat,
    WorkerStarted,
    WorkerStopped,
)
from mainspring.job import Move, Outcome
from mainspring.portal import Portal
from mainspring.stores.protocol import Want
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing import ManualClock, manual
from tests.conformance.scenario import join
from tests.forking import in_child

E = TypeVar("E", bound=Event)


class Ear:
    """Hears everything, in order."""

    def __init__(self, app: Mainspring) -> None:
        self.heard: list[Event] = []
        self._news = asyncio.Event()
        app.on(Event)(self)

    async def __call__(self, event: Event) -> None:
        self.heard.append(event)
        self._news.set()

    def all(self, kind: type[E]) -> list[E]:
        return [event for event in self.heard if type(event) is kind]

    def one(self, kind: type[E]) -> E:
        (event,) = self.all(kind)
        return event

    def about_jobs(self) -> list[str]:
        return [type(event).__name__ for event in self.heard if isinstance(event, JobEvent)]

    async def hears(self, kind: type[E]) -> E:
        async with asyncio.timeout(10):
            while not self.all(kind):
                self._news.clear()
                await self._news.wait()
        return self.all(kind)[0]


# -- each event, with its fields ------------------------------------------------------------------


async def test_a_completed_job_emits_its_events() -> None:
    app = Mainspring("memory://")
    ear = Ear(app)

    @app.task(queue="mail")
    async def write() -> None: ...

    async with manual(app) as kit:
        handle = await write.using(delay=5).enqueue()
        kit.clock.advance(7)
        await kit.drain()
        assert ear.about_jobs() == ["JobCreated", "JobStarted", "JobCompleted"]
        created, started, completed = ear.one(JobCreated), ear.one(JobStarted), ear.one(JobCompleted)
        for event in (created, started, completed):
            assert (event.job_id, event.task, event.queue) == (handle.id, "write", "mail")
            assert datetime.now(UTC) - event.at < timedelta(minutes=1)
        assert created.run_at == kit.time.now() - timedelta(seconds=2)
        assert (started.lateness, started.attempt) == (2.0, 1)
        assert (completed.duration, completed.worker) == (0.0, (await handle.get()).worker)
        assert (ear.one(WorkerStarted).worker, ear.one(WorkerStarted).queues) == (completed.worker, ("*",))
        assert (ear.one(WorkerStopped).worker, ear.one(WorkerStopped).released) == (completed.worker, 0)


async def test_a_job_that_is_due_at_once_and_its_duplicate_emit_events() -> None:
    app = Mainspring("memory://")
    ear = Ear(app)

    @app.task()
    async def write() -> None: ...

    async with manual(app):
        first = await write.using(dedupe_key="a").enqueue()
        await write.using(dedupe_key="a").enqueue()
        at = app.now() + timedelta(days=1)
        await write.using(run_at=at).enqueue()
    assert [event.run_at for event in ear.all(JobCreated)] == [None, at]
    duplicate = ear.one(JobDeduplicated)
    assert (duplicate.job_id, duplicate.dedupe_key) == (first.id, "a")


async def test_a_job_that_fails_until_it_is_given_up_emits_each_failure() -> None:
    app = Mainspring("memory://")
    ear = Ear(app)

    @app.task(retry=Retry.fixed(60, max_attempts=2))
    async def fail() -> None:
        raise LookupError("no such guest")

    async with manual(app) as kit:
        await fail.enqueue()
        await kit.time.advance(minutes=1)
        assert ear.about_jobs() == ["JobCreated", "JobStarted", "JobRetrying", "JobStarted", "JobDeadLettered"]
        retrying, dead = ear.one(JobRetrying), ear.one(JobDeadLettered)
        assert (retrying.reason, retrying.attempt, retrying.max_attempts, retrying.delay) == ("error", 1, 2, 60.0)
        assert (dead.attempt, dead.reason) == (2, "")
        for event in (retrying, dead):
            assert event.failure is not None
            assert (event.failure.type, event.failure.message) == ("LookupError", "no such guest")
            assert 'raise LookupError("no such guest")' in event.failure.traceback


@pytest.mark.parametrize(
    ("wish", "kind", "fields"),
    [
        (Snooze(90, "quiet hours"), JobSnoozed, {"delay": 90.0, "reason": "quiet hours", "attempt": 1}),
        (Cancel("left already"), JobCancelled, {"reason": "left already"}),
        (Discard("no address"), JobDeadLettered, {"reason": "no address", "attempt": 1}),
    ],
)
async def test_snooze_cancel_and_discard_emit_events(
    wish: Exception, kind: type[Event], fields: dict[str, Any]
) -> None:
    app = Mainspring("memory://")
    ear = Ear(app)

    @app.task()
    async def ask() -> None:
        raise wish

    async with manual(app) as kit:
        await ask.enqueue()
        await kit.drain()
    assert ear.about_jobs() == ["JobCreated", "JobStarted", kind.__name__]
    event = ear.one(kind)
    assert {name: getattr(event, name) for name in fields} == fields


async def test_a_job_that_takes_too_long_emits_its_timeout() -> None:
    app = Mainspring("memory://")
    ear = Ear(app)

    @app.task(timeout=0.01)
    async def wait() -> None:
        await asyncio.Event().wait()

    async with manual(app) as kit:
        await wait.enqueue()
        await kit.drain()
    assert ear.one(JobRetrying).reason == "timeout"


async def test_a_timeout_of_the_handlers_own_is_an_error() -> None:
    app = Mainspring("memory://")
    ear = Ear(app)

    @app.task(timeout=60)
    async def call() -> None:
        raise TimeoutError("no answer from the service")

    async with manual(app) as kit:
        await call.enqueue()
        await kit.drain()
    assert ear.one(JobRetrying).reason == "error"


async def test_a_job_of_an_unknown_task_emits_task_unknown() -> None:
    new, old = Mainspring("memory://"), Mainspring("memory://")
    ear = Ear(old)

    @new.task()
    async def invented() -> None: ...

    old.runtime.store = new.store
    await invented.enqueue()
    await old.worker().drain()
    assert ear.about_jobs() == []
    event = ear.one(TaskUnknown)
    assert (event.task, event.queue, event.due) == ("invented", "default", 1)


async def test_a_job_cancelled_by_hand_emits_an_event() -> None:
    app = Mainspring("memory://")
    ear = Ear(app)

    @app.task()
    async def wait() -> None:
        await asyncio.Event().wait()

    async with manual(app) as kit:
        waiting, running = await wait.using(delay=60).enqueue(), await wait.enqueue()
        await app.jobs.cancel(waiting.id, reason="not needed")
        draining = asyncio.create_task(kit.drain())
        await ear.hears(JobStarted)
        await app.jobs.cancel(running.id, reason="took too long")
        await draining
    assert [(event.job_id, event.reason) for event in ear.all(JobCancelled)] == [
        (waiting.id, "not needed"), (running.id, "took too long"),
    ]  # fmt: skip


async def test_progress_emits_an_event_once_it_is_written() -> None:
    app = Mainspring("memory://")
    ear = Ear(app)

    @app.task()
    async def work(ctx: Context) -> None:
        ctx.progress(0.5, "half")
        await ear.hears(JobProgressed)

    async with manual(app) as kit:
        await work.enqueue()
        await kit.drain()
    progressed = ear.one(JobProgressed)
    assert (progressed.fraction, progressed.note, progressed.attempt) == (0.5, "half", 1)


async def test_halts_and_pauses_emit_events() -> None:
    app = Mainspring("memory://")
    ear = Ear(app)
    async with manual(app):
        until = app.now() + timedelta(hours=1)
        await app.halt("fire drill", actor="ana", until=until)
        await app.pause("mail", actor="bob")
        await app.resume(actor="ana")
        await app.resume(actor="ana")
        await app.resume("mail", actor="bob")
    assert [(event.actor, event.reason, event.queue, event.until) for event in ear.all(Halted)] == [
        ("ana", "fire drill", None, until), ("bob", "", "mail", None),
    ]  # fmt: skip
    assert [(event.actor, event.queue) for event in ear.all(Resumed)] == [("ana", None), ("bob", "mail")]


# -- what one worker sees of another --------------------------------------------------------------


async def taken_over(app: Mainspring, clock: ManualClock, seconds: float, ear: Ear, kind: type[E]) -> E:
    """Let a worker take a job and hang for so long, while another looks on."""
    await join(app.store, "ghost")
    await app.store.claim("ghost", [Want("*", 1)])
    await app.store.reap()  # how it is now is what later looks are compared with
    worker = app.worker(heartbeat_interval=0.01, maintenance_interval=0.01)
    serving = asyncio.create_task(worker.serve())
    await ear.hears(WorkerHeartbeat)
    clock.advance(seconds)
    event = await ear.hears(kind)
    worker.stop()
    await serving
    return event


async def test_a_takeover_of_a_dead_workers_job_emits_events() -> None:
    clock = ManualClock()
    app = Mainspring(MemoryStore(clock=clock, lease=30))
    ear = Ear(app)

    @app.task()
    async def work() -> None: ...

    await work.enqueue()
    event = await taken_over(app, clock, 31, ear, JobRetrying)
    assert (event.reason, event.worker, event.task, event.attempt) == ("crash", "ghost", "work", 0)
    assert event.duration == 31
    assert event.failure is not None
    assert event.failure.type == "WorkerCrashed"


async def test_a_takeover_of_a_stalled_job_emits_events() -> None:
    clock = ManualClock()
    app = Mainspring(MemoryStore(clock=clock, lease=3600, stall_grace=1000))
    ear = Ear(app)

    @app.task(timeout=5, max_attempts=1)
    async def work() -> None: ...

    await work.enqueue()
    event = await taken_over(app, clock, 7, ear, JobDeadLettered)
    stalled = ear.one(JobStalled)
    for failed in (event, stalled):
        assert (failed.worker, failed.task, failed.attempt) == ("ghost", "work", 1)
        assert failed.failure is not None
        assert failed.failure.type == "TimeoutError"
        assert failed.duration == 7
    assert stalled.timeout_at == stalled.started_at + timedelta(seconds=5) == app.now() - timedelta(seconds=2)


async def test_a_stalled_job_waits_as_long_as_its_policy_says() -> None:
    clock = ManualClock()
    app = Mainspring(MemoryStore(clock=clock, lease=3600, stall_grace=1000))
    ear = Ear(app)

    @app.task(timeout=5, retry=Retry.fixed(300))
    async def work() -> None: ...

    job = await work.enqueue()
    event = await taken_over(app, clock, 7, ear, JobRetrying)
    assert (event.reason, event.delay) == ("timeout", 300)
    assert (await app.jobs.get(job.id)).run_at == app.now() + timedelta(seconds=300)


@pytest.mark.parametrize("cause", ["crashed", "stalled"])
async def test_a_job_that_died_with_its_worker_is_logged_as_an_error(
    cause: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.stores.engine.ack.MAX_CRASHES", 1)
    clock = ManualClock()
    app = Mainspring(MemoryStore(clock=clock, lease=30 if cause == "crashed" else 3600, stall_grace=1000))
    ear = Ear(app)

    @app.task(timeout=None if cause == "crashed" else 5, max_attempts=1)
    async def work() -> None: ...

    job = await work.enqueue()
    await taken_over(app, clock, 31, ear, JobDeadLettered)
    (line,) = (record for record in caplog.records if record.getMessage().startswith("job_dead_lettered"))
    assert line.levelname == "ERROR"
    fields = line.__dict__["fields"]
    assert (fields["job_id"], fields["task"], fields["worker"], fields["cause"]) == (job.id, "work", "ghost", cause)
    assert fields["error"].startswith("WorkerCrashed: worker ghost" if cause == "crashed" else "TimeoutError: ")


# -- only what the store has confirmed ------------------------------------------------------------


async def test_an_event_comes_after_the_store_has_it() -> None:
    app = Mainspring("memory://")
    statuses: list[Status] = []

    @app.task()
    async def work() -> None: ...

    @app.on(JobCreated, JobCompleted)
    async def look(event: JobEvent) -> None:
        statuses.append((await app.jobs.get(event.job_id)).status)

    async with manual(app) as kit:
        await work.enqueue()
        await app.runtime.bus.flush()
        await kit.drain()
    assert statuses == [Status.PENDING, Status.COMPLETED]


async def test_a_run_that_lost_its_claim_emits_no_end() -> None:
    app = Mainspring("memory://")
    ear = Ear(app)

    @app.task()
    async def work(ctx: Context) -> None:
        await app.store.ack([Outcome(ctx.job_id, ctx._claim.token, Move.RELEASE, delay=60_000)])

    async with manual(app) as kit:
        await work.enqueue()
        await kit.drain()
    assert ear.about_jobs() == ["JobCreated", "JobStarted"]


async def test_follow_ups_emit_job_created_once_their_parents_end_is_written() -> None:
    app = Mainspring("memory://")
    ear = Ear(app)

    @app.task(queue="mail")
    async def invoice(order: int) -> None: ...

    @app.task(retry=Retry.fixed(60))
    async def ship(ctx: Context, order: int) -> None:
        ctx.follow_up(invoice.using(delay=60).prepare(order), invoice.using(dedupe_key="k", delay=60).prepare(order))
        if ctx.attempt == 1:
            raise ConnectionError

    async with manual(app) as kit:
        await ship.enqueue(7)
        await kit.drain()
        assert [event.task for event in ear.all(JobCreated)] == ["ship"]
        kit.clock.advance(60)
        await kit.drain()
        for created in ear.all(JobCreated)[1:]:
            assert (created.task, created.queue) == ("invoice", "mail")
            assert created.run_at == (await app.jobs.get(created.job_id)).run_at
    assert ear.about_jobs()[-3:] == ["JobCompleted", "JobCreated", "JobCreated"]


async def test_follow_ups_of_a_run_that_lost_its_claim_emit_nothing() -> None:
    app = Mainspring("memory://")
    ear = Ear(app)

    @app.task()
    async def work(ctx: Context) -> None:
        ctx.follow_up(work.prepare())
        await app.store.ack([Outcome(ctx.job_id, ctx._claim.token, Move.RELEASE, delay=60_000)])

    async with manual(app) as kit:
        await work.enqueue()
        await kit.drain()
    assert len(ear.all(JobCreated)) == 1


async def test_only_committed_follow_ups_of_a_transaction_emit_job_created(tmp_path: Path) -> None:
    app = Mainspring("memory://")
    heard: list[str] = []

    @app.task()
    async def invoice() -> None: ...

    @app.task()
    async def ship(ctx: Context) -> None:
        async with ctx.transaction():
            ctx.follow_up(invoice.using(delay=60).prepare())
        ctx.follow_up(invoice.prepare())  # the job has ended: too late

    @app.on(JobCreated)  # and nothing subscribes to successes
    async def hear(event: JobCreated) -> None:
        heard.append(event.job_id)

    async with manual(app, store=f"sqlite:///{tmp_path}/jobs.db") as kit:
        await ship.enqueue()
        await kit.drain()
        await app.runtime.bus.flush()
        assert sorted(heard) == sorted(job.id for job in (await app.jobs.find()).jobs)
    assert len(heard) == 2


async def test_a_job_in_the_callers_transaction_emits_no_job_created(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")
    ear = Ear(app)

    @app.task()
    async def work(ctx: Context) -> None:
        async with ctx.transaction():
            pass

    async with app:
        connection = sqlite3.connect(tmp_path / "jobs.db")
        await work.using(connection=connection).enqueue()
        connection.commit()
        connection.close()
        assert ear.heard == []
        await app.worker().drain()
    assert ear.about_jobs() == ["JobStarted", "JobCompleted"]


# -- subscribers ----------------------------------------------------------------------------------


async def test_subscribers_of_every_kind_hear_it_once() -> None:
    app = Mainspring("memory://")
    heard: list[str] = []

    class Listener:
        async def __call__(self, event: Event) -> None:
            heard.append("object")

        def method(self, event: Event) -> None:
            heard.append("method")

    async def add(name: str, event: Event) -> None:
        heard.append(name)

    @app.on(JobCreated)
    def function(event: JobCreated) -> None:
        heard.append("function")

    @app.on(JobCreated)
    async def coroutine(event: JobCreated) -> None:
        heard.append("coroutine")

    app.on(JobCreated)(Listener())
    app.on(JobCreated)(Listener().method)
    app.on(JobEvent)(partial(add, "partial"))
    app.on(JobCompleted)(partial(add, "not this one"))
    app.runtime.bus.emit(JobCreated(job_id="1", task="work", queue="default"))
    await app.runtime.bus.flush()
    assert sorted(heard) == ["coroutine", "function", "method", "object", "partial"]
    await app.close()


async def test_plain_subscribers_run_in_order_in_one_thread_and_block_nothing() -> None:
    app = Mainspring("memory://")
    gate, numbers, threads = threading.Event(), list[str](), set[int]()

    @app.on(JobCreated)
    def slow(event: JobCreated) -> None:
        gate.wait()
        numbers.append(event.job_id)
        threads.add(threading.get_ident())

    for number in range(5):
        app.runtime.bus.emit(JobCreated(job_id=str(number), task="work", queue="default"))
    assert numbers == []
    gate.set()
    await app.runtime.bus.flush()
    assert numbers == ["0", "1", "2", "3", "4"]
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    await app.close()


async def test_a_subscriber_that_fails_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    app = Mainspring("memory://")
    heard: list[str] = []

    @app.task()
    async def work() -> None: ...

    @app.on(JobCreated, JobCompleted)
    async def fail(event: Event) -> None:
        raise LookupError("async")

    @app.on(JobCreated, JobCompleted)
    def fail_plainly(event: Event) -> None:
        raise LookupError("plain")

    @app.on(JobCreated, JobCompleted)
    def hear(event: Event) -> None:
        heard.append(type(event).__name__)

    async with manual(app) as kit:
        await work.enqueue()
        assert [run.status for run in await kit.drain()] == [Status.COMPLETED]
    assert heard == ["JobCreated", "JobCompleted"]
    failures = [record for record in caplog.records if "subscriber_failed" in record.message]
    assert len(failures) == 4
    assert {str(record.exc_info[1]) for record in failures if record.exc_info} == {"async", "plain"}
    assert {vars(record)["fields"]["event_type"] for record in failures} == {"JobCreated", "JobCompleted"}
    await app.close()


async def test_events_without_subscribers_are_not_created() -> None:
    bus = Bus()
    assert not bus.wants(JobCreated)

    async def hear(event: Event) -> None: ...

    bus.subscribe(JobEvent, hear)
    assert bus.wants(JobCreated)
    assert not bus.wants(Halted)
    bus.subscribe(Event, hear)
    assert bus.wants(Halted)


async def test_a_flush_waits_for_what_runs_here_and_for_no_other_loop() -> None:
    bus, portal, gate, heard = Bus(), Portal(), asyncio.Event(), list[str]()

    async def hear(event: Halted) -> None:
        await (gate.wait() if event.actor == "there" else asyncio.sleep(0))
        heard.append(event.actor)

    async def emit(actor: str) -> None:
        bus.emit(Halted(actor=actor, reason=""))

    async def open_gate() -> None:
        gate.set()
        await bus.flush()

    bus.subscribe(Halted, hear)
    portal.run(emit("there"))
    await emit("here")
    await bus.flush()
    assert heard == ["here"]
    portal.run(open_gate())
    assert heard == ["here", "there"]
    portal.close()


async def test_a_subscriber_does_not_wait_for_itself() -> None:
    bus, done = Bus(), list[str]()

    async def flush(event: Event) -> None:
        await bus.flush()
        done.append("async")

    def flush_plainly(event: Event) -> None:
        asyncio.run(bus.flush())
        done.append("plain")

    bus.subscribe(Halted, flush)
    bus.subscribe(Halted, flush_plainly)
    bus.emit(Halted(actor="ana", reason=""))
    async with asyncio.timeout(10):
        await bus.flush()
    assert sorted(done) == ["async", "plain"]
    bus.close()


def test_after_a_fork_plain_subscribers_are_still_called() -> None:
    bus, heard = Bus(), list[str]()

    def hear(event: Halted) -> None:
        heard.append(event.actor)

    async def emit() -> bool:
        bus.emit(Halted(actor="ana", reason=""))
        await bus.flush()
        return heard[-1:] == ["ana"]

    async def only_close() -> bool:
        await bus.flush()
        bus.close()
        return True

    bus.subscribe(Halted, hear)
    assert asyncio.run(emit())
    heard.clear()
    assert in_child(lambda: asyncio.run(only_close())) == 0
    assert in_child(lambda: asyncio.run(emit())) == 0
    assert heard == []
    bus.close()
