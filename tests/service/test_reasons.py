"""A secret in a reason is shown nowhere, also if only a rule of the application knows that it is one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mainspring import Mainspring, Redaction, Retry
from tests.service.event_client import serving as serving_events
from tests.service.serving import Client, api_of

CANARY = "canary7Qzx4"
REASON = f"iban={CANARY}"
LOOKS = (
    "/v1/halts", "/v1/queues", "/v1/stats", "/v1/settings", "/v1/settings/queue/default", "/v1/settings/task/work",
    "/v1/bulk", "/v1/breakers", "/v1/failures", "/v1/schedules", "/v1/schedules/nightly", "/v1/batches", "/v1/workers",
    "/v1/jobs", "/v1/dead", "/v1/audit", "/queue/stats",
)  # fmt: skip


@pytest.fixture
async def app() -> AsyncIterator[Mainspring]:
    app = Mainspring("memory://", redact=Redaction(rules=("iban",)))

    @app.task(retry=Retry(max_attempts=1))
    async def fail() -> None:
        raise ValueError

    @app.task
    async def work() -> None: ...

    async with app:
        yield app


def operations(app: Mainspring) -> set[str]:
    """Return the operations of the OpenAPI document that take a reason or a note."""
    document = api_of(app).openapi()
    schemas = document["components"]["schemas"]

    def names(schema: dict[str, Any]) -> set[str]:
        if "$ref" in schema:
            return names(schemas[schema["$ref"].rpartition("/")[2]])
        within = (part for key in ("anyOf", "allOf", "oneOf") for part in schema.get(key, ()))
        return set(schema.get("properties", {})).union(*map(names, within))

    def taken(operation: dict[str, Any]) -> set[str]:
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        return {each["name"] for each in operation.get("parameters", ())} | names(body)

    return {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if taken(operation) & {"reason", "note"}
    }


async def prepared(app: Mainspring, client: Client) -> dict[str, str]:
    """Return what the templates of paths stand for."""
    jobs = [(await client.post("/v1/jobs", {"task": task, "delay": 60})).data["id"] for task in ("work", "work")]
    await client.post("/v1/jobs", {"task": "fail"})
    await app.worker().drain()
    batch = await client.post("/v1/batches", {"jobs": [{"task": "work", "delay": 60}]})
    put = {"rule": "daily 02:00", "tz": "UTC", "job": {"task": "work"}, "reason": REASON}
    assert (await client.send("PUT", "/v1/schedules/nightly", put)).status == 201
    assert (await client.send("PUT", "/v1/people/ada", {"tz": "UTC"})).status == 201
    bulk = {"action": "cancel", "filter": {"tag": ["x"]}, "reason": REASON}
    return {
        "{job_id}": jobs[0], "{other}": jobs[1], "{queue}": "default", "{worker}": "far", "{kind}": "task",
        "{name}": "work", "{fingerprint}": (await client.get("/v1/failures")).data["groups"][0]["fingerprint"],
        "{bulk_id}": (await client.post("/v1/bulk", bulk)).data["id"], "{schedule_id}": "nightly",
        "{batch_id}": batch.data["id"], "{person_id}": "ada", "{session_id}": "none",
    }  # fmt: skip


IN_ORDER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("PATCH /v1/jobs/{job_id}", {"priority": 3}),
    ("GET /v1/jobs/{job_id}", {}),
    ("GET /v1/jobs/{job_id}/detail", {}),
    ("POST /v1/jobs/{job_id}:reschedule", {"delay": 90}),
    ("POST /v1/jobs/{job_id}:cancel", {}),
    ("POST /v1/jobs/{job_id}:replay", {}),
    ("POST /v1/jobs/{job_id}:retry", {}),
    ("DELETE /v1/jobs/{job_id}", {}),
    ("POST /v1/queues/{queue}:pause", {"wait": 0}),
    ("POST /v1/halt", {"wait": 0}),
    ("POST /v1/workers/{worker}:quiet", {}),
    ("POST /v1/workers/{worker}:terminate", {}),
    ("POST /v1/workers/{worker}:continue", {}),
    ("POST /v1/resume", {}),
    ("POST /v1/queues/{queue}:resume", {}),
    ("POST /v1/failures/{fingerprint}:resolve", {}),
    ("POST /v1/failures/{fingerprint}:reopen", {}),
    ("POST /v1/failures/{fingerprint}:mute", {}),
    ("POST /v1/failures/{fingerprint}:unmute", {}),
    ("POST /v1/failures/{fingerprint}:retry", {}),
    ("POST /v1/dead:purge", {}),
    ("POST /v1/bulk", {"action": "cancel", "filter": {"payload": [f'iban="{CANARY}"']}, "canary": 1}),
    ("POST /v1/bulk/{bulk_id}:continue", {}),
    ("POST /v1/bulk/{bulk_id}:cancel", {}),
    ("PUT /v1/schedules/{schedule_id}", {"rule": "daily 03:00", "tz": "UTC", "job": {"task": "work"}}),
    ("POST /v1/schedules/{schedule_id}:pause", {}),
    ("POST /v1/schedules/{schedule_id}:resume", {}),
    ("POST /v1/schedules/{schedule_id}:trigger", {}),
    ("DELETE /v1/schedules/{schedule_id}", {}),
    ("POST /v1/breakers/{name}:open", {}),
    ("POST /v1/breakers/{name}:close", {}),
    ("POST /v1/batches/{batch_id}:cancel", {}),
    ("PATCH /v1/settings/{kind}/{name}", {"limit": 3}),
    ("DELETE /v1/settings/{kind}/{name}", {}),
    ("DELETE /v1/people/{person_id}", {}),
    ("POST /v1/tokens:rotate", {}),
    ("DELETE /v1/sessions/{session_id}", {}),
)


async def test_a_secret_in_a_reason_is_in_no_answer_and_no_event(app: Mainspring) -> None:
    assert {operation for operation, _ in IN_ORDER} == operations(app)
    answers: dict[str, str] = {}
    async with serving_events(app) as served:
        client = Client(served.http, served.url)
        stream = await served.events()
        ids = await prepared(app, client)
        for operation, body in IN_ORDER:
            method, _, path = operation.partition(" ")
            for name, value in ids.items():
                path = path.replace(name, value)
            told = {"note" if "/failures/" in path and ":retry" not in path else "reason": REASON}
            if method in {"DELETE", "GET"}:
                path += f"?reason={REASON}" + ("&reveal=true" if method == "GET" else "")
            answer = await client.send(method, path, None if method in {"DELETE", "GET"} else {**body, **told})
            assert answer.status < 500, (operation, answer)
            answers[operation] = answer.text
            lease = await client.post("/v1/leases", {"worker": "far", "queues": ["default"], "wait": 0})
            answers[f"{operation}, then lease"] = lease.text
            for look in LOOKS:
                answers[f"{operation}, then {look}"] = (await client.get(look)).text
        last = await app.enqueue("work", {})
        events = []
        while (event := await stream.next()).job != last.id:
            events.append(str(event.data))
    assert [name for name, text in answers.items() if CANARY in text] == []
    assert CANARY not in "".join(events)
    shown = [name for name, text in answers.items() if "iban=[redacted]" in text]
    assert len(shown) > 100  # the secret was really there


async def test_a_worker_that_holds_a_cancelled_job_gets_its_reason_without_secrets(app: Mainspring) -> None:
    async with serving_events(app) as served:
        client = Client(served.http, served.url)
        job_id = (await client.post("/v1/jobs", {"task": "work"})).data["id"]
        claim = {"worker": "far", "queues": ["default"], "wait": 0}
        (job,) = (await client.post("/v1/leases", claim)).data["jobs"]
        await client.post(f"/v1/jobs/{job_id}:cancel", {"reason": REASON})
        held = [{"id": job_id, "token": job["token"]}]
        report = await client.post("/v1/leases:report", {"worker": "far", "items": held})
    assert report.data["pulse"]["cancelled"] == {job_id: "iban=[redacted]"}, report.text
