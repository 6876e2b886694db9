"""Jobs over HTTP: enqueue, look, change."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Mainspring, Status
from mainspring.errors import ConfigurationError, InvalidCursor
from mainspring.features.batches.api import TASK
from mainspring.jobs import Jobs
from mainspring.service.enqueue import MOST_NAMES
from mainspring.service.problems import KINDS, problem_of
from mainspring.stores.documents import By
from mainspring.stores.protocol import Action
from mainspring.trace import EXAMPLE
from tests.service.serving import Client

ADA = {"task": "welcome", "payload": {"guest": "Ada"}}


async def enqueued(client: Client, **more: object) -> str:
    answer = await client.post("/v1/jobs", {**ADA, **more})
    assert answer.status == 201, answer
    job_id: str = answer.data["id"]
    return job_id


async def dead_letter(app: Mainspring, client: Client) -> str:
    job_id = (await client.post("/v1/jobs", {"task": "fail", "payload": {"why": "no luck"}})).data["id"]
    await app.worker().drain()
    return str(job_id)


# -- enqueue --------------------------------------------------------------------------------------


async def test_a_job_is_enqueued_run_and_shown(app: Mainspring, client: Client) -> None:
    answer = await client.post("/v1/jobs", ADA)
    assert answer.status == 201
    assert answer.data["created"] is True
    assert answer.headers["location"] == f"/v1/jobs/{answer.data['id']}"
    await app.worker().drain()
    shown = await client.get(answer.headers["location"])
    assert shown.status == 200
    job = shown.data
    assert (job["task"], job["queue"], job["status"], job["result"]) == ("welcome", "mail", "completed", "welcome, Ada")
    assert "options" not in job


async def test_a_job_joins_the_trace_of_the_request(app: Mainspring, client: Client) -> None:
    given = {
        "traceparent": EXAMPLE,
        "tracestate": "vendor=1",
        "baggage": "tenant=7",
        "sentry-trace": "771a43a4192642f0",
    }
    one = await client.post("/v1/jobs", ADA, **given)
    many = await client.post("/v1/jobs:bulk", {"jobs": [ADA]}, **given)
    keyed = await client.post("/v1/jobs", ADA, idempotency_key="k1", **given)
    for job_id in (one.data["id"], many.data["results"][0]["id"], keyed.data["id"]):
        assert (await app.jobs.get(job_id)).trace == given
    claimed = (await client.post("/v1/leases", {"worker": "far"})).data["jobs"]
    assert claimed[0]["trace"] == given


@pytest.mark.parametrize(
    "headers",
    [{"traceparent": "00-0-0-0"}, {"tracestate": "vendor=1"}, {"baggage": "x" * 12_000, "traceparent": EXAMPLE * 9}],
)
async def test_a_trace_that_is_not_valid_is_ignored(app: Mainspring, client: Client, headers: dict[str, str]) -> None:
    answer = await client.post("/v1/jobs", ADA, **headers)
    assert answer.status == 201
    assert "traceparent" not in (await app.jobs.get(answer.data["id"])).trace


async def test_every_option_of_a_job_arrives(app: Mainspring, client: Client) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    job_id = await enqueued(
        client,
        queue="slow",
        priority="high",
        run_at=soon.isoformat(),
        timeout=90,
        retry={"delays": [30, 60]},
        dedupe_key="ada",
        dedupe_for=3600,
        target={"type": "guest", "id": "7"},
        tags=["vip"],
        headers={"x-tenant": "t1"},
        start_by=(soon + timedelta(hours=1)).isoformat(),
    )
    job = await app.jobs.get(job_id)
    assert (job.queue, job.priority.name, job.run_at, job.timeout) == ("slow", "HIGH", soon, 90)
    assert (job.max_attempts, job.dedupe_key, job.target, job.tags) == (3, "ada", ("guest", "7"), ("vip",))
    assert job.headers == {"x-tenant": "t1"}
    shown = (await client.get(f"/v1/jobs/{job_id}")).data
    assert shown["start_by"] == (soon + timedelta(hours=1)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.parametrize(("more", "attempts"), [({}, 1), ({"max_attempts": 4}, 4)])
@pytest.mark.parametrize("retry", [{"base": 1}, {"delays": [1, 2, 3]}])
async def test_a_retry_policy_keeps_the_attempts_of_the_task(
    app: Mainspring, client: Client, retry: object, more: dict[str, int], attempts: int
) -> None:
    body = {"task": "fail", "payload": {"why": "no luck"}, "retry": retry, **more}
    job = await app.jobs.get((await client.post("/v1/jobs", body)).data["id"])
    assert job.max_attempts == attempts
    assert job.options["retry"]["max_attempts"] is None


async def test_a_dedupe_key_that_is_held_gives_the_holder(client: Client) -> None:
    first = await client.post("/v1/jobs", {**ADA, "dedupe_key": "ada"})
    second = await client.post("/v1/jobs", {**ADA, "dedupe_key": "ada"})
    assert second.status == 200
    assert second.data == {"id": first.data["id"], "created": False}


async def test_an_unknown_task_is_refused_with_the_nearest_names(client: Client) -> None:
    answer = await client.post("/v1/jobs", {"task": "welcom"})
    assert answer.code == "unknown_task"
    assert answer.data["nearest"] == ["welcome"]
    allowed = await client.post("/v1/jobs", {"task": "welcom", "allow_unknown": True})
    assert allowed.status == 201


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"{", "invalid_json", "EOF"),
        ({"payload": {}}, "invalid_request", "/task: Field required"),
        ({**ADA, "delai": 3}, "invalid_request", "/delai: Extra inputs"),
        ({**ADA, "run_at": "2027-01-01T00:00:00"}, "invalid_request", "timezone"),
        ({**ADA, "delay": 1, "run_at": "2027-01-01T00:00:00Z"}, "invalid_request", "run_at or delay, not both"),
        ({**ADA, "delay": -1}, "invalid_request", "/delay"),
        ({**ADA, "queue": "a\x00b"}, "invalid_request", "queue"),
        ({"task": "welcome", "payload": {"gest": "Ada"}}, "invalid_payload", "guest: Field required"),
        ({"task": "welcome", "payload": {"guest": 7}}, "invalid_payload", "string"),
    ],
)
async def test_a_wrong_body_is_explained_and_enqueues_nothing(
    app: Mainspring, client: Client, body: object, code: str, said: str
) -> None:
    answer = await client.post("/v1/jobs", body)
    assert answer.code == code
    assert answer.status == KINDS[code].status
    assert said in answer.data["detail"]
    assert await app.jobs.count() == 0


async def test_only_lines_that_allow_it_enqueue_an_unknown_task(client: Client) -> None:
    allowed = {"task": "new", "allow_unknown": True}
    results = (await client.post("/v1/jobs:bulk", {"jobs": [allowed, {"task": "new"}, allowed]})).data["results"]
    assert [line["created"] for line in results] == [True, False, True]
    assert results[1]["error"]["code"] == "unknown_task"


async def test_each_line_of_a_bulk_enqueue_is_checked(app: Mainspring, client: Client) -> None:
    lines = [ADA, {"task": "welcome", "payload": {"guests": 2}}, ADA | {"priority": "high"}, ADA]
    results = (await client.post("/v1/jobs:bulk", {"jobs": lines})).data["results"]
    assert [line["created"] for line in results] == [True, False, True, True]
    assert results[1]["error"]["code"] == "invalid_payload"
    assert [(await app.jobs.get(results[n]["id"])).priority.name for n in (0, 2, 3)] == ["NORMAL", "HIGH", "NORMAL"]


async def test_a_bulk_enqueue_reports_what_is_wrong_and_enqueues_the_rest(app: Mainspring, client: Client) -> None:
    answer = await client.post("/v1/jobs:bulk", {"jobs": [ADA, {"task": "wellcome"}, ADA]})
    assert answer.status == 200
    assert (answer.data["created"], answer.data["failed"]) == (2, 1)
    first, wrong, last = answer.data["results"]
    assert wrong["error"]["code"] == "unknown_task"
    assert {job.id for job in (await app.jobs.find()).jobs} == {first["id"], last["id"]}


async def test_a_line_with_two_times_is_refused_alone(client: Client) -> None:
    both = {**ADA, "delay": 1, "run_at": "2027-01-01T00:00:00Z"}
    good, wrong = (await client.post("/v1/jobs:bulk", {"jobs": [ADA, both]})).data["results"]
    assert good["created"]
    assert wrong["error"]["code"] == "invalid_request"
    assert "give run_at or delay, not both" in wrong["error"]["detail"]


async def test_tasks_are_listed_once_whatever_is_unknown(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, list_tasks = 0, app.published.list

    async def counted() -> object:
        nonlocal number
        number += 1
        return await list_tasks()

    monkeypatch.setattr(app.published, "list", counted)
    assert (await client.post("/v1/jobs", {"task": "welcom"})).code == "unknown_task"
    assert number == 1
    names = ["welcom", "wellcome", "welcom", *(f"welcome{each}" for each in range(MOST_NAMES))]
    internal, allowed = {"task": TASK}, {"task": "new", "allow_unknown": True}
    body = {"jobs": [*({"task": name} for name in names), {"task": "a\0b"}, internal, allowed, ADA]}
    errors = [line["error"] for line in (await client.post("/v1/jobs:bulk", body)).data["results"]]
    assert number == 2
    assert [error["code"] for error in errors[: len(names)]] == ["unknown_task"] * len(names)
    assert all("do you mean 'welcome'?" in error["detail"] for error in errors[:MOST_NAMES])
    assert "GET /v1/tasks" in errors[len(names) - 1]["detail"]
    assert [error and error["code"] for error in errors[-4:]] == ["invalid_request", "invalid_request", None, None]


async def test_a_halt_that_rejects_jobs_is_an_error_that_passes(app: Mainspring, client: Client) -> None:
    await app.halt("maintenance", reject_new=True)
    answer = await client.post("/v1/jobs", ADA)
    assert answer.code == "system_halted"
    assert answer.headers["retry-after"] == "30"


# -- lists ----------------------------------------------------------------------------------------


async def test_a_list_is_read_page_by_page(client: Client) -> None:
    made = [await enqueued(client) for _ in range(5)]
    seen: list[str] = []
    path = "/v1/jobs?limit=2&count=true"
    while path:
        answer = await client.get(path)
        assert answer.status == 200
        assert answer.data["count"] == {"value": 5, "exact": True}
        seen += [job["id"] for job in answer.data["jobs"]]
        link = answer.headers.get("link", "")
        assert bool(link) == (answer.data["cursor"] is not None)
        path = link.removeprefix("<").partition(">")[0]
    assert seen == made[::-1]


async def test_filters_select_jobs(client: Client) -> None:
    ada = await enqueued(client, tags=["vip"], target={"type": "guest", "id": "7"})
    await enqueued(client, payload={"guest": "Bob"}, delay=60)
    for query in (
        "tag=vip",
        "target_type=guest&target_id=7",
        "payload=guest=Ada",
        f"id={ada}",
        "status=pending&tag=vip",
    ):
        assert [job["id"] for job in (await client.get(f"/v1/jobs?{query}")).data["jobs"]] == [ada], query
    assert (await client.get("/v1/jobs?queue=none")).data["jobs"] == []
    assert len((await client.get("/v1/jobs?sort=due&descending=false&queue=mail&queue=slow")).data["jobs"]) == 2


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("status=done", "invalid_request"),
        ("limit=0", "invalid_request"),
        ("colour=red", "invalid_request"),
        ("payload=guest", "invalid_request"),
        ("payload=guest=Ada&payload=guest=Bob", "invalid_request"),
        ("created_after=2027-01-01", "invalid_request"),
        ("created_after=2e9", "invalid_request"),
        ("created_after=1799999999.5", "invalid_request"),
        ("cursor=abc", "invalid_cursor"),
    ],
)
async def test_a_wrong_filter_is_refused(client: Client, query: str, code: str) -> None:
    assert (await client.get(f"/v1/jobs?{query}")).code == code


async def test_a_cursor_of_another_list_is_refused(client: Client) -> None:
    for _ in range(2):
        await enqueued(client)
    cursor = (await client.get("/v1/jobs?limit=1")).data["cursor"]
    assert (await client.get(f"/v1/jobs?limit=1&cursor={cursor}&task=welcome")).code == "invalid_cursor"


# -- one job --------------------------------------------------------------------------------------


async def test_all_about_a_job_is_shown(app: Mainspring, client: Client) -> None:
    job_id = await dead_letter(app, client)
    detail = (await client.get(f"/v1/jobs/{job_id}/detail")).data
    assert detail["job"]["status"] == "dead_letter"
    assert detail["job"]["failure"]["message"] == "no luck"
    assert [attempt["move"] for attempt in detail["attempts"]] == ["dead"]
    assert detail["timeline"][0]["what"] == "created"
    assert detail["why"]["reasons"][0]["text"]
    assert detail["steps"] == []


async def test_a_dead_letter_is_retried(app: Mainspring, client: Client) -> None:
    job_id = await dead_letter(app, client)
    answer = await client.post(f"/v1/jobs/{job_id}:retry", {"reason": "the bank is back"})
    assert (answer.status, answer.data["status"]) == (200, "pending")
    (entry,) = await app.audit()
    assert (entry.actor, entry.reason) == ("local", "the bank is back")


@pytest.mark.parametrize(("method", "action"), [("POST", ":cancel"), ("POST", ":reschedule"), ("PATCH", "")])
async def test_a_change_of_a_job_that_is_deleted_at_once_says_that_it_was_made(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch, method: str, action: str
) -> None:
    job_id = await enqueued(client, delay=3600)
    change = Jobs._change_one

    async def change_and_delete(jobs: Jobs, *given: Any) -> Any:
        changed = await change(jobs, *given)
        await change(app.jobs, Action.DELETE, job_id, By("ana"), None)
        return changed

    monkeypatch.setattr(Jobs, "_change_one", change_and_delete)
    answer = await client.send(method, f"/v1/jobs/{job_id}{action}", {"priority": "high"} if method == "PATCH" else {})
    assert answer.code == "not_found"
    assert "the change was made" in answer.data["detail"]
    assert len(await app.audit()) == 2


async def test_a_waiting_job_is_moved_edited_cancelled_and_deleted(app: Mainspring, client: Client) -> None:
    job_id = await enqueued(client, delay=3600)
    moved = await client.post(f"/v1/jobs/{job_id}:reschedule", {"delay": 60})
    assert moved.status == 200
    edited = await client.send("PATCH", f"/v1/jobs/{job_id}", {"payload": {"guest": "Bob"}, "priority": "low"})
    assert (edited.data["payload"], edited.data["priority"]) == ({"guest": "Bob"}, "low")
    refused = await client.send("PATCH", f"/v1/jobs/{job_id}", {"payload": {"gust": "Bob"}})
    assert refused.code == "invalid_payload"
    cancelled = await client.post(f"/v1/jobs/{job_id}:cancel")
    assert (cancelled.data["cancelled"], cancelled.data["job"]["status"]) == (True, "cancelled")
    assert (await client.post(f"/v1/jobs/{job_id}:cancel")).code == "illegal_move"
    assert (await client.send("DELETE", f"/v1/jobs/{job_id}?reason=tidy")).status == 204
    assert (await client.get(f"/v1/jobs/{job_id}")).code == "not_found"
    assert [entry.action for entry in await app.audit()] == ["delete", "cancel", "edit", "edit"]


@pytest.mark.parametrize("path", ["/v1/jobs/nope", "/v1/jobs/nope/detail", "/v1/tasks/nope", "/nope"])
async def test_what_is_not_there_is_not_found(client: Client, path: str) -> None:
    assert (await client.get(path)).code == "not_found"


async def test_a_method_that_a_path_does_not_have_is_refused(client: Client) -> None:
    assert (await client.send("PUT", "/v1/jobs", {})).code == "method_not_allowed"


# -- the system -----------------------------------------------------------------------------------


async def test_tasks_are_listed_with_their_schemas(app: Mainspring, client: Client) -> None:
    await app.published.publish(app.tasks.values(), "w1")
    tasks = {task["name"]: task for task in (await client.get("/v1/tasks")).data["tasks"]}
    assert tasks["welcome"]["summary"] == "Welcome a guest."
    assert tasks["welcome"]["payload_schema"]["properties"] == {"guest": {"title": "Guest", "type": "string"}}
    alone = (await client.get("/v1/tasks/welcome")).data
    del alone["settings"]  # tests/service/test_effective_settings.py has these
    assert alone == tasks["welcome"]


async def test_queues_are_paused_and_resumed(app: Mainspring, client: Client) -> None:
    await enqueued(client)
    paused = await client.post("/v1/queues/mail:pause", {"reason": "mail is down"})
    assert paused.data["confirmed"] is True
    (queue,) = (await client.get("/v1/queues")).data["queues"]
    assert (queue["queue"], queue["pending"], queue["due"], queue["paused"]["reason"]) == ("mail", 1, 1, "mail is down")
    assert await app.worker().drain() == 0
    assert (await client.post("/v1/queues/mail:resume")).data == {"resumed": True}
    assert (await client.post("/v1/queues/mail:resume")).data == {"resumed": False}
    assert await app.worker().drain() == 1


async def test_the_system_is_halted_and_resumed(app: Mainspring, client: Client) -> None:
    await enqueued(client)
    assert (await client.post("/v1/halt", {"reason": "audit"})).data["halt"]["queue"] is None
    assert [halt["reason"] for halt in (await client.get("/v1/halts")).data["halts"]] == ["audit"]
    assert await app.worker().drain() == 0
    assert (await client.post("/v1/resume")).data == {"resumed": True}
    assert await app.worker().drain() == 1
    assert (await app.jobs.find()).jobs[0].status is Status.COMPLETED


async def test_probes_answer(app: Mainspring, client: Client) -> None:
    assert (await client.get("/health/live")).data == {"status": "ok"}
    assert (await client.get("/health/ready")).data == {"status": "ok"}
    async with app.worker(id="w1"):
        (worker,) = (await client.get("/v1/workers")).data["workers"]
    assert (worker["id"], worker["alive"]) == ("w1", True)


FORGED_CURSORS = ['["x","a","b"]', '[1e999,"a","b"]', f'[{2**70},"a","b"]', '["x","a"]', '[1e999,"a"]', "[" * 9_000]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/audit", "/v1/failures"])
@pytest.mark.parametrize("text", FORGED_CURSORS, ids=range(len(FORGED_CURSORS)))
async def test_a_forged_cursor_is_refused(client: Client, path: str, text: str) -> None:
    cursor = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    assert (await client.get(f"{path}?cursor={cursor}")).code == "invalid_cursor"


def test_an_error_that_mentions_a_cursor_is_not_about_one() -> None:
    """Messages quote what the caller sent."""
    assert problem_of(ConfigurationError("there is no queue 'cursor'")).code == "invalid_request"
    assert problem_of(InvalidCursor()).code == "invalid_cursor"
