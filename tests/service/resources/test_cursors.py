"""Cursors: each list takes its own only."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.service.cursors import cursor_of, last_of
from mainspring.stores.documents import Bundle, Key, Write
from tests.service.resources.client import Client
from tests.service.resources.conftest import fail

PAGED = [
    "/v1/schedules", "/v1/tokens", "/v1/secrets", "/v1/people", "/v1/limits", "/v1/occasions?ahead=90000000",
]  # fmt: skip
LISTS = [
    "/v1/jobs", "/v1/dead", "/v1/audit", "/v1/bulk", "/v1/batches", "/v1/people", "/v1/failures", "/v1/schedules",
    "/v1/tokens", "/v1/secrets", "/v1/sessions", "/v1/limits", "/v1/occasions",
]  # fmt: skip
SPARSE = {"/v1/failures", "/v1/sessions", "/v1/limits", "/v1/occasions", "/v1/schedules", "/v1/secrets", "/v1/tokens"}
LIMIT = json.dumps({"size": 1, "holders": {}, "waiting": 0})


def text_of(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


FORGED = [
    "x", "0199a1dc-2f00-7e06-9e62-9a1c3b1b5d11-", text_of(None), text_of([]), text_of({}), text_of([None, "a", "b"]),
    text_of([{}, "a", "b"]), text_of([10**30, "a", "b"]), text_of(["people", 7]), text_of(["people", "\0"]),
    text_of(["batches", {}]), text_of(["bulk actions", None]),
]  # fmt: skip


@pytest.mark.parametrize("path", LISTS)
async def test_what_is_not_a_cursor_is_refused(client: Client, path: str) -> None:
    for cursor in FORGED:
        assert await client.problem("GET", f"{path}?cursor={cursor}") == (400, "invalid_cursor"), cursor


async def test_a_cursor_of_another_list_is_refused(app: Mainspring, client: Client) -> None:
    for number in range(2):
        await client.post("/v1/batches", {"jobs": [{"task": "greet", "payload": {"name": "Nobody"}}]}, status=201)
        await client.send("PUT", f"/v1/people/{number}", {"tz": "UTC"})
        await client.post("/v1/bulk", {"action": "retry", "filter": {"queue": [str(number)]}}, status=202)
    await app.worker().drain()
    cursors = {path: (await client.get(f"{path}?limit=1"))["cursor"] for path in LISTS if path not in SPARSE}
    for of, cursor in cursors.items():
        for path in LISTS:
            answer = await client.send("GET", f"{path}?limit=1&cursor={cursor}")
            assert answer.status == (200 if path == of else 400), (of, path)


@pytest.mark.parametrize("last", ["a", "ä" * 200, "\U0001f600" * 200, "a/b c"])
def test_a_cursor_has_the_id(last: str) -> None:
    cursor = cursor_of("people", last)
    assert cursor is not None
    assert (last_of("people", cursor), len(cursor) <= 2_000) == (last, True)


def names_of(page: dict[str, Any]) -> list[str]:
    (items,) = (value for value in page.values() if isinstance(value, list))
    return [
        item.get("id") or item.get("key") or item.get("name") or f"{item['person']} {item['kind']}" for item in items
    ]


async def all_pages(client: Client, path: str, limit: int) -> list[str]:
    """Read a list page by page, as the header `Link` says; return the names in it."""
    found: list[str] = []
    following: str | None = f"{path}{'&' if '?' in path else '?'}limit={limit}"
    while following is not None:
        answer = await client.send("GET", following)
        assert answer.status == 200, answer
        found += names_of(answer.data)
        link = answer.headers.get("Link")
        assert (link is None) == (answer.data["cursor"] is None)
        following = None if link is None else link[1 : link.index(">")]
    return found


async def filled(app: Mainspring, client: Client) -> None:
    """Have a few of everything that is listed by pages."""
    job = {"task": "greet", "payload": {"name": "Ada"}}
    for number in range(5):
        await client.send("PUT", f"/v1/schedules/s{number}", {"rule": "daily 09:00", "job": job})
        await client.post("/v1/tokens", {"name": f"t{number}", "scopes": ["read"]}, status=201)
        await client.post("/v1/secrets", {"name": f"k{number}"}, status=201)
        occasions = [{"kind": "birthday", "date": "1990-01-02"}, {"kind": "jubilee", "date": "2000-01-03"}]
        await client.send("PUT", f"/v1/people/p{number}", {"tz": "UTC", "occasions": occasions})
        await app.store.write([Bundle((Write(Key("limits", "limit:api", f"k{number}"), LIMIT),))])


@pytest.mark.parametrize("path", PAGED)
async def test_pages_make_up_the_whole_list(app: Mainspring, client: Client, path: str) -> None:
    await filled(app, client)
    whole = await all_pages(client, path, 500)
    assert len(whole) == len(set(whole)) >= 5
    for limit in (1, 2, 4, 5):
        assert await all_pages(client, path, limit) == whole


async def test_what_is_added_meanwhile_moves_no_page(client: Client, app: Mainspring) -> None:
    await filled(app, client)
    first = await client.get("/v1/schedules?limit=2")
    body = {"rule": "daily 09:00", "job": {"task": "greet", "payload": {"name": "Ada"}}}
    await client.send("PUT", "/v1/schedules/a-new-one", body)
    await client.send("DELETE", "/v1/schedules/s0")
    second = await client.get(f"/v1/schedules?limit=2&cursor={first['cursor']}")
    assert (names_of(first), names_of(second)) == (["s0", "s1"], ["s2", "s3"])


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        ("/v1/jobs", "queue=default", "queue=mail"),
        ("/v1/dead", "queue=default", "queue=mail"),
        ("/v1/audit", "action=token.create", "action=secret.create"),
        ("/v1/people", "tz=UTC", "tz=Asia/Tokyo"),
        ("/v1/occasions", "ahead=9000000", "ahead=9000001"),
        ("/v1/occasions", "ahead=9000000&kind=birthday", "ahead=9000000&kind=jubilee"),
        ("/v1/limits", "name=api", "name=api&waiting=true"),
    ],
)
async def test_a_cursor_with_other_conditions_is_refused(
    app: Mainspring, client: Client, path: str, one: str, other: str
) -> None:
    await filled(app, client)
    await fail(app, 2)
    cursor = (await client.get(f"{path}?{one}&limit=1"))["cursor"]
    assert cursor is not None
    assert (await client.send("GET", f"{path}?{one}&limit=1&cursor={cursor}")).status == 200
    for query in (other, ""):
        refused = await client.problem("GET", f"{path}?{query}&limit=1&cursor={cursor}")
        assert refused == (400, "invalid_cursor"), query
