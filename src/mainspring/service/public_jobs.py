"""Routes for public tokens: a web page reads the jobs of its user, and follows them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field, StringConstraints, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from mainspring.clock import to_datetime
from mainspring.errors import JobNotFound
from mainspring.features.durable.states import states_of
from mainspring.job import Job, Status
from mainspring.json_data import plain
from mainspring.service import views
from mainspring.service.answers.public_tokens import PublicTokenView, RotatedView
from mainspring.service.bodies import Body, Name, Reasoned, Target
from mainspring.service.cross_origin import ONLY_PUBLIC, SOCKET_PATH
from mainspring.service.event_frames import PUBLIC_KINDS, Names
from mainspring.service.event_query import Place
from mainspring.service.event_socket import SocketWire, first_message, serve_socket
from mainspring.service.event_stream import ANSWER, EventResponse, live_of, while_connected
from mainspring.service.guard import Caller, public_caller
from mainspring.service.live import Wish
from mainspring.service.problems import Problem
from mainspring.service.public_tokens import (
    DEFAULT_TTL,
    LONGEST_TEXT,
    LONGEST_TTL,
    MOST_JOBS,
    Grant,
    PublicTokens,
    check,
)
from mainspring.service.requests import Router, answer, app_of, caller_of, needs, needs_public_token
from mainspring.service.separation import changes_for, jobs_of
from mainspring.service.token_routes import tokens_of
from mainspring.service.tokens import Scope
from mainspring.stores.feed import ChangeFilter, parse_cursor
from mainspring.stores.protocol import Filter

MOST_OF_TARGET = 20  # jobs of a target that a list shows, the newest first
router = Router(prefix="/v1", tags=["public tokens"])


# -- making tokens --------------------------------------------------------------------------------


class PublicTokenBody(Body):
    """What a public token is for: `jobs` or `target`."""

    jobs: list[Name] = Field(default=[], max_length=MOST_JOBS, description="ids of jobs that exist")
    target: Target | None = Field(default=None, description="all jobs about this thing, also those to come")
    ttl: float = Field(
        default=DEFAULT_TTL, strict=True, ge=1, le=LONGEST_TTL, description="seconds until it expires, up to 24 hours"
    )
    result: bool = Field(default=False, strict=True, description="whether its holder sees the results of the jobs")


class RotateKeyBody(Reasoned):
    forget: bool = Field(
        default=False, strict=True, description="end all public tokens at once; otherwise they stay until they expire"
    )


@router.post(
    "/tokens:public", response_model=PublicTokenView, status_code=201, summary="Create a public token",
    **needs(Scope.READ, projects=True, may=("not_found",)),
)  # fmt: skip
async def create_public_token(request: Request, body: PublicTokenBody) -> Response:
    """Create a token for a web page, which reads these jobs and nothing else until the token expires.

    It is not stored. It ends earlier if the token that asks for it is revoked.
    """
    if caller_of(request).user:
        raise Problem("forbidden", "a user whom a proxy names cannot make public tokens, which could not be revoked")
    target = None if body.target is None else (body.target.type, body.target.id)
    check(tuple(body.jobs), target, body.ttl)
    for job_id in body.jobs:
        await jobs_of(request).get(job_id)
    grant, text = await PublicTokens(tokens_of(request)).create(
        jobs=tuple(body.jobs), target=target, ttl=body.ttl, with_result=body.result, issuer=caller_of(request).id
    )
    shown = {"jobs": grant.jobs, "target": plain(body.target and body.target.model_dump()), "result": grant.with_result}
    return answer({"text": text, "expires_at": plain(to_datetime(grant.expires_at)), **shown}, 201)


@router.post(
    "/tokens:rotate", response_model=RotatedView, summary="Sign public tokens with a new key", **needs(Scope.ADMIN)
)
async def rotate_signing_key(request: Request, body: RotateKeyBody) -> Response:
    """Make a new signing key. Public tokens stay valid until they expire, unless `forget` ends them.

    Other processes learn of it within five seconds.
    """
    keys = tokens_of(request).signing_keys
    key = await keys.rotate(actor=caller_of(request).actor, reason=body.reason, forget=body.forget)
    return answer({"key": key.id})


# -- what holders of public tokens may read -------------------------------------------------------


class PublicStep(views.View):
    name: str
    state: str


class PublicJob(views.View):
    """What a holder of a public token sees of a job."""

    id: str
    status: Status
    done: bool = Field(description="it has ended, and changes no more unless it is retried by hand")
    progress: views.ProgressView | None
    steps: list[PublicStep]
    created_at: views.Moment
    started_at: views.Moment | None
    finished_at: views.Moment | None
    result: Any = Field(description="null if the token does not show results, or there is none")


class PublicJobList(views.View):
    jobs: list[PublicJob]


def grant_of(request: Request) -> Grant:
    """Return what the caller's public token allows. Other tokens open `/v1/jobs`, which shows more."""
    grant = caller_of(request).grant
    if grant is None:
        msg = "this route is for public tokens: send one (`msp_…`) as bearer token; POST /v1/tokens:public makes it"
        raise Problem("invalid_request", msg)
    return grant


@router.get(
    "/public/jobs", response_model=PublicJobList, summary="List the jobs of a public token", **needs_public_token()
)
async def list_public_jobs(request: Request) -> Response:
    """Return the jobs that the token names and that still exist, or the newest 20 of its target."""
    grant = grant_of(request)
    where = Filter(ids=grant.jobs)
    if grant.target is not None:
        where = Filter(target_type=grant.target[0], target_id=grant.target[1])
    page = await jobs_of(request).find(where, limit=MOST_OF_TARGET)
    found = [job for job in page.jobs if grant.covers(job)]
    return answer({"jobs": [await public_data(request, job, grant) for job in found]})


@router.get(
    "/public/jobs/{job_id}", response_model=PublicJob, summary="Show a job of a public token", **needs_public_token()
)
async def show_public_job(request: Request, job_id: str) -> Response:
    """Return the state of a job. A job that the token does not name is refused, whether it exists or not."""
    grant = grant_of(request)
    refused = Problem("forbidden", ONLY_PUBLIC)
    if not grant.may_cover(job_id):
        raise refused
    try:
        job = await jobs_of(request).get(job_id)
    except JobNotFound:
        raise (refused if grant.target is not None else Problem("not_found", "the job is not there any more")) from None
    if not grant.covers(job):
        raise refused
    return answer(await public_data(request, job, grant))


async def public_data(request: Request, job: Job, grant: Grant) -> dict[str, Any]:
    app = app_of(request)
    steps = states_of(job, await app.store.steps(job.id), app.now())
    names = ("id", "status", "progress", "created_at", "started_at", "finished_at")
    data = {
        **{name: plain(getattr(job, name)) for name in names},
        "done": job.finished,
        "steps": [{"name": step.name, "state": plain(step.state)} for step in steps],
        "result": app.redaction.value(plain(job.result), job.task) if grant.with_result else None,
    }
    shown: dict[str, Any] = app.redaction.texts(data, app.redaction.hide(job.payload, job.headers, job.task))
    return shown


# -- following ------------------------------------------------------------------------------------


class PublicEventQuery(Body):
    job: list[Name] = Field(default=[], max_length=MOST_JOBS, description="only these of the token's jobs")
    last_event_id: Place | None = Field(
        default=None, description="the id of the last event that was received; the header Last-Event-ID wins"
    )


@router.get(
    "/public/events", summary="Follow the jobs of a public token", response_class=Response, responses=ANSWER,
    **needs_public_token(may=("too_many_streams",)),
)  # fmt: skip
async def follow_public_events(request: Request, query: Annotated[PublicEventQuery, Query()]) -> Response:
    """Send what happens to the token's jobs, as server-sent events, until the token expires.

    It resumes as `GET /v1/events` does. Read the job again after each event but `progressed`.
    """
    caller, grant = caller_of(request), grant_of(request)
    wish = wish_of(caller, grant, query.job, request.headers.get("last-event-id") or query.last_event_id)
    return EventResponse(live_of(request.app), caller, wish)


def wish_of(caller: Caller, grant: Grant, jobs: list[str], after: str | None) -> Wish:
    """Return what a holder follows: what it asks for, within what its token names and the token that made it sees."""
    if not all(map(grant.may_cover, jobs)):
        raise Problem("forbidden", ONLY_PUBLIC)
    target_type, target_id = grant.target or (None, None)
    chosen = tuple(jobs) or grant.jobs
    where = ChangeFilter(kinds=PUBLIC_KINDS, jobs=chosen, target_type=target_type, target_id=target_id)
    return Wish(changes_for(caller, where), parse_cursor(after or None), Names.PUBLIC)


class PublicSubscribe(Body):
    """The first message on the WebSocket for public tokens."""

    subscribe: Annotated[str, StringConstraints(pattern="^events$")] = Field(description="always `events`")
    token: Annotated[str, StringConstraints(max_length=LONGEST_TEXT)]
    job: list[Name] = Field(default=[], max_length=MOST_JOBS)
    since: Place | None = None


FIRST: TypeAdapter[PublicSubscribe] = TypeAdapter(PublicSubscribe)


async def follow_by_public_socket(socket: WebSocket) -> None:
    await serve_socket(socket, follow)


async def follow(socket: WebSocket) -> bool:
    asked = await first_message(socket, FIRST)
    live, is_complete = live_of(socket.app), False
    async with while_connected(socket.receive):
        caller: Caller = await public_caller(PublicTokens(socket.app.state.tokens), asked.token)
        socket.state.limits.take(caller.id)
        assert caller.grant is not None  # noqa: S101 - for the type checker
        async with live.stream(caller, wish_of(caller, caller.grant, asked.job, asked.since)) as stream:
            is_complete = await stream.run(SocketWire(socket), live.now())
    return is_complete


router.routes.append(WebSocketRoute(SOCKET_PATH, follow_by_public_socket))
