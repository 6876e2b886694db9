"""People and plans that were written by another version of this program: an upgrade has both at work for a while."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, Occasion, Person, Window, testing
from mainspring.clock import to_millis
from mainspring.errors import InvalidPerson
from mainspring.features.people.person import Times as PersonTimes
from mainspring.features.people.plan import OccasionPlan, Times
from mainspring.features.people.storage import KINDS, kind_tzdata, mark_kind
from mainspring.job import Status
from mainspring.stores.documents import Bundle, Document, Key, Listing, Write
from mainspring.testing.kit import Kit

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
ANA, PLAN, LEDGER = Key("people", "", "ana"), Key("occasions.birthday", "", "ana"), "occasion_ledger"


def a_person(id: str, **fields: Any) -> Person:
    return Person(**{"id": id, "tz": "UTC", "occasions": [Occasion(kind="birthday", date="1990-03-01")], **fields})


@pytest.fixture(autouse=True)
async def kit(app: Mainspring) -> AsyncIterator[Kit]:
    async with testing.manual(app, start=START) as kit:
        await app.people.put_many([a_person("ana", email="ana@example.com"), a_person("bob")])
        yield kit


async def stored(app: Mainspring, key: Key) -> Document:
    (document,) = await app.store.documents([key])
    return document


async def rewrite(app: Mainspring, key: Key, *place: str | int, value: Any) -> Document:
    """As a newer version would: with something that is not known here."""
    document = await stored(app, key)
    data = json.loads(document.data)
    part = data
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    await app.store.write([Bundle((Write(key, json.dumps(data), due_at=document.due_at),))])
    return await stored(app, key)


# -- what need not be known --------------------------------------------------------------------------------


async def test_a_field_of_a_person_is_kept_whatever_is_changed(app: Mainspring, tmp_path: Path) -> None:
    await rewrite(app, ANA, "pronouns", value=["she", "her"])
    assert (await app.people.get("ana")).email == "ana@example.com"
    await app.people.update("ana", tz="Asia/Tokyo")
    await app.people.put_occasion("ana", Occasion(kind="hired", date="06-15"))
    await app.people.put(a_person("ana", first_name="Ana"))
    file = tmp_path / "people.csv"
    file.write_text("id,last_name\nana,Lee\n")
    assert (await app.people.import_csv(file)).updated == 1
    data = json.loads((await stored(app, ANA)).data)
    assert (data["pronouns"], data["first_name"], data["last_name"]) == (["she", "her"], "Ana", "Lee")


async def test_a_field_of_a_plan_is_kept_when_it_fires_and_when_it_is_moved(
    app: Mainspring, kit: Kit, greeted: list[str]
) -> None:
    await rewrite(app, PLAN, "remembered", value={"by": "a newer version"})
    await kit.time.advance(hours=2)
    assert sorted(greeted) == ["ana", "bob"]
    await app.people.update("ana", tz="Asia/Tokyo")
    assert json.loads((await stored(app, PLAN)).data)["remembered"] == {"by": "a newer version"}


async def test_a_field_of_a_kind_is_kept(app: Mainspring) -> None:
    key = Key(KINDS, "", "birthday")
    await rewrite(app, key, "colour", value="blue")
    await mark_kind(app.store, "birthday", "2099z")
    assert json.loads((await stored(app, key)).data) == {"tzdata": "2099z", "colour": "blue"}


async def test_a_newer_ledger_can_be_read(app: Mainspring, kit: Kit) -> None:
    await kit.time.advance(hours=2)
    (document,) = await app.store.browse(Listing(LEDGER, "ana"))
    await rewrite(app, document.key, "weather", value="fine")
    (entry,) = await app.occasions.ledger("ana")
    assert entry.became == "fired"


# -- what must be known ------------------------------------------------------------------------------------

WHENS = [
    (("occasions", 0, "days_before"), 3),
    (("occasions", 0, "feb29"), "mar2"),
    (("occasions", 0, "date"), "easter"),
    (("tz",), "Mars/Phobos"),
    (("quiet",), "22:00-08:00, 12:00-13:00"),
]


@pytest.mark.parametrize(("place", "value"), WHENS)
async def test_an_unreadable_person_is_left_alone(app: Mainspring, place: Any, value: Any, tmp_path: Path) -> None:
    before = await rewrite(app, ANA, *place, value=value)
    told = "person 'ana' cannot be read by this version of Mainspring; a newer one may have written it: "
    for change in (
        app.people.get("ana"),
        app.people.update("ana", first_name="Ana"),
        app.people.put(a_person("ana")),
        app.people.delete("ana"),
    ):
        with pytest.raises(InvalidPerson, match=told):
            await change
    file = tmp_path / "people.csv"
    file.write_text("id,last_name\nana,Lee\nbob,Lee\n")
    report = await app.people.import_csv(file)
    assert (report.updated, [(problem.line, problem.column) for problem in report.problems]) == (1, [(2, "")])
    assert report.problems[0].reason.startswith(told)
    assert await stored(app, ANA) == before


async def test_readable_people_beside_an_unreadable_one_are_found_and_listed(app: Mainspring) -> None:
    await rewrite(app, ANA, "occasions", 0, "days_before", value=3)
    await app.people.put(a_person("cat", email="ana@example.com"))
    assert [person.id for person in await app.people.list(limit=2)] == ["bob", "cat"]
    assert [person.id async for person in app.people.all()] == ["bob", "cat"]
    assert [person.id for person in await app.people.get_many(["ana", "bob"])] == ["bob"]
    for wanted in ({}, {"email": "ana@example.com"}, {"kind": "birthday"}):
        found = await app.people.find(**wanted)  # type: ignore[arg-type]
        assert found.people[-1].id == "cat"
        assert found.unreadable.keys() == {"ana"}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("times", "days_before"), 3),
        (("times", "feb29"), "mar2"),
        (("times", "date"), "easter"),
        (("times", "at"), "dawn"),
        (("times", "grace"), "a while"),
        (("times", "tz"), "Mars/Phobos"),
        (("times", "quiet"), "siesta"),
        (("next",), "soon"),
    ],
)
async def test_a_plan_that_cannot_be_understood_is_left_to_newer_workers(
    app: Mainspring, kit: Kit, place: Any, value: Any, caplog: pytest.LogCaptureFixture, *, greeted: list[str]
) -> None:
    before = await rewrite(app, PLAN, *place, value=value)
    await kit.time.advance(hours=1, seconds=19)
    assert greeted == ["bob"], "it blocks no other person"
    assert await stored(app, PLAN) == before, "a program that can read it finds it due"
    await kit.time.advance(seconds=1)
    after = await stored(app, PLAN)
    assert (after.data, after.due_at) == (before.data, to_millis(app.now()) + 60_000), (
        "there seems to be no such program"
    )
    assert caplog.text.count("occasion_unreadable") == 1
    assert [occasion.person for occasion in await app.occasions.upcoming()] == []
    assert await app.occasions.next("ana") == []
    with pytest.raises(InvalidPerson, match="the plan for the birthday of person 'ana' cannot be read"):
        await app.people.update("ana", tz="Asia/Tokyo")
    assert (await app.people.get("ana")).tz == "UTC"


async def test_plans_follow_a_new_tzdata_only_once_all_are_readable(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rewrite(app, PLAN, "times", "days_before", value=3)
    monkeypatch.setattr("mainspring.features.people.timer.tzdata_version", lambda: "2099z")
    await app.runtime.timers.refresh()
    assert await kind_tzdata(app.store, "birthday") != "2099z"
    await rewrite(app, PLAN, "times", value=Times("UTC", "03-01", "09:00", "feb28", "3d").to_data())
    await app.runtime.timers.refresh()
    assert await kind_tzdata(app.store, "birthday") == "2099z"


async def test_a_message_to_an_unreadable_person_waits_for_a_newer_worker(
    app: Mainspring, kit: Kit, greeted: list[str]
) -> None:
    before = (await stored(app, ANA)).data
    await rewrite(app, ANA, "occasions", 0, "days_before", value=3)
    await kit.time.advance(hours=1, seconds=1)
    (job,) = [job async for job in app.jobs.all() if job.target == ("person", "ana")]
    assert (greeted, job.attempts) == (["bob"], 0)
    assert "left to a worker of a newer version: person 'ana' cannot be read" in (job.reason or "")
    await app.store.write([Bundle((Write(ANA, before),))])
    await kit.time.advance(minutes=1)
    assert greeted == ["bob", "ana"]
    assert (await app.jobs.get(job.id)).status is Status.COMPLETED


async def test_a_job_in_an_unreadable_persons_hours_waits_for_a_newer_worker(app: Mainspring, kit: Kit) -> None:
    ran = []

    @app.task(deliver=Window.of_person("ana"))
    async def ping() -> None:
        ran.append(1)

    before = (await stored(app, ANA)).data
    await rewrite(app, ANA, "quiet", value="siesta")
    job = await ping.enqueue()
    await kit.time.advance(seconds=1)
    assert "left to a worker of a newer version" in ((await app.jobs.get(job.id)).reason or "")
    await app.store.write([Bundle((Write(ANA, before),))])
    await kit.time.advance(minutes=1)
    assert ran == [1]


def test_unused_fields_are_not_written() -> None:
    """So that older versions can read it. A new field belongs here only if it is needed by all of them."""
    person = a_person("ana")
    data = json.loads(person.to_json({}, PersonTimes(None, START)))
    assert set(data) == {"id", "tz", "first_name", "last_name", "addresses", "attributes", "occasions", "updated_at"}
    assert set(data["occasions"][0]) == {"kind", "date", "at", "feb29", "late", "grace"}
    plan = OccasionPlan("ana", "birthday", Times.of(person, person.occasions[0]))
    assert set(plan.to_data()) == {"times", "tzdata"}
    assert set(plan.to_data()["times"]) == {"tz", "date", "at", "feb29", "grace"}
