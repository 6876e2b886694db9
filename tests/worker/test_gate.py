"""Between its claim and its start a job may be halted: then it does not start, and `halt()` knows."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Chunk, Limit, Mainspring, Rate, RunCall
from mainspring.clock import since_boot
from mainspring.errors import ConfigurationError, StoreUnavailable
from mainspring.events import Halted, JobReleased, JobStarted
from mainspring.features.settings import api as settings_api
from mainspring.job import Job, Status
from mainspring.stores.documents import Bundle
from mainspring.stores.protocol import Claims, Filter, Want
from mainspring.stores.sqlite import MemoryStore
from mainspring.worker import Worker, gate, intake
from mainspring.worker.run import Run, Stop
from tests.worker import wrapped
from tests.worker.children import app as app_of_children
from tests.worker.waiting import Waiting
from tests.worker.working import (
    DEADLINE,
    FaultyStore,
    ended,
    eventually,
    fields_of,
    member,
    new_app,
    reached,
    record,
    run_of,
    working,
)


async def jobs_of(app: Mainspring, status: Status) -> list[Job]:
    return [job async for job in app.jobs.all(Filter(statuses=(status,)))]


class Turnstile:
    """A task whose handler waits to be let go, with others behind it."""

    def __init__(self, app: Mainspring, **options: Any) -> None:
        self.go, self.started = asyncio.Event(), 0

        async def work() -> None:
            self.started += 1
            await self.go.wait()

        self.work: Any = app.task(**options)(work)


async def ahead(app: Mainspring, turnstile: Turnstile, number: int = 5) -> None:
    """One job runs, the others are claimed ahead of it."""
    await turnstile.work.enqueue_many([{}] * number)
    await eventually(lambda: turnstile.started == 1)
    await eventually(lambda: claimed(app, number))


async def claimed(app: Mainspring, number: int) -> bool:
    return len(await jobs_of(app, Status.RUNNING)) == number


def prefetching(worker: Worker, number: int = 10) -> None:
    """As after a while of quick jobs."""
    worker.parts.intake.prefetch.ahead = number


async def test_jobs_claimed_ahead_do_not_start_after_a_halt() -> None:
    app = new_app()
    turnstile = Turnstile(app)
    async with working(app, concurrency=1) as worker:
        prefetching(worker)
        await ahead(app, turnstile)
        result = await app.halt("fire drill")
        assert result.confirmed
        waiting = await jobs_of(app, Status.PENDING)
        assert [(job.attempts, job.reason) for job in waiting] == [(0, "it was halted before it started")] * 4
        turnstile.go.set()
        await eventually(lambda: completed(app, 1))
        await app.resume()
        await eventually(lambda: completed(app, 5))
    assert turnstile.started == 5


async def test_after_a_pause_longer_than_the_lease_lost_jobs_do_not_start() -> None:
    """Jobs that were claimed ahead, and that another worker has taken over while this one was stopped."""
    app = new_app()
    turnstile = Turnstile(app)
    async with working(app, concurrency=1, heartbeat_interval=3600) as worker:
        prefetching(worker)
        await ahead(app, turnstile)
        await app.store.leave(worker.id)  # its jobs are given back
        await app.store.claim("another", [Want("default", 10)], limit=10)
        worker.parts.gate._looked_at = worker.parts.gate.open_until = worker.parts.heartbeat._sent_at = float("-inf")
        turnstile.go.set()
        await eventually(lambda: not worker.parts.runs.held)
    assert turnstile.started == 1


async def test_jobs_of_a_claim_that_took_longer_than_the_lease_are_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process was stopped meanwhile, and another worker may have taken them over."""
    app = new_app()
    turnstile, released = Turnstile(app), record(app, JobReleased)
    turnstile.go.set()
    claim, pauses = app.store.claim, [0.0]

    async def claim_and_be_stopped(*arguments: Any, **options: Any) -> Claims:
        claims = await claim(*arguments, **options)
        if claims.jobs and pauses == [0.0]:
            pauses.append(app.store.lease + 1)
        return claims

    monkeypatch.setattr(app.store, "claim", claim_and_be_stopped)
    monkeypatch.setattr(intake, "since_boot", lambda: since_boot() + sum(pauses))
    async with working(app):
        job = await turnstile.work.enqueue()
        await eventually(lambda: completed(app, 1))
    assert [event.job_id for event in released] == [job.id]
    assert turnstile.started == 1


async def completed(app: Mainspring, number: int) -> bool:
    return len(await jobs_of(app, Status.COMPLETED)) == number


async def test_a_pause_stops_only_its_queue() -> None:
    app = new_app()
    mail, sms = Turnstile(app, queue="mail"), asyncio.Event()

    @app.task(queue="sms")
    async def text() -> None:
        sms.set()

    async with working(app, concurrency=2) as worker:
        prefetching(worker)
        await mail.work.enqueue_many([{}] * 5)
        await eventually(lambda: mail.started == 2)
        await eventually(lambda: claimed(app, 5))
        assert (await app.pause("mail")).confirmed
        mail.go.set()
        await text.enqueue()
        await sms.wait()
        await eventually(lambda: completed(app, 3))
        assert mail.started == 2
        assert len(await jobs_of(app, Status.PENDING)) == 3
        await app.resume("mail")
        await eventually(lambda: completed(app, 6))


# -- settings that change at run time ---------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"limits": Limit(20)}], ids=["without limits", "with a limit"])
@pytest.mark.parametrize(
    ("setting", "starts"), [({"paused": True}, 0), ({"limit": 1}, 1), ({"rate": Rate(1, per=3600)}, 1)]
)
async def test_jobs_claimed_ahead_obey_a_setting_that_is_changed(
    setting: dict[str, Any], starts: int, options: dict[str, Any]
) -> None:
    app = new_app()
    busy, send = Turnstile(app, name="busy"), Turnstile(app, name="send", **options)
    async with working(app, concurrency=2) as worker:
        prefetching(worker)
        await busy.work.enqueue_many([{}] * 2)
        await eventually(lambda: busy.started == 2)
        await send.work.enqueue_many([{}] * 4)
        await eventually(lambda: len(worker.parts.runs.ready) == 4)
        await app.settings.set(task="send", **setting)
        await eventually(lambda: not worker.parts.runs.ready)
        busy.go.set()
        await eventually(lambda: in_status(app, Status.SUSPENDED, 4 - starts))
        await eventually(lambda: send.started == starts)
        await app.settings.clear(task="send")
        send.go.set()
        await eventually(lambda: completed(app, 6))


async def test_a_worker_that_was_stopped_reads_the_settings_before_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task was paused meanwhile, and the wake-up was lost."""
    monkeypatch.setattr(settings_api, "Bundle", lambda writes, note, spread: Bundle(writes, note=note))
    monkeypatch.setattr("mainspring.worker.worker.FRESH_FOR", 3600.0)
    app = new_app()
    turnstile = Turnstile(app, name="send")
    async with working(app, concurrency=1) as worker:
        prefetching(worker)
        await ahead(app, turnstile)
        await Mainspring(app.store).settings.set(task="send", paused=True)
        worker.parts.gate._looked_at = worker.parts.gate.open_until = float("-inf")
        monkeypatch.setattr(app.runtime.live_settings, "_fresh_until", float("-inf"))
        turnstile.go.set()
        await eventually(lambda: in_status(app, Status.SUSPENDED, 4))
    assert turnstile.started == 1


@contextlib.asynccontextmanager
async def with_mails_ahead(app: Mainspring, mail: Turnstile) -> AsyncIterator[Worker]:
    """A worker that has claimed two mails behind a busy slot."""
    busy = Turnstile(app, name="busy")
    async with working(
        app, concurrency=1, maintenance_interval=3600
    ) as worker:  # else it hands them back after a while
        prefetching(worker)
        await busy.work.enqueue()
        await eventually(lambda: busy.started == 1)
        await mail.work.enqueue_many([{}] * 2)
        await eventually(lambda: len(worker.parts.runs.ready) == 2)
        mail.go.set()
        try:
            yield worker
        finally:
            busy.go.set()
            await eventually(lambda: completed(app, 3))


@pytest.mark.parametrize(
    ("limits", "before", "change"),
    [
        (Rate(2, per=3600), {}, {"task": "other", "limit": 3}),
        ([], {"task": "mail", "rate": Rate(2, per=3600)}, {"task": "other", "limit": 3}),
        (Rate(2, per=3600), {}, {"queue": "other", "rate": Rate(3)}),
        (Rate(2, per=3600), {}, {"task": "other", "paused": True}),
        (Rate(2, per=3600), {}, {"task": "mail", "rate": Rate(5, per=3600)}),
        (Rate(2, per=3600), {"task": "mail", "limit": 2}, {"task": "mail", "limit": 3}),
        (Rate(2, per=3600), {}, {"task": "mail", "timeout": 60}),
    ],
    ids=["limit", "after a setting of its own", "queue", "pause", "raised rate", "raised limit", "timeout"],
)
async def test_jobs_claimed_ahead_stay_if_a_setting_does_not_hold_them_back(
    limits: Any, before: dict[str, Any], change: dict[str, Any]
) -> None:
    """Their tokens would be lost: they could start only when the rate gives new ones."""
    app = new_app()
    mail, released = Turnstile(app, name="mail", limits=limits), record(app, JobReleased)
    app.task(name="other")(lambda: None)
    if before:
        await from_another_process(app, **before)
    async with with_mails_ahead(app, mail) as worker:
        await app.settings.set(**change)
        await eventually(lambda: worker.parts.gate._obeyed is app.runtime.live_settings.snapshot)
    assert released == []


@pytest.mark.parametrize(
    "change",
    [
        {"task": "mail", "limit": 1},
        {"task": "mail", "rate": Rate(50, per=1, burst=1)},
        {"queue": "default", "limit": 1},
        {"name": "smtp", "limit": 1},
    ],
    ids=["limit", "rate", "queue", "name"],
)
async def test_jobs_handed_back_by_a_lower_limit_or_rate_say_why(change: dict[str, Any]) -> None:
    app = new_app()
    mail, released = Turnstile(app, name="mail", limits=Limit(2, name="smtp")), record(app, JobReleased)
    async with with_mails_ahead(app, mail):
        await app.settings.set(**change)
        await eventually(lambda: len(released) == 2)
    assert {event.reason for event in released} == {"its settings were changed before it started"}


async def test_jobs_claimed_ahead_obey_a_lower_limit_while_jobs_of_another_task_cannot_be_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker reads the limit at a moment at which the store does not wake jobs."""
    app = new_app()
    mail, released, failures = Turnstile(app, name="mail"), record(app, JobReleased), [StoreUnavailable("away")] * 2
    app.task(name="other")(lambda: None)
    wake = app.store.wake

    async def fail_first(numbers: Any) -> Any:
        if "paused:other" in numbers and failures:
            raise failures.pop()
        return await wake(numbers)

    await app.settings.set(task="other", paused=True)
    await app.settings.clear(task="other")
    async with with_mails_ahead(app, mail):
        monkeypatch.setattr(app.store, "wake", fail_first)
        await from_another_process(app, task="mail", limit=1)
        await eventually(lambda: len(released) == 2)
        await eventually(lambda: not failures)


@pytest.mark.parametrize("looks", ["state", "gate"])
async def test_jobs_claimed_ahead_obey_a_lower_limit_while_jobs_of_another_task_are_being_woken(
    looks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if looks == "gate":  # another look of this process reads the settings, as the worker is not woken
        monkeypatch.setattr("mainspring.worker.worker.FRESH_FOR", 3600.0)
        monkeypatch.setattr(settings_api, "Bundle", lambda writes, note, spread: Bundle(writes, note=note))
    app = new_app()
    mail, released, may_end = Turnstile(app, name="mail"), record(app, JobReleased), asyncio.Event()
    app.task(name="other")(lambda: None)
    wake, wakes = app.store.wake, asyncio.Event()

    async def wait(numbers: Any) -> Any:
        if "paused:other" in numbers:
            wakes.set()
            await may_end.wait()
        return await wake(numbers)

    await app.settings.set(task="other", paused=True)
    await app.settings.clear(task="other")
    async with with_mails_ahead(app, mail) as worker:
        monkeypatch.setattr(app.store, "wake", wait)
        await from_another_process(app, task="mail", limit=1)
        look = asyncio.create_task(app.runtime.live_settings.look())
        await wakes.wait()
        if looks == "gate":
            worker.parts.gate._looked_at = worker.parts.gate.open_until = gate.NEVER
            await worker.parts.gate.refresh()
        await eventually(lambda: len(released) == 2)
        may_end.set()
        await look


async def from_another_process(app: Mainspring, **settings: Any) -> None:
    operator = Mainspring(app.store)
    operator.runtime.live_settings.listeners.clear()  # it dies after its write
    await operator.settings.set(**settings)


async def test_an_incomplete_chunk_is_handed_back_by_a_halt() -> None:
    app = new_app()
    chunks: list[list[int]] = []

    @app.task(chunk=Chunk(size=10, wait=0.1))
    async def together(numbers: list[int]) -> None:
        chunks.append(numbers)

    async with working(app):
        await together.enqueue_many(range(3))
        await eventually(lambda: claimed(app, 3))
        assert (await app.halt()).confirmed
        assert len(await jobs_of(app, Status.PENDING)) == 3
        await app.resume()
        await eventually(lambda: completed(app, 3))
    assert sorted(number for chunk in chunks for number in chunk) == [0, 1, 2]


async def test_a_job_that_waits_for_a_feature_is_handed_back_by_a_halt() -> None:
    app = new_app()
    turnstile = Turnstile(app, limits=Limit(1))
    async with working(app):
        await turnstile.work.enqueue_many([{}] * 2)
        await eventually(lambda: turnstile.started == 1)
        assert (await app.halt()).confirmed
        turnstile.go.set()
        await eventually(lambda: completed(app, 1))
        assert turnstile.started == 1
        await app.resume()
        await eventually(lambda: completed(app, 2))


async def test_jobs_of_a_claim_under_way_do_not_start_after_a_halt() -> None:
    class SlowAnswer(MemoryStore):
        taken, answered = asyncio.Event(), asyncio.Event()

        async def claim(self, *args: Any, **kwargs: Any) -> Claims:
            claims = await super().claim(*args, **kwargs)
            if claims.jobs:
                self.taken.set()
                await self.answered.wait()
            return claims

    store = SlowAnswer()
    app = Mainspring(store)
    turnstile = Turnstile(app)
    async with working(app):
        await turnstile.work.enqueue()
        await store.taken.wait()
        halting = asyncio.create_task(app.halt())
        await eventually(app.halts)
        store.answered.set()
        assert (await halting).confirmed
        assert turnstile.started == 0
        assert len(await jobs_of(app, Status.PENDING)) == 1


async def test_a_thread_that_is_slow_to_begin_checks_the_halts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()
    begun, go, ran = threading.Event(), threading.Event(), threading.Event()
    permits = gate.Gate.permits

    def slow(self: gate.Gate, run: Run) -> bool:
        begun.set()
        go.wait(10)
        return permits(self, run)

    monkeypatch.setattr(gate.Gate, "permits", slow)

    @app.task()
    def work() -> None:
        ran.set()

    async with working(app):
        job = await work.enqueue()
        await eventually(begun.is_set)
        assert (await app.halt()).confirmed
        go.set()
        await reached(app, job.id, statuses=(Status.PENDING,))
    assert not ran.is_set()


@pytest.mark.slow
async def test_a_job_that_waits_for_a_child_process_does_not_start_after_a_halt() -> None:
    app = app_of_children
    app.runtime.store = MemoryStore()
    async with working(app, child_processes=1):
        first, second = [await app.tasks["pid_of_coroutine"].using(isolation="process").enqueue() for _ in range(2)]
        await eventually(lambda: claimed(app, 2))
        assert (await app.halt()).confirmed
        found = [await first.get(), await second.get()]
        assert Status.PENDING in [job.status for job in found]
        assert all(job.attempts == 0 for job in found if job.status is Status.PENDING)
        await app.resume()
        assert await first.result(30)
        assert await second.result(30)


async def test_a_handler_can_halt_its_own_system() -> None:
    app = new_app()
    results: list[bool] = []

    @app.task()
    async def stop_all() -> None:
        results.append((await app.halt()).confirmed)

    async with working(app):
        job = await stop_all.enqueue()
        await reached(app, job.id, statuses=(Status.COMPLETED,))
    await app.resume()
    await stop_all.enqueue()
    await Worker(app).drain()
    assert results == [True, True]


async def test_a_worker_that_joins_during_a_halt_starts_nothing() -> None:
    app = new_app()
    turnstile = Turnstile(app)
    await turnstile.work.enqueue()
    halt = (await app.halt()).halt
    async with working(app) as worker:
        await eventually(lambda: confirmed(app, halt))
        assert worker.parts.gate.halted
    assert turnstile.started == 0


async def confirmed(app: Mainspring, halt: Any) -> bool:
    return not await app.store.unconfirmed(halt)


async def test_a_halt_ends_at_its_time() -> None:
    app = new_app()
    turnstile = Turnstile(app)
    turnstile.go.set()
    async with working(app):
        assert (await app.halt(until=app.now() + timedelta(seconds=0.2))).confirmed
        await turnstile.work.enqueue()
        await eventually(lambda: completed(app, 1))


# -- behind middleware ----------------------------------------------------------------------------


THREE = Chunk(size=3, wait=0)


async def halt(app: Mainspring) -> None:
    assert (await app.halt()).confirmed


async def pause(app: Mainspring) -> None:
    assert (await app.pause("default")).confirmed


async def open_breaker(app: Mainspring) -> None:
    await app.breakers.open("mail")


async def let_go_on(app: Mainspring) -> None:
    await app.resume()
    await app.resume("default")
    await app.breakers.close("mail")


@pytest.mark.parametrize("kind", ["coroutine", "chunk"])
@pytest.mark.parametrize("stop", [halt, pause, open_breaker], ids=lambda stop: stop.__name__)
async def test_a_coroutine_behind_middleware_that_waits_does_not_start_after(stop: Any, kind: str) -> None:
    app = new_app()
    waiting = Waiting(app, kind, chunk=THREE, breaker="mail")
    async with working(app):
        ids = await waiting.enqueue(3)
        await stop(app)
        waiting.go.set()
        status = Status.SUSPENDED if stop is open_breaker else Status.PENDING
        jobs = await reached(app, *ids, statuses=(status, Status.COMPLETED))
        assert ([(job.status, job.attempts) for job in jobs], waiting.calls) == ([(status, 0)] * 3, [])
        await let_go_on(app)
        await ended(app, *ids)
    assert sorted(waiting.calls) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["plain", "chunk"])
async def test_a_thread_whose_middleware_waits_does_not_start_after_a_halt(kind: str) -> None:
    app = new_app()
    begun, go, ran = threading.Event(), threading.Event(), threading.Event()

    @app.around_run
    def wait(_call: RunCall) -> Iterator[None]:
        begun.set()
        go.wait(DEADLINE)
        yield

    def handle(numbers: list[int]) -> None:
        ran.set()

    work: Any = app.task(chunk=Chunk(size=1))(handle) if kind == "chunk" else app.task()(handle)
    async with working(app):
        job = await work.enqueue(1 if kind == "chunk" else [1])
        await eventually(begun.is_set)
        assert (await app.halt()).confirmed
        go.set()
        (found,) = await reached(app, job.id, statuses=(Status.PENDING, Status.COMPLETED))
    assert (found.status, found.attempts, ran.is_set()) == (Status.PENDING, 0, False)


@pytest.mark.slow
@pytest.mark.parametrize("task", [wrapped.isolated, wrapped.isolated_coroutine], ids=["plain", "coroutine"])
async def test_a_child_process_whose_middleware_waits_does_not_start_after_a_halt(task: Any, tmp_path: Path) -> None:
    app = wrapped.app
    app.runtime.store = MemoryStore()
    async with working(app, child_processes=1):
        job = await task.using(headers={"wait in": str(tmp_path)}).enqueue()
        await eventually((tmp_path / "begun").exists)
        assert (await app.halt()).confirmed
        (tmp_path / "go").touch()
        (found,) = await reached(app, job.id, statuses=(Status.PENDING, Status.COMPLETED))
        assert (found.status, found.attempts) == (Status.PENDING, 0)
        await app.resume()
        assert await job.result(DEADLINE)


@pytest.mark.parametrize("kind", ["coroutine", "chunk"])
async def test_middleware_that_catches_everything_does_not_complete_a_job_that_was_held_back(kind: str) -> None:
    app = new_app()

    @app.around_run
    async def swallow(_call: RunCall) -> AsyncIterator[None]:
        with contextlib.suppress(BaseException):
            yield

    waiting = Waiting(app, kind, chunk=THREE, breaker="mail")
    async with working(app):
        ids = await waiting.enqueue(3)
        await halt(app)
        waiting.go.set()
        jobs = await reached(app, *ids, statuses=(Status.PENDING, Status.COMPLETED))
    assert ([job.status for job in jobs], waiting.calls) == ([Status.PENDING] * 3, [])


async def test_a_start_behind_middleware_that_waited_looks_at_the_halts_again_if_that_is_long_ago() -> None:
    """Otherwise middleware that keeps the event loop busy for seconds would hold its job back each time."""
    app = new_app()
    waiting = Waiting(app, "coroutine", chunk=THREE, breaker="mail")
    async with working(app) as worker:
        ids = await waiting.enqueue(3)
        worker.parts.gate._looked_at = gate.NEVER
        waiting.go.set()
        await ended(app, *ids)
        assert worker.parts.after_ack.released == 0
    assert sorted(waiting.calls) == [0, 1, 2]


# -- features -------------------------------------------------------------------------------------


async def test_a_breaker_that_opens_while_a_start_looks_at_the_halts_stops_the_start() -> None:
    app = new_app()
    app.task(name="send", breaker="mail")(lambda: None)
    run = run_of(app, "send", options='{"breaker": "mail"}')
    run.admitted = True
    async with working(app) as worker:
        halts, worker.parts.gate._looked_at = app.store.halts, gate.NEVER

        async def open_first() -> Any:
            await app.breakers.open("mail")
            return await halts()

        app.store.halts = open_first  # type: ignore[method-assign]
        await worker.parts.gate.end_unstartable([run])
    assert (run.ended, run.stop) == (True, Stop.HALTED)


@pytest.mark.parametrize("kind", ["async", "chunk"])
async def test_jobs_that_passed_a_breaker_do_not_start_after_it_opened(kind: str) -> None:
    app = new_app()
    calls: list[int] = []
    go = asyncio.Event()

    @app.task()
    async def occupy() -> None:
        await go.wait()

    @app.task(breaker="mail")
    async def send(number: int) -> None:
        calls.append(number)

    @app.task(breaker="mail", chunk=Chunk(size=10, wait=0.05))
    async def send_all(numbers: list[int]) -> None:
        calls.extend(numbers)

    async with working(app, concurrency=1) as worker:
        prefetching(worker)
        await occupy.enqueue()
        await eventually(lambda: claimed(app, 1))
        if kind == "async":
            await send.enqueue_many([{"number": number} for number in range(3)])
        else:
            await send_all.enqueue_many(range(3))
        await eventually(lambda: len(worker.parts.runs.ready) == (3 if kind == "async" else 1))  # they have passed
        await app.breakers.open("mail")
        go.set()
        suspended = await eventually(lambda: in_status(app, Status.SUSPENDED, 3))
        assert ([job.attempts for job in suspended], calls) == ([0, 0, 0], [])
        await app.breakers.close("mail")
        await eventually(lambda: completed(app, 4))
    assert sorted(calls) == [0, 1, 2]


async def in_status(app: Mainspring, status: Status, number: int) -> list[Job]:
    found = await jobs_of(app, status)
    return found if len(found) == number else []


async def test_a_job_that_expires_while_it_waits_in_its_worker_does_not_start() -> None:
    app = new_app()
    ran, go = asyncio.Event(), asyncio.Event()

    @app.task()
    async def occupy() -> None:
        await go.wait()

    @app.task(expires=0.3)
    async def late() -> None:
        ran.set()

    async with working(app, concurrency=1) as worker:
        prefetching(worker)
        await occupy.enqueue()
        await eventually(lambda: claimed(app, 1))
        job = await late.enqueue()
        await eventually(lambda: worker.parts.runs.ready)
        created = (await job.get()).created_at
        await eventually(lambda: app.now() > created + timedelta(seconds=0.35))
        go.set()
        (cancelled,) = await reached(app, job.id, statuses=(Status.CANCELLED,))
    assert "expired" in cancelled.reason
    assert not ran.is_set()


async def test_a_job_stopped_by_an_open_breaker_gives_its_limit_slot_back() -> None:
    app = new_app()
    calls: list[int] = []
    go = asyncio.Event()

    @app.task()
    async def occupy() -> None:
        await go.wait()

    @app.task(breaker="mail", limits=Limit(1))
    async def send(number: int) -> None:
        calls.append(number)

    async with working(app, concurrency=1) as worker:
        prefetching(worker)
        await occupy.enqueue()
        await eventually(lambda: claimed(app, 1))
        await send.enqueue(number=1)
        await eventually(lambda: worker.parts.runs.ready)
        await app.breakers.open("mail")
        go.set()
        await eventually(lambda: in_status(app, Status.SUSPENDED, 1))
        await app.breakers.close("mail")
        await send.enqueue(number=2)
        await eventually(lambda: completed(app, 3))
    assert sorted(calls) == [1, 2]


async def test_a_feature_that_raises_at_the_start_does_not_end_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()

    @app.task(breaker="mail")
    async def send() -> str:
        return "sent"

    recheck, failures = app.breakers.recheck, [RuntimeError("broken")]

    async def fail_once(name: str) -> Any:
        if failures:
            raise failures.pop()
        return await recheck(name)

    monkeypatch.setattr(app.breakers, "recheck", fail_once)
    async with working(app, concurrency=1):
        job = await send.enqueue()
        assert await job.result(30) == "sent"
    assert (await job.get()).attempts == 1


# -- how old the last look may be -----------------------------------------------------------------


async def test_nothing_starts_without_a_recent_look_at_the_halts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "TRUSTED_FOR", 0.05)
    store = FaultyStore()
    app = Mainspring(store)
    turnstile = Turnstile(app)
    turnstile.go.set()
    events = record(app, JobStarted)
    async with working(app) as worker:
        await eventually(lambda: not worker.parts.gate.halted and worker.parts.gate.open_until > gate.NEVER)
        store.fail("halts", fault=StoreUnavailable("cut off"))
        await eventually(lambda: since_boot() > worker.parts.gate.open_until)
        job = await turnstile.work.enqueue()
        crowded = await eventually(lambda: released(app, job.id))
        assert (crowded.attempts, turnstile.started, events) == (0, 0, [])
        store.heal()
        await eventually(lambda: completed(app, 1))


async def released(app: Mainspring, job_id: str) -> Job | None:
    job = await app.jobs.get(job_id)
    return job if job.reason == "its worker had no room for it" else None


# -- waiting for the workers ----------------------------------------------------------------------


async def test_workers_that_do_not_confirm_are_named(caplog: pytest.LogCaptureFixture) -> None:
    app = new_app()
    events = record(app, Halted)
    await app.store.join(member("deaf"), lambda _: None)
    async with working(app):
        result = await app.halt(wait=0.05)
    (late,) = result.unconfirmed
    assert (result.confirmed, late.worker.id, late.worker.pid) == (False, "deaf", 1)
    assert "alive (last heartbeat 0." in late.why
    assert fields_of(caplog, "halt_unconfirmed")[0]["workers"] == ("deaf",)
    assert (await eventually(lambda: events))[0].unconfirmed == ("deaf",)


async def test_a_halt_can_wait_without_a_limit_or_not_at_all() -> None:
    app = new_app()
    await app.store.join(member("deaf"), lambda _: None)
    began = time.monotonic()
    assert not (await app.halt(wait=0)).confirmed
    assert not (await app.pause("mail", wait=timedelta(milliseconds=10))).confirmed
    assert time.monotonic() - began < 2
    waiting = asyncio.create_task(app.halt(wait=None))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await app.store.leave("deaf")
    assert (await waiting).confirmed


async def test_a_pause_does_not_wait_for_workers_of_other_queues() -> None:
    app = new_app()
    async with working(app, queues=["sms"]):
        assert (await app.pause("mail", wait=None)).confirmed


async def test_two_halts_at_once_are_both_confirmed() -> None:
    app = new_app()
    async with working(app):
        results = await asyncio.gather(app.halt("a"), app.halt("b"), app.pause("mail"))
    assert [result.confirmed for result in results] == [True] * 3


async def test_a_halt_stops_waiting_when_it_is_resumed() -> None:
    app = new_app()
    await app.store.join(member("deaf"), lambda _: None)
    waiting = asyncio.create_task(app.halt(wait=None))
    await eventually(app.halts)
    await app.resume()
    assert (await waiting).confirmed


@pytest.mark.parametrize("wait", [-1, timedelta(seconds=-1)])
async def test_a_negative_wait_is_refused(wait: Any) -> None:
    app = new_app()
    with pytest.raises(ConfigurationError, match="negative"):
        await app.halt(wait=wait)
    assert await app.halts() == []
