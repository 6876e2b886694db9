from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainspring import Cancel, Context, Discard, Mainspring, Retry, Snooze, Status, testing
from mainspring.errors import ConfigurationError, InvalidPayload, JobFailed
from mainspring.events import JobCompleted

pytestmark = pytest.mark.slow

app = Mainspring("sqlite:////nowhere/jobs.db")  # as applications have it: nothing may touch its store in a test
seen: list[str] = []


@app.task(queue="mail", retry=Retry.delays(30, 60))
async def welcome(guest: str) -> str:
    seen.append(guest)
    if guest == "nobody":
        raise LookupError(guest)
    return f"hello {guest}"


@app.task()
def clean_up(ctx: Context, room: int) -> None:
    ctx.follow_up(inspect.using(priority="high").prepare(room=room))


@app.task()
async def inspect(room: int) -> None:
    seen.append(f"inspected {room}")


@app.task()
async def endless() -> None:
    raise Snooze(0)


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


# -- manual mode ----------------------------------------------------------------------------------


async def test_jobs_are_recorded_and_run_by_drain() -> None:
    async with testing.manual(app) as kit:
        job = await welcome.enqueue(guest="ana")
        assert seen == []
        assert (await job.get()).status is Status.PENDING
        (ran,) = await kit.drain()
        assert (ran.task, ran.args, ran.status, ran.error) == ("welcome", {"guest": "ana"}, Status.COMPLETED, None)
        assert seen == ["ana"]
        assert await job.result() == "hello ana"
        assert await kit.drain() == []


def test_all_of_it_works_without_an_event_loop() -> None:
    with testing.manual(app) as kit:
        welcome.enqueue_sync(guest="ana")
        inspect.using(delay=60).enqueue_sync(room=7)
        assert [run.task for run in kit.drain_sync()] == ["welcome"]
        assert [run.task for run in kit.time.advance_sync(minutes=1)] == ["inspect"]
        inspect.using(delay=60).enqueue_sync(room=8)
        assert [run.task for run in kit.time.advance_to_sync(app.now() + timedelta(minutes=1))] == ["inspect"]
        assert [job.task for job in kit.jobs()] == ["welcome", "inspect", "inspect"]


async def test_the_synchronous_forms_work_inside_a_running_loop() -> None:
    with testing.manual(app) as kit:
        welcome.enqueue_sync(guest="ana")
        assert [run.task for run in kit.drain_sync()] == ["welcome"]
        assert len(kit.jobs(welcome)) == 1


async def test_the_store_comes_back_even_if_the_block_fails_or_blocks_are_nested() -> None:
    before = app.store
    with testing.manual(app):
        async with testing.inline(app) as inner:
            await welcome.enqueue(guest="ana")
            with testing.manual(app) as innermost:
                await welcome.enqueue(guest="bob")
                assert [job.status for job in innermost.jobs()] == [Status.PENDING]
            assert [job.payload for job in inner.jobs()] == [{"guest": "ana"}]
        with pytest.raises(ZeroDivisionError), testing.inline(app):
            raise ZeroDivisionError
    assert app.store is before
    assert "insert" not in vars(app)


async def test_draining_runs_what_becomes_due_by_it_in_the_order_of_priority() -> None:
    async with testing.manual(app) as kit:
        await clean_up.enqueue(room=1)
        await clean_up.enqueue(room=2)
        ran = await kit.drain()
        assert [(run.task, run.args["room"]) for run in ran] == [
            ("clean_up", 1), ("inspect", 1), ("clean_up", 2), ("inspect", 2),
        ]  # fmt: skip


async def test_a_failing_job_waits_for_its_retry_and_ends_as_it_would_anywhere() -> None:
    async with testing.manual(app) as kit:
        job = await welcome.enqueue(guest="nobody")
        (first,) = await kit.drain()
        assert first.status is Status.RETRYING
        assert isinstance(first.error, LookupError)
        assert first.job.run_at == kit.time.now() + timedelta(seconds=30)
        ran = await kit.time.advance(minutes=2)
        assert [run.status for run in ran] == [Status.RETRYING, Status.DEAD_LETTER]
        with pytest.raises(JobFailed, match="LookupError: nobody"):
            await job.result()


async def test_errors_can_be_raised_by_the_drain() -> None:
    async with testing.manual(app) as kit:
        await welcome.enqueue(guest="nobody")
        await welcome.enqueue(guest="ana")
        with pytest.raises(LookupError, match="nobody"):
            await kit.drain(raise_errors=True)
        assert seen == ["nobody", "ana"]
        await welcome.enqueue(guest="nobody")
        with pytest.raises(BaseExceptionGroup, match="3 of 3 runs failed"):
            await kit.time.advance(seconds=30, raise_errors=True)


async def test_a_job_that_goes_round_in_circles_is_found_out() -> None:
    async with testing.manual(app) as kit:
        await endless.enqueue()
        with pytest.raises(RuntimeError, match="100 runs, and jobs are still due"):
            await kit.drain(limit=100)


async def test_jobs_enqueued_by_subscribers_belong_to_the_drain() -> None:
    own = Mainspring("memory://")

    @own.task()
    async def first() -> None: ...

    @own.task()
    async def second() -> None: ...

    @own.on(JobCompleted)
    async def go_on(event: JobCompleted) -> None:
        if event.task == "first":
            await second.enqueue()

    @own.on(JobCompleted)
    def go_on_plainly(event: JobCompleted) -> None:
        if event.task == "first":
            second.enqueue_sync()

    async with testing.manual(own) as kit:
        await first.enqueue()
        assert [run.task for run in await kit.drain()] == ["first", "second", "second"]
    await own.close()


async def test_jobs_can_be_listed_by_task_and_status() -> None:
    async with testing.manual(app) as kit:
        await welcome.enqueue(guest="ana")
        await kit.drain()
        await welcome.enqueue(guest="bob")
        await inspect.enqueue(room=1)
        assert [job.payload["guest"] for job in kit.jobs(welcome)] == ["ana", "bob"]
        assert [job.task for job in kit.jobs(status=Status.PENDING)] == ["welcome", "inspect"]
        assert kit.jobs("unheard of") == []


async def test_a_connection_without_a_matching_store_is_refused_with_advice(tmp_path: Path) -> None:
    with testing.manual(app), pytest.raises(ConfigurationError, match=r"testing\.manual\(app, store="):
        await welcome.using(connection=object()).enqueue(guest="ana")
    path = tmp_path / "jobs.db"
    async with testing.manual(app, store=f"sqlite:///{path}") as kit:
        connection = sqlite3.connect(path)
        await app.store.open()
        await welcome.using(connection=connection).enqueue(guest="ana")
        assert kit.jobs() == []
        connection.commit()
        connection.close()
        await welcome.using(delay=timedelta(days=30)).enqueue(guest="bob")
        assert [run.args["guest"] for run in await kit.time.advance(days=30)] == ["ana", "bob"]


# -- virtual time ---------------------------------------------------------------------------------


async def test_time_goes_from_one_due_time_to_the_next() -> None:
    own = Mainspring("memory://")
    times: list[datetime] = []

    @own.task()
    async def note() -> None:
        times.append(own.now())

    start = datetime(2028, 2, 28, 12, tzinfo=UTC)
    async with testing.manual(own, start=start) as kit:
        for hours in (30, 1, 1.5, 100):
            await note.using(delay=timedelta(hours=hours)).enqueue()
        await kit.time.advance(timedelta(hours=1), days=1, minutes=300)
        assert times == [start + timedelta(hours=hours) for hours in (1, 1.5, 30)]
        assert kit.time.now() == start + timedelta(hours=30)
        await kit.time.advance_to(datetime(2028, 3, 31, tzinfo=UTC))
        assert times[-1] == start + timedelta(hours=100)
        assert kit.time.now() == datetime(2028, 3, 31, tzinfo=UTC)
        with pytest.raises(ValueError, match="cannot go back"):
            await kit.time.advance_to(start)


async def test_time_begins_now_so_that_it_fits_code_that_asks_the_real_clock() -> None:
    async with testing.manual(app) as kit:
        assert abs(kit.time.now() - datetime.now(UTC)) < timedelta(minutes=1)
        await welcome.using(run_at=datetime.now(UTC) + timedelta(days=3)).enqueue(guest="ana")
        assert await kit.time.advance(days=2) == []
        assert len(await kit.time.advance(days=2)) == 1


async def test_time_passes_a_halt_and_the_end_of_a_pause() -> None:
    async with testing.manual(app) as kit:
        await app.pause("mail", until=kit.time.now() + timedelta(hours=2))
        await welcome.enqueue(guest="ana")
        assert await kit.time.advance(hours=1) == []
        (ran,) = await kit.time.advance(hours=5)
        assert ran.job.finished_at == kit.time.now() - timedelta(hours=4)
        await app.halt("for good")
        await welcome.enqueue(guest="bob")
        assert await kit.time.advance(days=1) == []


@pytest.mark.slow
async def test_months_of_hours_pass_in_a_moment() -> None:
    own = Mainspring("memory://")

    @own.task()
    async def tick(number: int) -> None:
        await tick.using(delay=3600).enqueue(number=number + 1)

    async with testing.manual(own) as kit:
        await tick.enqueue(number=0)
        ran = await kit.time.advance(days=90)
        assert [run.args["number"] for run in ran] == list(range(90 * 24 + 1))


# -- inline mode ----------------------------------------------------------------------------------


async def test_inline_a_job_has_run_when_its_enqueue_returns() -> None:
    async with testing.inline(app) as kit:
        job = await welcome.enqueue(guest="ana")
        assert await job.result() == "hello ana"
        await welcome.enqueue_many([{"guest": "bob"}, {"guest": "eve"}])
        await app.enqueue_all([welcome.prepare(guest="dan")])
        assert seen == ["ana", "bob", "eve", "dan"]
        assert {job.status for job in kit.jobs()} == {Status.COMPLETED}


async def test_inline_the_enqueuer_gets_what_the_handler_raised() -> None:
    async with testing.inline(app) as kit:
        with pytest.raises(LookupError, match="nobody"):
            await welcome.enqueue(guest="nobody")
        assert [job.status for job in kit.jobs()] == [Status.RETRYING]
        with pytest.raises(InvalidPayload):
            await welcome.enqueue(guest=1)  # type: ignore[arg-type]
        assert len(kit.jobs()) == 1


async def test_inline_one_of_many_that_fails_stops_no_other() -> None:
    async with testing.inline(app):
        with pytest.raises(LookupError):
            await welcome.enqueue_many([{"guest": "nobody"}, {"guest": "ana"}])
        assert seen == ["nobody", "ana"]
        with pytest.raises(BaseExceptionGroup) as caught:
            await welcome.enqueue_many([{"guest": "nobody"}, {"guest": "nobody"}])
        assert [type(error) for error in caught.value.exceptions] == [LookupError, LookupError]


@pytest.mark.parametrize(
    ("wish", "status"), [(Snooze(60), Status.PENDING), (Cancel("no"), Status.CANCELLED), (Discard("no"), None)]
)
async def test_inline_only_failures_are_raised_not_wishes(wish: Exception, status: Status | None) -> None:
    own = Mainspring("memory://")

    @own.task()
    async def ask() -> None:
        raise wish

    async with testing.inline(own) as kit:
        if status is None:
            with pytest.raises(Discard):
                await ask.enqueue()
        else:
            await ask.enqueue()
        assert [job.status for job in kit.jobs()] == [status or Status.DEAD_LETTER]


async def test_inline_a_timeout_and_a_result_that_is_not_json_are_failures_too() -> None:
    own = Mainspring("memory://")

    @own.task(timeout=0.01)
    async def slow() -> None:
        await asyncio.Event().wait()

    @own.task()
    async def odd() -> int:
        return object()  # type: ignore[return-value]

    async with testing.inline(own):
        with pytest.raises(JobFailed, match="TimeoutError: ran longer than its timeout"):
            await slow.enqueue()
        with pytest.raises(JobFailed, match="CannotStoreResult"):
            await odd.enqueue()


async def test_inline_jobs_for_later_are_recorded_and_run_when_their_time_comes() -> None:
    async with testing.inline(app) as kit:
        await welcome.using(delay=60).enqueue(guest="ana")
        await inspect.enqueue(room=1)
        assert seen == ["inspected 1"]
        await kit.time.advance(minutes=1)
        assert seen == ["inspected 1", "ana"]


async def test_inline_follow_ups_run_too() -> None:
    async with testing.inline(app):
        await clean_up.enqueue(room=1)
        assert seen == ["inspected 1"]


async def test_inline_each_enqueuer_waits_for_its_own_job() -> None:
    own = Mainspring("memory://")
    gate = asyncio.Event()

    @own.task()
    async def wait() -> None:
        await gate.wait()

    @own.task()
    async def fail() -> None:
        gate.set()
        raise LookupError

    async with testing.inline(own):
        waited, failed = await asyncio.gather(wait.enqueue(), fail.enqueue(), return_exceptions=True)
        assert isinstance(failed, LookupError)
        assert not isinstance(waited, BaseException)
        assert (await waited.get()).status is Status.COMPLETED


def chain(own: Mainspring, names: list[str]) -> None:
    """Tasks that enqueue one another: a coroutine, a thread, and a coroutine that calls code without await."""

    @own.task()
    async def one() -> None:
        names.append("one")
        await two.enqueue()

    @own.task()
    def two() -> None:
        names.append("two")
        three.enqueue_sync(left=10)

    @own.task()
    async def three(left: int) -> None:
        names.append(f"three {threading.current_thread() is own.runtime.services.portal._thread}")
        if left:
            three.enqueue_sync(left=left - 1)


@pytest.mark.parametrize("from_coroutine", [True, False])
def test_inline_jobs_may_enqueue_jobs_in_every_way(from_coroutine: bool) -> None:
    own, names = Mainspring("memory://"), list[str]()
    chain(own, names)
    one = own.tasks["one"]

    async def enqueue() -> None:
        await one.enqueue()

    with testing.inline(own):
        if from_coroutine:
            asyncio.run(enqueue())
        else:
            one.enqueue_sync()
    assert names == ["one", "two"] + ["three False"] * 11
    own.run(own.close())


async def test_inline_subscribers_may_enqueue() -> None:
    own = Mainspring("memory://")
    ran: list[str] = []

    @own.task()
    async def first() -> None:
        ran.append("first")

    @own.task()
    async def second(how: str) -> None:
        ran.append(how)

    @own.on(JobCompleted)
    async def go_on(event: JobCompleted) -> None:
        if event.task == "first":
            await second.enqueue(how="async")

    @own.on(JobCompleted)
    def go_on_plainly(event: JobCompleted) -> None:
        if event.task == "first":
            second.enqueue_sync(how="plain")

    async with testing.inline(own):
        await first.enqueue()
        assert sorted(ran) == ["async", "first", "plain"]
    await own.close()


async def test_inline_nothing_runs_while_halted() -> None:
    async with testing.inline(app) as kit:
        await app.halt("fire drill")
        await welcome.enqueue(guest="ana")
        assert [job.status for job in kit.jobs()] == [Status.PENDING]


def test_jobs_are_asked_for_by_a_status_that_there_is() -> None:
    app = Mainspring("memory://")

    @app.task()
    async def work() -> None: ...

    with testing.manual(app) as kit:
        work.enqueue_sync()
        assert kit.jobs(work, status="pending") == kit.jobs(work, status=Status.PENDING) != []
        with pytest.raises(ValueError, match="'complete' is not a valid Status"):
            kit.jobs(work, status="complete")


@pytest.mark.parametrize(("schedules", "fired"), [(True, 3), (False, 0)])
async def test_schedules_can_be_left_out(schedules: bool, fired: int) -> None:
    calm = Mainspring("memory://")
    ticks: list[str] = []

    @calm.every("1h")
    async def tick() -> None:
        ticks.append("tick")

    @calm.task()
    async def once() -> None:
        ticks.append("once")

    async with testing.manual(calm, start=datetime(2026, 3, 1, 12, 30, tzinfo=UTC), schedules=schedules) as kit:
        await once.using(delay=60).enqueue()
        await kit.time.advance(hours=3)
    assert (ticks.count("once"), ticks.count("tick")) == (1, fired)


async def test_each_occurrence_fires_runs_and_is_in_the_ledger_at_its_own_virtual_time() -> None:
    busy, start, ran_at = Mainspring("memory://"), datetime(2026, 3, 1, tzinfo=UTC), []

    @busy.every("5s")
    async def tick() -> None:
        ran_at.append(busy.now())

    async with testing.manual(busy, start=start) as kit:
        ran = await kit.time.advance(minutes=10)
        ledger = await busy.schedules.ledger("tick", limit=1000)
    times = [start + timedelta(seconds=5 * number) for number in range(1, 121)]
    assert ran_at == times
    assert [run.job.finished_at for run in ran] == times
    assert [(entry.utc, entry.at, entry.job_id) for entry in reversed(ledger)] == [
        (time, time, run.job.id) for time, run in zip(times, ran, strict=True)
    ]


async def test_a_schedule_that_was_changed_between_two_fires_fires_as_it_is_now() -> None:
    busy, start, seen = Mainspring("memory://"), datetime(2026, 3, 1, tzinfo=UTC), []

    @busy.task()
    async def tick(name: str) -> None:
        seen.append(f"{name} {busy.now():%M:%S}")

    async with testing.manual(busy, start=start) as kit:
        await busy.schedules.put("ticks", "5s", tick.prepare(name="a"))
        await kit.time.advance(seconds=10)
        await busy.schedules.put("ticks", "4s", tick.prepare(name="b"))
        await kit.time.advance(seconds=12)
    assert seen == ["a 00:05", "a 00:10", "b 00:12", "b 00:16", "b 00:20"]


async def test_a_handler_can_add_a_schedule_that_fires_before_the_next_known_one() -> None:
    busy, start, seen = Mainspring("memory://"), datetime(2026, 3, 1, tzinfo=UTC), []

    @busy.task()
    async def tick(name: str) -> None:
        seen.append(f"{name} {busy.now():%M:%S}")
        if name == "a":
            await busy.schedules.put("sooner", "2s", tick.prepare(name="b"))

    async with testing.manual(busy, start=start) as kit:
        await busy.schedules.put("ticks", "10s", tick.prepare(name="a"))
        await kit.time.advance(seconds=15)
    assert seen == ["a 00:10", "b 00:12", "b 00:14"]


async def test_a_fire_takes_few_calls() -> None:
    """A day of a schedule that fires every five seconds is to pass in seconds: 17,280 fires. Counts; times vary."""
    busy, calls = Mainspring("memory://"), 0

    @busy.every("5s")
    async def tick() -> None: ...

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    async with testing.manual(busy, start=datetime(2026, 3, 1, tzinfo=UTC)) as kit:
        await kit.time.advance(minutes=1)  # what is done once
        sys.setprofile(count)
        try:
            ran = await kit.time.advance(minutes=10)
        finally:
            sys.setprofile(None)
    assert calls / len(ran) < 1550
