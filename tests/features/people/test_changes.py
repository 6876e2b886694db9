"""Changes of people and their occasions in the change feed: who and what, but no name and no address."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring import ChangeFilter, Mainspring, Occasion, Person
from mainspring.stores.feed import EVERY_CHANGE, Change
from mainspring.testing.kit import Kit

ANA = Person(
    id="ana",
    tz="UTC",
    first_name="Zerlina",
    email="zerlina@example.com",
    addresses={"sms": "+64 21 000"},
    occasions=[Occasion(kind="birthday", date="1990-06-15")],
)


class Feed:
    """Reads the feed of an application from now on."""

    def __init__(self, app: Mainspring, cursor: str) -> None:
        self.app, self.cursor = app, cursor

    async def read(self, where: ChangeFilter = EVERY_CHANGE) -> list[Change]:
        page = await self.app.store.changes(self.cursor)
        self.cursor = str(page.cursor)
        return list(page.changes(where))

    async def told(self) -> list[tuple[str, Any, Any, Any]]:
        """Return kind, collection, id and what became of it."""
        found = await self.read(ChangeFilter(kinds=("person", "occasion")))
        return [(change.kind, *(change.data[name] for name in ("collection", "id", "became"))) for change in found]


@pytest.fixture
async def feed(app: Mainspring) -> Feed:
    return Feed(app, await app.changes().begin())


async def test_a_person_and_its_occasions_are_recorded(app: Mainspring, feed: Feed) -> None:
    await app.people.put(ANA)
    assert await feed.told() == [
        ("person", "people", "ana", "created"),
        ("occasion", "occasions.birthday", "ana", "created"),
    ]
    await app.people.update("ana", first_name="Zoe")
    assert await feed.told() == [("person", "people", "ana", "updated")]
    await app.people.update("ana", tz="Asia/Tokyo")
    assert await feed.told() == [
        ("person", "people", "ana", "updated"),
        ("occasion", "occasions.birthday", "ana", "updated"),
    ]
    await app.people.delete("ana")
    assert await feed.told() == [
        ("person", "people", "ana", "deleted"),
        ("occasion", "occasions.birthday", "ana", "deleted"),
    ]


async def test_an_occasion_whose_message_was_sent_is_deleted_and_created_again(app: Mainspring) -> None:
    """Its plan stays, to remember what was sent. The feed is about the occasion."""
    async with Kit(app, start=datetime(2026, 6, 14, tzinfo=UTC)) as kit:
        await app.people.put(ANA)
        feed = Feed(app, await app.changes().begin())
        await kit.time.advance(days=2)
        kinds = {change.kind for change in await feed.read()}
        assert "completed" in kinds  # so the plan moved on to the next year, but the occasion is as it was:
        assert not kinds & {"person", "occasion"}
        await app.people.remove_occasion("ana", "birthday")
        await app.people.put_occasion("ana", ANA.occasions[0])
        occasion = ("occasion", "occasions.birthday", "ana")
        assert [told for told in await feed.told() if told[0] == "occasion"] == [
            (*occasion, "deleted"),
            (*occasion, "created"),
        ]


async def test_a_person_that_is_written_unchanged_is_not_recorded(app: Mainspring, feed: Feed) -> None:
    await app.people.put(ANA)
    await feed.read()
    await app.people.put(ANA)
    assert await feed.read() == []


async def test_many_people_are_few_entries(app: Mainspring) -> None:
    cursor = await app.changes().begin()
    await app.people.put_many([Person(id=f"p{number}", tz="UTC") for number in range(900)])
    page = await app.store.changes(cursor)
    assert len(page.entries) <= 3
    assert [change.data["id"] for change in page.changes(EVERY_CHANGE)] == [f"p{number}" for number in range(900)]


async def test_neither_names_nor_addresses_are_in_the_feed(app: Mainspring, feed: Feed) -> None:
    await app.people.put(ANA)
    await app.people.update("ana", email="zerlina@example.org")
    await app.people.delete("ana", reason="left")
    found = repr(await feed.read(ChangeFilter(kinds=("person", "occasion", "document"))))
    assert "ana" in found
    assert not [word for word in ("erlina", "example", "+64", "1990") if word in found]
