"""People who were parted from their lists and plans, as by a copy that was cut short."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from mainspring import Mainspring, Occasion, Person, testing
from mainspring.features.people import repair
from mainspring.features.people.person import Times
from mainspring.features.people.repair import Lack
from mainspring.features.people.storage import EMAILS, email_key
from mainspring.stores.documents import Bundle, Key, Listing, Write
from mainspring.stores.protocol import Filter
from mainspring.testing.kit import Kit

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
BIRTHDAY = Occasion(kind="birthday", date="1990-03-01")
ANA = Person(id="ana", tz="UTC", email="ana@example.com", occasions=[BIRTHDAY, Occasion(kind="hired", date="06-15")])
BOB = Person(id="bob", tz="UTC", email="bob@example.com")
PLAN = Key("occasions.birthday", "", "ana")


@pytest.fixture(autouse=True)
async def kit(app: Mainspring) -> AsyncIterator[Kit]:
    async with testing.manual(app, start=START) as kit:
        await app.people.put_many([ANA, BOB])
        yield kit


async def lose(app: Mainspring, *keys: Key | None) -> None:
    await app.store.write([Bundle((Write(key, None),)) for key in keys if key is not None])


async def test_nothing_is_missing_at_first(app: Mainspring) -> None:
    assert await repair.look(app.runtime.services, 100) == await repair.mend(app.runtime.services) == Lack(people=2)


async def test_a_list_is_written_anew(app: Mainspring) -> None:
    await lose(app, email_key("ana", ANA))
    assert (await app.people.find(email="ana@example.com")).people == []
    assert (
        await repair.look(app.runtime.services, 100)
        == await repair.mend(app.runtime.services)
        == Lack(people=2, unlisted=1)
    )
    assert (await app.people.find(email="ana@example.com")).people == [ANA]
    assert not await repair.look(app.runtime.services, 100)


async def test_a_plan_is_made_anew(app: Mainspring, kit: Kit, greeted: list[str]) -> None:
    (before,) = await app.store.documents([PLAN])
    await lose(app, PLAN, Key("occasion_kinds", "", "birthday"))
    assert await repair.mend(app.runtime.services) == Lack(people=2, unplanned=1)
    (after,) = await app.store.documents([PLAN])
    assert (after.data, after.due_at) == (before.data, before.due_at)
    assert [occasion.kind for occasion in await app.occasions.upcoming()] == ["birthday"]
    await kit.time.advance(hours=2)
    assert greeted == ["ana"]


async def test_a_repaired_plan_does_not_send_a_message_again(app: Mainspring, kit: Kit, greeted: list[str]) -> None:
    await kit.time.advance(hours=2)
    (before,) = await app.store.documents([PLAN])
    await lose(app, PLAN)
    await app.jobs.delete_where(Filter(target_id="ana"))  # and what its key was held by
    await repair.mend(app.runtime.services)
    (after,) = await app.store.documents([PLAN])
    assert json.loads(after.data) == json.loads(before.data)
    await kit.time.advance(hours=2)
    assert greeted == ["ana"]


async def test_an_entry_of_another_person_is_removed(app: Mainspring) -> None:
    old = email_key("bob", BOB.with_changes(email="robert@example.com"))
    gone = email_key("cat", BOB)
    assert old
    assert gone
    await app.store.write([Bundle((Write(old, "{}"), Write(gone, "{}")))])
    assert await repair.mend(app.runtime.services) == Lack(people=2, strays=2)
    left = [document.key for document in await app.store.browse(Listing(EMAILS, None))]
    assert sorted(left) == sorted([email_key("ana", ANA), email_key("bob", BOB)])  # type: ignore[type-var]


async def test_a_person_that_only_a_newer_version_can_read_is_not_repaired(app: Mainspring) -> None:
    data = {**json.loads(ANA.to_json({}, Times(None, app.now()))), "quiet": "siesta"}
    await app.store.write([Bundle((Write(Key("people", "", "ana"), json.dumps(data)),))])
    await lose(app, PLAN)
    assert await repair.mend(app.runtime.services) == Lack(people=2)
    assert len(await app.store.browse(Listing(EMAILS, None))) == 2


async def test_a_change_during_the_repair_wins(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    await lose(app, email_key("ana", ANA))
    write = app.store.write

    async def after_a_change(bundles: list[Bundle]) -> object:
        monkeypatch.setattr(app.store, "write", write)
        await app.people.update("ana", email="lee@example.com")
        return await write(bundles)

    monkeypatch.setattr(app.store, "write", after_a_change)
    await repair.mend(app.runtime.services)
    assert [person.id for person in (await app.people.find(email="lee@example.com")).people] == ["ana"]
    assert len(await app.store.browse(Listing(EMAILS, None))) == 2
