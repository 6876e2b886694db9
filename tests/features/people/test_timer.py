"""Occasions on virtual time, from the person to the message."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring import Context, Mainspring, Occasion, Person, Retry, Window, testing
from mainspring.clock import duration
from mainspring.errors import ConfigurationError, PersonNotFound
from mainspring.events import OccasionFired, OccasionSkipped
from mainspring.features.schedules.rules import tz_names
from mainspring.job import Status
from mainspring.stores.documents import Bundle, Key, Write
from mainspring.testing.kit import Kit

pytestmark = pytest.mark.slow

Sent = list[tuple[str, datetime, Occasion]]


def at(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


START = at(2025, 1, 2, 12)  # it is past New Year everywhere


def a_person(tz: str, day: str = "1990-12-30", who: str = "p1", **fields: Any) -> Person:
    names = ("at", "feb29", "late", "grace", "template", "channel")
    details = {name: fields.pop(name) for name in names if name in fields}
    return Person(id=who, tz=tz, occasions=[Occasion(kind="birthday", date=day, **details)], **fields)


@pytest.fixture
def sent() -> Sent:
    return []


@pytest.fixture
def app(sent: Sent) -> Mainspring:
    app = Mainspring("memory://")

    @app.occasion("birthday")
    async def greet(person: Person, occasion: Occasion, ctx: Context) -> None:
        assert ctx.idempotency_key == f"{person.id}:birthday:{occasion.on}"
        sent.append((person.id, app.now(), occasion))

    return app


@pytest.fixture
async def kit(app: Mainspring) -> AsyncIterator[Kit]:
    async with testing.manual(app, start=START) as kit:
        yield kit


def times(sent: Sent) -> list[datetime]:
    return [moment for _, moment, _ in sent]


# -- nine o'clock, everywhere -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tz", "born", "utc"),
    [
        ("America/New_York", "1990-12-30", at(2025, 12, 30, 14)),
        ("Australia/Melbourne", "1990-12-30", at(2025, 12, 29, 22)),  # another day by UTC
        ("America/New_York", "1990-03-10", at(2025, 3, 10, 13)),  # the day after clocks went forward
        ("America/New_York", "1990-03-09", at(2025, 3, 9, 13)),  # the very day
        ("Pacific/Kiritimati", "1990-12-30", at(2025, 12, 29, 19)),  # +14
        ("Etc/GMT+12", "1990-12-30", at(2025, 12, 30, 21)),  # -12
        ("Pacific/Kiritimati", "1990-01-01", at(2025, 12, 31, 19)),  # another year by UTC; 2025's had passed
        ("Asia/Kathmandu", "1990-12-30", at(2025, 12, 30, 3, 15)),
    ],
)
async def test_the_message_is_sent_at_nine_local_time(  # noqa: PLR0917 - a table
    app: Mainspring, kit: Kit, sent: Sent, tz: str, born: str, utc: datetime
) -> None:
    await app.people.put(a_person(tz, born))
    await kit.time.advance_to(utc - timedelta(seconds=1), raise_errors=True)
    assert sent == []
    await kit.time.advance_to(utc, raise_errors=True)
    ((_, moment, occasion),) = sent
    assert (moment, occasion.due) == (utc, utc)
    local = utc.astimezone(ZoneInfo(tz))
    assert (local.hour, local.minute) == (9, 0)
    assert (occasion.on, occasion.age) == (local.date(), local.year - 1990)
    (job,) = kit.jobs()
    assert (job.target, job.status) == (("person", "p1"), Status.COMPLETED)
    assert job.dedupe_key == f"p1:birthday:{local.date()}"


@pytest.mark.slow
async def test_each_occasion_fires_once_at_its_local_time_in_every_zone(app: Mainspring, kit: Kit, sent: Sent) -> None:
    """Each person's occasion once, at its local time."""
    chance = random.Random(3)
    names = sorted(tz_names())
    days = [f"{date(2024, 1, 1) + timedelta(days=number):%m-%d}" for number in range(366)]
    days.remove("01-02")  # the day on which this begins
    people = [
        a_person(chance.choice(names), chance.choice(days), f"p{number:03}", feb29=chance.choice(["feb28", "mar1"]))
        for number in range(196)
    ]
    people += [
        a_person("Pacific/Kiritimati", "12-31", "p196"),
        a_person("Pacific/Kiritimati", "01-01", "p197"),
        a_person("Etc/GMT+12", "01-01", "p198"),
        a_person("Pacific/Apia", "02-29", "p199", feb29="mar1"),
    ]
    await app.people.put_many(people)
    await kit.time.advance_to(at(2026, 1, 2), raise_errors=True)
    assert sorted(who for who, _, _ in sent) == [person.id for person in people]
    for who, moment, occasion in sent:
        local = moment.astimezone(ZoneInfo(people[int(who[1:])].tz))
        assert (local.date(), local.time()) == (occasion.on, time(9)), who
        leap_day = occasion.date == "02-29" and f"{local:%m-%d}" in {"02-28", "03-01"}
        assert leap_day or f"{local:%m-%d}" == occasion.date
    assert {job.dedupe_key for job in kit.jobs()} == {f"{who}:birthday:{occasion.on}" for who, _, occasion in sent}


@pytest.mark.parametrize(
    ("policy", "days"),
    [
        ("feb28", ["2025-02-28", "2026-02-28", "2027-02-28", "2028-02-29", "2029-02-28"]),
        ("mar1", ["2025-03-01", "2026-03-01", "2027-03-01", "2028-02-29", "2029-03-01"]),
        ("skip", ["2028-02-29"]),
    ],
)
async def test_the_feb29_policy_decides_the_day_of_a_leap_birthday(
    app: Mainspring, kit: Kit, sent: Sent, policy: str, days: list[str]
) -> None:
    await app.people.put(a_person("Asia/Tokyo", "2000-02-29", feb29=policy))
    await kit.time.advance_to(at(2030, 1, 1), raise_errors=True)
    assert [str(occasion.on) for _, _, occasion in sent] == days
    assert [occasion.age for _, _, occasion in sent] == [int(day[:4]) - 2000 for day in days]
    assert times(sent)[-1] == datetime.fromisoformat(f"{days[-1]}T00:00+00:00")


async def test_the_year_need_not_be_known(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await app.people.put(a_person("UTC", "06-10"))
    await kit.time.advance(days=365)
    assert [occasion.age for _, _, occasion in sent] == [None]


async def test_a_day_is_kept_from_the_year_after_it_happened(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await app.people.put(a_person("UTC", "2026-06-10"))
    await kit.time.advance_to(at(2028, 1, 1))
    assert [(occasion.on, occasion.age) for _, _, occasion in sent] == [(date(2027, 6, 10), 1)]


async def test_samoa_had_no_30_december(app: Mainspring, sent: Sent) -> None:
    async with testing.manual(app, start=at(2011, 6, 1)) as kit:
        await app.people.put(a_person("Pacific/Apia"))
        await kit.time.advance_to(at(2012, 6, 1), raise_errors=True)
    ((_, moment, occasion),) = sent
    assert moment.astimezone(ZoneInfo("Pacific/Apia")).isoformat() == "2011-12-31T09:00:00+14:00"
    assert occasion.on == date(2011, 12, 30)


# -- on the day itself -------------------------------------------------------------------------------------


async def test_put_on_the_day_after_its_time_it_is_sent_at_once(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await kit.time.advance_to(at(2025, 12, 30, 4))  # 17:00 in Auckland
    await app.people.put(a_person("Pacific/Auckland"))
    await kit.drain(raise_errors=True)
    assert times(sent) == [at(2025, 12, 30, 4)]
    assert sent[0][2].lateness == timedelta(hours=8)
    await kit.time.advance_to(at(2027, 6, 1))
    assert [occasion.on for _, _, occasion in sent] == [date(2025, 12, 30), date(2026, 12, 30)]


async def test_a_person_added_after_the_time_with_late_skip_waits_for_next_year(
    app: Mainspring, kit: Kit, sent: Sent
) -> None:
    await kit.time.advance_to(at(2025, 12, 30, 4))
    await app.people.put(a_person("Pacific/Auckland", late="skip"))
    await kit.time.advance_to(at(2027, 6, 1))
    assert [occasion.on for _, _, occasion in sent] == [date(2026, 12, 30)]


async def test_put_the_day_after_it_waits_for_next_year(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await kit.time.advance_to(at(2025, 12, 30, 11, 1))  # 00:01 of the 31st in Auckland
    await app.people.put(a_person("Pacific/Auckland"))
    await kit.drain()
    assert sent == []
    await kit.time.advance_to(at(2027, 6, 1))
    assert [occasion.on for _, _, occasion in sent] == [date(2026, 12, 30)]


# -- quiet hours -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("send_at", "quiet", "local"),
    [
        ("09:00", "22:00-08:00", "2025-12-30T09:00"),
        ("07:00", "22:00-08:00", "2025-12-30T08:00"),
        ("23:00", "22:00-08:00", "2025-12-31T08:00"),
        ("12:30", "12:00-14:00", "2025-12-30T14:00"),
        ("08:00", "22:00-08:00", "2025-12-30T08:00"),  # their end is not quiet
        ("22:00", "22:00-08:00", "2025-12-31T08:00"),  # their beginning is
    ],
)
async def test_quiet_hours_put_it_off(  # noqa: PLR0917 - a table
    app: Mainspring, kit: Kit, sent: Sent, send_at: str, quiet: str, local: str
) -> None:
    await app.people.put(a_person("America/New_York", at=send_at, quiet=quiet))
    await kit.time.advance_to(at(2026, 6, 1), raise_errors=True)
    ((_, moment, occasion),) = sent
    assert moment.astimezone(ZoneInfo("America/New_York")).replace(tzinfo=None).isoformat("T", "minutes") == local
    assert occasion.on == date(2025, 12, 30)


async def test_a_late_message_waits_for_the_end_of_quiet_hours(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await kit.time.advance_to(at(2025, 12, 30, 23, 30))
    await app.people.put(a_person("UTC", quiet="22:00-08:00"))
    await kit.time.advance_to(at(2026, 6, 1), raise_errors=True)
    assert times(sent) == [at(2025, 12, 31, 8)]


# -- outages -----------------------------------------------------------------------------------------------


async def test_missed_occasions_are_caught_up_within_the_grace(app: Mainspring, kit: Kit, sent: Sent) -> None:
    told: list[Any] = []
    app.on(OccasionFired, OccasionSkipped)(told.append)
    await app.people.put_many(
        [
            a_person("UTC", "06-07", "late"),
            a_person("UTC", "06-06", "too late"),
            a_person("UTC", "06-04", "patient", grace="10d"),
            a_person("UTC", "06-09", "strict", grace="1m"),
        ]
    )
    kit.clock.advance(at(2025, 6, 9, 21) - START)  # no worker runs meanwhile
    await kit.drain(raise_errors=True)
    await app.runtime.bus.flush()
    assert sorted(who for who, _, _ in sent) == ["late", "patient"]
    ledger = {who: (await app.occasions.ledger(who))[0] for who in ("late", "too late", "patient", "strict")}
    assert (ledger["late"].became, ledger["late"].late, ledger["late"].lateness) == ("fired", True, 60 * 3600)
    assert (ledger["too late"].became, ledger["too late"].reason) == ("skipped", "too_late")
    assert ledger["too late"].why == "3d12h late, and its grace is 3d"
    assert ledger["strict"].reason == "too_late"
    assert {(type(event).__name__, event.person) for event in told} == {
        ("OccasionFired", "late"),
        ("OccasionFired", "patient"),
        ("OccasionSkipped", "too late"),
        ("OccasionSkipped", "strict"),
    }
    await kit.time.advance_to(at(2026, 6, 10), raise_errors=True)
    assert len(sent) == 6


async def test_the_ledger_says_which_halt_made_a_message_late(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await app.people.put(a_person("UTC", "1990-01-03"))
    await app.halt("moving house", reject_new=True, actor="ana")
    await kit.time.advance_to(at(2025, 1, 3, 9, 5))
    await app.resume()
    await kit.drain(raise_errors=True)
    assert times(sent) == [at(2025, 1, 3, 9, 5)]
    (entry,) = await app.occasions.ledger("p1")
    assert (entry.became, entry.late, entry.halted) == ("fired", True, True)
    assert entry.why == f"the system was halted by ana since {START:%Y-%m-%d %H:%M:%S} UTC (moving house)"


async def test_a_message_sent_later_does_not_hide_the_skipped_entry(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await app.people.put(a_person("UTC", "1990-12-30", late="skip"))
    await app.people.put(a_person("UTC", "1990-01-02", late="skip"))  # today, at 09:00; it is noon
    await app.people.put(a_person("UTC", "1990-01-02", late="skip", at="15:00"))
    await kit.time.advance_to(at(2025, 1, 3), raise_errors=True)
    assert times(sent) == [at(2025, 1, 2, 15)]
    newest, oldest = await app.occasions.ledger("p1")
    assert (newest.became, newest.on) == ("fired", date(2025, 1, 2))
    assert (oldest.became, oldest.reason, oldest.on) == ("skipped", "passed", date(2025, 1, 2))


async def test_a_new_send_time_on_the_day_itself_revives_what_was_too_late(
    app: Mainspring, kit: Kit, sent: Sent
) -> None:
    await app.people.put(a_person("UTC", "1990-03-01", grace="1h"))
    kit.clock.advance(at(2025, 3, 1, 11) - START)
    await kit.drain(raise_errors=True)
    await app.people.put(a_person("UTC", "1990-03-01", grace="1h", at="15:00"))
    await kit.time.advance_to(at(2025, 3, 2), raise_errors=True)
    assert times(sent) == [at(2025, 3, 1, 15)]
    assert [entry.reason or entry.became for entry in await app.occasions.ledger("p1")] == ["fired", "too_late"]


async def test_years_that_were_missed_are_each_in_the_ledger(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await app.people.put(a_person("UTC", "06-07"))
    kit.clock.advance(at(2028, 6, 7, 10) - START)
    await kit.drain(raise_errors=True)
    entries = await app.occasions.ledger("p1")
    assert [(entry.on.year, entry.became.value) for entry in entries] == [
        (2028, "fired"),
        (2027, "skipped"),
        (2026, "skipped"),
        (2025, "skipped"),
    ]


async def test_a_clock_that_jumps_sends_nothing_twice(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await app.people.put(a_person("UTC", "06-07"))
    await kit.time.advance_to(at(2025, 6, 7, 8, 30))
    kit.clock.shift(timedelta(hours=1))
    await kit.drain()
    assert len(sent) == 1
    kit.clock.shift(timedelta(hours=-1))
    await kit.drain()
    await kit.time.advance_to(at(2025, 12, 1))
    assert len(sent) == 1


async def test_what_a_clock_that_was_ahead_has_skipped_is_sent_on_its_day(
    app: Mainspring, kit: Kit, sent: Sent
) -> None:
    await app.people.put(a_person("UTC", "06-07"))
    await kit.time.advance_to(at(2025, 6, 5))
    await drain_by_clock_ahead(app, kit, timedelta(days=7))
    assert [(entry.on, entry.reason) for entry in await app.occasions.ledger("p1")] == [(date(2025, 6, 7), "too_late")]
    await kit.time.advance_to(at(2026, 1, 1), raise_errors=True)
    assert times(sent) == [at(2025, 6, 7, 9)]
    await kit.time.advance_to(at(2027, 1, 1), raise_errors=True)
    assert times(sent) == [at(2025, 6, 7, 9), at(2026, 6, 7, 9)]


async def test_what_a_clock_that_was_ahead_has_sent_is_not_sent_again(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await app.people.put(a_person("UTC", "06-07"))
    await kit.time.advance_to(at(2025, 6, 5))
    await drain_by_clock_ahead(app, kit, timedelta(days=3))
    assert len(sent) == 1
    await kit.time.advance_to(at(2027, 1, 1), raise_errors=True)
    assert times(sent) == [at(2025, 6, 8), at(2026, 6, 7, 9)]


async def drain_by_clock_ahead(app: Mainspring, kit: Kit, ahead: timedelta) -> None:
    """Work by a clock that is ahead, set it right, and do what a worker does then."""
    kit.clock.shift(ahead)
    await kit.drain(raise_errors=True)
    kit.clock.shift(-ahead)
    await app.runtime.timers.clock_went_back(duration(ahead))


async def test_a_halt_that_refuses_jobs_is_waited_out(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await app.people.put(a_person("UTC", "06-07"))
    await kit.time.advance_to(at(2025, 6, 7, 8))
    await app.halt("maintenance", reject_new=True, until=at(2025, 6, 7, 9, 5))
    await kit.time.advance_to(at(2025, 6, 7, 13), raise_errors=True)
    assert len(sent) == 1
    assert times(sent)[0] >= at(2025, 6, 7, 9, 5)


# -- people who change -------------------------------------------------------------------------------------


async def test_the_handler_gets_the_person_as_they_are_when_it_runs(app: Mainspring, kit: Kit) -> None:
    names: list[str] = []

    @app.occasion("anniversary", queue="mail")
    def toast(person: Person) -> None:  # in a thread
        names.append(person.name)

    await app.people.put(
        Person(id="p1", tz="UTC", first_name="Ana", occasions=[Occasion(kind="anniversary", date="06-07")])
    )
    await app.pause("mail")
    await kit.time.advance_to(at(2025, 6, 7, 10))
    await app.people.update("p1", first_name="Anna", last_name="Lee")
    await app.resume("mail")
    await kit.drain(raise_errors=True)
    assert names == ["Anna Lee"]


async def test_deleting_a_person_cancels_their_messages(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await app.people.put(a_person("UTC", "06-07"))
    await app.people.put(a_person("UTC", "06-08", "p2"))
    await app.pause("default")
    await kit.time.advance_to(at(2025, 6, 7, 10))
    await app.people.delete("p1")
    await app.people.delete("p2")
    await app.resume("default")
    await kit.time.advance_to(at(2027, 1, 1))
    assert sent == []
    (job,) = kit.jobs()
    assert (job.status, job.reason) == (Status.CANCELLED, "the person was deleted")
    with pytest.raises(PersonNotFound, match="p1"):
        await app.people.get("p1")
    with pytest.raises(PersonNotFound, match="p1"):
        await app.people.delete("p1")


async def test_a_deletion_is_in_the_audit_log_without_the_name(app: Mainspring, kit: Kit) -> None:
    await app.people.put(a_person("UTC", "06-07").with_changes(first_name="Ana"))
    await app.people.delete("p1", reason="they asked", actor="ben")
    (entry,) = await app.audit()
    assert (entry.at, entry.actor, entry.action, entry.reason) == (app.now(), "ben", "person.delete", "they asked")
    assert entry.detail == {"person": "p1"}


async def test_a_job_whose_person_is_gone_is_cancelled(app: Mainspring, kit: Kit, sent: Sent) -> None:
    """Say, its process died between deleting the person and cancelling jobs."""
    await app.people.put(a_person("UTC", "06-07"))
    await app.pause("default")
    await kit.time.advance_to(at(2025, 6, 7, 10))
    await app.people.apply([("p1", lambda _: None)])
    await app.resume("default")
    await kit.drain()
    assert sent == []
    (job,) = kit.jobs()
    assert (job.status, job.reason) == (Status.CANCELLED, "there is no person 'p1' any more")


async def test_an_occasion_that_was_removed_is_not_sent(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await app.people.put(a_person("UTC", "06-07"))
    await app.pause("default")
    await kit.time.advance_to(at(2025, 6, 7, 10))
    await app.people.remove_occasion("p1", "birthday")
    await app.resume("default")
    await kit.time.advance_to(at(2027, 6, 7))
    assert sent == []
    assert kit.jobs()[0].reason == "person 'p1' has no birthday any more"


async def test_a_person_added_again_is_not_greeted_twice(app: Mainspring, kit: Kit, sent: Sent) -> None:
    await app.people.put(a_person("UTC", "06-07"))
    await kit.time.advance_to(at(2025, 6, 7, 10))
    await app.people.delete("p1")
    await app.people.put(a_person("UTC", "06-07"))
    await kit.time.advance_to(at(2025, 6, 8))
    await app.people.delete("p1")
    await app.people.put(a_person("UTC", "09-09"))  # nor for another date of the same year
    await kit.time.advance_to(at(2026, 12, 31))
    assert [occasion.on for _, _, occasion in sent] == [date(2025, 6, 7), date(2026, 9, 9)]


async def test_the_dedupe_key_outlives_all_that_remembers(app: Mainspring, kit: Kit, sent: Sent) -> None:
    """Even if the plan was removed by hand, the job's key holds for over a year."""
    await app.people.put(a_person("UTC", "06-07"))
    await kit.time.advance_to(at(2025, 6, 7, 10))
    await kit.store.write([Bundle((Write(Key("occasions.birthday", "", "p1"), None),))])
    await kit.store.write([Bundle((Write(Key("people", "", "p1"), None),))])
    await app.people.put(a_person("UTC", "06-07"))
    await kit.drain()
    assert len(sent) == 1
    (entry,) = await app.occasions.ledger("p1")
    assert (entry.became, entry.reason, entry.job_id) == ("skipped", "repeated", kit.jobs()[0].id)


# -- handlers ----------------------------------------------------------------------------------------------


async def test_a_kind_without_a_handler_waits_for_one(app: Mainspring, kit: Kit) -> None:
    await app.people.put(Person(id="p1", tz="UTC", occasions=[Occasion(kind="name-day", date="06-07")]))
    await kit.time.advance_to(at(2025, 6, 7, 10))
    assert kit.jobs() == []
    done = []

    @app.occasion("name-day")
    async def celebrate(someone: Person, occasion: Occasion) -> None:
        done.append((someone.id, occasion.lateness))

    await kit.drain(raise_errors=True)
    assert done == [("p1", timedelta(hours=1))]


def test_handlers_ask_for_what_is_known(app: Mainspring) -> None:
    with pytest.raises(ConfigurationError, match=r"'guest'.*person: Person"):

        @app.occasion("a")
        async def one(guest: str) -> None: ...

    with pytest.raises(ConfigurationError, match="greet"):

        @app.occasion("birthday")
        async def other(person: Person) -> None: ...

    with pytest.raises(ConfigurationError, match="kind"):

        @app.occasion("my day")
        async def third(person: Person) -> None: ...

    with pytest.raises(ConfigurationError, match=r'@app.occasion\("birthday"\)'):

        @app.occasion  # type: ignore[arg-type]
        async def bare(person: Person) -> None: ...

    with pytest.raises(ConfigurationError, match="takes no isolation"):
        app.occasion("b", isolation="process")


async def test_options_of_tasks_are_those_of_handlers_too(kit: Kit, app: Mainspring) -> None:
    tried: list[str] = []

    @app.occasion("hired", breaker="mail", deliver=Window("10:00", "12:00"), retry=Retry(max_attempts=1))
    async def celebrate(person: Person) -> None:
        tried.append(f"{person.id} {app.now():%H:%M}")

    await app.breakers.open("mail", reason="the server is being moved")
    await app.people.put(Person(id="p1", tz="UTC", occasions=[Occasion(kind="hired", date="06-07")]))
    await kit.time.advance_to(at(2025, 6, 7, 11))
    assert tried == []
    await app.breakers.close("mail")
    await kit.time.advance_to(at(2025, 6, 7, 12))
    assert tried == ["p1 11:00"]


async def test_one_function_may_handle_several_kinds(kit: Kit, app: Mainspring) -> None:
    done: list[str] = []

    @app.occasion("hired")
    @app.occasion("name-day")
    async def celebrate(occasion: Occasion) -> None:
        done.append(occasion.kind)

    both = [Occasion(kind=kind, date="06-07") for kind in ("hired", "name-day")]
    await app.people.put(Person(id="p1", tz="UTC", occasions=both))
    await kit.time.advance_to(at(2025, 6, 7, 10), raise_errors=True)
    assert sorted(done) == ["hired", "name-day"]


async def test_a_handler_stays_a_function() -> None:
    app = Mainspring("memory://")

    @app.occasion("birthday")
    async def greet(person: Person, occasion: Occasion) -> str:
        return f"{person.name}: {occasion.kind}"

    person = a_person("UTC", first_name="Ana")
    assert await greet(person, person.occasions[0]) == "Ana: birthday"


# -- looking -----------------------------------------------------------------------------------------------


async def test_upcoming_lists_occasions_in_order_of_their_time(app: Mainspring, kit: Kit) -> None:
    await app.people.put(a_person("Pacific/Auckland", "01-05", "a"))
    await app.people.put(a_person("America/New_York", "01-05", "b"))
    await app.people.put(a_person("UTC", "01-10", "c"))
    await app.people.put_occasion("c", Occasion(kind="name-day", date="01-02", at="18:00"))
    coming = await app.occasions.upcoming(timedelta(days=7))
    assert [
        (occasion.person, occasion.kind, str(occasion.on), occasion.due, f"{occasion.local:%d %H:%M}")
        for occasion in coming
    ] == [
        ("c", "name-day", "2025-01-02", at(2025, 1, 2, 18), "02 18:00"),
        ("a", "birthday", "2025-01-05", at(2025, 1, 4, 20), "05 09:00"),
        ("b", "birthday", "2025-01-05", at(2025, 1, 5, 14), "05 09:00"),
    ]
    assert [occasion.person for occasion in await app.occasions.upcoming(timedelta(days=9), kind="birthday")] == [
        "a",
        "b",
        "c",
    ]
    assert [occasion.kind for occasion in await app.occasions.next("c")] == ["name-day", "birthday"]
    assert len(await app.occasions.upcoming(timedelta(days=9), limit=2)) == 2
