"""Recovery: dead letters of a task are retried by themselves, a bounded number of times."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring import Discard, Mainspring, Recover, Retry
from mainspring.errors import ConfigurationError
from mainspring.events import JobsRecovered
from mainspring.job import Priority, Status
from mainspring.stores.feed import ChangeFilter, ChangeKind, Cursor
from mainspring.stores.protocol import Filter
from mainspring.testing import manual
from tests.features.conftest import START, NewApp
from tests.worker.working import ended, reached, working


def recording(app: Mainspring) -> list[tuple[str, int, int]]:
    told: list[tuple[str, int, int]] = []
    app.on(JobsRecovered)(lambda event: told.append((event.task, event.recovered, event.exhausted)))
    return told


async def test_dead_letters_are_retried_at_their_priority_until_they_complete(new_app: NewApp) -> None:
    app, down, told = new_app(), [True], []

    @app.task(max_attempts=1, recover=Recover(every=600, priority="high"))
    async def send(number: int) -> None:
        if down[0]:
            raise OSError("down")

    @app.task(max_attempts=1)
    async def other() -> None:
        raise OSError("down")

    async with manual(app, start=START) as kit:
        told = recording(app)
        jobs = await send.enqueue_many([{"number": number} for number in range(3)])
        left = await other.enqueue()
        await kit.drain()
        assert {(await job.get()).status for job in jobs} == {Status.DEAD_LETTER}
        down[0] = False
        await kit.time.advance(minutes=11)
        found = [await job.get() for job in jobs]
        assert {(job.status, job.priority) for job in found} == {(Status.COMPLETED, Priority.HIGH)}
        assert (await left.get()).status is Status.DEAD_LETTER
        assert await app.audit() == []
    assert told == [("send", 3, 0)]


async def test_a_job_is_recovered_a_bounded_number_of_times_and_only_within_the_window(new_app: NewApp) -> None:
    app, runs = new_app(), []

    @app.task(max_attempts=1, recover=Recover(within=timedelta(hours=1), every=600, max_times=2))
    async def send(kind: str) -> None:
        runs.append(kind)
        if kind == "gone":
            raise Discard("the guest has left")
        raise OSError("poison")

    async with manual(app, start=START) as kit:
        told = recording(app)
        poison, gone = await send.enqueue(kind="poison"), await send.enqueue(kind="gone")
        await kit.drain()
        await kit.time.advance(hours=3)
        assert (runs.count("poison"), runs.count("gone")) == (3, 1)
        assert [(await job.get()).status for job in (poison, gone)] == [Status.DEAD_LETTER] * 2
    assert [entry for entry in told if entry[1]] == [("send", 1, 0)] * 2


async def test_slow_retries_do_not_reset_how_often_a_job_was_recovered(new_app: NewApp) -> None:
    app, runs = new_app(), 0
    hours_apart = Retry.delays(timedelta(hours=3))

    @app.task(retry=hours_apart, recover=Recover(within=timedelta(hours=1), every=600, max_times=2))
    async def send() -> None:
        nonlocal runs
        runs += 1
        raise OSError("poison")

    async with manual(app, start=START) as kit:
        job = await send.enqueue()
        await kit.drain()
        await kit.time.advance(hours=24)
        assert (await job.get()).status is Status.DEAD_LETTER
    assert runs == 2 * (1 + 2)


async def test_expired_jobs_are_recovered_if_the_task_says_so(new_app: NewApp) -> None:
    app, ran = new_app(), []

    @app.task(expires=60, recover=Recover(every=600, expired=True))
    async def send(kind: str) -> None:
        ran.append(kind)

    @app.task(expires=60, recover=Recover(every=600))
    async def greet() -> None:
        ran.append("greet")

    async with manual(app, start=START) as kit:
        await app.halt("no workers", wait=0)
        jobs = [await send.enqueue("late"), await greet.enqueue(), await send.enqueue("by hand")]
        await app.jobs.cancel(jobs[2].id, reason="not wanted")
        await kit.time.advance(minutes=5)
        await app.resume()
        await kit.drain()
        assert {(await job.get()).status for job in jobs} == {Status.CANCELLED}
        assert ran == []
        told = recording(app)
        await kit.time.advance(minutes=11)
        assert [(await job.get()).status for job in jobs] == [Status.COMPLETED, Status.CANCELLED, Status.CANCELLED]
    assert (ran, told) == (["late"], [("send", 1, 0)])


async def test_the_store_keeps_what_was_recovered(new_app: NewApp) -> None:
    app = new_app()

    @app.task(max_attempts=1, recover=Recover(every=600, max_times=1))
    async def send(number: int) -> None:
        raise OSError("down")

    async with manual(app, start=START) as kit:
        cursor = await app.changes().begin()
        await send.enqueue_many([{"number": number} for number in range(3)])
        await kit.drain()
        await kit.time.advance(minutes=11)
        (first,) = await app.recoveries()
        assert (first.task, first.recovered, first.exhausted, first.total) == ("send", 3, 0, 3)
        await kit.time.advance(minutes=10)
        (second,) = await app.recoveries()
        assert (second.recovered, second.exhausted, second.total) == (3, 3, 3)
        assert second.fired_at is not None
        assert first.recovered_at == second.recovered_at is not None
        assert second.recovered_at < second.fired_at <= app.now()
        assert second.next_at is not None
        assert second.next_at > app.now()
        where = ChangeFilter(kinds=(ChangeKind.DOCUMENT,))
        told = (await app.store.changes(cursor)).changes(where, Cursor.parse(cursor))
        assert [(change.data or {})["collection"] for change in told] == ["recovery", "recovery"]


async def test_a_look_that_finds_nothing_new_is_not_reported(new_app: NewApp, caplog: pytest.LogCaptureFixture) -> None:
    app = new_app()

    @app.task(max_attempts=1, recover=Recover(within=timedelta(hours=2), every=600, max_times=2))
    async def send() -> None:
        raise OSError("down")

    caplog.set_level("INFO", "mainspring.recovery")
    async with manual(app, start=START) as kit:
        told, cursor = recording(app), await app.changes().begin()
        await send.enqueue()
        await kit.drain()
        await kit.time.advance(hours=1)
        assert told == [("send", 1, 0), ("send", 1, 0), ("send", 0, 1)]
        (known,) = await app.recoveries()
        assert (known.recovered, known.exhausted, known.total) == (1, 1, 2)
        assert known.recovered_at is not None
        assert known.recovered_at < app.now() - timedelta(minutes=30)
        await send.enqueue()
        await kit.drain()
        await kit.time.advance(hours=1)
        assert told[3:] == [("send", 1, 1), ("send", 1, 1), ("send", 0, 2)]
        await kit.time.advance(hours=3)
        assert len(told) == sum(line.startswith("jobs_recovered") for line in caplog.messages) == 6
        (known,) = await app.recoveries()
        assert (known.recovered, known.exhausted, known.total) == (1, 0, 4), "the window of both has passed"
        where = ChangeFilter(kinds=(ChangeKind.DOCUMENT,))
        assert len(list((await app.store.changes(cursor)).changes(where, Cursor.parse(cursor)))) == 8


async def test_recovery_waits_until_the_breaker_of_the_task_closes(new_app: NewApp) -> None:
    app, runs = new_app(), []

    @app.task(max_attempts=1, breaker="mail-api", recover=Recover(every=600))
    async def send() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise OSError("down")

    async with manual(app, start=START) as kit:
        job = await send.enqueue()
        await kit.drain()
        await app.breakers.open("mail-api")
        await kit.time.advance(minutes=30)
        assert (await job.get()).status is Status.DEAD_LETTER
        await app.breakers.close("mail-api")
        await kit.time.advance(minutes=1)
        assert (await job.get()).status is Status.COMPLETED


async def test_workers_that_start_recover_jobs_once(new_app: NewApp) -> None:
    """Several workers start at the same time, each in a process of its own."""
    apps, down, runs = [new_app() for _ in range(3)], [True], []

    def declare(app: Mainspring) -> Any:
        @app.task(max_attempts=1, recover=Recover(every=1))
        async def send() -> None:
            runs.append(1)
            if down[0]:
                raise OSError("down")

        return send

    tasks = [declare(app) for app in apps]
    async with working(apps[0]):
        job = await tasks[0].enqueue()
        await ended(apps[0], job.id)
    down[0], before = False, len(runs)  # the first worker may have recovered it once, too, before it stopped
    async with working(apps[1]), working(apps[2]):
        (found,) = await reached(apps[1], job.id, statuses=(Status.COMPLETED,))
    assert (len(runs) - before, found.priority) == (1, Priority.HIGH)


async def test_only_jobs_that_died_within_the_window_are_recovered(new_app: NewApp) -> None:
    app, runs = new_app(), []

    @app.task(max_attempts=1, breaker="mail-api", recover=Recover(within=timedelta(hours=1), every=600))
    async def send(kind: str) -> None:
        runs.append(kind)
        raise Discard if runs.count(kind) > 1 else OSError("down")

    async with manual(app, start=START) as kit:
        old = await send.enqueue(kind="old")
        await kit.drain()
        await app.breakers.open("mail-api")  # recovery waits meanwhile
        await kit.time.advance(hours=1, minutes=30)
        await app.breakers.close("mail-api")
        new = await send.enqueue(kind="new")
        await kit.drain()
        await kit.time.advance(minutes=15)
        assert (runs.count("old"), runs.count("new")) == (1, 2)
        assert [(await job.get()).status for job in (old, new)] == [Status.DEAD_LETTER] * 2


async def test_more_jobs_than_a_page_are_recovered(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.features.recovery.timer.PAGE_SIZE", 10)
    app, down, told = new_app(), [True], []

    @app.task(max_attempts=1, recover=Recover(every=600))
    async def send(number: int) -> None:
        if down[0]:
            raise OSError("down")

    async with manual(app, start=START) as kit:
        told = recording(app)
        await send.enqueue_many([{"number": number} for number in range(25)])
        await kit.drain()
        down[0] = False
        await kit.time.advance(minutes=11)
        assert await app.jobs.count(Filter(statuses=(Status.COMPLETED,))) == 25
    assert told == [("send", 25, 0)]


async def test_restarts_that_follow_each_other_do_not_use_up_the_times_of_a_job(new_app: NewApp) -> None:
    runs: list[int] = []

    def declare(app: Mainspring) -> Any:
        @app.task(max_attempts=1, recover=Recover(every=600, max_times=1))
        async def send() -> None:
            runs.append(1)
            raise OSError("down")

        return send

    first = new_app()
    send = declare(first)
    async with manual(first, start=START) as kit:
        await send.enqueue()
        await kit.drain()
        clock, store = first.store.clock, first.store
        for _ in range(3):  # the new version is started three times within a minute
            app = new_app()
            declare(app)
            app.runtime.store = store
            await app.runtime.recovery.begin()
            await app.runtime.timers.run_due()
            await kit.drain()
        assert len(runs) == 1
        assert first.store.clock is clock
        await kit.time.advance(minutes=11)
        assert len(runs) == 2


async def test_a_job_whose_dedupe_key_is_taken_keeps_its_times(new_app: NewApp) -> None:
    app, runs = new_app(), []

    @app.task(max_attempts=1, recover=Recover(every=600, max_times=1))
    async def send(kind: str) -> None:
        runs.append(kind)
        if kind == "first" and runs.count(kind) == 1:
            raise OSError("down")

    async with manual(app, start=START) as kit:
        told = recording(app)
        job = await send.using(dedupe_key="guest-7").enqueue(kind="first")
        await kit.drain()
        other = await send.using(dedupe_key="guest-7", delay=timedelta(hours=1)).enqueue(kind="second")
        assert other.created
        await kit.time.advance(minutes=45)
        assert (await job.get()).status is Status.DEAD_LETTER
        assert told == []
        await other.cancel()
        await kit.time.advance(minutes=11)
        assert (await job.get()).status is Status.COMPLETED
    assert told == [("send", 1, 0)]


def test_the_settings_are_checked() -> None:
    wrong: list[dict[str, Any]] = [{"within": 0}, {"every": -1}, {"priority": "soon"}, {"max_times": 0}]
    for settings in wrong:
        with pytest.raises(ConfigurationError, match=r"Recover\("):
            Recover(**settings)
    app = Mainspring("memory://")
    with pytest.raises(ConfigurationError, match=r"recover must be a Recover"):

        @app.task(recover=True)  # type: ignore[call-overload, untyped-decorator]
        async def send() -> None: ...
