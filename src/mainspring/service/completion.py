"""`POST /v1/jobs/{id}:complete` and `:fail`: how the receiver of a pushed job ends it, after it has answered 202."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from mainspring.errors import IllegalMove
from mainspring.features.durable.signals import waiting_key
from mainspring.job import Job, Status
from mainspring.outgoing.client import MAX_ANSWER
from mainspring.projects import key_in
from mainspring.service.answers.completion import EndedView
from mainspring.service.bodies import Body, ErrorCode
from mainspring.service.problems import Problem
from mainspring.service.push import TASK, signal_key
from mainspring.service.replay import KeyKind, known_effect
from mainspring.service.requests import Router, answer, app_of, caller_of, needs
from mainspring.service.separation import jobs_of
from mainspring.service.tokens import Scope

router = Router(prefix="/v1", tags=["push"])
SIGNAL_ID = "end"  # the first report counts; a repeated one is the same signal


class CompleteBody(Body):
    result: Any = Field(default=None, description="what the job results in; up to 64 KB of JSON")


class FailBody(Body):
    error: Annotated[str, StringConstraints(min_length=1, max_length=4_000)] = Field(description="what went wrong")
    code: ErrorCode | None = None
    retry: bool = Field(default=True, description="false: the job becomes a dead letter, even if attempts are left")


@router.post(
    "/jobs/{job_id}:complete",
    response_model=EndedView,
    status_code=202,
    summary="Complete a pushed job",
    **needs(Scope.OPERATE, KeyKind.RESUMED, projects=True, may=("illegal_move",)),
)
async def complete_job(request: Request, job_id: str, body: CompleteBody) -> Response:
    """Complete a job of the task `http` whose receiver has answered 202.

    Send the token of the request (its header `X-Mainspring-Token`) as bearer token, or a token with the scope operate.
    """
    if len(json.dumps(body.result, ensure_ascii=False).encode("utf-8", "replace")) > MAX_ANSWER:
        raise Problem("body_too_large", f"the result of a pushed job may have up to {MAX_ANSWER:,} bytes of JSON")
    return await end(request, job_id, {"done": True, "result": body.result})


@router.post(
    "/jobs/{job_id}:fail",
    response_model=EndedView,
    status_code=202,
    summary="Fail a pushed job",
    **needs(Scope.OPERATE, KeyKind.RESUMED, projects=True, may=("illegal_move",)),
)
async def fail_job(request: Request, job_id: str, body: FailBody) -> Response:
    """Let the attempt of a pushed job fail. Its retry policy decides whether the request is sent again."""
    return await end(request, job_id, {"done": False, "error": body.error, "code": body.code, "retry": body.retry})


async def end(request: Request, job_id: str, report: dict[str, Any]) -> Response:
    if known_effect(request) is not None:
        return answer({"id": job_id, "accepted": True}, 202)
    job = await jobs_of(request).get(job_id)
    number = checked_number(job, caller_of(request).request_number)
    key = key_in(job.queue, signal_key(job_id, number))
    sent = await app_of(request).signal(key, report, id=SIGNAL_ID)
    if sent.payload != report:
        msg = f"the work of job {job_id} has been ended by another report"
        raise IllegalMove(msg)
    return answer({"id": job_id, "accepted": True}, 202)


def checked_number(job: Job, number: int | None) -> int:
    """Return the number of the request that is ended; raise IllegalMove if the job does not wait for its end.

    With the token of a request, that may also be one whose answer is still on its way.
    """
    waited = number_in(job)
    if job.task != TASK:
        msg = f"job {job.id} is of task {job.task!r}; only jobs of {TASK!r} are ended by a request"
    elif job.finished:
        msg = f"job {job.id} is {job.status}"
    elif number is None and waited is None:
        msg = f"job {job.id} is {job.status}, and does not wait for the end of work elsewhere"
    elif number is not None and waited is not None and number != waited:
        msg = f"request {number} of job {job.id} is over; it waits for the end of request {waited}"
    else:
        return waited or number or 1
    raise IllegalMove(msg)


def number_in(job: Job) -> int | None:
    """Return the number of the request whose end the job waits for."""
    prefix = waiting_key(key_in(job.queue, signal_key(job.id, 0)))[:-1]
    if job.status is not Status.SUSPENDED or job.waits_for is None or not job.waits_for.startswith(prefix):
        return None
    return int(job.waits_for.removeprefix(prefix))
