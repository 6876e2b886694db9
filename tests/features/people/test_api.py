"""People and their occasions as data: what is refused, kept and found."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mainspring import Mainspring, Occasion, Person
from mainspring.errors import ConfigurationError, InvalidPerson, PersonNotFound, StoreUnavailable
from mainspring.features.people import api
from mainspring.features.people.person import PersonFields
from mainspring.features.people.storage import PersonChange
from mainspring.job import Inserted
from mainspring.stores.documents import Bundle
from mainspring.testing.kit import Kit


@pytest.fixture
async def app() -> AsyncIterator[Mainspring]:
    app = Mainspring("memory://")
    yield app
    await app.close()


ANA = Person(
    id="ana",
    tz="Pacific/Auckland",
    first_name="Ana",
    last_name="Lee",
    email="ana@example.com",
    addresses={"sms": "+64 21 000"},
    locale="en-NZ",
    quiet="22:00-08:00",
    attributes={"team": "blue", "score": 3},
    occasions=[Occasion(kind="birthday", date="1990-12-30", template="cheerful", channel="sms")],
)


async def test_a_person_that_was_put_can_be_read(app: Mainspring) -> None:
    await app.people.put(ANA)
    assert await app.people.get("ana") == ANA
    assert ANA.name == "Ana Lee"
    assert (ANA.address("sms"), ANA.address("email"), ANA.address("fax")) == ("+64 21 000", "ana@example.com", None)
    assert await app.people.get_or_none("bob") is None
    with pytest.raises(PersonNotFound, match="bob"):
        await app.people.get("bob")
    assert await app.people.get_or_none("no\0body") is None


async def test_put_reports_whether_it_created_or_changed_a_person(app: Mainspring) -> None:
    bob = Person(id="bob", tz="UTC")
    assert await app.people.put_many([ANA, bob]) == [PersonChange.CREATED, PersonChange.CREATED]
    other = bob.with_changes(locale="de")
    assert await app.people.put_many([ANA, other]) == [PersonChange.UNCHANGED, PersonChange.UPDATED]
    assert await app.people.put_many([bob, other, bob]) == [PersonChange.UPDATED] * 3  # one after the other
    assert await app.people.get("bob") == bob


async def test_update_changes_what_is_given(app: Mainspring) -> None:
    await app.people.put(ANA)
    after = await app.people.update("ana", tz="Europe/Paris", quiet=None)
    assert (after.tz, after.quiet, after.email) == ("Europe/Paris", None, ANA.email)
    assert await app.people.get("ana") == after
    with pytest.raises(InvalidPerson, match="tz: 'Paris' is not an IANA time zone; did you mean Europe/Paris"):
        await app.people.update("ana", tz="Paris")
    with pytest.raises(InvalidPerson, match="shoe_size"):
        await app.people.update("ana", shoe_size=40)  # type: ignore[call-arg]
    with pytest.raises(InvalidPerson, match="first_name"):
        await app.people.update("ana", first_name=7)  # type: ignore[arg-type]
    with pytest.raises(PersonNotFound, match="bob"):
        await app.people.update("bob", tz="UTC")


async def test_a_person_has_the_times_of_creation_and_last_change(app: Mainspring, kit: Kit, file: Write) -> None:
    first = await app.people.put(ANA)
    assert first == ANA  # the times are not compared
    assert (ANA.created_at, first.created_at, first.updated_at) == (None, app.now(), app.now())
    assert times_of(await app.people.get("ana")) == times_of(first)
    await kit.time.advance(hours=1)
    assert times_of(await app.people.put(ANA)) == times_of(first)  # nothing has changed
    await app.people.import_csv(file("id,tz\nana,Pacific/Auckland\nbob,UTC"))
    assert times_of(await app.people.get("ana")) == times_of(first)
    assert times_of(await app.people.get("bob")) == (app.now(), app.now())

    changes: Sequence[Callable[[], Awaitable[object]]] = [
        lambda: app.people.update("ana", locale="mi"),
        lambda: app.people.put(ANA),  # a person without times
        lambda: app.people.put_occasion("ana", Occasion(kind="hired", date="06-01")),
        lambda: app.people.import_csv(file("id,locale\nana,de")),
        lambda: app.people.put_many([first]),  # a person with other times
    ]
    for change in changes:
        await kit.time.advance(hours=1)
        await change()
        assert times_of(await app.people.get("ana")) == (first.created_at, app.now())

    await app.people.delete("ana")
    await kit.time.advance(hours=1)
    assert times_of(await app.people.put(first)) == (app.now(), app.now())


def times_of(person: Person) -> tuple[datetime | None, datetime | None]:
    return person.created_at, person.updated_at


def test_every_field_but_the_id_and_the_times_can_be_changed() -> None:
    assert PersonFields.__annotations__.keys() == Person.model_fields.keys() - {"id", "created_at", "updated_at"}
    with pytest.raises(InvalidPerson, match="created_at: this cannot be changed"):
        ANA.with_changes(created_at=None)  # type: ignore[call-arg]
    with pytest.raises(InvalidPerson, match="quiet"):
        ANA.with_changes(quiet=22)  # type: ignore[arg-type]


async def test_a_person_has_one_occasion_of_each_kind(app: Mainspring) -> None:
    await app.people.put(ANA)
    await app.people.put_occasion("ana", Occasion(kind="birthday", date="12-31"))
    after = await app.people.put_occasion("ana", Occasion(kind="anniversary", date="2010-06-01"))
    assert [(occasion.kind, occasion.date) for occasion in after.occasions] == [
        ("anniversary", "2010-06-01"),
        ("birthday", "12-31"),
    ]
    after = await app.people.remove_occasion("ana", "birthday")
    assert [occasion.kind for occasion in await app.occasions.next("ana")] == ["anniversary"]
    assert after.occasion("birthday") is None


async def test_people_are_listed_by_id(app: Mainspring) -> None:
    everyone = [Person(id=f"p{number:04}", tz="UTC", locale="de" if number % 100 else "fr") for number in range(1200)]
    await app.people.put_many(everyone[::-1])
    assert [person.id for person in await app.people.list(limit=2, after="p0009")] == ["p0010", "p0011"]
    assert [person async for person in app.people.all()] == everyone
    assert len([found async for found in app.people.all(lambda person: person.locale == "fr")]) == 12


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tz": "Europe/Londn"}, "did you mean Europe/London"),
        ({"tz": "auckland"}, "Pacific/Auckland"),
        ({"tz": "+02:00"}, "Europe/Paris"),
        ({"id": ""}, "printable"),
        ({"id": "a\nb"}, "printable"),
        ({"email": "ana"}, "not an e-mail address"),
        ({"email": "ana @b"}, "not an e-mail address"),
        ({"quiet": "22-8"}, "22:00-08:00"),
        ({"quiet": "08:00-08:00"}, "whole day"),
        ({"shoe_size": 3}, "shoe_size"),
        ({"occasions": [Occasion(kind="a", date="01-01"), Occasion(kind="a", date="02-02")]}, "one of each kind"),
        ({"occasions": [Occasion(kind=f"k{n}", date="01-01") for n in range(31)]}, "up to 30"),
        ({"attributes": {"score": float("nan")}}, "finite"),
    ],
)
def test_invalid_people_are_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Person.model_validate({"id": "p", "tz": "UTC", **fields})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"date": "30.12.1990"}, "write 1990-12-30, or 12-30"),
        ({"date": "1990-13-01"}, "1990-13-01 does not exist"),
        ({"date": "1990-02-29"}, "1990-02-29 does not exist"),
        ({"date": "02-30"}, "02-30 does not exist"),
        ({"date": 1990}, "write 1990-12-30"),
        ({"kind": "my day"}, "pattern"),
        ({"kind": ""}, "pattern"),
        ({"at": "9 am"}, "09:00"),
        ({"feb29": "feb27"}, "feb28"),
        ({"late": "maybe"}, "send"),
        ({"grace": "soon"}, "length of time"),
        ({"grace": "1s"}, "at least 1m"),
    ],
)
def test_invalid_occasions_are_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Occasion.model_validate({"kind": "birthday", "date": "12-30", **fields})


@pytest.mark.parametrize(
    ("given", "kept"), [("1990-12-30", "1990-12-30"), ("--12-30", "12-30"), (date(1990, 1, 2), "1990-01-02")]
)
def test_dates_are_written_in_one_way(given: Any, kept: str) -> None:
    assert Occasion(kind="birthday", date=given).date == kept


# -- from files --------------------------------------------------------------------------------------------

Write = Callable[[str], Path]


@pytest.fixture
def file(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "people.csv"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return path

    return write


FILE = """\
id,tz,first_name,last_name,email,quiet,birthday,birthday.at,anniversary,address.sms,attribute.team
p1,Pacific/Auckland,Ana,Lee,ana@example.com,22:00-08:00,1990-12-30,10:00,,+64 21 000,blue
p2,America/New_York,"Bo, Jr",,,,12-30,,2010-06-01,,
"""


async def test_people_are_imported_from_a_file(app: Mainspring, file: Write) -> None:
    report = await app.people.import_csv(file(FILE))
    assert (report.created, report.updated, report.unchanged, report.problems) == (2, 0, 0, [])
    one, two = await app.people.list()
    assert one == Person(
        id="p1",
        tz="Pacific/Auckland",
        first_name="Ana",
        last_name="Lee",
        email="ana@example.com",
        quiet="22:00-08:00",
        addresses={"sms": "+64 21 000"},
        attributes={"team": "blue"},
        occasions=[Occasion(kind="birthday", date="1990-12-30", at="10:00")],
    )
    assert (two.first_name, [occasion.kind for occasion in two.occasions]) == ("Bo, Jr", ["anniversary", "birthday"])
    assert len(await app.occasions.upcoming(timedelta(days=366))) == 3


async def test_a_file_again_changes_what_is_different(app: Mainspring, file: Write) -> None:
    await app.people.import_csv(file(FILE))
    await app.people.update("p1", locale="en-NZ")
    report = await app.people.import_csv(file(FILE.replace("10:00", "11:00")))
    assert (report.created, report.updated, report.unchanged) == (0, 1, 1)
    person = await app.people.get("p1")
    assert (person.locale, person.occasions[0].at) == ("en-NZ", "11:00")


async def test_bad_rows_are_reported_and_the_others_imported(app: Mainspring, file: Write) -> None:
    text = """\
Id;tz;email;birthday
good;Europe/Paris;a@b;1990-01-02

;Europe/Paris;;
bad;Europe/Pariss;none;31.12.1990
long;UTC;;;;
"multi
line";UTC;;
nul\0;UTC;;
latin;UTC;caf\udce9@b;
nozone;;;
last;UTC;;02-29
"""
    report = await app.people.import_csv(file(text), columns={"Id": "id"})
    assert report.created == 2
    assert [(problem.line, problem.column) for problem in report.problems] == [
        (4, "Id"),
        (5, "birthday"),
        (5, "email"),
        (5, "tz"),
        (6, ""),
        (7, "Id"),
        (9, "Id"),
        (10, ""),
        (11, "tz"),
    ]
    assert report.bad_rows == 7
    reasons = {(problem.line, problem.column): problem.reason for problem in report.problems}
    assert "did you mean Europe/Paris or" in reasons[5, "tz"]
    assert "there are 4 columns" in reasons[6, ""]
    assert "UTF-8" in reasons[10, ""]
    assert [person.id for person in await app.people.list()] == ["good", "last"]


async def test_lines_about_one_person_take_effect_in_their_order(
    app: Mainspring, file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PEOPLE_PER_WRITE", 2)
    progress: list[int] = []
    lines = ["p1,UTC,first", "p2,UTC,Bo", "p1,UTC,second", "p3,UTC,Cy", "p1,UTC,third", "p4,UTC,", "p1,UTC,last"]
    report = await app.people.import_csv(file("id,tz,first_name\n" + "\n".join(lines)), on_progress=progress.append)
    assert (report.created, report.updated, report.problems) == (4, 3, [])
    assert (await app.people.get("p1")).first_name == "last"
    assert progress == [3, 5, 7, 8]


async def test_problems_keep_their_lines_however_the_file_is_divided(
    app: Mainspring, file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PEOPLE_PER_WRITE", 3)
    lines = [f"p{number},{'UTC' if number % 4 else 'Nowhere'}" for number in range(20)]
    report = await app.people.import_csv(file("id,tz\n" + "\n".join(lines)))
    assert [problem.line for problem in report.problems] == [2, 6, 10, 14, 18]
    assert report.created == 15


async def test_people_before_an_error_of_the_source_are_put(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PEOPLE_PER_WRITE", 2)

    def some() -> Iterator[Person]:
        for number in range(4):
            yield Person(id=f"p{number}", tz="UTC")
        message = "the source is gone"
        raise OSError(message)

    with pytest.raises(OSError, match="the source is gone"):
        await app.people.put_many(some())
    assert [person.id for person in await app.people.list()] == ["p0", "p1", "p2", "p3"]


async def test_a_long_import_leaves_the_process_as_it_was(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PEOPLE_PER_WRITE", 1)
    before, during = (sys.getswitchinterval(), gc.get_threshold()), set[tuple[int, int, int]]()

    def some() -> Iterator[Person]:
        for number in range(5):
            during.add(gc.get_threshold())
            yield Person(id=f"p{number}", tz="UTC")

    await app.people.put_many(some())
    assert len(during) == 2
    assert (sys.getswitchinterval(), gc.get_threshold()) == before


async def test_a_store_that_fails_ends_an_import(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PEOPLE_PER_WRITE", 1)
    write, calls = app.store.write, 0

    async def fail_later(bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        nonlocal calls
        calls += 1
        if calls > 2:
            message = "away"
            raise StoreUnavailable(message)
        return await write(bundles)

    monkeypatch.setattr(app.store, "write", fail_later)
    before = asyncio.all_tasks()
    with pytest.raises(StoreUnavailable, match="away"):
        await app.people.put_many(Person(id=f"p{number}", tz="UTC") for number in range(9))
    assert [person.id for person in await app.people.list()] == ["p0", "p1"]
    assert asyncio.all_tasks() == before


async def test_a_dry_run_writes_nothing(app: Mainspring, file: Write) -> None:
    seen: list[int] = []
    path = file(FILE)
    report = await app.people.import_csv(path, dry_run=True, on_progress=seen.append)
    assert (report.created, await app.people.list()) == (2, [])
    assert seen == [3]


@pytest.mark.parametrize(
    ("header", "columns", "reason"),
    [
        ("", {}, "is empty"),
        ("name,tz", {}, "'name'.*first_name"),
        ("tz,email", {}, "no column is named id"),
        ("id,e-mail", {}, "did you mean email"),
        ("id,email", {"mail": "email"}, "no column 'mail'"),
        ("id,a,b", {"a": "email", "b": "email"}, "two columns are email"),
    ],
)
async def test_unknown_columns_are_refused(
    app: Mainspring, file: Write, header: str, columns: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        await app.people.import_csv(file(header), columns=columns)


async def test_an_import_takes_columns_of_own_kinds(app: Mainspring, file: Write) -> None:
    @app.occasion("name-day")
    async def celebrate(person: Person) -> None: ...

    text = "id,tz,junk,name-day,occasion.hired\np1,UTC,x,03-04,2020-05-06\n"
    await app.people.import_csv(file(text), columns={"junk": ""})
    (person,) = await app.people.list()
    assert [(occasion.kind, occasion.date) for occasion in person.occasions] == [
        ("hired", "2020-05-06"),
        ("name-day", "03-04"),
    ]


async def test_the_last_row_of_a_person_counts(app: Mainspring, file: Write) -> None:
    await app.people.import_csv(file("id,tz\np1,UTC\np1,Asia/Tokyo\n"))
    assert (await app.people.get("p1")).tz == "Asia/Tokyo"
