"""Cursors: each list takes its own only."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.service.cursors import cursor_of, last_of
from tests.service.resources.client import Client

LISTS = ["/v1/jobs", "/v1/dead", "/v1/audit", "/v1/bulk", "/v1/batches", "/v1/people", "/v1/failures"]


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
    cursors = {path: (await client.get(f"{path}?limit=1"))["cursor"] for path in LISTS if path != "/v1/failures"}
    for of, cursor in cursors.items():
        for path in LISTS:
            answer = await client.send("GET", f"{path}?limit=1&cursor={cursor}")
            assert answer.status == (200 if path == of else 400), (of, path)


@pytest.mark.parametrize("last", ["a", "ä" * 200, "\U0001f600" * 200, "a/b c"])
def test_a_cursor_has_the_id(last: str) -> None:
    cursor = cursor_of("people", last)
    assert cursor is not None
    assert (last_of("people", cursor), len(cursor) <= 2_000) == (last, True)
