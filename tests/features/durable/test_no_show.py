"""examples/no_show.py on virtual time, through all its branches."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from examples import no_show as example
from examples.no_show import Stay, app, expect
from mainspring import testing
from mainspring.job import Status
from mainspring.testing.kit import Kit

PARIS = ZoneInfo("Europe/Paris")
MORNING = datetime(2026, 6, 10, 8, tzinfo=PARIS)
STAY = Stay(reservation="r1", guest="ana", night=date(2026, 6, 10), tz="Europe/Paris", eta=MORNING.replace(hour=15))

FIRST, SECOND, ALERT = "We are expecting you", "Shall we keep your room?", "nobody has come"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the hotel did, and when on its clock."""
    happened: list[tuple[str, str]] = []

    def note(what: str) -> None:
        happened.append((app.now().astimezone(PARIS).strftime("%d %H:%M"), what))

    async def write_to(guest: str, text: str) -> None:
        note(text.partition(":")[0])

    async def alert_staff(reservation: str) -> None:
        note(ALERT)

    async def release_room(reservation: str) -> str:
        note("released")
        return "room 7"

    async def charge_first_night(reservation: str, key: str) -> None:
        note("charged")

    for step in (write_to, alert_staff, release_room, charge_first_night):
        monkeypatch.setattr(example, step.__name__, step)
    return happened


def at(hour: int, minute: int = 0) -> datetime:
    return MORNING.replace(hour=hour, minute=minute)


async def play(kit: Kit, signals: dict[datetime, Any], stay: Stay = STAY) -> str:
    """The day, with what is said at which time; how it ended."""
    job = await expect(stay)
    for moment, payload in sorted(signals.items()):
        await kit.time.advance_to(moment, raise_errors=True)
        await app.signal(f"stay:{stay.reservation}", payload)
    await kit.time.advance(days=2, raise_errors=True)
    found = await job.get()
    assert found.status is Status.COMPLETED
    return str(found.result)


@pytest.mark.parametrize(
    ("signals", "ending", "expected"),
    [
        ({at(14): "checked_in"}, "arrived", []),  # before anybody waited for it
        ({at(16, 59): "checked_in"}, "arrived", []),
        ({at(18): "checked_in"}, "arrived", [("10 17:00", FIRST)]),
        ({at(20): "cancelled"}, "cancelled", [("10 17:00", FIRST), ("10 19:00", SECOND)]),
        (
            {at(23, 30): "hold"},
            "held by staff",
            [("10 17:00", FIRST), ("10 19:00", SECOND), ("10 23:00", ALERT)],
        ),
        (
            {at(18): "we are in a traffic jam", at(21): None},  # news that ends nothing
            "no-show, room 7 is free",
            [
                ("10 17:00", FIRST),
                ("10 19:00", SECOND),
                ("10 23:00", ALERT),
                ("11 00:00", "released"),
                ("11 00:00", "charged"),
            ],
        ),
        (
            {at(23, 59) + timedelta(minutes=2): "checked_in"},  # too late
            "no-show, room 7 is free",
            [
                ("10 17:00", FIRST),
                ("10 19:00", SECOND),
                ("10 23:00", ALERT),
                ("11 00:00", "released"),
                ("11 00:00", "charged"),
            ],
        ),
    ],
    ids=["early", "on time", "after the first", "cancelled", "held", "no-show", "too late"],
)
async def test_each_course_of_the_day_ends_as_expected(
    done: list[tuple[str, str]], signals: dict[datetime, Any], ending: str, expected: Any
) -> None:
    async with testing.manual(app, start=MORNING.astimezone(UTC)) as kit:
        assert await play(kit, signals) == ending
    assert done == expected


async def test_a_late_arrival_gets_four_hours_across_a_clock_change(done: list[tuple[str, str]]) -> None:
    """The clocks go forward in that night: four hours are four hours."""
    night = datetime(2026, 3, 28, 8, tzinfo=PARIS)
    stay = STAY.model_copy(update={"night": date(2026, 3, 28), "eta": night.replace(hour=23)})
    async with testing.manual(app, start=night.astimezone(UTC)) as kit:
        assert await play(kit, {}, stay) == "no-show, room 7 is free"
    assert done == [
        ("29 01:00", FIRST),
        ("29 04:00", SECOND),
        ("29 04:00", ALERT),
        ("29 05:00", "released"),
        ("29 05:00", "charged"),
    ]


async def test_while_it_waits_it_shows_what_is_to_come(done: list[tuple[str, str]]) -> None:
    async with testing.manual(app, start=MORNING.astimezone(UTC)) as kit:
        job = await expect(STAY)
        again = await expect(STAY)
        assert (again.id, again.created) == (job.id, False)
        await kit.time.advance_to(at(18), raise_errors=True)
        states = await app.jobs.step_state(job.id)
    assert states == {
        "wait for stay:r1": "done",
        "first outreach": "done",
        "wait for stay:r1 (2)": "waiting",
        "second outreach": "to come",
        "staff alert": "to come",
        "release room": "to come",
        "charge first night": "to come",
    }
