"""Several processes, with stores of their own, that fire, change and delete at once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainspring import Mainspring, Occasion, Person, timers
from mainspring.clock import duration
from mainspring.errors import SystemHalted
from mainspring.events import OccasionFired
from mainspring.features.people.plan import OccasionPlan
from mainspring.features.people.timer import PLANS_AT_A_TIME, PLANS_PER_WRITE, YIELD_TO_OTHERS, OccasionTimer
from mainspring.features.schedules.rules import tzdata_version
from mainspring.job import Inserted
from mainspring.stores.documents import Bundle, Key, Listing, Write
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from tests.cli.waiting import wait_until
from tests.dynamodb import FreshStore
from tests.shared import KINDS, Make, applications, stores

pytestmark = pytest.mark.slow


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 3, 1, 12, tzinfo=UTC))


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Make:
    return stores(request.param, tmp_path, clock)


def apps(make: Make, number: int = 1) -> AbstractAsyncContextManager[list[Mainspring]]:
    return applications(make, number, lambda app: app.occasion("birthday")(greet))


async def greet(person: Person) -> None: ...


def a_person(number: int, tz: str = "Europe/Berlin", day: str = "1990-03-02") -> Person:
    return Person(id=f"p{number:03}", tz=tz, occasions=[Occasion(kind="birthday", date=day)])


async def keys(app: Mainspring) -> Counter[str | None]:
    return Counter([job.dedupe_key async for job in app.jobs.all()])


@pytest.mark.slow
async def test_many_schedulers_send_each_message_once(make: Make, clock: ManualClock) -> None:
    async with apps(make, 3) as several:
        await several[0].people.put_many(a_person(number) for number in range(250))
        clock.advance(timedelta(days=1))
        await asyncio.gather(*(app.runtime.timers.run_due() for app in several))
        assert await keys(several[0]) == {f"p{number:03}:birthday:2026-03-02": 1 for number in range(250)}
        clock.advance(timedelta(days=365))
        await asyncio.gather(*(app.runtime.timers.run_due() for app in several))
        assert set((await keys(several[0])).values()) == {1}
        assert len(await keys(several[0])) == 500


async def test_concurrent_moves_and_fires_send_each_message_once(make: Make, clock: ManualClock) -> None:
    """One process moves all people at the very moment at which another greets them."""
    async with apps(make, 2) as (one, other):
        await one.people.put_many(a_person(number) for number in range(40))
        clock.advance(timedelta(hours=20))  # 09:00 in Berlin
        await asyncio.gather(
            one.runtime.timers.run_due(),
            other.people.apply(
                [(f"p{n:03}", lambda known: known and known.with_changes(tz="America/New_York")) for n in range(40)]
            ),
            one.runtime.timers.run_due(),
        )
        for _ in range(3):
            clock.advance(timedelta(hours=6))
            await asyncio.gather(one.runtime.timers.run_due(), other.runtime.timers.run_due())
        assert await keys(one) == {f"p{number:03}:birthday:2026-03-02": 1 for number in range(40)}
        assert {person.tz for person in await one.people.list()} == {"America/New_York"}


async def test_two_concurrent_changes_of_a_person_both_take_effect(make: Make) -> None:
    async with apps(make, 3) as (one, two, three):
        await one.people.put(a_person(1))
        await asyncio.gather(
            one.people.update("p001", tz="Asia/Tokyo"),
            two.people.put_occasion("p001", Occasion(kind="name-day", date="03-03")),
            three.people.update("p001", first_name="Ana"),
        )
        person = await one.people.get("p001")
        assert (person.tz, person.first_name, len(person.occasions)) == ("Asia/Tokyo", "Ana", 2)
        found = await one.occasions.next("p001")
        assert {f"{occasion.local:%H:%M %Z}" for occasion in found} == {"09:00 JST"}


async def test_after_concurrent_changes_the_last_address_is_found(make: Make) -> None:
    async with apps(make, 2) as (one, other):
        await one.people.put(a_person(1))
        for number in range(5):
            addresses = [f"{name}{number}@example.com" for name in ("a", "b")]
            changes = [app.people.update("p001", email=to) for app, to in zip((one, other), addresses, strict=True)]
            await asyncio.gather(*changes)
        now = (await one.people.get("p001")).email
        lists = await one.store.browse(Listing("people.email"))
        assert [person.id for person in (await other.people.find(email=now)).people] == ["p001"]
        assert len(lists) == 1, "none of an earlier address is left"
        await other.people.delete("p001")
        assert await one.store.browse(Listing("people.email")) == []


async def test_handlers_in_threads_find_the_person(make: Make, clock: ManualClock) -> None:
    names: list[str] = []
    app = Mainspring(make())

    @app.occasion("birthday")
    def greet(person: Person) -> None:
        names.append(person.id)

    await app.people.put_many(a_person(number) for number in range(5))
    clock.advance(timedelta(days=1))
    await app.worker().drain()
    assert sorted(names) == [f"p{number:03}" for number in range(5)]
    await app.close()


@pytest.mark.slow
async def test_occasions_fire_once_on_dynamodb(clock: ManualClock) -> None:
    app = Mainspring(FreshStore(clock=clock))
    sent: list[tuple[str, str]] = []

    @app.occasion("birthday")
    async def greet(person: Person) -> None:
        sent.append((person.id, person.tz))

    await app.people.put_many(a_person(number) for number in range(20))
    await app.people.update("p001", tz="Asia/Tokyo")
    assert [occasion.person for occasion in await app.occasions.upcoming(limit=2)] == ["p001", "p000"]
    await app.people.delete("p002")
    clock.advance(timedelta(days=1))
    await asyncio.gather(*(app.runtime.timers.run_due() for _ in range(3)))
    await app.worker().drain()
    assert len(sent) == len(set(sent)) == 19
    assert ("p001", "Asia/Tokyo") in sent
    assert [entry.became for entry in await app.occasions.ledger("p003")] == ["fired"]
    await app.close()


async def test_a_second_worker_leaves_a_burst_to_the_first(make: Make, clock: ManualClock) -> None:
    async with applications(make, 2, lambda app: app.occasion("birthday")(greet)) as (one, other):
        await one.people.put_many(a_person(number) for number in range(PLANS_PER_WRITE + 10))
        clock.advance(timedelta(days=1))
        timers = [
            OccasionTimer(app.runtime.services, app.runtime.pipeline, "birthday", app.tasks["greet"])
            for app in (one, other)
        ]
        due = await one.store.due("occasions.birthday", PLANS_AT_A_TIME)
        assert len(due.documents) == PLANS_PER_WRITE + 10
        answers = [await timer.fire(due.documents, due.now) for timer in timers]
        assert answers == [None, due.now + YIELD_TO_OTHERS]
        assert max((await keys(one)).values()) == 1
        assert await one.jobs.count() == PLANS_PER_WRITE + 10


async def test_a_halt_in_the_middle_of_a_burst_loses_nothing(make: Make, clock: ManualClock) -> None:
    async with applications(make, 1, lambda app: app.occasion("birthday")(greet)) as (app,):
        people = PLANS_PER_WRITE * 2
        await app.people.put_many(a_person(number) for number in range(people))
        clock.advance(timedelta(days=1))
        write, calls = app.store.write, 0

        async def halt_later(bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
            nonlocal calls
            calls += 1
            if calls == 2:
                message = "halted"
                raise SystemHalted(message)
            return await write(bundles)

        app.store.write = halt_later  # type: ignore[method-assign]
        timer = OccasionTimer(app.runtime.services, app.runtime.pipeline, "birthday", app.tasks["greet"])
        due = await app.store.due("occasions.birthday", PLANS_AT_A_TIME)
        with pytest.raises(SystemHalted):
            await timer.fire(due.documents, due.now)
        assert await app.jobs.count() < people
        await app.runtime.timers.run_due()
        assert await app.jobs.count() == people
        assert max((await keys(app)).values()) == 1


async def test_a_burst_is_one_line_of_the_log(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    app = Mainspring(MemoryStore(clock=clock))
    app.occasion("birthday")(greet)
    told: list[str] = []
    app.on(OccasionFired)(lambda event: told.append(event.person))
    await app.people.put_many(a_person(number) for number in range(30))
    await app.people.put(a_person(30).with_changes(tz="America/New_York"))
    clock.advance(timedelta(hours=20))
    with caplog.at_level("INFO", "mainspring.occasions"):
        await app.runtime.timers.run_due()
        clock.advance(timedelta(days=1))
        await app.runtime.timers.run_due()
    await app.runtime.bus.flush()
    lines = [record.getMessage() for record in caplog.records if record.name == "mainspring.occasions"]
    assert lines[0] == "occasions_fired kind='birthday' number=30"
    assert [line.split()[:2] for line in lines[1:]] == [["occasion_fired", "person='p030'"]]
    assert len(told) == 31
    await app.close()


async def test_many_of_one_kind_do_not_hold_up_another(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timers take turns."""
    monkeypatch.setattr(timers, "TURN_SECONDS", 0)
    monkeypatch.setattr(OccasionTimer, "page_size", 100)
    app = Mainspring(MemoryStore(clock=clock))
    app.occasion("birthday")(greet)
    app.occasion("name-day", name="celebrate")(greet)
    order: list[str] = []
    app.on(OccasionFired)(lambda event: order.append(event.kind))
    await app.people.put_many(a_person(number) for number in range(250))
    await app.people.put_occasion("p000", Occasion(kind="name-day", date="03-02"))
    clock.advance(timedelta(days=1))
    await app.runtime.timers.run_due()
    await app.runtime.bus.flush()
    assert len(order) == 251
    assert order.index("name-day") <= 100
    await app.close()


async def test_plans_follow_a_new_tzdata(make: Make) -> None:
    async with apps(make) as (app,):
        await app.people.put(a_person(1))
        (document,) = await app.store.documents([Key("occasions.birthday", "", "p001")])
        right = OccasionPlan.from_document(document)
        assert right.next
        hour = timedelta(hours=1)
        wrong = right.next._replace(utc=right.next.utc + hour, due=right.next.due + hour)
        old = replace(right, next=wrong, tzdata="2000a")
        await app.store.write([Bundle((old.write(app.now()),))])
        await app.runtime.timers.refresh()  # nothing says that there is a newer one
        assert (await app.occasions.next("p001"))[0].due == wrong.due
        await app.store.write([Bundle((Write(Key("occasion_kinds", "", "birthday"), '{"tzdata": "2000a"}'),))])
        await app.runtime.timers.refresh()
        assert (await app.occasions.next("p001"))[0].due == right.next.due
        (kind,) = await app.store.documents([Key("occasion_kinds", "", "birthday")])
        assert tzdata_version() in kind.data


async def test_an_unreadable_document_blocks_no_other(make: Make, clock: ManualClock) -> None:
    async with apps(make) as (app,):
        odd = Write(Key("occasions.birthday", "", "0"), '{"new": 1}', due_at=clock.now() - 1000)
        await app.store.write([Bundle((odd,))])
        await app.people.put(a_person(1))
        clock.advance(timedelta(days=1))
        next_at = await app.runtime.timers.run_due()
        assert next_at is not None
        assert next_at > clock.now()
        assert len(await keys(app)) == 1


@pytest.mark.slow
async def test_each_message_is_sent_once_or_explained_in_a_year_of_outages_and_moves(
    make: Make, clock: ManualClock
) -> None:
    """Each year's message is sent once, or the ledger says why it was not."""
    chance = random.Random(5)
    zones = [
        "Pacific/Kiritimati",
        "Etc/GMT+12",
        "Europe/Berlin",
        "Asia/Kolkata",
        "America/St_Johns",
        "Australia/Lord_Howe",
    ]
    days = [f"{datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=number):%m-%d}" for number in range(366)]
    ids = [f"p{number:03}" for number in range(60)]
    async with apps(make, 3) as several:
        await several[0].people.put_many(
            a_person(number, chance.choice(zones), chance.choice(days)) for number in range(60)
        )
        end = clock.now() + duration(timedelta(days=366))
        while clock.now() < end:
            clock.advance(timedelta(hours=chance.choice([6, 20, 48, 24 * 6])))
            clock.shift(timedelta(hours=chance.choice([-1, 0, 0, 1])))
            up = chance.sample(several, chance.choice([1, 2, 3]))
            moves = [up[0].people.update(who, tz=chance.choice(zones)) for who in chance.sample(ids, 3)]
            await asyncio.gather(*(app.runtime.timers.run_due() for app in up), *moves)
        made = await keys(several[0])
        assert set(made.values()) == {1}
        for who in ids:
            entries = await several[0].occasions.ledger(who)
            years = [entry.on.year for entry in entries]
            assert len(set(years)) == len(years), entries
            assert entries, who
            sent = {f"{who}:birthday:{entry.on}" for entry in entries if entry.became == "fired"}
            assert sent == {key for key in made if key and key.startswith(f"{who}:")}
            assert {entry.reason for entry in entries if entry.became == "skipped"} <= {"too_late"}


PROGRAM = """
    import sys
    from datetime import timedelta
    from mainspring import Mainspring, Occasion, Person

    app = Mainspring("sqlite:///{path}")

    @app.occasion("birthday")
    async def greet(person: Person) -> None:
        with open("{path}.sent", "a") as file:
            print(person.id, file=file)

    async def fill() -> None:
        day = app.now() + timedelta(seconds=1)
        await app.people.put_many(
            Person(id=f"p{{n:04}}", tz="UTC", occasions=[
                Occasion(kind="birthday", date=f"{{day:%m-%d}}", at=f"{{day:%H:%M:%S}}")])
            for n in range(800))

    if __name__ == "__main__":
        app.run(fill())
        app.run(app.close())
"""


@pytest.mark.slow
def test_schedulers_that_are_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    """Two workers make jobs of 800 plans; one is killed in the middle of it."""
    path = tmp_path / "jobs.db"
    (tmp_path / "party.py").write_text(textwrap.dedent(PROGRAM.format(path=path)))
    subprocess.run([sys.executable, "party.py"], cwd=tmp_path, check=True, timeout=60)
    command = [sys.executable, "-m", "mainspring", "worker", "party:app"]
    workers = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) for _ in range(2)]
    app = Mainspring(f"sqlite:///{path}")
    try:
        wait_until(lambda: app.run(app.jobs.count()) > 100, lambda: "jobs are made")
        os.kill(workers[0].pid, signal.SIGKILL)
        wait_until(lambda: app.run(app.jobs.count()) == 800, lambda: "all jobs are made")
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    made = app.run(keys(app))
    app.run(app.close())
    assert set(made.values()) == {1}
    assert len(made) == 800
