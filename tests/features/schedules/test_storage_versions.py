"""Schedules that were written by another version of this program: an upgrade has both at work for a while."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring import Mainspring, testing
from mainspring.clock import to_millis
from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules import Daily, Misfire, Schedule
from mainspring.features.schedules.storage import StoredSchedule, template_of
from mainspring.job import NewJob
from mainspring.stores.documents import Bundle, Document, Key, Listing, Write
from mainspring.testing.kit import Kit

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = Key("schedules", "", "a")


@pytest.fixture
def app() -> Mainspring:
    app = Mainspring("memory://")

    @app.task(name="work")
    async def work() -> None: ...

    return app


@pytest.fixture(autouse=True)
async def kit(app: Mainspring) -> AsyncIterator[Kit]:
    async with testing.manual(app, start=START) as kit:
        await app.schedules.put("a", Daily("13:00"), app.tasks["work"].prepare(), misfire=Misfire.all(5))
        yield kit


async def stored(app: Mainspring) -> Document:
    (document,) = await app.store.documents([KEY])
    return document


async def rewrite(app: Mainspring, *place: str, value: Any) -> None:
    """As a newer version would: with a field that is not known here."""
    document = await stored(app)
    data = json.loads(document.data)
    part = data
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    await app.store.write([Bundle((Write(KEY, json.dumps(data), due_at=document.due_at),))])


async def test_unknown_fields_outside_rule_and_job_are_kept_and_ignored(app: Mainspring, kit: Kit) -> None:
    await rewrite(app, "remembered", value={"by": "a newer version"})
    await kit.time.advance(days=1)
    await app.schedules.pause("a")
    assert [entry.became for entry in await app.schedules.ledger("a")] == ["fired"]
    assert json.loads((await stored(app)).data)["remembered"] == {"by": "a newer version"}


@pytest.mark.parametrize(
    "place",
    [("schedule", "only"), ("schedule", "rule", "only"), ("schedule", "misfire", "only"), ("job", "only")],
    ids="/".join,
)
async def test_unknown_fields_of_rule_or_job_make_a_schedule_unreadable(
    app: Mainspring, kit: Kit, place: tuple[str, ...]
) -> None:
    await rewrite(app, *place, value="on Sundays")
    before = (await stored(app)).data
    await app.schedules.put("b", "daily 14:00", app.tasks["work"].prepare())
    await kit.time.advance(hours=2)
    assert len(await app.schedules.ledger("b")) == 1, "it blocks no other schedule"
    assert (await stored(app)).data == before
    assert (await stored(app)).due_at is not None, "a newer one can still fire it"
    with pytest.raises(InvalidSchedule, match=r"a newer one may have written it.*only"):
        await app.schedules.get("a")
    assert [schedule.id for schedule in await app.schedules.list()] == ["b"]
    assert (await app.schedules.unreadable()).keys() == {"a"}


async def test_newer_workers_go_first(app: Mainspring, kit: Kit) -> None:
    await rewrite(app, "schedule", "only", value="on Sundays")
    before = await stored(app)
    await kit.time.advance(hours=1, seconds=19)
    assert await stored(app) == before, "a program that can read it finds it due"
    await kit.time.advance(seconds=1)
    assert (await stored(app)).due_at == to_millis(app.now()) + 60_000, "there seems to be no such program"


async def test_an_option_of_the_job_that_is_not_set_need_not_be_known(app: Mainspring, kit: Kit) -> None:
    await rewrite(app, "job", "only", value=None)
    await kit.time.advance(days=1)
    assert [entry.became for entry in await app.schedules.ledger("a")] == ["fired"]


async def test_an_older_program_leaves_alone_what_a_newer_one_declares(app: Mainspring) -> None:
    app.every("@daily", id="a")(app.tasks["work"])
    app.every("@daily", id="b")(app.tasks["work"])
    await rewrite(app, "schedule", "only", value="on Sundays")
    before = await stored(app)
    await app.schedules.reconcile()
    assert await stored(app) == before
    assert [schedule.id for schedule in await app.schedules.list()] == ["b"]


async def test_a_newer_ledger_can_be_read(app: Mainspring, kit: Kit) -> None:
    await kit.time.advance(days=1)
    (document,) = await app.store.browse(Listing("ledger", "a"))
    data = {**json.loads(document.data), "weather": "fine"}
    await app.store.write([Bundle((Write(document.key, json.dumps(data)),))])
    (entry,) = await app.schedules.ledger("a")
    assert entry.became == "fired"


def test_unused_fields_are_not_written() -> None:
    """So that older versions can read it. A new field belongs here only if it is needed by all of them."""
    stored = StoredSchedule("a", Schedule("@daily"), template_of(NewJob("1", "work", "{}")), START)
    data = stored.to_data()
    assert set(data) == {
        "schedule", "job", "since", "owner", "disabled", "decided", "next", "last_job", "fires", "tzdata",
    }  # fmt: skip
    assert set(data["schedule"]) == {"rule", "tz", "gap", "fold", "misfire", "overlap", "jitter"}
    assert set(data["job"]) == {
        "task", "payload", "queue", "priority", "max_attempts", "timeout", "tags", "keep", "keep_dead",
    }  # fmt: skip
