"""Failure groups over HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.features.failures.storage import Groups
from tests.service.resources.client import Client
from tests.service.resources.conftest import fail


async def only(client: Client) -> Any:
    (group,) = (await client.get("/v1/failures"))["groups"]
    return group


async def test_a_group_is_listed_and_shown(app: Mainspring, client: Client) -> None:
    await fail(app, 2)
    group = await only(client)
    assert (group["task"], group["error_type"], group["count"], group["dead"]) == ("greet", "LookupError", 2, 2)
    shown = await client.get(f"/v1/failures/{group['fingerprint']}")
    assert "nobody is here" in shown["traceback"]
    assert not group["traceback"]


async def test_an_answer_says_if_failures_are_not_counted_yet(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail(app, 1)
    page = await client.get("/v1/failures")
    assert (page["complete"], page["groups"][0]["complete"]) == (True, True)
    known = page["groups"][0]["fingerprint"]

    async def leave_some(_groups: Groups) -> bool:
        return False

    monkeypatch.setattr(Groups, "catch_up", leave_some)
    page = await client.get("/v1/failures")
    assert (page["complete"], page["groups"][0]["complete"]) == (False, False)
    assert not (await client.get(f"/v1/failures/{known}"))["complete"]
    assert not (await client.post(f"/v1/failures/{known}:resolve", {}))["complete"]


async def test_groups_are_filtered(app: Mainspring, client: Client) -> None:
    await fail(app, 1)
    for query in ("state=resolved", "task=other", "since=2999-01-01T00:00:00Z"):
        assert (await client.get(f"/v1/failures?{query}"))["groups"] == []
    assert len((await client.get("/v1/failures?state=open&state=muted&task=greet"))["groups"]) == 1


async def test_groups_come_in_pages(app: Mainspring, client: Client) -> None:
    @app.task(max_attempts=1)
    def other() -> None:
        raise ValueError

    await other.enqueue()
    await fail(app, 1)
    first = await client.get("/v1/failures?limit=1")
    second = await client.get(f"/v1/failures?limit=1&cursor={first['cursor']}")
    assert {page["groups"][0]["task"] for page in (first, second)} == {"greet", "other"}
    assert second["cursor"] is None
    assert await client.problem("GET", "/v1/failures?cursor=x") == (400, "invalid_cursor")


@pytest.mark.parametrize(
    ("actions", "state"),
    [(("resolve",), "resolved"), (("mute",), "muted"), (("mute", "unmute"), "open"), (("resolve", "reopen"), "open")],
)
async def test_a_group_is_judged(app: Mainspring, client: Client, actions: tuple[str, ...], state: str) -> None:
    await fail(app, 1)
    group = await only(client)
    for action in actions:
        group = await client.post(f"/v1/failures/{group['fingerprint']}:{action}", {"note": f"note of {action}"})
    assert (group["state"], group["note"], group["actor"]) == (state, f"note of {actions[-1]}", "local")
    assert [entry.action for entry in await app.audit()] == [f"failure.{action}" for action in reversed(actions)]


async def test_a_group_is_muted_for_a_time(app: Mainspring, client: Client) -> None:
    await fail(app, 1)
    path = f"/v1/failures/{(await only(client))['fingerprint']}:mute"
    muted = await client.post(path, {"length": 60})
    assert muted["until"] == (app.now() + timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    both = {"length": 60, "until": "2999-01-01T00:00:00Z"}
    assert await client.problem("POST", path, both) == (422, "invalid_request")
    assert await client.problem("POST", path, {"until": "2001-01-01T00:00:00Z"}) == (422, "invalid_request")


async def test_the_dead_letters_of_a_group_are_retried(app: Mainspring, client: Client) -> None:
    jobs = await fail(app, 2)
    path = f"/v1/failures/{(await only(client))['fingerprint']}:retry"
    assert (await client.post(path, {"dry_run": True}))["changed"] == 2
    assert (await client.get("/v1/dead?count=true"))["count"]["value"] == 2
    assert (await client.post(path))["changed"] == 2
    found = await client.get("/v1/jobs?status=pending")
    assert {job["id"] for job in found["jobs"]} == set(jobs)


@pytest.mark.parametrize("action", [":resolve", ":mute", ":unmute", ":reopen", ":retry", ""])
async def test_an_unknown_group_is_not_found(client: Client, action: str) -> None:
    method = "POST" if action else "GET"
    assert await client.problem(method, f"/v1/failures/0123456789abcdef{action}") == (404, "not_found")
