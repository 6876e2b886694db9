"""The machine's clock is set wrong, for a moment or for long, and right again: nothing fires early, nothing stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Breaker, Context, Limit, Mainspring, Rate, Retention, Retry
from mainspring.clock import SETTLE_SECONDS, SteadyClock
from mainspring.events import ClockHeld, ClockSettled, ScheduleFired
from mainspring.features.breakers.rules import Phase
from mainspring.features.limits.options import COLLECTION as LIMITS
from mainspring.health import State
from mainspring.job import Job, Status
from mainspring.stores.documents import Listing
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.testing.clock import ManualClock
from mainspring.worker import maintenance
from mainspring.worker.clock_watch import ClockWatch, put_right
from tests.dynamodb import FreshStore
from tests.worker.working import DEADLINE, eventually, fields_of, working

pytestmark = pytest.mark.slow

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR = 3600
KINDS = ["memory", "sqlite", "dynamodb"]


@dataclass
class Shop:
    """An application on a machine whose clock can be set, and what happened in it."""

    app: Mainspring
    machine: ManualClock
    ran: list[str] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)
    fired: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        app, note = self.app, self.ran.append
        app.on(ClockHeld)(lambda event: self.held.append(event.by))
        app.on(ClockSettled)(lambda event: self.settled.append(event.by))
        app.on(ScheduleFired)(lambda event: self.fired.append(event.nominal))

        @app.task(name="plain")
        async def plain(name: str) -> None:
            note(name)

        @app.task(name="rated", limits=[Rate(1, per=1)])
        async def rated() -> None:
            note("rated")

        @app.task(name="limited", limits=[Limit(1)])
        async def limited() -> None:
            await self.gate.wait()
            note("limited")

        @app.task(name="flaky", retry=Retry.fixed(60))
        async def flaky() -> None:
            note("flaky")
            if self.ran.count("flaky") == 1:
                raise RuntimeError("try again")

        @app.task(name="sleeper")
        async def sleeper(ctx: Context) -> None:
            await ctx.sleep(60)
            note("slept")

        app.breakers.configure("mail", Breaker(probes=1))

        @app.task(name="guarded", breaker="mail")
        async def guarded() -> None:
            note("guarded")

        @app.task(name="calling")
        async def calling(ctx: Context) -> None:
            async with ctx.breaker("mail"):
                note("calling")

        @app.every("*/20 * * * *", id="often")
        @app.task(name="tick")
        async def tick() -> None: ...

    async def enqueue(self, task: str, **payload: Any) -> Any:
        return await self.app.tasks[task].enqueue(**payload)

    async def pass_by(self, seconds: float, until: Callable[[], bool] = lambda: True, *, longer: bool = True) -> None:
        """Let time pass, second by second, and go on with it until this has happened, unless told not to."""
        for _ in range(round(seconds)):
            self.machine.advance(1)
            await asyncio.sleep(0)
        end = time.monotonic() + DEADLINE
        while longer and not until() and time.monotonic() < end:
            self.machine.advance(1)
            await asyncio.sleep(0.1)
        await eventually(until)

    async def latest_look(self) -> datetime:
        """When the last of the limits' documents comes due."""
        found = await self.app.store.browse(Listing(LIMITS))
        return datetime.fromtimestamp(max([0, *(document.due_at or 0 for document in found)]) / 1000, UTC)


@pytest.fixture(params=KINDS)
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    machine = ManualClock(START + timedelta(minutes=1))
    async with AsyncExitStack() as stack:
        made = Mainspring(store_of(request.param, tmp_path, machine))
        await made.store.open()
        stack.push_async_callback(made.close)
        yield Shop(made, machine)


def store_of(kind: str, folder: Path, machine: ManualClock) -> Store:
    clock = SteadyClock(machine)
    if kind == "memory":
        return MemoryStore(clock=clock)
    return SqliteStore(folder / "jobs.db", clock=clock) if kind == "sqlite" else FreshStore(clock=clock)


async def test_a_clock_an_hour_ahead_for_ten_seconds_changes_nothing(shop: Shop) -> None:
    app, machine = shop.app, shop.machine
    async with working(app, concurrency=10):
        for task in ("flaky", "sleeper", "limited", "limited", "rated", "rated", "rated"):
            await shop.enqueue(task)
        await app.tasks["plain"].using(delay=60).enqueue(name="later")
        await eventually(lambda: shop.ran.count("rated") == 1 and "flaky" in shop.ran)
        machine.shift(HOUR)
        await eventually(lambda: shop.held == [HOUR])
        health = await app.health()
        assert health.state is State.DEGRADED
        assert "clock jumped 3600 s ahead" in health.problems[0]
        await shop.enqueue("plain", name="meanwhile")
        await eventually(lambda: "meanwhile" in shop.ran)
        await shop.pass_by(10, lambda: shop.ran.count("rated") > 1, longer=False)
        machine.shift(-HOUR)
        await eventually(lambda: shop.settled == [0.0])
        assert (await app.health()).state is State.OK
        assert (shop.fired, shop.ran.count("flaky"), "later" in shop.ran, "slept" in shop.ran) == ([], 1, False, False)
        assert await shop.latest_look() < app.now() + timedelta(minutes=1)
        shop.gate.set()
        await shop.pass_by(3, lambda: shop.ran.count("limited") == 2 and shop.ran.count("rated") == 3)
        await shop.pass_by(60, lambda: {"later", "slept"} <= set(shop.ran) and shop.ran.count("flaky") == 2)
        assert shop.fired == []


async def test_a_lasting_jump_is_accepted_within_a_minute(shop: Shop) -> None:
    async with working(shop.app):
        await shop.app.tasks["plain"].using(delay=HOUR / 2).enqueue(name="later")
        await eventually(shop.app.schedules.list)
        shop.machine.shift(HOUR)
        await eventually(lambda: shop.held == [HOUR])
        await shop.pass_by(SETTLE_SECONDS - 5)
        assert (shop.ran, shop.fired) == ([], [])
        await shop.pass_by(5, lambda: shop.ran == ["later"] and len(shop.fired) == 1)
        await eventually(lambda: shop.settled == [pytest.approx(HOUR, abs=5)])
        assert (await shop.app.health()).state is State.OK


async def test_a_jump_of_a_few_seconds_is_not_reported() -> None:
    machine = ManualClock(START)
    shop = Shop(Mainspring(MemoryStore(clock=SteadyClock(machine))), machine)
    watch = ClockWatch(shop.app.runtime)
    await watch.look()
    machine.shift(3)
    for _ in range(round(SETTLE_SECONDS) + 5):
        await watch.look()
        machine.advance(1)
    assert shop.app.store.clock.now() == machine.now()
    await watch.look()
    await shop.app.runtime.bus.flush()
    assert (shop.held, shop.settled) == ([], [])
    await shop.app.close()


async def test_jobs_run_on_after_a_clock_that_was_ahead_goes_back(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Jobs wait for limits, a retry waits, and schedules have fired, all by a clock that was an hour ahead."""
    app, machine = shop.app, shop.machine
    async with working(app, concurrency=10):
        await eventually(app.schedules.list)  # by the right clock
        machine.shift(HOUR)
        await eventually(lambda: shop.held == [HOUR])
        await shop.pass_by(SETTLE_SECONDS, lambda: len(shop.settled) == 1 and len(shop.fired) == 1)
        for task in ("flaky", "limited", "limited", "rated", "rated", "rated"):
            await shop.enqueue(task)
        await eventually(lambda: "flaky" in shop.ran and "rated" in shop.ran)
        await shop.pass_by(19 * 60, lambda: len(shop.fired) == 2)  # that of 10:20, at 9:20
        await shop.enqueue("flaky")
        shop.ran.clear()
        shop.ran.append("rated")
        machine.shift(-HOUR)
        await eventually(lambda: shop.held == [HOUR, pytest.approx(-HOUR, abs=5)])
        await shop.pass_by(SETTLE_SECONDS, lambda: len(shop.settled) == 2)
        await eventually(lambda: fields_of(caplog, "clock_went_back"))  # the times are repaired, by this time
        shop.gate.set()
        await shop.enqueue("rated")
        await shop.pass_by(3, lambda: "limited" in shop.ran and shop.ran.count("rated") >= 2)
        await shop.pass_by(20 * 60, lambda: len(shop.fired) >= 3)  # of 9:40, which had been passed over
        await shop.pass_by(45 * 60)
        await eventually(lambda: app.store.clock.now() == machine.now())
    utc = [datetime.fromisoformat(nominal).time() for nominal in shop.fired]
    assert [f"{at:%H:%M}" for at in utc[:3]] == ["10:00", "10:20", "09:40"]
    assert len(set(utc)) == len(utc)


async def test_a_breaker_that_opened_by_a_clock_that_was_ahead_closes_in_time(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    app, machine = shop.app, shop.machine
    async with working(app, concurrency=10):
        machine.shift(HOUR)
        await shop.pass_by(SETTLE_SECONDS, lambda: len(shop.settled) == 1)
        await app.breakers.open("mail", open_for=60)
        held_back = [(await shop.enqueue(task)).id for task in ("guarded", "calling")]
        await eventually(lambda: all_wait_for_the_breaker(app, held_back))
        machine.shift(-HOUR)
        await shop.pass_by(SETTLE_SECONDS, lambda: len(shop.settled) == 2)
        await eventually(lambda: fields_of(caplog, "clock_went_back"))  # the times are repaired, by this time
        assert shop.ran == []
        await shop.pass_by(60, lambda: sorted(shop.ran) == ["calling", "guarded"])
        assert (await app.breakers.get("mail")).phase is Phase.CLOSED


async def test_a_second_worker_does_not_move_a_retry_again() -> None:
    machine = ManualClock(START)
    shop = Shop(Mainspring(MemoryStore(clock=machine)), machine)
    job = await shop.enqueue("flaky")
    await shop.app.worker().drain()
    machine.shift(-HOUR)
    for _ in range(2):
        await put_right(shop.app.runtime, HOUR * 1000)
    assert [job.run_at for job in await find(shop.app, job.id)] == [shop.app.now() + timedelta(seconds=60)]
    await shop.app.close()


async def test_a_worker_that_starts_after_the_clock_went_back_repairs_the_times(tmp_path: Path) -> None:
    machine = ManualClock(START + timedelta(hours=1))
    before = Shop(Mainspring(store_of("sqlite", tmp_path, machine)), machine)
    async with working(before.app, concurrency=10):
        for task in ("limited", "limited", "flaky"):
            await before.enqueue(task)
        await eventually(lambda: "flaky" in before.ran)
    await before.enqueue("plain", name="new")
    await before.app.close()
    file = tmp_path / "jobs.db-workers" / "clock"
    file.write_text(file.read_text().replace('"machine": "', '"machine": "before it was started again '))
    machine.shift(-HOUR)
    after = Shop(Mainspring(store_of("sqlite", tmp_path, machine)), machine)
    after.gate.set()
    after.ran.append("flaky")
    async with working(after.app, concurrency=10):
        await eventually(lambda: "new" in after.ran and after.ran.count("limited") == 2)
        await after.pass_by(60, lambda: after.ran.count("flaky") == 2)
    await after.app.close()


async def test_a_jump_of_a_year_deletes_nothing_even_if_it_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PRUNE_EVERY", 0.0)
    machine = ManualClock(START)
    shop = Shop(Mainspring(store_of("sqlite", tmp_path, machine)), machine)
    app = shop.app

    @app.task(retention=Retention(completed=timedelta(days=7)))
    async def work() -> None: ...

    job = await work.enqueue()
    async with working(app):
        await eventually(lambda: is_completed(app, job.id))
        machine.shift(timedelta(days=365))
        await eventually(lambda: len(shop.held) == 1)
        await shop.pass_by(SETTLE_SECONDS, lambda: len(shop.settled) == 1)
        await shop.pass_by(60)
        health = await app.health()
        assert health.state is State.DEGRADED
        assert "nothing is deleted" in health.problems[0]
    async with working(app):  # also another worker, soon after
        await shop.pass_by(60)
        assert await is_completed(app, job.id)
        machine.advance(timedelta(days=1))
        await eventually(lambda: is_gone(app, job.id))
    await app.close()


async def find(app: Mainspring, job_id: str) -> list[Job]:
    return await app.store.get([job_id])


async def all_wait_for_the_breaker(app: Mainspring, ids: list[str]) -> bool:
    return all(job.reason == "the circuit breaker 'mail' is open" for job in await app.store.get(ids))


async def is_completed(app: Mainspring, job_id: str) -> bool:
    return [job.status for job in await find(app, job_id)] == [Status.COMPLETED]


async def is_gone(app: Mainspring, job_id: str) -> bool:
    return await find(app, job_id) == []
