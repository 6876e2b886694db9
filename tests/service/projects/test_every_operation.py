"""Every operation of the OpenAPI document, with the token of one project and the ids and names of another."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from mainspring import Mainspring
from mainspring.ids import new_id
from mainspring.queue_patterns import project_of
from mainspring.service.guard import OPEN_PATHS
from tests.service.projects.following import first_place, frames
from tests.service.projects.planting import (
    ERROR,
    KEY,
    MARK,
    QUEUE,
    SCHEDULE,
    TAG,
    TASK,
    TYPE,
    WORKER,
    Planted,
    Two,
    data,
    plant,
    put,
    two_projects,
)  # fmt: skip
from tests.service.serving import Client, api_of

Operation = tuple[str, str]
STREAM = ("GET", "/v1/events")  # tested apart: it does not end
LISTS = (
    "/v1/jobs", "/v1/dead", "/v1/failures", "/v1/queues", "/v1/bulk", "/v1/batches", "/v1/schedules", "/v1/settings",
    "/v1/halts",
    "/v1/workers",
)  # fmt: skip
QUERIES: dict[str, list[str]] = {
    "/v1/jobs": [
        "", "?count=true", f"?queue={QUEUE}", f"?queue=p/a/{QUEUE}", f"?dedupe_key={KEY}", f"?dedupe_key=p/a/{KEY}",
        f"?tag={TAG}", f"?task={TASK}", f"?target_type={TYPE}", f"?worker=p.a.{WORKER}", f"?error_type={ERROR}",
        "?sort=due", "?sort=finished", "?sort=duration", "?sort=attempts",
    ],
    "/v1/dead": ["", f"?error_type={ERROR}", f"?tag={TAG}"],
    "/v1/failures": ["", f"?task={TASK}", "?state=open&state=resolved", "?since=2000-01-01T00:00:00Z"],
    "/v1/numbers": ["", "?by=queue", "?by=task", f"?queue=p/a/{QUEUE}", f"?task={TASK}"],
}  # fmt: skip
PLAIN: dict[str, Any] = {"task": "welcome", "payload": {"guest": "B"}}
FOREIGN: dict[str, Any] = {**PLAIN, "queue": f"p/a/{QUEUE}"}
BODIES: dict[Operation, list[Any]] = {
    ("POST", "/v1/jobs"): [PLAIN, FOREIGN, {**PLAIN, "callback": "https://example.com"}],
    ("POST", "/v1/jobs:bulk"): [{"jobs": [PLAIN, PLAIN, FOREIGN, PLAIN]}],
    ("POST", "/v1/batches"): [{"jobs": [PLAIN, FOREIGN]}, {"jobs": [PLAIN, PLAIN], "on_finished": PLAIN}],
    ("POST", "/v1/leases"): [
        {"worker": WORKER, "limit": 100},
        {"worker": WORKER, "queues": [f"p/a/{QUEUE}"]},
        {"worker": f"p.a.{WORKER}", "queues": ["p/a/*"]},
    ],
    ("POST", "/v1/leases:leave"): [{"worker": WORKER}, {"worker": f"p.a.{WORKER}"}],
    ("POST", "/v1/bulk"): [
        {"action": action, "filter": {"tag": [TAG]}, "dry_run": dry, "reason": "b"}
        for action in ("cancel", "delete", "retry")
        for dry in (True, False)
    ],
    ("POST", "/v1/dead:purge"): [{"older_than": 0}],
    ("POST", "/v1/signals"): [{"key": "signal-1"}, {"key": "p/a/signal-1"}],
    ("PATCH", "/v1/jobs/{job_id}"): [{"priority": "urgent"}, {"queue": f"p/a/{QUEUE}"}],
    ("POST", "/v1/jobs/{job_id}:fail"): [{"error": "b"}],
    ("PATCH", "/v1/settings/{kind}/{name}"): [{"timeout": 9}],
    ("PUT", "/v1/schedules/{schedule_id}"): [{"rule": "every 1h", "job": PLAIN}, {"rule": "every 1h", "job": FOREIGN}],
    ("POST", "/v1/schedules/{schedule_id}/diff"): [{"rule": "every 2h"}],
    ("POST", "/v1/schedules:preview"): [{"rule": "every 2h"}],
    ("POST", "/v1/schedules:simulate"): [{}, {"ids": [SCHEDULE]}, {"ids": [f"p/a/{SCHEDULE}"]}],
}


def operations(app: Mainspring) -> Iterator[tuple[Operation, bool]]:
    """Yield each operation, and whether it keeps projects apart."""
    for path, methods in api_of(app).openapi()["paths"].items():
        for method, operation in methods.items():
            if path not in OPEN_PATHS:
                yield (method.upper(), path), operation["x-projects"]


def paths(template: str, names: dict[str, list[str]]) -> list[str]:
    """Return a path for each combination of the names that the first project has."""
    wanted = re.findall(r"\{(\w+)\}", template)
    choices = itertools.product(*(names[name] for name in wanted))
    return [template.format(**{n: quote(v, safe="") for n, v in zip(wanted, given, strict=True)}) for given in choices]


def bodies(operation: Operation, planted: Planted) -> list[Any]:
    if operation == ("POST", "/v1/leases:report"):
        news: list[dict[str, Any]] = [
            {},
            {"done": {"result": 1}},
            {"failed": {}},
            {"progress": {"fraction": 0.1}},
            {"step": {"name": "x"}},
        ]
        workers = (WORKER, f"p.a.{WORKER}")
        return [{"worker": worker, "items": [{**planted.lease, **item}]} for worker in workers for item in news]
    if operation == ("POST", "/v1/tokens:public"):
        return [{"jobs": planted.jobs[:1], "result": True}]
    if operation == ("POST", "/v1/leases"):
        held = {planted.lease["id"]: planted.lease["token"]}
        return [{**body, "held": held} for body in BODIES[operation]]
    return BODIES.get(operation, [{} if operation[0] in {"POST", "PATCH"} else None])


def requests(operation: Operation, planted: Planted) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
    method, template = operation
    forms: list[dict[str, str]] = [{}]
    if template in {"/v1/jobs", "/v1/dead"} and method == "GET":
        forms += [{"accept": "text/csv"}, {"accept": "application/x-ndjson"}]
    for path in paths(template, planted.names):
        queries = QUERIES.get(template, [""]) if method == "GET" else [""]
        if template == "/v1/jobs" and method == "GET":
            queries = [*queries, "?" + "&".join(f"id={job_id}" for job_id in planted.jobs)]
        for query, body, form in itertools.product(queries, bodies(operation, planted), forms):
            yield method, f"{path}{query}", body, form


async def everything(client: Client, planted: Planted) -> dict[str, Any]:
    """Return all that a project can read about itself."""
    shown = {path: await data(client, "GET", path) for path in LISTS if path != "/v1/workers"}
    del shown["/v1/dead"]["oldest_age"]  # it grows
    shown |= {job_id: await data(client, "GET", f"/v1/jobs/{job_id}") for job_id in planted.jobs}
    return shown


async def test_a_project_sees_and_changes_nothing_of_another(every_store: Mainspring) -> None:
    async with two_projects(every_store) as two:
        planted = await plant(two)
        await two.pass_on()
        before = await everything(two.a, planted)
        assert MARK in json.dumps(before)
        for operation, projects in list(operations(every_store)):
            if operation == STREAM:
                continue
            if not projects:
                answer = await two.b.send(operation[0], paths(operation[1], AnyName())[0], {})
                assert (answer.status, answer.code) == (403, "forbidden"), (operation, answer)
                continue
            for method, path, body, form in requests(operation, planted):
                answer = await two.b.send(method, path, body, **form)
                assert answer.status in {200, 201, 202, 204, 403, 404, 422}, (method, path, body, answer)
                assert MARK not in answer.text + str(answer.headers), (method, path, body, answer)
        await two.run()  # bulk actions and everything else that was started
        assert {project_of(job.queue) async for job in every_store.jobs.all()} == {"a", "b"}
        assert await everything(two.a, planted) == before


class AnyName(dict[str, list[str]]):
    def __missing__(self, key: str) -> list[str]:
        return ["x"]


async def test_an_id_of_another_project_is_answered_as_one_that_does_not_exist(two: Two, app: Mainspring) -> None:
    planted = await plant(two)
    unknown = new_id()
    for operation, projects in operations(app):
        for name in ("job_id", "bulk_id", "batch_id", "fingerprint", "schedule_id"):
            if not projects or f"{{{name}}}" not in operation[1] or operation[0] == "PUT":  # PUT creates it
                continue
            for real, body in itertools.product(planted.names[name], bodies(operation, planted)):
                answers = [
                    await two.b.send(operation[0], operation[1].replace(f"{{{name}}}", each), body)
                    for each in (real, unknown)
                ]
                texts = [re.sub(r'"request_id": "\w+"', "", a.text).replace(real, unknown) for a in answers]
                assert answers[0].status == answers[1].status != 200, (operation, real, answers)
                assert texts[0] == texts[1], (operation, real)


async def test_every_operation_says_whether_it_keeps_projects_apart(app: Mainspring) -> None:
    apart = {operation for operation, projects in operations(app) if projects}
    assert {("POST", "/v1/jobs"), ("GET", "/v1/jobs/{job_id}"), STREAM} <= apart
    assert not apart & {("POST", "/v1/tokens"), ("GET", "/v1/audit"), ("POST", "/v1/halt"), ("GET", "/v1/breakers")}


# -- live events ------------------------------------------------------------------------------------


async def messages(socket: aiohttp.ClientWebSocketResponse, until: str) -> str:
    found = ""
    async with asyncio.timeout(30):
        while until not in found:
            found += await socket.receive_str()
    return found


async def test_events_are_those_of_the_project(every_store: Mainspring) -> None:
    async with two_projects(every_store) as two:
        start = await first_place(two.b)
        headers = {"authorization": f"Bearer {two.b.token}"}
        async with two.b.session.ws_connect(f"{two.b.url}/v1/events/ws", headers=headers) as socket:
            await socket.send_json({"subscribe": "events", "filter": {}})
            hello = await socket.receive_str()
            planted = await plant(two)
            own = await put(two.b)
            live = await messages(socket, own)
        queries = [f"?last_event_id={quote(start)}", f"?last_event_id={quote(start)}&names=job"]
        queries += [f"{queries[0]}&job={planted.jobs[0]}&job={own}"]
        shown = [hello, live, *[await frames(two.b, query, own) for query in queries]]
        assert all(own in text for text in shown[1:])
        assert not [text for text in shown if MARK in text or any(job_id in text for job_id in planted.jobs)]
        assert MARK in await frames(two.whole, queries[0], own)


@pytest.mark.parametrize("query", [f"?queue=p/a/{QUEUE}", "?queue=p/a/*"])
async def test_events_of_a_queue_of_another_project_are_refused(two: Two, query: str) -> None:
    assert (await two.b.get(f"/v1/events{query}")).code == "forbidden"
