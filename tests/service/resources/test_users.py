"""`/user`: people as a user service with birthdays."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Mainspring
from tests.service.resources.client import Client

JOHN = {
    "firstName": "John",
    "lastName": "Doe",
    "birthday": "1990-01-03",
    "timezone": "America/New_York",
    "email": "john@example.org",
}


@pytest.fixture
async def john(app: Mainspring, client: Client) -> Any:
    @app.occasion("birthday")
    def congratulate() -> None: ...

    return await client.post("/user", JOHN, status=201)


async def test_a_user_is_created_and_shown(client: Client, john: Any) -> None:
    now = "2026-01-01T00:00:00.000Z"
    assert john == {"id": john["id"], **JOHN, "createdAt": now, "updatedAt": now}
    assert await client.get(f"/user/{john['id']}") == john
    (coming,) = (await client.get("/v1/occasions"))["upcoming"]
    assert (coming["person"], coming["local"]) == (john["id"], "2026-01-03T09:00:00-05:00")


async def test_a_put_changes_only_the_given_fields(client: Client, john: Any) -> None:
    changed = await client.send("PUT", f"/user/{john['id']}", {"timezone": "Europe/London"})
    assert (changed.status, changed.data) == (200, {**john, "timezone": "Europe/London"})
    (coming,) = (await client.get("/v1/occasions"))["upcoming"]
    assert coming["due"] == "2026-01-03T09:00:00.000Z"


async def test_a_new_birthday_keeps_its_other_settings(client: Client, john: Any) -> None:
    await client.send("PUT", f"/v1/people/{john['id']}/occasions/birthday", {"date": "1990-01-03", "at": "12:00"})
    changed = await client.send("PUT", f"/user/{john['id']}", {"birthday": "1990-01-04"})
    assert changed.data["birthday"] == "1990-01-04"
    (coming,) = (await client.get("/v1/occasions"))["upcoming"]
    assert coming["local"] == "2026-01-04T12:00:00-05:00"
    yearly = await client.send("PUT", f"/user/{john['id']}", {"birthday": "01-04"})
    assert yearly.data["birthday"] == "01-04"
    removed = await client.send("PUT", f"/user/{john['id']}", {"birthday": None})
    assert removed.data["birthday"] is None
    assert (await client.get("/v1/occasions"))["upcoming"] == []


async def test_a_user_is_deleted(client: Client, john: Any) -> None:
    path = f"/user/{john['id']}"
    assert (await client.send("DELETE", path)).status == 204
    for method, body in (("GET", None), ("PUT", {"lastName": "Roe"}), ("DELETE", None)):
        assert await client.problem(method, path, body) == (404, "not_found")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"timezone": "Mars/Base"}, "/timezone"),
        ({"email": "nowhere"}, "/email"),
        ({"birthday": "1990-02-31"}, "/birthday"),
        ({"birthday": 86_400}, "/birthday"),
        ({"birthday": "86400"}, "/birthday"),
        ({"firstName": ""}, "/firstName"),
        ({"colour": "red"}, "/colour"),
    ],
)
async def test_a_wrong_user_is_refused_field_by_field(
    client: Client, john: Any, change: dict[str, Any], pointer: str
) -> None:
    for method, path, body in (("POST", "/user", {**JOHN, **change}), ("PUT", f"/user/{john['id']}", change)):
        answer = await client.send(method, path, body)
        assert (answer.status, answer.data["code"]) == (422, "invalid_request")
        assert [error["pointer"] for error in answer.data["errors"]] == [pointer]
    assert await client.get(f"/user/{john['id']}") == john


async def test_a_change_of_what_others_have_changed_is_refused(client: Client, john: Any) -> None:
    path = f"/user/{john['id']}"
    read = (await client.send("GET", path)).headers["ETag"]
    changed = await client.send("PUT", path, {"timezone": "Europe/London"}, if_match=read)
    assert (changed.status, changed.headers["ETag"] != read) == (200, True)
    refused = (412, "precondition_failed")
    assert await client.problem("PUT", path, {"timezone": "Asia/Tokyo"}, if_match=read) == refused
    assert await client.problem("DELETE", path, if_match=read) == refused
    assert (await client.get(path))["timezone"] == "Europe/London"
    assert (await client.send("DELETE", path, if_match=changed.headers["ETag"])).status == 204
