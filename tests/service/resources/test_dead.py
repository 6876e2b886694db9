"""Dead letters over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.stores.protocol import Filter, Page
from mainspring.testing.clock import ManualClock
from tests.service.resources.client import Client
from tests.service.resources.conftest import fail


async def test_dead_letters_are_listed_with_the_age_of_the_oldest(
    app: Mainspring, client: Client, clock: ManualClock
) -> None:
    assert (await client.get("/v1/dead"))["oldest"] is None
    first, second = await fail(app, 1), await fail(app, 1)
    await app.tasks["greet"].enqueue(name="Ada")
    clock.advance(60)
    found = await client.get("/v1/dead?count=true")
    assert {job["id"] for job in found["jobs"]} == {*first, *second}
    assert found["count"] == {"value": 2, "exact": True}
    assert found["oldest_age"] == 60
    assert (await client.get("/v1/dead?queue=other"))["jobs"] == []


class EarlyEnds:
    """Ends the first pages of a list before they have found a job, as stores do if few of many rows match."""

    def __init__(self, app: Mainspring, number: int) -> None:
        self._find, self._left = app.jobs.find, number

    async def __call__(self, where: Filter, *, cursor: str | None = None, **more: Any) -> Page:
        if more["sort"] == "finished" and self._left:
            self._left -= 1
            return Page([], f"early {self._left}", partial=True)
        return await self._find(where, cursor=None if cursor == "early 0" else cursor, **more)


async def test_the_oldest_dead_letter_is_found_behind_pages_that_end_early(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail(app, 1)
    wanted = await client.get("/v1/dead")
    assert (wanted["oldest"] is not None, wanted["oldest_known"]) == (True, True)
    monkeypatch.setattr(app.jobs, "find", EarlyEnds(app, 3))
    assert (await client.get("/v1/dead"))["oldest"] == wanted["oldest"]
    monkeypatch.setattr(app.jobs, "find", EarlyEnds(app, 1_000))
    ended = await client.get("/v1/dead")
    assert (ended["oldest"], ended["oldest_age"], ended["oldest_known"]) == (None, None, False)


async def test_a_page_of_dead_letters_links_to_the_next(app: Mainspring, client: Client) -> None:
    await fail(app, 3)
    answer = await client.send("GET", "/v1/dead?limit=2&task=greet")
    link = answer.headers["Link"].partition(">")[0].removeprefix("<")
    assert len(answer.data["jobs"]) == 2
    assert len((await client.get(link))["jobs"]) == 1


async def test_the_status_of_dead_letters_cannot_be_chosen(client: Client) -> None:
    assert await client.problem("GET", "/v1/dead?status=pending") == (422, "invalid_request")


async def test_purge_deletes_old_dead_letters(app: Mainspring, client: Client, clock: ManualClock) -> None:
    await fail(app, 2)
    clock.advance(3600)
    (young,) = await fail(app, 1)
    body = {"older_than": 1800, "reason": "old", "dry_run": True}
    assert (await client.post("/v1/dead:purge", body))["changed"] == 2
    purged = await client.post("/v1/dead:purge", {**body, "dry_run": False})
    assert purged["changed"] == 2
    assert [job["id"] for job in (await client.get("/v1/dead"))["jobs"]] == [young]
    (entry,) = await app.audit(action="delete")
    assert (entry.operation, entry.reason, entry.actor) == (purged["operation"], "old", "local")


async def test_purge_needs_an_age(client: Client) -> None:
    assert await client.problem("POST", "/v1/dead:purge", {}) == (422, "invalid_request")
    assert await client.problem("POST", "/v1/dead:purge", {"older_than": -1}) == (422, "invalid_request")
