"""Settings at run time over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Mainspring, Retry
from tests.service.resources.client import Client


async def values(client: Client, path: str) -> dict[str, Any]:
    return {setting["option"]: setting["value"] for setting in (await client.get(path))["settings"]}


async def test_settings_of_a_task_are_changed_and_cleared(app: Mainspring, client: Client) -> None:
    path = "/v1/settings/task/greet"
    body = {
        "limit": 3,
        "rate": {"count": 10, "per": 60},
        "retry": {"delays": [1, 5]},
        "timeout": 30,
        "max_attempts": 4,
        "paused": True,
        "reason": "storm",
    }
    answer = await client.send("PATCH", path, body)
    assert answer.status == 200
    assert {setting["actor"] for setting in answer.data["settings"]} == {"local"}
    assert {setting["reason"] for setting in answer.data["settings"]} == {"storm"}
    found = await values(client, path)
    assert found["rate"] == {"count": 10, "per": 60, "burst": None}
    assert found["retry"]["explicit"] == [1, 5]
    assert {name: found[name] for name in ("limit", "timeout", "max_attempts", "paused")} == {
        "limit": 3, "timeout": 30, "max_attempts": 4, "paused": True,
    }  # fmt: skip
    assert (await client.send("DELETE", f"{path}?option=limit&option=rate&reason=over")).data == {"cleared": True}
    assert set(await values(client, path)) == {"retry", "timeout", "max_attempts", "paused"}
    assert (await client.send("DELETE", path)).data == {"cleared": True}
    assert (await client.send("DELETE", path)).data == {"cleared": False}


async def test_changed_settings_apply_to_new_jobs(app: Mainspring, client: Client) -> None:
    await client.send("PATCH", "/v1/settings/queue/default", {"timeout": 7})

    @app.task
    def work() -> None: ...

    handle = await work.enqueue()
    assert (await app.jobs.get(handle.id)).timeout == 7


@pytest.mark.parametrize("kind", ["task/once", "queue/default"])
async def test_a_retry_policy_keeps_the_number_of_attempts(app: Mainspring, client: Client, kind: str) -> None:
    @app.task(retry=Retry(max_attempts=1))
    def once() -> None: ...

    answer = await client.send("PATCH", f"/v1/settings/{kind}", {"retry": {"base": 600}})
    assert answer.data["settings"][0]["value"]["max_attempts"] is None
    handle = await once.enqueue()
    assert (await app.jobs.get(handle.id)).max_attempts == 1


async def test_a_retry_policy_of_a_task_leaves_the_number_to_the_queue(app: Mainspring, client: Client) -> None:
    @app.task
    def work() -> None: ...

    await client.send("PATCH", "/v1/settings/task/work", {"retry": {"base": 600}})
    await client.send("PATCH", "/v1/settings/queue/default", {"max_attempts": 7})
    handle = await work.enqueue()
    assert (await app.jobs.get(handle.id)).max_attempts == 7
    assert work.retry_in("default").base == 600


async def test_all_changed_settings_are_listed_with_pauses(app: Mainspring, client: Client) -> None:
    await client.send("PATCH", "/v1/settings/task/greet", {"limit": 3})
    await client.post("/v1/queues/mail:pause", {"wait": 0})
    listed = (await client.get("/v1/settings"))["settings"]
    assert [(each["kind"], each["name"], each["option"]) for each in listed] == [
        ("queue", "mail", "paused"), ("task", "greet", "limit"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("task/greet", {}),
        ("task/greet", {"limit": 0}),
        ("task/greet", {"rate": {"count": 1, "per": 0}}),
        ("task/greet", {"colour": 1}),
        ("queue/default", {"paused": True}),
        ("limit/smtp", {"limit": 1}),
        ("planet/mars", {"limit": 1}),
        ("task/a%00b", {"limit": 1}),
    ],
)
async def test_wrong_settings_are_refused(client: Client, path: str, body: Any) -> None:
    assert await client.problem("PATCH", f"/v1/settings/{path}", body) == (422, "invalid_request")
