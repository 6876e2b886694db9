"""`POST /v1/jobs/{id}:complete` and `:fail`: how the receiver of a pushed job ends it, after it has answered 202."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from mainspring.clock import Millis, to_millis
from mainspring.errors import IllegalMove
from mainspring.features.durable.signals import Signal
from mainspring.job import Job, Step
from mainspring.outgoing.client import MAX_ANSWER
from mainspring.projects import key_in
from mainspring.service.answers.completion import EndedView
from mainspring.service.bodies import Body, ErrorCode
from mainspring.service.problems import Problem
from mainspring.service.push import TASK, WORK, signal_key
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
    accepted = answer({"id": job_id, "accepted": True}, 202)
    if known_effect(request) is not None:
        return accepted
    job = await jobs_of(request).get(job_id)
    works = works_in(await app_of(request).store.steps(job.id))
    number = checked_number(job, caller_of(request).request_number, works)
    work = works.get(number, Work())
    if not work.is_over:
        refuse_finished(job)
        key = key_in(job.queue, signal_key(job_id, number))
        work = work.ended_by(await app_of(request).signal(key, report, id=SIGNAL_ID))
    if work.report != report:
        what = "another report has ended it" if work.report else "no report came in time"
        msg = f"the work on request {number} of job {job_id} is over: {what}"
        raise IllegalMove(msg)
    return accepted


@dataclass(frozen=True, slots=True)
class Work:
    """The work on one request, as the job's step records it."""

    is_over: bool = False
    report: Any = None  # that has ended it; None: there is none, or none came in time
    until: Millis | None = None  # later reports do not count; None: not known yet

    def ended_by(self, signal: Signal) -> Work:
        in_time = self.until is None or to_millis(signal.sent_at) <= self.until
        return Work(is_over=True, report=signal.payload if in_time else None)


def works_in(steps: Iterable[Step]) -> dict[int, Work]:
    """Return the work on each request whose answer was 202, by the request's number."""
    waits = {step.name.removeprefix(WORK): step.output or "{}" for step in steps if step.kind == "wait"}
    return {int(number): work_of(json.loads(state)) for number, state in waits.items()}


def work_of(state: Mapping[str, Any]) -> Work:
    if "signal" in state:
        return Work(is_over=True, report=(state["signal"] or {}).get("payload"))
    return Work(until=state.get("until"))


def checked_number(job: Job, number: int | None, works: Mapping[int, Work]) -> int:
    """Return the number of the request that is ended: that of the caller's token, or the last one.

    With the token of a request, that may also be one whose answer is still on its way.
    """
    if job.task != TASK:
        msg = f"job {job.id} is of task {job.task!r}; only jobs of {TASK!r} are ended by a request"
        raise IllegalMove(msg)
    found = number or max(works, default=None)
    if found is None:
        refuse_finished(job)
        msg = f"job {job.id} is {job.status}, and does not wait for the end of work elsewhere"
        raise IllegalMove(msg)
    return found


def refuse_finished(job: Job) -> None:
    if job.finished:
        msg = f"job {job.id} is {job.status}"
        raise IllegalMove(msg)
