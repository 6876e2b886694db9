"""Bulk actions over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.testing.clock import ManualClock
from tests.service.resources.client import Client

ALL = {"task": ["greet"]}


@pytest.fixture
async def jobs(app: Mainspring, clock: ManualClock) -> list[str]:
    task = app.tasks["greet"].using(delay=3600)
    handles = await task.enqueue_many([{"name": str(number)} for number in range(40)])
    clock.advance(1)
    return [handle.id for handle in handles]


async def step(app: Mainspring) -> None:
    """Let a worker do all steps that are due."""
    await app.runtime.timers.run_due()


async def test_a_bulk_action_is_started_and_followed(app: Mainspring, client: Client, jobs: list[str]) -> None:
    body = {"action": "cancel", "filter": {**ALL, "status": ["pending"]}, "expect": 40, "reason": "storm"}
    answer = await client.send("POST", "/v1/bulk", body)
    assert (answer.status, answer.data["state"], answer.data["progress"]) == (202, "running", 0)
    assert answer.data["filter"]["task"] == ["greet"]
    await step(app)
    done = await client.get(answer.headers["Location"])
    assert (done["state"], done["changed"], done["progress"], done["actor"]) == ("done", 40, 1, "local")
    found = await client.get(f"/v1/jobs?operation={done['id']}&limit=100")
    assert {job["id"] for job in found["jobs"]} == set(jobs)
    assert {job["status"] for job in found["jobs"]} == {"cancelled"}


async def test_the_jobs_of_an_action_are_listed_page_by_page(app: Mainspring, client: Client, jobs: list[str]) -> None:
    started = await client.post("/v1/bulk", {"action": "delete", "filter": ALL, "canary": 3}, status=202)
    await step(app)
    path = f"/v1/bulk/{started['id']}/jobs"
    deleted = [{"id": job_id, "job": None} for job_id in sorted(jobs)[:3]]
    assert await client.get(path) == {"jobs": deleted, "cursor": None}
    cancelled = await client.post("/v1/bulk", {"action": "cancel", "filter": ALL}, status=202)
    await step(app)
    answer = await client.send("GET", f"/v1/bulk/{cancelled['id']}/jobs?limit=30")
    listed = answer.data["jobs"]
    assert {affected["job"]["status"] for affected in listed} == {"cancelled"}
    assert 'rel="next"' in answer.headers["Link"]
    rest = await client.get(f"/v1/bulk/{cancelled['id']}/jobs?limit=30&cursor={answer.data['cursor']}")
    assert [affected["id"] for affected in listed + rest["jobs"]] == sorted(jobs)[3:]
    assert await client.problem("GET", f"{path}?cursor={answer.data['cursor']}") == (400, "invalid_cursor")


async def test_a_dry_run_only_counts(client: Client, jobs: list[str]) -> None:
    planned = await client.post("/v1/bulk", {"action": "delete", "filter": {}, "dry_run": True})
    assert (planned["state"], planned["total"]) == ("planned", 40)
    assert (await client.get("/v1/bulk"))["actions"] == []


async def test_the_filter_of_an_answer_can_be_sent_again(client: Client, jobs: list[str]) -> None:
    wanted = {
        "id": jobs[:3], "status": ["pending"], "queue": ["default"], "task": ["greet"], "tag": ["vip"],
        "payload": ['name="1"', "age=7"], "created_after": "2020-01-01T00:00:00.000Z",
    }  # fmt: skip
    planned = await client.post("/v1/bulk", {"action": "cancel", "filter": wanted, "dry_run": True})
    assert {**wanted, "created_before": planned["filter"]["created_before"]} == planned["filter"]
    again = await client.post("/v1/bulk", {"action": "cancel", "filter": planned["filter"], "dry_run": True})
    assert again["filter"] == planned["filter"]


async def test_two_conditions_on_one_key_are_refused(client: Client, jobs: list[str]) -> None:
    body = {"action": "delete", "filter": {"payload": ["name=1", "name=2"]}}
    assert await client.problem("POST", "/v1/bulk", body) == (422, "invalid_request")
    assert await client.problem("GET", "/v1/people?attribute=a=1&attribute=a=1") == (422, "invalid_request")


async def test_a_number_that_moved_is_refused(client: Client, jobs: list[str]) -> None:
    for expect, status in ((39, 202), (42, 202), (38, 409), (43, 409)):
        answer = await client.send("POST", "/v1/bulk", {"action": "cancel", "filter": ALL, "expect": expect})
        assert answer.status == status
        assert status == 202 or answer.data["code"] == "count_moved"


async def test_a_dry_run_of_many_jobs_is_counted_by_a_worker(
    app: Mainspring, client: Client, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.bulk.api.COUNT_CAP", 10)
    answer = await client.send("POST", "/v1/bulk", {"action": "cancel", "filter": ALL, "dry_run": True})
    assert (answer.status, answer.data["state"], answer.data["total"]) == (202, "counting", 10)
    await step(app)
    planned = await client.get(answer.headers["Location"])
    assert (planned["state"], planned["total"], planned["changed"]) == ("planned", 40, 0)
    moved = await client.post("/v1/bulk", {"action": "cancel", "filter": ALL, "expect": 100}, status=202)
    await step(app)
    failed = await client.get(f"/v1/bulk/{moved['id']}")
    assert (failed["state"], failed["changed"], "100 were expected" in failed["error"]) == ("failed", 0, True)
    few = {"action": "cancel", "filter": ALL, "expect": 9}
    assert await client.problem("POST", "/v1/bulk", few) == (409, "count_moved")


async def test_a_canary_waits_until_it_is_continued(app: Mainspring, client: Client, jobs: list[str]) -> None:
    body = {"action": "cancel", "filter": ALL, "canary": 3, "pace": 1000}
    bulk = await client.post("/v1/bulk", body, status=202)
    path = f"/v1/bulk/{bulk['id']}"
    assert await client.problem("POST", f"{path}:continue") == (409, "illegal_move")
    await step(app)
    waiting = await client.get(path)
    assert (waiting["state"], waiting["changed"]) == ("waiting", 3)
    assert (await client.post(f"{path}:continue", {"reason": "looks good"}))["state"] == "running"
    await step(app)
    assert (await client.get(path))["changed"] == 40


async def test_a_bulk_action_is_cancelled(app: Mainspring, client: Client, jobs: list[str]) -> None:
    bulk = await client.post("/v1/bulk", {"action": "cancel", "filter": ALL, "canary": 5}, status=202)
    await step(app)
    cancelled = await client.post(f"/v1/bulk/{bulk['id']}:cancel", {"reason": "no"})
    assert (cancelled["state"], cancelled["changed"]) == ("cancelled", 5)
    assert await client.problem("POST", f"/v1/bulk/{bulk['id']}:cancel") == (409, "illegal_move")


async def test_bulk_actions_are_listed_newest_first(client: Client, jobs: list[str]) -> None:
    started = [await client.post("/v1/bulk", {"action": "cancel", "filter": ALL}, status=202) for _ in range(3)]
    first = await client.get("/v1/bulk?limit=2")
    second = await client.get(f"/v1/bulk?limit=2&cursor={first['cursor']}")
    listed = [each["id"] for page in (first, second) for each in page["actions"]]
    assert listed == [each["id"] for each in reversed(started)]
    assert second["cursor"] is None


@pytest.mark.parametrize(
    "body",
    [
        {"action": "cancel", "filter": {}},
        {"action": "edit", "filter": ALL},
        {"action": "cancel"},
        {"action": "cancel", "filter": {"colour": "red"}},
        {"action": "cancel", "filter": ALL, "pace": 0},
        {"action": "cancel", "filter": ALL, "canary": 0},
        {"action": "cancel", "filter": ALL, "expect": -1},
        {"action": "cancel", "filter": {"payload": ["guest"]}},
    ],
)
async def test_a_wrong_body_is_refused(client: Client, body: Any) -> None:
    assert await client.problem("POST", "/v1/bulk", body) == (422, "invalid_request")


@pytest.mark.parametrize("action", ["", "/jobs", ":cancel", ":continue"])
async def test_an_unknown_bulk_action_is_not_found(client: Client, action: str) -> None:
    method = "POST" if action.startswith(":") else "GET"
    assert await client.problem(method, f"/v1/bulk/nothing{action}") == (404, "not_found")
