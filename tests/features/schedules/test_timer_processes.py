"""Several processes, stores of their own, and code that changes between their starts."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.errors import ConfigurationError
from mainspring.features.schedules.rules import PACKAGED, Interval, Schedule, tzdata_version
from mainspring.features.schedules.storage import StoredSchedule
from mainspring.stores.documents import Bundle, Key, Write
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.testing.clock import ManualClock
from tests.features.schedules.year import CHANGED, newer_tzdata
from tests.shared import KINDS, Make, applications, stores
from tests.worker.working import working

pytestmark = pytest.mark.slow


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 3, 1, 12, tzinfo=UTC))


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Make:
    return stores(request.param, tmp_path, clock)


def apps(make: Make, number: int = 1) -> AbstractAsyncContextManager[list[Mainspring]]:
    return applications(make, number, lambda app: app.task(name="work")(work))


async def work() -> None: ...


def job_of(app: Mainspring) -> Any:
    return app.tasks["work"].prepare()


# -- at once --------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_many_schedulers_fire_each_occurrence_once(make: Make, clock: ManualClock) -> None:
    async with apps(make, 5) as several:
        first = several[0]
        for number in range(4):
            await first.schedules.put(f"s{number}", Interval("1m"), job_of(first))
        for _ in range(10):
            clock.advance(60)
            await asyncio.gather(*(app.runtime.timers.run_due() for app in several))
        jobs = [job async for job in first.jobs.all()]
        assert len(jobs) == 40
        for number in range(4):
            entries = await first.schedules.ledger(f"s{number}")
            assert {entry.job_id for entry in entries} == {
                job.id for job in jobs if job.target == ("schedule", f"s{number}")
            }
            assert (await first.schedules.get(f"s{number}")).fires == 10


async def test_many_workers_that_start_at_once_declare_a_schedule_once(make: Make) -> None:
    async with apps(make, 5) as several:
        for app in several:
            app.every("@daily", id="a")(app.tasks["work"])
        await asyncio.gather(*(app.schedules.reconcile() for app in several))
        assert [schedule.id for schedule in await several[0].schedules.list()] == ["a"]


async def test_a_change_and_a_fire_at_once_are_both_done(make: Make, clock: ManualClock) -> None:
    async with apps(make, 2) as (one, other):
        await one.schedules.put("a", Interval("1m"), job_of(one))
        for _ in range(5):
            clock.advance(60)
            await asyncio.gather(one.runtime.timers.run_due(), other.schedules.pause("a", until=one.now()))
        stored = await one.schedules.get("a")
        assert stored.schedule.pause is not None
        entries = await one.schedules.ledger("a")
        assert sum(entry.count for entry in entries) == 5


async def test_a_fire_just_before_a_deletion_stays_in_the_ledger(make: Make, clock: ManualClock) -> None:
    async with apps(make, 2) as (one, other):
        await one.schedules.put("a", Interval("1m"), job_of(one))
        clock.advance(60)
        write = one.store.write
        calls: list[Any] = []

        async def late(bundles: Any) -> Any:
            if not calls:
                calls.append(await other.runtime.timers.run_due())
            return await write(bundles)

        one.store.write = late  # type: ignore[method-assign]
        await one.schedules.delete("a")
        assert [entry.became for entry in await other.schedules.ledger("a")] == ["fired"]
        assert await other.schedules.list() == []


async def test_a_due_occurrence_of_a_removed_schedule_is_in_the_ledger_as_skipped(
    make: Make, clock: ManualClock
) -> None:
    await declared(make, ("a", "every 1h"))
    clock.advance(3600)
    await declared(make, ("b", "@daily"))
    async with apps(make) as (app,):
        (entry,) = await app.schedules.ledger("a")
        assert (entry.became, entry.reason, entry.why) == ("skipped", "removed", "it is no longer in the code")


async def test_a_worker_fires_schedules_on_time(tmp_path: Path) -> None:
    """By the real clock, also those that are put while it sleeps."""
    path = tmp_path / "jobs.db"
    app, other = Mainspring(SqliteStore(path)), Mainspring(SqliteStore(path))
    ran = asyncio.Event()

    @app.task()
    async def ring() -> None:
        ran.set()

    async with working(app, concurrency=1):
        await app.store.documents([])
        await other.schedules.put("soon", Interval("200ms"), ring.prepare())
        await asyncio.wait_for(ran.wait(), 10)
    await other.close()
    await app.close()


# -- what the code says ---------------------------------------------------------------------------------------


async def declared(make: Make, *rules: tuple[str, str]) -> list[StoredSchedule]:
    """What is in the store after a program with these has started."""
    async with apps(make) as (app,):
        for name, rule in rules:
            app.every(rule, id=name)(app.tasks["work"])
        await app.schedules.reconcile()
        return await app.schedules.list()


async def test_the_store_is_brought_in_line_with_the_code(make: Make) -> None:
    first = await declared(make, ("a", "@daily"), ("b", "@hourly"))
    again = await declared(make, ("a", "@daily"), ("b", "@hourly"))
    assert first == again
    changed = await declared(make, ("a", "@weekly"))
    same = [schedule.describe() == before.describe() for schedule, before in zip(changed, first, strict=True)]
    assert (same, [schedule.enabled for schedule in changed]) == ([False, True], [True, False])
    assert changed[1].disabled == "it is no longer in the code"
    assert changed[1].next is None
    back = await declared(make, ("b", "@hourly"), ("a", "@weekly"))
    assert all(schedule.enabled and schedule.next for schedule in back)


async def test_changes_made_at_start_are_in_the_audit_log(make: Make) -> None:
    for rule in ("@daily", "@daily", "@weekly"):
        await declared(make, ("a", rule), ("b", "@hourly"))
    await declared(make, ("b", "@hourly"))
    async with apps(make) as (app,):
        entries = [(entry.actor, entry.action, entry.detail["schedule"]) for entry in await app.audit()]
    assert entries == [
        ("code of tests", "schedule.disable", "a"),
        ("code of tests", "schedule.put", "a"),
        ("code of tests", "schedule.put", "b"),
        ("code of tests", "schedule.put", "a"),
    ]


async def test_schedules_put_by_hand_or_by_other_programs_are_left_alone(make: Make) -> None:
    async with apps(make) as (app,):
        await app.schedules.put("by hand", "@daily", job_of(app))
        theirs = StoredSchedule(
            "theirs", Schedule("@daily"), (await app.schedules.get("by hand")).job, app.now(), owner="another"
        )
        await app.store.write([Bundle((theirs.derived().write(),))])
    assert all(schedule.enabled for schedule in await declared(make, ("a", "@daily")))


async def test_a_schedule_of_another_programs_code_cannot_be_put_by_hand(make: Make) -> None:
    (stored,) = await declared(make, ("a", "@daily"))
    async with apps(make) as (app,):
        with pytest.raises(ConfigurationError, match=r"declared in the code of tests, which would change it back"):
            await app.schedules.put("a", "@hourly", job_of(app))
        assert await app.schedules.get("a") == stored


async def test_a_pause_outlives_a_start(make: Make) -> None:
    await declared(make, ("a", "@daily"))
    async with apps(make) as (app,):
        await app.schedules.pause("a")
    (after,) = await declared(make, ("a", "@hourly"))
    assert after.schedule.pause is not None
    assert after.next is None


async def test_a_declared_schedule_cannot_be_changed_by_hand(make: Make) -> None:
    async with apps(make) as (app,):
        app.every("@daily", id="a")(app.tasks["work"])
        await app.schedules.reconcile()
        with pytest.raises(ConfigurationError, match="code"):
            await app.schedules.put("a", "@hourly", job_of(app))
        with pytest.raises(ConfigurationError, match="code"):
            await app.schedules.delete("a")


def test_two_schedules_cannot_share_an_id() -> None:
    app = Mainspring("memory://")

    @app.every("@daily", id="a")
    async def one() -> None: ...

    with pytest.raises(ConfigurationError, match="two schedules"):

        @app.every("@daily", id="a")
        async def other() -> None: ...


def test_a_declared_schedule_needs_its_arguments() -> None:
    app = Mainspring("memory://")
    with pytest.raises(Exception, match="name"):

        @app.every("@daily")
        async def greet(name: str) -> None: ...

    @app.every("@daily", args={"name": "ana"}, id="other")
    async def welcome(name: str) -> None: ...

    assert json.loads(app.schedules.declared["other"].job.payload) == {"name": "ana"}


# -- what goes wrong ------------------------------------------------------------------------------------------


async def test_an_unreadable_document_blocks_no_other(make: Make, clock: ManualClock) -> None:
    """Say, a newer version's."""
    async with apps(make) as (app,):
        await app.store.write([Bundle((Write(Key("schedules", "", "0"), '{"new": 1}', due_at=clock.now() - 1000),))])
        await app.schedules.put("a", Interval("1m"), job_of(app))
        clock.advance(60)
        next_at = await app.runtime.timers.run_due()
        assert next_at is not None
        assert next_at > clock.now()
        assert await app.jobs.count() == 1


async def test_next_times_follow_a_new_tzdata(make: Make, clock: ManualClock) -> None:
    async with apps(make) as (app,):
        stored = await app.schedules.put("a", "daily 09:00", job_of(app), tz="Europe/Berlin")
        assert stored.next
        wrong = replace(stored.next, utc=stored.next.utc + timedelta(hours=1), offset=timedelta(0))
        old = replace(stored, tzdata="2000a", next=wrong)
        await app.store.write([Bundle((old.write(),))])
        await app.runtime.timers.refresh()
        after = await app.schedules.get("a")
        assert (after.next, after.tzdata) == (stored.next, tzdata_version())


async def test_a_worker_without_schedules_leaves_them_as_they_are(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Mainspring(MemoryStore(clock=clock))
    app.task(name="work")(work)
    old = replace(await app.schedules.put("a", Interval("1m"), job_of(app)), tzdata="2000a")
    await app.store.write([Bundle((old.write(),))])
    clock.advance(60)
    looked, run_due = asyncio.Event(), app.runtime.timers.run_due

    async def look(*, schedules: bool = True) -> int | None:
        next_at = await run_due(schedules=schedules)
        looked.set()
        return next_at

    monkeypatch.setattr(app.runtime.timers, "run_due", look)
    async with app.worker(schedules=False):
        await looked.wait()
    assert (await app.schedules.get("a")).to_data() == old.to_data()
    assert await app.jobs.count() == 0


async def test_a_newer_programs_tzdata_is_left_alone(clock: ManualClock) -> None:
    app = Mainspring(MemoryStore(clock=clock))
    app.task(name="work")(work)
    stored = await app.schedules.put("a", "daily 09:00", job_of(app))
    newer = replace(stored, tzdata="9999z")
    await app.store.write([Bundle((newer.write(),))])
    await app.runtime.timers.refresh()
    assert (await app.schedules.get("a")).tzdata == "9999z"


async def test_a_next_time_written_with_an_older_tzdata_is_corrected(
    make: Make, clock: ManualClock, tmp_path: Path
) -> None:
    """During an upgrade both run. The older one's idea of the next time must not stay."""
    newer = newer_tzdata(tmp_path)
    async with apps(make) as (app,):
        clock.advance(timedelta(days=60))  # summer
        with PACKAGED.reading(newer):
            stored = await app.schedules.put("a", "daily 07:00", job_of(app), tz=CHANGED)
        assert stored.tzdata == newer.version
        clock.advance(timedelta(days=1))
        await app.runtime.timers.run_due()
        with PACKAGED.reading(newer):
            await app.runtime.timers.refresh()
        after = await app.schedules.get("a")
        assert after.tzdata == newer.version
        assert after.next
        assert after.next.utc.hour == 6  # without summer time, which the older one believes in: 5
