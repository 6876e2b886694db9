"""Pull workers in any language: `POST /v1/leases` claims jobs, `POST /v1/leases:report` tells what became of them.

Both are plain Starlette routes, as those that enqueue are. docs/leases.md explains leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, StrictBool, StrictInt, StringConstraints, TypeAdapter, ValidationError, model_validator
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mainspring.app import Mainspring
from mainspring.clock import Millis, duration
from mainspring.errors import Failure, MainspringError
from mainspring.json_data import plain
from mainspring.leases.answers import Pulse, SavedStep
from mainspring.leases.items import (
    MAX_TOKEN,
    Cancelled,
    Complete,
    Fail,
    Heartbeat,
    Item,
    Progress,
    Release,
    SaveStep,
    Snooze,
)
from mainspring.leases.lessee import Lease
from mainspring.service import orders
from mainspring.service.answers.orders import Order
from mainspring.service.bodies import Body, ErrorCode, Instant, Name, Reasoned, Seconds, Text
from mainspring.service.guard import Caller
from mainspring.service.live import Live
from mainspring.service.replay import ANSWER_WITHIN, KeyKind, known_effect, note_effect
from mainspring.service.requests import answer, app_of, body_of, caller_of, once, with_scope
from mainspring.service.separation import queues_for, worker_for
from mainspring.service.settings import LONGEST_WAIT
from mainspring.service.system import halt_data
from mainspring.service.tokens import Scope
from mainspring.stores.protocol import EVERY_QUEUE

T = TypeVar("T")

LINES = "text/tab-separated-values"
LINES_HAVE = (
    "with `Accept: text/tab-separated-values`, a line for each job: id, token, attempt, task, and payload as JSON"
)
MOST_CLAIMED = 100
MOST_ITEMS = 1_000
FIRST_TOKEN = 1  # of a job that was not claimed before, so that nothing can be recorded
Long = Annotated[str, StringConstraints(max_length=50_000)]
Token = Annotated[StrictInt, Field(ge=0, le=MAX_TOKEN)]


# -- what requests carry --------------------------------------------------------------------------


class ClaimBody(Body):
    """Ask for due jobs."""

    worker: Name = Field(description="a name of your choice, one for each process")
    queues: list[Name] = Field(default=["*"], min_length=1, max_length=100, description='`"*"` is all queues')
    tasks: list[Name] | None = Field(default=None, max_length=1_000, description="take jobs of these tasks only")
    limit: StrictInt = Field(default=1, ge=1, le=MOST_CLAIMED)
    wait: float = Field(
        default=0,
        strict=True,
        ge=0,
        le=LONGEST_WAIT,
        description="seconds to wait for a job if none is due; at most the service's max_wait",
    )
    held: dict[str, Token] = Field(default={}, max_length=MOST_ITEMS, description="jobs that it works on: id to token")
    version: Name | None = Field(default=None, description="of the worker's code")


class ReportItem(Body):
    """What is new about one job: exactly one of the fields besides `id` and `token`, or none for a heartbeat."""

    id: str
    token: Token
    done: ResultBody | None = Field(default=None, description="it has succeeded")
    failed: ErrorBody | None = Field(default=None, description="it has failed; its retry policy decides what follows")
    snooze: SnoozeBody | None = Field(default=None, description="run it later, without using an attempt")
    release: Reasoned | None = Field(default=None, description="another worker may have it")
    cancelled: Reasoned | None = Field(default=None, description="the worker has stopped, because it was cancelled")
    progress: ProgressBody | None = None
    step: StepBody | None = Field(default=None, description="a step is done")

    @model_validator(mode="after")
    def _check_one(self) -> ReportItem:
        if sum(getattr(self, name) is not None for name in NEWS) > 1:
            msg = f"give one of {', '.join(NEWS)} for each item"
            raise ValueError(msg)
        return self

    def item(self) -> Item:  # noqa: PLR0911 - a table
        about = self.id, self.token
        if self.done is not None:
            return Complete(*about, self.done.result)
        if self.failed is not None:
            return Fail(*about, self.failed.failure(), self.failed.retry)
        if self.snooze is not None:
            return Snooze(*about, self.snooze.delay, self.snooze.until, self.snooze.reason)
        if self.release is not None:
            return Release(*about, self.release.reason)
        if self.cancelled is not None:
            return Cancelled(*about, self.cancelled.reason)
        if self.progress is not None:
            return Progress(*about, self.progress.fraction, self.progress.note)
        if self.step is not None:
            return SaveStep(*about, self.step.name, self.step.output)
        return Heartbeat(*about)


class ResultBody(Body):
    result: Any = None


class ErrorBody(Body):
    type: Name = "Error"
    message: Long = ""
    traceback: Long = ""
    code: ErrorCode | None = None
    retry: StrictBool = Field(default=True, description="false: a dead letter at once")

    def failure(self) -> Failure:
        return Failure(self.type, self.message, self.traceback, code=self.code)


class SnoozeBody(Body):
    delay: Seconds | None = None
    until: Instant | None = None
    reason: Text = ""

    @model_validator(mode="after")
    def _check_one(self) -> SnoozeBody:
        if (self.delay is None) == (self.until is None):
            msg = "give either delay or until"
            raise ValueError(msg)
        return self


class ProgressBody(Body):
    fraction: float = Field(strict=True, ge=0, le=1)
    note: Text = ""


class StepBody(Body):
    name: Name
    output: Any = None


NEWS = ("done", "failed", "snooze", "release", "cancelled", "progress", "step")


class ReportBody(Body):
    """Tell what is new about jobs. An empty list is a sign of life of the worker."""

    worker: Name
    items: list[ReportItem] = Field(default=[], max_length=MOST_ITEMS)


class LeaveBody(Body):
    """Say that the worker stops."""

    worker: Name


CLAIM: TypeAdapter[ClaimBody] = TypeAdapter(ClaimBody)
REPORT: TypeAdapter[ReportBody] = TypeAdapter(ReportBody)
LEAVE: TypeAdapter[LeaveBody] = TypeAdapter(LeaveBody)


# -- what is answered -----------------------------------------------------------------------------


def lease_data(lease: Lease, steps: Sequence[SavedStep]) -> dict[str, Any]:
    return {
        "id": lease.id,
        "token": lease.token,
        "task": lease.task,
        "queue": lease.queue,
        "payload": lease.payload,
        "attempt": lease.attempt,
        "max_attempts": lease.max_attempts,
        "deadline": plain(lease.deadline),
        "target": None if lease.target is None else {"type": lease.target[0], "id": lease.target[1]},
        "tags": lease.tags,
        "suspect": lease.suspect,
        "trace": dict(lease.trace),
        "headers": dict(lease.headers),
        "plan": [{"name": step.name, "timeout": step.timeout} for step in lease.plan],
        "steps": [step_data(step) for step in steps],
    }


def step_data(step: SavedStep) -> dict[str, Any]:
    names = ("name", "state", "kind", "output", "saved", "finished_at")
    return {name: plain(getattr(step, name)) for name in names}


def pulse_data(app: Mainspring, pulse: Pulse, order: Order | None) -> dict[str, Any]:
    return {
        "order": order,
        "halted": pulse.halted,
        "halts": [halt_data(halt, app.redaction) for halt in pulse.halts],
        "cancelled": app.redaction.texts(dict(pulse.cancelled)),
        "lost": pulse.lost,
        "known": pulse.known,
        "lease": app.store.lease,
    }


# -- routes ---------------------------------------------------------------------------------------


async def claim(request: Request) -> Response:
    """Claim jobs. A claim that is repeated with its idempotency key gets the jobs again that the worker still has."""
    caller = caller_of(request)
    body, _ = await body_of(request, CLAIM)
    app, worker, order = app_of(request), worker_for(caller, body.worker), None
    before = known_effect(request)
    if before is not None and (leases := await given_before(app, worker, body, before)) is not None:
        note_effect(request, jobs={lease.id: lease.token for lease in leases})
        held = body.held | {lease.id: lease.token for lease in leases}
        pulse = await app.leases.heartbeat(worker, held, **served(caller))
        return await claimed(request, leases, pulse_data(app, pulse, await orders.order_for(app, worker)))

    async def has_order() -> bool:
        nonlocal order
        order = await orders.order_for(app, worker)
        return order is not None

    claiming = app.leases.claim(
        worker,
        queues=queues_for(caller, body.queues),
        tasks=body.tasks,
        limit=body.limit,
        wait=min(body.wait, request.app.state.settings.max_wait),
        held=body.held,
        version=body.version,
        unless=has_order,
        within=caller.within,
    )
    batch = await unless_over(request, claiming)
    leases = () if batch is None else batch.leases
    if leases:
        note_effect(request, jobs={lease.id: lease.token for lease in leases})
    beat = app.leases.heartbeat
    pulse = await beat(worker, body.held, **served(caller)) if batch is None else batch.pulse
    return await claimed(request, leases, pulse_data(app, pulse, order))


def served(caller: Caller) -> dict[str, Any]:
    """Return the queues whose halts a worker is told of, and in which its jobs are."""
    return {"queues": caller.within or EVERY_QUEUE, "within": caller.within}


async def given_before(
    app: Mainspring, worker: str, body: ClaimBody, before: Mapping[str, Any]
) -> Sequence[Lease] | None:
    """Return the jobs of an earlier claim that the worker still has.

    If the process that claimed has died before it could note them, these are all that the worker has and does not name;
    None if there are none of them: then nothing was claimed, and the claim is made now.
    """
    held = {lease.id: lease for lease in await app.leases.held(worker)}
    if (jobs := before.get("jobs")) is not None:
        return [held[job_id] for job_id, token in jobs.items() if job_id in held and held[job_id].token == token]
    return [lease for lease in held.values() if lease.id not in body.held] or None


def longest(raw: bytes) -> Millis:
    """Return how long a claim with this body may take, in milliseconds."""
    try:
        return ANSWER_WITHIN + duration(CLAIM.validate_json(raw).wait)
    except ValidationError:  # it is refused at once
        return ANSWER_WITHIN


async def claimed(request: Request, leases: Sequence[Lease], pulse: dict[str, Any]) -> Response:
    """Answer with JSON, or with a line for each job if the caller asks for that: shells cannot read JSON."""
    if request.headers.get("accept", "").startswith(LINES):
        return Response("".join(map(line_of, leases)), media_type=LINES, headers={"x-order": pulse["order"] or ""})
    steps = await asyncio.gather(*map(steps_of, leases))
    jobs = [lease_data(lease, done) for lease, done in zip(leases, steps, strict=True)]
    return answer({"jobs": jobs, "pulse": pulse})


async def steps_of(lease: Lease) -> Sequence[SavedStep]:
    """Return what earlier attempts did. If the store fails now, give the job back: no worker would know of it."""
    if lease.token == FIRST_TOKEN:
        return ()
    try:
        return await lease.steps()
    except BaseException:
        with contextlib.suppress(MainspringError):
            await lease.release("its steps could not be read")
        raise


def line_of(lease: Lease) -> str:
    """Return id, token, attempt, task and payload. None of them has a tab or a line break: JSON escapes those."""
    return "\t".join((lease.id, str(lease.token), str(lease.attempt), lease.task, json.dumps(lease.payload))) + "\n"


async def unless_over(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Do the work, unless the caller hangs up or the service stops meanwhile: jobs that it claims then are given back.

    Return None if the service stops: a request that waits for a job would hold up the end.
    """
    live: Live = request.app.state.live
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(request))
    closing = asyncio.ensure_future(live.closing.wait())
    try:
        await asyncio.wait([working, gone, closing], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return await working
        if gone.done():
            raise ClientDisconnect
        return None
    finally:
        for task in (gone, closing, working):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def report(request: Request) -> Response:
    caller = caller_of(request)
    body, _ = await body_of(request, REPORT)
    app, worker = app_of(request), worker_for(caller, body.worker)
    told = await app.leases.report(worker, [item.item() for item in body.items], **served(caller))
    replies = [
        {"id": each.job_id, "token": each.token, "reply": each.reply, "status": each.status, "message": each.message}
        for each in told.answers
    ]
    pulse = pulse_data(app, told.pulse, await orders.order_for(app, worker))
    return answer({"replies": plain(replies), "pulse": pulse})


async def leave(request: Request) -> Response:
    caller = caller_of(request)
    body, _ = await body_of(request, LEAVE)
    app, worker = app_of(request), worker_for(caller, body.worker)
    await app.leases.leave(worker)
    await orders.forget_order(app, worker)
    return answer({"left": True})


ROUTES = {
    "/v1/leases": with_scope(once(claim, KeyKind.CLAIM, longest), Scope.LEASE, projects=True),
    "/v1/leases:report": with_scope(once(report, KeyKind.REPEATABLE), Scope.LEASE, projects=True),
    "/v1/leases:leave": with_scope(once(leave, KeyKind.REPEATABLE), Scope.LEASE, projects=True),
}
