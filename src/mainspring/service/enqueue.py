"""`POST /v1/jobs` and `POST /v1/jobs:bulk`.

These are plain Starlette routes: FastAPI's would take longer to check a body than the store takes to enqueue. Their
entries in the OpenAPI document are made from the same models (openapi.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from mainspring.app import Mainspring
from mainspring.errors import ConfigurationError, InvalidPayload, UnknownTask
from mainspring.job import FreshJobs, Inserted, NewJob
from mainspring.names import check_name
from mainspring.published.api import nearest
from mainspring.service.bodies import BulkBody, NewJobBody
from mainspring.service.callbacks import followed
from mainspring.service.idempotency import Entry, Line, Refusal, answered, enqueue_once
from mainspring.service.job_lines import read_lines
from mainspring.service.problems import Problem, problem_of
from mainspring.service.redacted import MARK_IN_JSON, refuse_mark
from mainspring.service.requests import (
    answer,
    app_of,
    body_of,
    caller_of,
    key_of,
    location,
    replay_header,
    secrets_of,
)
from mainspring.service.separation import admitted, queue_for
from mainspring.service.tokens import Scope
from mainspring.task import Enqueuer
from mainspring.trace import trace_of_headers

MOST_NAMES = 20  # unknown ones of a bulk enqueue for which similar names are searched
ONE: TypeAdapter[NewJobBody] = TypeAdapter(NewJobBody)
MANY: TypeAdapter[BulkBody] = TypeAdapter(BulkBody)


async def enqueue(request: Request) -> Response:
    caller_of(request).check(Scope.ENQUEUE, projects=True)
    body, raw = await body_of(request, ONE)
    refuse_mark(request, raw, [(body.task, body.payload)])
    app, key = app_of(request), key_of(request, raw)

    async def check(each: NewJobBody) -> Line:
        return await prepared(request, each)  # raises, so that a refused request can be corrected under its key

    entries: Sequence[Entry]
    if key is None:
        job = await prepared(request, body)
        jobs = FreshJobs([job]) if is_fresh(request, body) else [job]
        entries, replayed = await app.runtime.pipeline.insert(jobs), False
    else:
        entries, replayed = await enqueue_once(app, key, [body], check)
    [entry] = entries
    assert isinstance(entry, Inserted)  # noqa: S101 - `check` raises what would be a refusal
    headers = location(request, f"/v1/jobs/{entry.id}") | replay_header(replayed)
    return answer({"id": entry.id, "created": entry.created}, 201 if entry.created else 200, headers)


async def enqueue_bulk(request: Request) -> Response:
    caller_of(request).check(Scope.ENQUEUE, projects=True)
    body, raw = await body_of(request, MANY, read_lines)
    refuse_mark(request, raw, [(job.task, job.payload) for job in body.jobs] if MARK_IN_JSON in raw else ())
    app, key = app_of(request), key_of(request, raw)
    lines = Lines(request)
    if key is None:
        entries, replayed = await enqueue_lines(app, [await lines.check(each) for each in body.jobs]), False
    else:
        entries, replayed = await enqueue_once(app, key, body.jobs, lines.check)
    data = {
        "results": [result_of(entry) for entry in entries],
        "created": sum(isinstance(entry, Inserted) and entry.created for entry in entries),
        "failed": sum(isinstance(entry, Refusal) for entry in entries),
    }
    return answer(data, headers=replay_header(replayed))


async def enqueue_lines(app: Mainspring, lines: Sequence[Line]) -> list[Entry]:
    jobs = [line for line in lines if isinstance(line, NewJob)]
    return answered(lines, await app.runtime.pipeline.insert(jobs) if jobs else [])


def result_of(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, Refusal):
        return {"id": None, "created": False, "error": {"pointer": "", "code": entry.code, "detail": entry.detail}}
    return {"id": entry.id, "created": entry.created, "error": None}


async def prepared(request: Request, body: NewJobBody, *, traced: bool = True) -> NewJob:
    """Return the job of a body; raise Problem if it has none. If it is `traced`, it joins the trace of the request."""
    try:
        return await prepare(request, body, traced=traced)
    except UnknownTask as error:
        raise unknown(body.task, error.nearest) from None


async def prepare(request: Request, body: NewJobBody, *, traced: bool = True) -> NewJob:
    app, caller, options = app_of(request), caller_of(request), body.options()
    if traced and (trace := trace_of_headers(request.scope["headers"])):
        options["trace"] = trace
    if caller.within and body.queue is not None:
        options["queue"] = queue_for(caller, body.queue)
    try:
        job = await app.prepare(body.task, body.payload, allow_unknown=body.allow_unknown, **options)
    except InvalidPayload as error:  # some messages repeat what was given
        hide = app.redaction.hide_stored([(body.payload, body.headers)], body.task)
        raise InvalidPayload(hide(str(error))) from None
    job = admitted(caller, job)
    if body.callback is None and body.failure_callback is None:
        return job
    return await followed(app, secrets_of(request), job, body)


def is_fresh(request: Request, body: NewJobBody) -> bool:
    """Return whether `prepare` returns the job as its task has made it, so that the store need not check it again."""
    return not caller_of(request).within and body.callback is None and body.failure_callback is None


def unknown(name: str, near: Sequence[str]) -> Problem:
    hint = f"do you mean {' or '.join(map(repr, near))}?" if near else "GET /v1/tasks lists those that are."
    msg = f"no worker has published a task {name!r}; {hint} To enqueue without a check, set allow_unknown to true"
    return Problem("unknown_task", msg, more={"nearest": near})


class Lines:
    """Checks the lines of a bulk enqueue. Tasks are listed for the first unknown one, and not again for each line."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._is_traced = bool(trace_of_headers(request.scope["headers"]))
        self._caller = caller_of(request)
        self._plain: dict[str, Enqueuer[..., Any]] = {}  # tasks of which jobs without options were enqueued
        self._known: Sequence[str] | None = None  # all tasks, once they were listed
        self._nearest: dict[str, Sequence[str]] = {}  # to names that are unknown

    async def check(self, body: NewJobBody) -> Line:
        """Return the job of a line, or why it has none."""
        try:
            if body.is_plain and (task := self._plain.get(body.task)) is not None:  # as in most bulk enqueues
                with suppress(InvalidPayload):  # it may fit what is published by now
                    return admitted(self._caller, task.prepare_data({} if body.payload is None else body.payload))
            if self._is_unknown(body.task) and not body.allow_unknown:
                return Refusal.of(unknown(body.task, self._nearest_to(body.task)))
            line = await prepare(self._request, body)
            if body.is_plain and not body.allow_unknown and not self._is_traced:
                self._plain[body.task] = (await app_of(self._request).find_task(body.task)).using()
            return line
        except UnknownTask as error:
            self._known, self._nearest[body.task] = error.known, error.nearest
            return Refusal.of(unknown(body.task, error.nearest))
        except Problem as problem:
            return self._refusal(problem, body)
        except (InvalidPayload, ConfigurationError) as error:
            return self._refusal(problem_of(error), body)

    def _refusal(self, problem: Problem, body: NewJobBody) -> Refusal:
        hide = app_of(self._request).redaction.hide_stored([(body.payload, body.headers)], body.task)
        return Refusal.of(replace(problem, detail=hide(problem.detail)))

    def _is_unknown(self, name: str) -> bool:
        if self._known is None:
            return False
        check_name(name, "the name of a task")
        return name not in self._known and name not in app_of(self._request).runtime.internal_tasks

    def _nearest_to(self, name: str) -> Sequence[str]:
        if name not in self._nearest and len(self._nearest) < MOST_NAMES:
            self._nearest[name] = nearest(name, self._known or ())
        return self._nearest.get(name, ())
