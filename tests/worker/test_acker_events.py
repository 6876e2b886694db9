"""What the worker tells, when, and with which fields."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from mainspring import Cancel, Context, Discard, Mainspring, Retry, Snooze
from mainspring.context import UNSET
from mainspring.errors import UnsupportedCall
from mainspring.events import Event, JobCompleted, JobProgressed, JobRetrying, JobStarted, WorkerHeartbeat
from mainspring.job import Status
from mainspring.stores.sqlite import MemoryStore
from mainspring.task import Task
from mainspring.worker.run import Run, Stop
from tests.worker.working import all_logs, ended, eventually, fields_of, new_app, reached, record, working

pytestmark = pytest.mark.slow


@pytest.fixture
def app() -> Mainspring:
    return new_app()


async def test_events_of_a_job_from_its_creation_to_its_end(app: Mainspring) -> None:
    events = record(app, Event)

    @app.task(retry=Retry.fixed(0, max_attempts=3))
    async def work(ctx: Context) -> None:
        ctx.progress(0.5, "half")
        if ctx.attempt == 1:
            raise OSError("down")
        if ctx.attempt == 2:
            await told.wait()

    told = asyncio.Event()
    async with working(app, heartbeat_interval=60) as worker:
        job = await work.using(dedupe_key="k").enqueue()
        await work.using(dedupe_key="k").enqueue()
        await eventually(lambda: any(isinstance(event, JobProgressed) for event in events))
        told.set()
        await ended(app, job.id)
    names = [type(event).__name__ for event in events if not isinstance(event, WorkerHeartbeat)]
    assert names == [
        "WorkerStarted",
        "JobCreated",
        "JobDeduplicated",
        "JobStarted",
        "JobProgressed",
        "JobRetrying",
        "JobStarted",
        "JobProgressed",
        "JobCompleted",
        "WorkerStopped",
    ]
    by_name = {type(event).__name__: event for event in events}
    assert {event.job_id for event in events if hasattr(event, "job_id")} == {job.id}
    assert (by_name["JobRetrying"].attempt, by_name["JobRetrying"].failure.message) == (1, "down")
    assert by_name["JobRetrying"].duration >= 0
    assert (by_name["JobCompleted"].attempt, by_name["JobCompleted"].worker) == (2, worker.id)
    assert (by_name["JobProgressed"].fraction, by_name["JobProgressed"].note) == (0.5, "half")
    assert by_name["JobStarted"].lateness >= 0
    assert by_name["WorkerStarted"].queues == ("*",)


@pytest.mark.parametrize(
    ("wish", "name", "fields"),
    [
        (Snooze(3600, "later"), "JobSnoozed", {"delay": 3600.0, "reason": "later"}),
        (Cancel("not needed"), "JobCancelled", {"reason": "not needed"}),
        (Discard("hopeless"), "JobDeadLettered", {"reason": "hopeless"}),
        (OSError(), "JobRetrying", {"reason": "error", "max_attempts": 3, "delay": 9.0}),
    ],
    ids=["snooze", "cancel", "discard", "error"],
)
async def test_events_of_jobs_that_do_not_complete(
    app: Mainspring, wish: Exception, name: str, fields: dict[str, Any]
) -> None:
    events = record(app, Event)

    @app.task(retry=Retry.fixed(9))
    async def work() -> None:
        raise wish

    async with working(app):
        await work.enqueue()
        found = await eventually(lambda: [event for event in events if type(event).__name__ == name])
    assert {key: getattr(found[0], key) for key in fields} == fields


async def test_events_of_a_halt_and_its_end_while_heartbeats_go_on(app: Mainspring) -> None:
    events = record(app, Event)

    @app.task()
    async def work() -> str:
        return "done"

    async with working(app):
        await app.halt("fire drill", actor="ana")
        job = await work.enqueue()
        await eventually(lambda: any(isinstance(event, WorkerHeartbeat) and event.halted for event in events))
        assert (await job.get()).status is Status.PENDING
        await app.runtime.bus.flush()
        assert {type(event).__name__ for event in events} >= {"Halted", "JobCreated"}
        assert not any(isinstance(event, JobStarted) for event in events)
        before = len(events)
        await eventually(lambda: len(events) > before + 3)
        await app.resume()
        assert await job.result(10) == "done"
        await eventually(lambda: isinstance(events[-1], WorkerHeartbeat) and not events[-1].halted)
    assert "Resumed" in {type(event).__name__ for event in events}


async def test_a_job_that_runs_during_a_halt_finishes(app: Mainspring) -> None:
    gate = asyncio.Event()

    @app.task()
    async def work() -> str:
        await gate.wait()
        return "done"

    async with working(app):
        job = await work.enqueue()
        await reached(app, job.id, statuses=(Status.RUNNING,))
        await app.halt()
        gate.set()
        assert await job.result(10) == "done"


async def test_events_come_after_the_store_has_confirmed() -> None:
    gate = asyncio.Event()

    class Slow(MemoryStore):
        async def ack(self, outcomes: Any) -> Any:
            await gate.wait()
            return await super().ack(outcomes)

    app = Mainspring(Slow())
    events, ran = record(app, JobCompleted), []

    @app.task()
    async def work() -> None:
        ran.append(True)

    async with working(app):
        job = await work.enqueue()
        await eventually(lambda: ran)
        await asyncio.sleep(0.02)
        assert events == []
        gate.set()
        await ended(app, job.id)
        await eventually(lambda: events)


async def test_jobs_complete_although_a_subscriber_raises(app: Mainspring) -> None:
    @app.on(JobStarted, JobCompleted)
    async def bad(event: Event) -> None:
        raise RuntimeError

    @app.on(JobStarted, JobCompleted)
    def also_bad(event: Event) -> None:
        raise RuntimeError

    @app.task()
    async def work() -> str:
        return "done"

    async with working(app):
        assert await (await work.enqueue()).result(10) == "done"
    app.runtime.bus.close()


async def test_log_lines_say_which_job_and_how_long(app: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(retry=Retry.fixed(0, max_attempts=2))
    async def work(ctx: Context, fails: bool) -> None:
        if fails:
            raise OSError("down")

    with all_logs(caplog):
        async with working(app) as worker:
            jobs = [await work.enqueue(fails=False), await work.enqueue(fails=True)]
            await ended(app, *[job.id for job in jobs])
    lines = [fields_of(caplog, name)[0] for name in ("job_completed", "job_retrying", "job_dead_lettered")]
    assert [line["job_id"] for line in lines] == [jobs[0].id, jobs[1].id, jobs[1].id]
    assert [line["attempt"] for line in lines] == [1, 1, 2]
    for line in lines:
        assert (line["task"], line["worker"]) == ("work", worker.id)
        assert 0 <= line["duration"] < 10
    assert lines[1]["error"] == "OSError: down"


async def test_a_job_that_never_started_has_a_duration_of_zero(
    app: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()

    @app.task()
    async def work() -> None:
        await gate.wait()

    with all_logs(caplog):
        async with working(app, concurrency=1) as worker:
            worker.parts.intake.prefetch.ahead = 5
            jobs = await work.enqueue_many([{}] * 2)
            await eventually(lambda: worker.parts.runs.ready)
            await app.jobs.cancel(jobs[1].id)
            line = (await eventually(lambda: fields_of(caplog, "job_cancelled")))[0]
            gate.set()
    assert line["duration"] == 0


# -- on SQLite ------------------------------------------------------------------------------------


async def test_a_job_whose_handler_raises_after_its_commit_is_completed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")
    events = record(app, JobCompleted, JobRetrying)

    @app.task()
    async def work(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            connection.execute("CREATE TABLE mine (x)")
            ctx.set_result("written")
        raise RuntimeError("too late")

    async with app, working(app):
        job = (await ended(app, (await work.enqueue()).id))[0]
        await eventually(lambda: events)
    assert (job.status, job.result, job.attempts) == (Status.COMPLETED, "written", 1)
    assert [type(event) for event in events] == [JobCompleted]
    assert fields_of(caplog, "raised_after_commit")


@pytest.mark.parametrize(("given", "told"), [(UNSET, True), ("written", False)])
async def test_a_value_returned_after_the_commit_is_logged_as_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: object, told: bool
) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")

    @app.task()
    async def work(ctx: Context) -> str:
        async with ctx.transaction():
            if given is not UNSET:
                ctx.set_result(given)
        return "written"

    async with app, working(app):
        job = (await ended(app, (await work.enqueue()).id))[0]
    assert (job.status, job.result) == (Status.COMPLETED, None if told else "written")
    assert [line["job_id"] for line in fields_of(caplog, "result_not_stored")] == [job.id] * told


@pytest.mark.parametrize("call", ["set_result", "follow_up"])
async def test_calls_whose_effect_would_be_lost_after_the_commit_are_refused(tmp_path: Path, call: str) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")
    refused: list[UnsupportedCall] = []

    @app.task()
    async def work(ctx: Context) -> None:
        async with ctx.transaction():
            pass
        with pytest.raises(UnsupportedCall, match="inside the block") as caught:
            getattr(ctx, call)(work.prepare())
        refused.append(caught.value)

    async with app, working(app):
        await ended(app, (await work.enqueue()).id)
        await eventually(lambda: refused)
    assert await app.jobs.count() == 1


async def test_a_second_transaction_does_not_undo_the_first(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")
    events = record(app, JobCompleted)

    @app.task()
    def work(ctx: Context) -> None:
        with ctx.transaction():
            pass
        with ctx.transaction():
            raise RuntimeError("in the second")

    async with app, working(app):
        job = (await ended(app, (await work.enqueue()).id))[0]
        await eventually(lambda: events)
    assert job.status is Status.COMPLETED


async def test_reasons_that_are_not_utf8_are_stored_escaped(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(max_attempts=1)
    async def work(kind: str) -> None:
        raise {"error": OSError("caf\udce9"), "discard": Discard("caf\udce9"), "cancel": Cancel("caf\udce9")}[kind]

    @app.task()
    async def fine() -> str:
        return "fine"

    async with app, working(app):
        jobs = [await work.enqueue(kind=kind) for kind in ("error", "discard", "cancel")]
        found = await ended(app, *[job.id for job in jobs])
        assert await (await fine.enqueue()).result(10) == "fine"
    assert [job.status for job in found] == [Status.DEAD_LETTER, Status.DEAD_LETTER, Status.CANCELLED]
    assert found[1].reason == "caf\\udce9"


@pytest.mark.slow
async def test_a_worker_goes_on_after_its_database_file_was_away(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")

    @app.task()
    async def work(n: int) -> int:
        return n

    async with app, working(app):
        assert await (await work.enqueue(n=1)).result(10) == 1
        waiting = await work.using(delay=0.3).enqueue(n=2)
        (tmp_path / "jobs.db").rename(tmp_path / "away.db")
        await asyncio.sleep(0.4)  # it becomes due while the file is away
        (tmp_path / "away.db").rename(tmp_path / "jobs.db")
        assert await waiting.result(10) == 2


@pytest.mark.parametrize("stop", list(Stop))
def test_a_run_is_not_stopped_while_its_transaction_commits(stop: Stop) -> None:
    run = Run(Context.detached()._claim, cast("Task[..., Any, Any]", None), 0)
    run.context = Context.detached()
    run.context.effects.committing = True
    run.end(stop)
    assert run.stop is None


def test_a_run_whose_transaction_committed_does_not_count_as_lost() -> None:
    run = Run(Context.detached()._claim, cast("Task[..., Any, Any]", None), 0)
    run.context = Context.detached()
    run.context.effects.committed = True
    run.end(Stop.LOST)
    assert run.stop is None
