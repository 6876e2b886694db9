"""Finding people by what is known of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mainspring import Mainspring, Occasion, Person
from mainspring.errors import UnknownTimeZone
from mainspring.features.people import api

ANA = Person(
    id="ana", tz="Pacific/Auckland", first_name="Ana", last_name="Lee", email="Ana@Example.com",
    attributes={"team": "blue", "score": 3, "vip": True}, occasions=[Occasion(kind="birthday", date="12-30")],
)  # fmt: skip
BOB = Person(id="bob", tz="UTC", first_name="Bob", last_name="Ångström", email="team@example.com")
CAT = Person(
    id="cat", tz="UTC", last_name="Leeds", email="TEAM@example.com", attributes={"score": "3", "team": None},
    occasions=[Occasion(kind="hired", date="06-15")],
)  # fmt: skip


@pytest.fixture
async def app() -> AsyncIterator[Mainspring]:
    app = Mainspring("memory://")
    await app.people.put_many([ANA, BOB, CAT])
    yield app
    await app.close()


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "ana bob cat"),
        ({"email": "ana@example.com"}, "ana"),
        ({"email": "team@EXAMPLE.com"}, "bob cat"),
        ({"email": "nobody@example.com"}, ""),
        ({"name": "an"}, "ana"),
        ({"name": "LEE"}, "ana cat"),
        ({"name": "ana l"}, "ana"),
        ({"name": "ångs"}, "bob"),
        ({"name": "ee"}, ""),
        ({"tz": "UTC"}, "bob cat"),
        ({"kind": "hired"}, "cat"),
        ({"kind": "name day"}, ""),
        ({"attributes": {"score": 3}}, "ana"),
        ({"attributes": {"score": "3"}}, "ana cat"),
        ({"attributes": {"vip": "true"}}, "ana"),
        ({"attributes": {"vip": True, "team": "red"}}, ""),
        ({"email": "team@example.com", "kind": "hired"}, "cat"),
        ({"name": "lee", "tz": "Pacific/Auckland"}, "ana"),
    ],
)
async def test_all_that_is_given_must_fit(app: Mainspring, wanted: dict[str, Any], found: str) -> None:
    page = await app.people.find(**wanted)
    assert ([person.id for person in page.people], page.cursor) == (found.split(), None)


async def test_a_zone_that_does_not_exist_is_refused(app: Mainspring) -> None:
    with pytest.raises(UnknownTimeZone):
        await app.people.find(tz="Mars/Olympus")


async def test_a_changed_person_is_found_by_the_new_values(app: Mainspring) -> None:
    await app.people.update("ana", email="new@example.com")
    assert (await app.people.find(email="ana@example.com")).people == []
    assert [person.id for person in (await app.people.find(email="new@example.com")).people] == ["ana"]
    await app.people.update("ana", email=None)
    assert (await app.people.find(email="new@example.com")).people == []
    await app.people.remove_occasion("cat", "hired")
    assert (await app.people.find(kind="hired")).people == []
    await app.people.delete("bob")
    assert [person.id for person in (await app.people.find(email="team@example.com")).people] == ["cat"]


@pytest.mark.parametrize("wanted", [{}, {"name": "x"}, {"kind": "birthday"}, {"email": "all@example.com"}])
async def test_a_search_continues_page_by_page(
    app: Mainspring, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PEOPLE_PER_PAGE", 7)
    monkeypatch.setattr(api, "MAX_SCANNED", 21)
    for person in (ANA, BOB, CAT):
        await app.people.delete(person.id)
    day = Occasion(kind="birthday", date="06-15")
    many = [
        Person(id=f"p{number:03}", tz="UTC", first_name="x", email="all@example.com", occasions=[day])
        for number in range(50)
    ]
    await app.people.put_many(many)
    seen: list[Person] = []
    cursor: str | None = None
    while True:
        page = await app.people.find(**wanted, limit=10, cursor=cursor)
        assert len(page.people) <= 10
        seen += page.people
        if (cursor := page.cursor) is None:
            break
    assert seen == many


async def test_a_page_looks_at_so_many_people_and_no_more(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PEOPLE_PER_PAGE", 1)
    monkeypatch.setattr(api, "MAX_SCANNED", 2)
    first = await app.people.find(name="leeds")
    assert (first.people, first.cursor) == ([], "bob")
    second = await app.people.find(name="leeds", cursor=first.cursor)
    assert (second.people, second.cursor) == ([CAT], None)
