"""The change feed says what schedules, breakers and failure groups became, and which person changed them."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Breaker, ChangeFilter, Context, Mainspring
from mainspring.features.failures.group import GroupState
from mainspring.stores.feed import ChangeKind
from mainspring.testing import Kit

pytestmark = pytest.mark.slow


class Feed:
    """Reads what the feed says of one kind, from the moment at which it was made."""

    def __init__(self, app: Mainspring, cursor: str) -> None:
        self.app = app
        self.cursor = cursor

    async def told(self, kind: str) -> list[tuple[Any, Any]]:
        """Return what became of things, and the actor."""
        page = await self.app.store.changes(self.cursor)
        self.cursor = str(page.cursor)
        found = page.changes(ChangeFilter(kinds=(ChangeKind(kind),)))
        return [(change.data.get("became"), change.data.get("actor")) for change in found]


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://")


@pytest.fixture
async def feed(app: Mainspring) -> Feed:
    return Feed(app, await app.changes().begin())


async def test_a_late_reader_sees_that_a_breaker_was_opened_by_hand(app: Mainspring, feed: Feed) -> None:
    await app.breakers.open("mail", actor="ana")
    await app.breakers.close("mail", actor="bob")
    assert await feed.told("breaker") == [("open", "ana"), ("closed", "bob")]


async def test_a_breaker_that_changes_by_itself_has_no_actor(app: Mainspring, kit: Kit, feed: Feed) -> None:
    app.breakers.configure("mail", Breaker(error_rate=0.5, per=60, min_calls=2, open_for=30, probes=1))
    broken = [True]

    @app.task(max_attempts=5)
    async def send(ctx: Context) -> None:
        async with ctx.breaker("mail"):
            if broken[0]:
                raise OSError

    for _ in range(2):
        await send.enqueue()
    await kit.drain()
    broken[0] = False
    await kit.time.advance(hours=1)
    assert await feed.told("breaker") == [("open", None), ("half_open", None), ("closed", None)]


async def test_each_change_of_a_schedule_is_named(app: Mainspring, feed: Feed) -> None:
    @app.task()
    async def sync() -> None: ...

    await app.schedules.put("nightly", "every 1h", sync.prepare(), actor="ana")
    await app.schedules.put("nightly", "every 2h", sync.prepare(), actor="bob")
    await app.schedules.pause("nightly", actor="ana")
    await app.schedules.resume("nightly", actor="ana")
    await app.schedules.delete("nightly", actor="bob")
    assert await feed.told("schedule") == [
        ("created", "ana"), ("updated", "bob"), ("paused", "ana"), ("resumed", "ana"), ("deleted", "bob"),
    ]  # fmt: skip


async def test_a_fire_is_not_a_change_of_its_schedule(app: Mainspring, kit: Kit, feed: Feed) -> None:
    @app.task()
    async def sync() -> None: ...

    await app.schedules.put("nightly", "every 1h", sync.prepare(), actor="ana")
    await kit.time.advance(hours=3)
    assert await feed.told("schedule") == [("created", "ana")]


async def test_the_states_of_a_failure_group_are_named(app: Mainspring, kit: Kit, feed: Feed) -> None:
    @app.task(max_attempts=1)
    async def charge() -> None:
        raise LookupError

    await charge.enqueue()
    await kit.drain()
    (group,) = (await app.failures.list()).groups
    assert group.state is GroupState.OPEN
    await app.failures.mute(group.fingerprint, actor="ana")
    await app.failures.resolve(group.fingerprint, actor="bob")
    await kit.time.advance(minutes=1)
    await charge.enqueue()
    await kit.drain()
    await app.failures.list()
    assert await feed.told("failure_group") == [("open", None), ("muted", "ana"), ("resolved", "bob"), ("open", None)]
