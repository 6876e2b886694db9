"""Changes of schedules by hand are in the audit log, with actor, time and reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Mainspring, Retention, testing
from mainspring.errors import SystemHalted
from mainspring.services import whoami
from mainspring.stores.protocol import AuditEntry
from mainspring.testing.kit import Kit

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
BY: dict[str, Any] = {"reason": "ticket 42", "actor": "ana"}


@pytest.fixture
def app() -> Mainspring:
    app = Mainspring("memory://")

    @app.task(name="work")
    async def work(day: str = "monday") -> None: ...

    return app


@pytest.fixture(autouse=True)
async def kit(app: Mainspring) -> AsyncIterator[Kit]:
    async with testing.manual(app, start=START) as kit:
        yield kit


def work(app: Mainspring, **arguments: str) -> Any:
    return app.tasks["work"].prepare(**arguments)


async def newest(app: Mainspring) -> AuditEntry:
    (entry,) = await app.audit(limit=1)
    return entry


async def test_a_new_schedule_is_in_the_audit_log(app: Mainspring) -> None:
    await app.schedules.put("a", "daily 11:00", work(app), tz="Asia/Tokyo", **BY)
    entry = await newest(app)
    assert (entry.at, entry.actor, entry.action, entry.reason) == (START, "ana", "schedule.put", "ticket 42")
    assert (entry.detail["schedule"], entry.detail["after"]["tz"]) == ("a", "Asia/Tokyo")
    assert (entry.detail["after"]["task"], "before" in entry.detail) == ("work", False)


async def test_the_audit_log_has_lengths_in_seconds_and_priorities_by_name(app: Mainspring) -> None:
    job = app.tasks["work"].using(timeout=90, priority="high", retention=Retention(completed=60, dead="forever"))
    await app.schedules.put("a", "daily 11:00", job.prepare())
    after = (await newest(app)).detail["after"]
    told = {name: after[name] for name in ("timeout", "priority", "keep", "keep_dead")}
    assert told == {"timeout": 90, "priority": "high", "keep": 60, "keep_dead": "forever"}


async def test_a_changes_audit_entry_has_what_is_different(app: Mainspring) -> None:
    await app.schedules.put("a", "daily 11:00", work(app), tz="Asia/Tokyo")
    assert (await newest(app)).actor == whoami()
    await app.schedules.put("a", "daily 11:00", work(app, day="friday"), tz="Asia/Seoul", **BY)
    assert (await newest(app)).detail == {
        "schedule": "a",
        "before": {"tz": "Asia/Tokyo", "payload": "{}"},
        "after": {"tz": "Asia/Seoul", "payload": '{"day":"friday"}'},
    }


async def test_a_large_payload_is_shortened_in_the_audit_log(app: Mainspring) -> None:
    for letter in "xy":
        await app.schedules.put("a", "daily 11:00", work(app, day=letter * 300_000))
    detail = (await newest(app)).detail
    assert detail["before"]["payload"].startswith('{"day":"xxx')
    assert detail["after"]["payload"].startswith('{"day":"yyy')
    assert len(str(detail)) < 5000


async def test_a_put_that_changes_nothing_is_not_in_the_audit_log(app: Mainspring) -> None:
    for _ in range(2):
        await app.schedules.put(
            "a", "daily 11:00", app.tasks["work"].using(target=("guest", "7"), tags=["x"]).prepare()
        )
    await app.schedules.resume("a")
    assert [entry.action for entry in await app.audit()] == ["schedule.put"]


async def test_a_pause_and_its_end_are_in_the_audit_log(app: Mainspring, kit: Kit) -> None:
    await app.schedules.put("a", "daily 11:00", work(app))
    await app.schedules.pause("a", until=START + timedelta(days=3), **BY)
    entry = await newest(app)
    assert (entry.actor, entry.action, entry.reason) == ("ana", "schedule.pause", "ticket 42")
    assert entry.detail["after"]["pause"]["until"] == "2026-03-04T12:00:00+00:00"
    await kit.time.advance(days=1)
    await app.schedules.resume("a", **BY)
    entry = await newest(app)
    assert (entry.at, entry.action) == (START + timedelta(days=1), "schedule.resume")
    assert entry.detail["before"]["pause"]["until"] == "2026-03-04T12:00:00+00:00"


async def test_a_trigger_is_in_the_audit_log(app: Mainspring) -> None:
    await app.schedules.put("a", "daily 11:00", work(app))
    inserted = await app.schedules.trigger("a", **BY)
    entry = await newest(app)
    assert (entry.actor, entry.action, entry.reason) == ("ana", "schedule.trigger", "ticket 42")
    assert entry.detail == {"schedule": "a", "job": inserted.id}


async def test_a_trigger_that_is_refused_is_not_noted(app: Mainspring) -> None:
    await app.schedules.put("a", "daily 11:00", work(app))
    await app.halt("moving", reject_new=True)
    with pytest.raises(SystemHalted):
        await app.schedules.trigger("a")
    assert (await newest(app)).action == "halt"


async def test_a_deletions_audit_entry_has_the_schedule(app: Mainspring) -> None:
    await app.schedules.put("a", "daily 11:00", work(app), tz="Asia/Tokyo")
    made = (await newest(app)).detail["after"]
    await app.schedules.delete("a", **BY)
    entry = await newest(app)
    assert (entry.actor, entry.action, entry.reason) == ("ana", "schedule.delete", "ticket 42")
    assert entry.detail == {"schedule": "a", "before": made}


async def test_firing_is_not_in_the_audit_log(app: Mainspring, kit: Kit) -> None:
    await app.schedules.put("a", "every 1h", work(app))
    await kit.time.advance(hours=5)
    assert len(await app.schedules.ledger("a")) == 5
    assert len(await app.audit()) == 1
