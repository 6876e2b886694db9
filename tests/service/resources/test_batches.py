"""Batches over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Mainspring
from tests.service.resources.client import Client


def job(name: str) -> dict[str, Any]:
    return {"task": "greet", "payload": {"name": name}}


async def test_a_batch_is_enqueued_and_followed(app: Mainspring, client: Client) -> None:
    body = {"jobs": [job("Ada"), job("Nobody")], "on_failure": job("Eve"), "on_success": job("Max")}
    batch = await client.post("/v1/batches", body, status=201)
    assert len(batch["jobs"]) == 2
    (listed,) = (await client.get("/v1/batches"))["batches"]
    assert (listed["id"], listed["state"], listed["total"], listed["ended"]) == (batch["id"], "running", 2, None)
    await app.worker().drain()
    shown = await client.get(f"/v1/batches/{batch['id']}")
    assert (shown["completed"], shown["failed"], shown["fraction"], shown["finished"]) == (1, 1, 1, True)
    (listed,) = (await client.get("/v1/batches"))["batches"]
    assert listed["ended"] == {"completed": 1, "failed": 1, "cancelled": 0, "gone": 0}
    found = await client.get("/v1/jobs?status=completed&task=greet")
    assert {each["payload"]["name"] for each in found["jobs"]} == {"Ada", "Eve"}


async def test_a_batch_is_cancelled(app: Mainspring, client: Client) -> None:
    batch = await client.post("/v1/batches", {"jobs": [job("Ada"), job("Ben")]}, status=201)
    path = f"/v1/batches/{batch['id']}:cancel"
    assert await client.post(path, {"dry_run": True}) == {"changed": 2, "requested": 0}
    assert await client.post(path, {"reason": "storm"}) == {"changed": 2, "requested": 0}
    assert (await client.get(f"/v1/batches/{batch['id']}"))["cancelled"] == 2


async def test_batches_come_in_pages(client: Client) -> None:
    made = [(await client.post("/v1/batches", {"jobs": [job("Ada")]}, status=201))["id"] for _ in range(3)]
    first = await client.get("/v1/batches?limit=2")
    second = await client.get(f"/v1/batches?limit=2&cursor={first['cursor']}")
    assert [each["id"] for page in (first, second) for each in page["batches"]] == made[::-1]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"jobs": []}, "invalid_request"),
        ({"jobs": [job("Ada"), {"task": "great"}]}, "unknown_task"),
        ({"jobs": [job("Ada")], "on_success": {"task": "greet", "payload": {}}}, "invalid_payload"),
    ],
)
async def test_a_wrong_batch_is_refused(app: Mainspring, client: Client, body: Any, code: str) -> None:
    assert await client.problem("POST", "/v1/batches", body) == (422, code)
    assert await app.jobs.count() == 0


async def test_an_unknown_batch_is_not_found(client: Client) -> None:
    assert await client.problem("GET", "/v1/batches/none") == (404, "not_found")
    assert await client.problem("POST", "/v1/batches/none:cancel") == (404, "not_found")
