"""`POST /v1/jobs` and `POST /v1/jobs:bulk`.

These are plain Starlette routes: FastAPI's would take longer to check a body than the store takes to enqueue. Their
entries in the OpenAPI document are made from the same models (openapi.py).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from mainspring.app import Mainspring
from mainspring.errors import ConfigurationError, InvalidPayload, UnknownTask
from mainspring.job import Inserted, NewJob
from mainspring.service.bodies import BulkBody, NewJobBody
from mainspring.service.idempotency import IdempotencyKey, insert_once
from mainspring.service.problems import Problem, problem_of
from mainspring.service.requests import answer, app_of, body_of, caller_of, location
from mainspring.service.tokens import Scope

NEAREST = 3
ONE: TypeAdapter[NewJobBody] = TypeAdapter(NewJobBody)
MANY: TypeAdapter[BulkBody] = TypeAdapter(BulkBody)


async def enqueue(request: Request) -> Response:
    caller_of(request).check(Scope.ENQUEUE)
    body, raw = await body_of(request, ONE)
    app, key = app_of(request), key_of(request, raw)
    job = await prepared(app, body)
    if key is None:
        inserted, replayed = (await app.runtime.pipeline.insert([job]))[0], False
    else:
        [inserted], replayed = await insert_once(app, key, [job])
    headers = location(request, f"/v1/jobs/{inserted.id}") | replay_header(replayed)
    return answer({"id": inserted.id, "created": inserted.created}, 201 if inserted.created else 200, headers)


async def enqueue_bulk(request: Request) -> Response:
    caller_of(request).check(Scope.ENQUEUE)
    body, raw = await body_of(request, MANY)
    app, key = app_of(request), key_of(request, raw)
    lines = [await line_of(app, each) for each in body.jobs]
    jobs = [line.job for line in lines if line.job is not None]
    if key is None:
        inserted, replayed = await app.runtime.pipeline.insert(jobs) if jobs else [], False
    else:
        inserted, replayed = await insert_once(app, key, jobs) if jobs else ([], False)
    found = iter(inserted)
    results = [line.result(next(found)) if line.job is not None else line.result(None) for line in lines]
    failed = sum(line.problem is not None for line in lines)
    created = sum(each.created for each in inserted)
    return answer({"results": results, "created": created, "failed": failed}, headers=replay_header(replayed))


def key_of(request: Request, raw: bytes) -> IdempotencyKey | None:
    header = request.headers.get("idempotency-key")
    return IdempotencyKey.of(header, caller=caller_of(request).id, route=request.url.path, body=raw)


def replay_header(replayed: bool) -> dict[str, str]:  # noqa: FBT001
    return {"idempotent-replayed": "true"} if replayed else {}


async def prepared(app: Mainspring, body: NewJobBody) -> NewJob:
    try:
        return await app.prepare(body.task, body.payload, allow_unknown=body.allow_unknown, **body.options())
    except UnknownTask:
        raise await unknown(app, body.task) from None


async def unknown(app: Mainspring, name: str) -> Problem:
    names = sorted({*(task.name for task in await app.published.list()), *app.tasks})
    nearest = difflib.get_close_matches(name, names, NEAREST)
    hint = f"do you mean {' or '.join(map(repr, nearest))}?" if nearest else "GET /v1/tasks lists those that are."
    msg = f"no worker has published a task {name!r}; {hint} To enqueue without a check, set allow_unknown to true"
    return Problem("unknown_task", msg, more={"nearest": nearest})


@dataclass(slots=True)
class Line:
    """One job of a bulk enqueue: prepared, or what is wrong with it."""

    job: NewJob | None
    problem: Problem | None = None

    def result(self, inserted: Inserted | None) -> dict[str, Any]:
        if inserted is not None:
            return {"id": inserted.id, "created": inserted.created, "error": None}
        problem = self.problem
        error = None if problem is None else {"pointer": "", "code": problem.code, "detail": problem.detail}
        return {"id": None, "created": False, "error": error}


async def line_of(app: Mainspring, body: NewJobBody) -> Line:
    try:
        return Line(await prepared(app, body))
    except Problem as problem:
        return Line(None, problem)
    except (InvalidPayload, ConfigurationError) as error:
        return Line(None, problem_of(error))
