"""Jobs that are delivered within local hours only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Daily, Mainspring, Person, Status, Window
from mainspring.errors import ConfigurationError
from mainspring.testing import Kit
from tests.features.conftest import START

LONDON = Window("08:00", "22:00", tz="Europe/London")


@pytest.fixture
def app() -> Mainspring:
    app = Mainspring("memory://")
    app.sent = []  # type: ignore[attr-defined]

    def note() -> None:
        app.sent.append(app.now().strftime("%d %H:%M"))  # type: ignore[attr-defined]

    @app.task(deliver=LONDON)
    async def remind(guest: str = "") -> None:
        note()

    @app.task(deliver=Window.of_person(lambda p: p.person_id))
    async def greet(person_id: str) -> None:
        note()

    @app.task()
    async def plain() -> None:
        note()

    return app


def sent(app: Mainspring) -> list[str]:
    found: list[str] = app.sent  # type: ignore[attr-defined]
    return found


async def at(kit: Kit, hour: int, minute: int = 0, day: int = 1) -> None:
    await kit.time.advance_to(datetime(2026, 3, day, hour, minute, tzinfo=UTC))


async def test_within_the_hours_it_runs_at_once(app: Mainspring, kit: Kit) -> None:
    await app.tasks["remind"].enqueue()
    await kit.drain()
    assert sent(app) == ["01 12:00"]


async def test_at_night_it_is_put_off_until_eight(app: Mainspring, kit: Kit) -> None:
    await at(kit, 23)
    job = await app.tasks["remind"].enqueue()
    assert (await job.get()).run_at == datetime(2026, 3, 2, 8, tzinfo=UTC)
    await at(kit, 9, day=2)
    assert sent(app) == ["02 08:00"]


async def test_a_time_at_night_is_moved_when_it_is_enqueued(app: Mainspring, kit: Kit) -> None:
    remind = app.tasks["remind"]
    late = await remind.using(delay=timedelta(hours=13)).enqueue()
    given = await remind.using(run_at=datetime(2026, 7, 1, 5, tzinfo=UTC)).enqueue()  # 6 o'clock in London
    fits = await remind.using(delay=60).enqueue()
    assert (await late.get()).run_at == datetime(2026, 3, 2, 8, tzinfo=UTC)
    assert (await given.get()).run_at == datetime(2026, 7, 1, 7, tzinfo=UTC)
    assert (await fits.get()).run_at == START + timedelta(seconds=60)


async def test_one_that_gets_late_by_other_causes_waits_for_the_morning(app: Mainspring, kit: Kit) -> None:
    """A worker that was away, a backlog, a prepared job: looked at once more when it is claimed."""
    await at(kit, 21, 59)
    job = await app.tasks["remind"].enqueue()
    kit.clock.advance(3600)
    await kit.drain()
    found = await job.get()
    assert (found.status, found.attempts, found.run_at) == (Status.PENDING, 0, datetime(2026, 3, 2, 8, tzinfo=UTC))
    assert found.reason == (
        "outside of the hours for delivery, 08:00 to 22:00 in Europe/London; they open 2026-03-02 08:00 there"
    )
    await at(kit, 9, day=2)
    assert (sent(app), (await job.get()).attempts) == (["02 08:00"], 1)


async def test_fires_of_a_schedule_wait_too(app: Mainspring, kit: Kit) -> None:
    await app.schedules.put("nightly", Daily("03:00"), app.tasks["remind"].prepare())
    await at(kit, 12, day=3)
    assert sent(app) == ["02 08:00", "03 08:00"]


async def test_a_job_may_have_hours_of_its_own(app: Mainspring, kit: Kit) -> None:
    await app.tasks["plain"].using(deliver=Window("14:00", "15:00")).enqueue()
    await app.tasks["remind"].using(deliver=Window("16:00", "17:00", days="tue")).enqueue()
    await at(kit, 12, day=4)
    assert sent(app) == ["01 14:00", "03 16:00"]


async def test_a_window_removed_from_the_task_holds_no_job_back(app: Mainspring, kit: Kit) -> None:
    await app.pause("default")
    await app.tasks["remind"].enqueue()
    await at(kit, 23)
    app.tasks["remind"].options = app.tasks["plain"].options
    await app.resume("default")
    await kit.drain()
    assert sent(app) == ["01 23:00"]


# -- of people ------------------------------------------------------------------------------------------------


@pytest.fixture
async def ana(app: Mainspring, kit: Kit) -> Person:
    person = Person(id="ana", tz="Pacific/Auckland", quiet="22:00-08:00")  # 13 hours ahead: it is 01:00 there
    await app.people.put(person)
    return person


@pytest.mark.usefixtures("ana")
async def test_a_persons_quiet_hours_are_kept(app: Mainspring, kit: Kit) -> None:
    job = await app.tasks["greet"].enqueue(person_id="ana")
    assert (await job.get()).run_at == START + timedelta(hours=7)
    (other,) = await app.enqueue_all([app.tasks["greet"].prepare(person_id="ana")])
    await kit.drain()
    assert "08:00 to 22:00 in Pacific/Auckland" in str(await app.jobs.why(other.id))
    await app.tasks["plain"].using(deliver=Window.of_person("ana")).enqueue()
    await at(kit, 20)
    assert sent(app) == ["01 19:00"] * 3


async def test_a_message_follows_the_persons_new_time_zone(app: Mainspring, kit: Kit, ana: Person) -> None:
    await app.tasks["greet"].enqueue(person_id="ana")
    await app.people.update("ana", tz="Asia/Tokyo")  # where it is 04:00 then
    await at(kit, 12, day=2)
    assert sent(app) == ["01 23:00"]


@pytest.mark.parametrize("person", [None, Person(id="bob", tz="Pacific/Auckland")])
async def test_an_unknown_person_or_one_without_quiet_hours_delays_nothing(
    app: Mainspring, kit: Kit, person: Person | None
) -> None:
    if person is not None:
        await app.people.put(person)
    await app.tasks["greet"].enqueue(person_id="bob")
    await kit.drain()
    assert sent(app) == ["01 12:00"]


# -- what cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"start": "8 o'clock"}, "not a time of day"),
        ({"end": "08:00"}, "whole day"),
        ({"tz": "Europe/Londn"}, "Londn"),
        ({"days": "someday"}, "not a day of the week"),
        ({"days": ()}, "at least one day"),
    ],
)
def test_bad_windows_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Window(**{"start": "08:00", "end": "22:00", **fields})


@pytest.mark.parametrize("person", ["", None, 7])
def test_a_window_without_a_person_is_refused(person: Any) -> None:
    with pytest.raises(ConfigurationError, match="a person's id or"):
        Window.of_person(person)


async def test_a_function_belongs_on_the_task(app: Mainspring, kit: Kit) -> None:
    with pytest.raises(ConfigurationError, match="person's id here"):
        await app.tasks["plain"].using(deliver=Window.of_person(lambda p: p.guest)).enqueue()
