"""What routes use of a request: its application, its caller, its body and its answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response

from mainspring.app import Mainspring
from mainspring.clock import Millis
from mainspring.service.bodies import Reasoned
from mainspring.service.guard import Caller, Receive, Send
from mainspring.service.guard import Request as Guarded
from mainspring.service.idempotency import IdempotencyKey
from mainspring.service.problems import Problem, pointer_of
from mainspring.service.replay import ANSWER_WITHIN, REPLAYED, KeyedRequest, KeyKind
from mainspring.service.secrets import Secrets
from mainspring.service.tokens import Scope

T = TypeVar("T")

JSON_TYPE = "application/json"
LINES_TYPE = "application/x-ndjson"
LINES_TYPES = frozenset({LINES_TYPE, "application/ndjson"})  # as for downloads
IS_JSON = re.compile(r"application/(?:[^\s/]+\+)?json")
NOT_JSON = "json_invalid"  # Pydantic's code for a text that is not JSON
BODY = "body"  # the part of a request in which an error is

Handle = Callable[[Request], Coroutine[Any, Any, Response]]

SCOPE_OF = "x-scope"  # the scope that an operation needs, in the OpenAPI document
PROJECTS = "x-projects"  # whether an operation keeps to the queues of its caller's project
KEY_OF = "x-idempotency"  # what it does with idempotency keys, if that is not KeyKind.ANSWER
MAY_ANSWER = "x-problems"  # the codes of the errors that an operation can answer
TELLS = "x-tells"  # the headers that are special to an operation; not in the OpenAPI document itself
IS_PUBLIC = "x-public-tokens"  # whether public tokens may use an operation; the operation checks what they cover

Reason = Annotated[Reasoned, Body(default_factory=Reasoned)]
"""The body of a change that needs no more than a reason. It may be left out."""


def app_of(request: Request) -> Mainspring:
    app: Mainspring = request.app.state.mainspring
    return app


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope["state"]["caller"]
    return caller


def guarded(request: Request) -> Guarded:
    """Return the request as the guard knows it: it reads headers and body in fewer steps than the framework."""
    found: Guarded = request.scope["state"]["guarded"]
    return found


def secrets_of(request: Request) -> Secrets:
    secrets: Secrets = request.app.state.secrets
    return secrets


def needs(
    scope: Scope,
    key: KeyKind = KeyKind.ANSWER,
    *,
    projects: bool = False,
    may: Sequence[str] = (),
    tells: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the arguments of a route that only callers with this scope may use; see `Router`.

    `key` is what a POST does with an idempotency key. `projects` says that the route shows and changes only what its
    caller may see, see separation.py. Otherwise it refuses tokens of a project: a new route cannot show one project the
    jobs of another by mistake. `may` has the codes of errors that are special to the route, see operation_errors.py;
    `tells` has the names of its headers, see answer_headers.py.
    """
    extra: dict[str, Any] = {} if key is KeyKind.ANSWER else {KEY_OF: key.value}
    if may:
        extra[MAY_ANSWER] = list(may)
    if tells:
        extra[TELLS] = list(tells)
    return {"openapi_extra": {SCOPE_OF: scope.value, PROJECTS: projects, **extra}}


def needs_public_token(*, may: Sequence[str] = ()) -> dict[str, Any]:
    """Return the arguments of a route for public tokens; see `public_jobs.grant_of`."""
    return {"openapi_extra": {SCOPE_OF: Scope.READ.value, PROJECTS: False, IS_PUBLIC: True, MAY_ANSWER: list(may)}}


class Endpoint:
    """A handler as an ASGI application.

    Starlette would wrap a function in one more layer that handles errors, as the one around all routes does anyway.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        response = await self._handle(Request(scope, receive, send))
        await response(scope, receive, send)


class ScopedRoute(APIRoute):
    """A route that checks the caller first: callers that may not use it do not learn what is wrong with a body.

    A POST with an idempotency key has its effect once, see replay.py.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        extra = self.openapi_extra or {}
        handle = with_known_parameters(super().get_route_handler(), query_names(self))
        if "POST" in (self.methods or ()):
            handle = once(handle, KeyKind(extra.get(KEY_OF, KeyKind.ANSWER)))
        scope = Scope(extra[SCOPE_OF]) if SCOPE_OF in extra else None
        return with_scope(handle, scope, projects=extra.get(PROJECTS, False), is_public=IS_PUBLIC in extra)


def query_names(route: APIRoute) -> frozenset[str]:
    """Return the names of the query parameters that a route takes, one by one or as the fields of a model."""
    names: set[str] = set()
    for parameter in route.dependant.query_params:
        fields = getattr(parameter.field_info.annotation, "model_fields", None)
        names.update([field.alias or name for name, field in fields.items()] if fields else [parameter.alias])
    return frozenset(names)


def with_known_parameters(handle: Handle, known: frozenset[str]) -> Handle:
    """Return a handler that refuses other query parameters: a misspelt filter would select everything."""

    async def check_and_handle(request: Request) -> Response:
        if request.scope["query_string"] and (unknown := request.query_params.keys() - known):
            taken = f"use {', '.join(sorted(known))}" if known else "there is none"
            detail = f"there is no such query parameter; {taken}"
            lines = [{"loc": ("query", name), "type": "extra_forbidden", "msg": detail} for name in sorted(unknown)]
            raise of_lines(lines, None)
        return await handle(request)

    return check_and_handle


def with_scope(handle: Handle, scope: Scope | None, *, projects: bool, is_public: bool = False) -> Handle:
    async def check_and_handle(request: Request) -> Response:
        caller = caller_of(request)
        if not is_public or caller.grant is None:
            caller.check(scope, projects=projects)
        return await handle(request)

    return check_and_handle


def once(handle: Handle, kind: KeyKind, patience: Callable[[bytes], Millis] = lambda _body: ANSWER_WITHIN) -> Handle:
    """Return a handler that carries out a request with an idempotency key once.

    `patience` says how long the request with this body may take, in milliseconds.
    """
    if kind is KeyKind.OWN:
        return handle

    async def handle_once(request: Request) -> Response:
        if not guarded(request).has(b"idempotency-key"):
            return await handle(request)
        raw = await request.body()
        key = key_of(request, raw)
        assert key is not None  # noqa: S101 - the header is there
        return await KeyedRequest(app_of(request), key, kind, request, patience(raw)).run(handle)

    return handle_once


def key_of(request: Request, raw: bytes) -> IdempotencyKey | None:
    """Return the idempotency key of a request with this body; None if it has none."""
    if not guarded(request).has(b"idempotency-key"):
        return None
    header = guarded(request).header(b"idempotency-key")
    return IdempotencyKey.of(header, caller=caller_of(request).id, route=request.url.path, body=raw)


def replay_header(replayed: bool) -> dict[str, str]:  # noqa: FBT001
    return REPLAYED if replayed else {}


class Router(APIRouter):
    """Routes with scopes and idempotency keys."""

    def __init__(self, **options: Any) -> None:
        # A body without a Content-Type is read as JSON, as by the plain routes.
        super().__init__(route_class=ScopedRoute, strict_content_type=False, **options)


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(data), status, headers, media_type=JSON_TYPE)


def location(request: Request, path: str) -> dict[str, str]:
    """Return the header that names what was created, also if the service is mounted into another application."""
    return {"location": f"{request.scope.get('root_path', '')}{path}"}


def next_link(request: Request, cursor: str | None) -> dict[str, str]:
    """Return the header that names the next page of a list."""
    if cursor is None:
        return {}
    following = request.url.include_query_params(cursor=cursor)
    return {"link": f'<{following.path}?{following.query}>; rel="next"'}


async def body_of(
    request: Request, check: TypeAdapter[T], read_lines: Callable[[bytes], tuple[T, bytes]] | None = None
) -> tuple[T, bytes]:
    """Return the checked body of a request, and its bytes. Do not read the body by `request` afterwards.

    `read_lines` reads NDJSON, of routes that take it: it returns the checked body, and the bytes of the same as JSON.
    """
    raw = await guarded(request).body()
    kind = request.headers.get("content-type", JSON_TYPE)
    if kind != JSON_TYPE and not is_json(kind):  # FastAPI's routes refuse other types too
        if read_lines is None or media_type(kind) not in LINES_TYPES:
            raise not_json(kind, lines=read_lines is not None)
        return read_lines(raw)
    try:
        return check.validate_json(raw), raw
    except ValidationError as error:
        raise invalid(error, raw) from None


def is_json(kind: str) -> bool:
    return IS_JSON.fullmatch(media_type(kind)) is not None


def media_type(kind: str) -> str:
    """Return a Content-Type without its parameters."""
    return kind.partition(";")[0].strip().lower()


def not_json(kind: str, *, lines: bool = False) -> Problem:
    msg = (
        f"the body is marked as {kind!r}; send JSON, with the header Content-Type: {JSON_TYPE} "
        f"(curl --json '…', or curl -H 'content-type: {JSON_TYPE}' -d '…')"
    )
    if lines:
        msg += f", or a job per line, with the header Content-Type: {LINES_TYPE} (curl --data-binary @jobs.ndjson)"
    return Problem("invalid_request", msg)


def invalid(error: ValidationError, body: str | bytes) -> Problem:
    """Return what is wrong with a body, field by field."""
    lines = errors_of(error)
    if any(line["type"] == NOT_JSON for line in lines):
        return Problem("invalid_json", lines[0]["msg"])
    return of_lines([{**line, "loc": (BODY, *line["loc"])} for line in lines], from_json(body))


def errors_of(error: ValidationError) -> list[Any]:
    return list(error.errors(include_url=False, include_context=False, include_input=False))


def of_lines(lines: Any, body: Any) -> Problem:
    """Return what is wrong with a request. The `loc` of each line begins with a part of the request, as in FastAPI."""
    errors = [{**place_of(line, body), "code": line["type"], "detail": line["msg"]} for line in lines]
    detail = "; ".join(
        f"{error.get('parameter') or error.get('pointer') or BODY}: {error['detail']}" for error in errors[:3]
    )
    return Problem("invalid_request", detail, errors[:100])


def place_of(line: Mapping[str, Any], body: Any) -> dict[str, str]:
    """Return the member of an error that says where it is: `pointer` in the body, or `parameter` elsewhere."""
    source, *path = line["loc"]
    if source == BODY:
        return {"pointer": pointer(path, body, is_missing=line["type"] == "missing")}
    return {"parameter": str(path[0] if path else source)}


def pointer(path: Sequence[str | int], body: Any, *, is_missing: bool) -> str:
    """Return a JSON pointer (RFC 6901) to a value of the body, or to one that it lacks.

    Pydantic's path also names the forms that a value can have, such as the branches of a union. The body has no such
    members, so they are left out.
    """
    parts: list[str | int] = []
    value: Any = body
    for part in path:
        if has(value, part):
            parts.append(part)
            value = value[part]
    return pointer_of([*parts, path[-1]] if is_missing and path else parts)


def has(value: Any, part: str | int) -> bool:
    return part in value if isinstance(value, dict) else isinstance(value, list) and part in range(len(value))
