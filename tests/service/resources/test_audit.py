"""The audit log over HTTP."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from mainspring import Mainspring
from mainspring.testing.clock import ManualClock
from tests.service.resources.client import Client


async def test_changes_by_hand_are_listed_newest_first(app: Mainspring, client: Client, clock: ManualClock) -> None:
    job = await app.tasks["greet"].enqueue(name="Ada")
    await client.post("/v1/queues/default:pause", {"reason": "storm"})
    clock.advance(60)
    await client.post(f"/v1/jobs/{job.id}:cancel", {"reason": "too late"})
    newest, oldest = (await client.get("/v1/audit"))["entries"]
    assert (newest["action"], newest["reason"], newest["actor"], newest["count"]) == ("cancel", "too late", "local", 1)
    assert (oldest["action"], oldest["reason"]) == ("pause", "storm")


async def test_the_audit_log_is_filtered(app: Mainspring, client: Client, clock: ManualClock) -> None:
    job = await app.tasks["greet"].enqueue(name="Ada")
    await app.pause("default", actor="ana")
    clock.advance(60)
    await app.jobs.cancel(job.id, actor="ben")
    newest, oldest = (await client.get("/v1/audit"))["entries"]
    for query in ("actor=ben", "action=cancel", f"job={job.id}", f"operation={newest['operation']}"):
        assert (await client.get(f"/v1/audit?{query}"))["entries"] == [newest]
    middle = quote(app.now().isoformat())
    assert (await client.get(f"/v1/audit?since={middle}"))["entries"] == [newest]
    assert (await client.get(f"/v1/audit?until={middle}"))["entries"] == [oldest]
    assert (await client.get("/v1/audit?actor=eve"))["entries"] == []


async def test_the_audit_log_comes_in_pages(app: Mainspring, client: Client, clock: ManualClock) -> None:
    for number in range(5):
        await app.pause(f"queue{number}", actor="ana")
        clock.advance(1)
    read, path = [], "/v1/audit?limit=2"
    while path:
        answer = await client.send("GET", path)
        read += answer.data["entries"]
        path = answer.headers.get("Link", "").partition(">")[0].removeprefix("<")
    assert read == (await client.get("/v1/audit"))["entries"]
    assert len(read) == 5


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("cursor=x", (400, "invalid_cursor")),
        ("limit=0", (422, "invalid_request")),
        ("since=yesterday", (422, "invalid_request")),
        ("since=0001-01-01T00:00:00%2B12:00", (422, "invalid_request")),
        ("actor=%00", (422, "invalid_request")),
    ],
)
async def test_wrong_parameters_are_refused(client: Client, query: str, problem: tuple[int, str]) -> None:
    assert await client.problem("GET", f"/v1/audit?{query}") == problem
