"""The ASGI application of the service: it can be served (program.py) or mounted into another application."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, WebSocketRoute

from mainspring.app import Mainspring
from mainspring.errors import MainspringError
from mainspring.log import get_log
from mainspring.service import (
    completion,
    enqueue,
    event_socket,
    event_stream,
    health,
    jobs,
    leases,
    metrics,
    openapi,
    orders,
    secret_routes,
    system,
    token_routes,
)
from mainspring.service.guard import App, Guard, Receive, Send
from mainspring.service.live import Live
from mainspring.service.problems import Problem, problem_of
from mainspring.service.push import add_http_task
from mainspring.service.requests import Endpoint, Handle, app_of, not_json, of_lines
from mainspring.service.resources import BROWSER_ROUTERS, ROUTERS
from mainspring.service.secrets import DeliveryTokens, Secrets
from mainspring.service.settings import ServiceSettings, load_settings
from mainspring.service.tokens import Tokens

log = get_log("mainspring.service")
METHOD_NOT_ALLOWED = 405
PLAIN_ROUTES = {"/v1/jobs": enqueue.enqueue, "/v1/jobs:bulk": enqueue.enqueue_bulk, **leases.ROUTES}
CODES = {404: "not_found", METHOD_NOT_ALLOWED: "method_not_allowed"}


def make_service(app: Mainspring, settings: ServiceSettings | None = None, live: Live | None = None) -> App:
    """Return the HTTP API of an application, for any ASGI server.

    Every request needs a token, unless the settings say `tokens="optional"`: this function cannot know who can reach
    the service. To mount it: `your_app.mount("/jobs", make_service(app))`. Open and close the application yourself.
    To end the streams of events before the server stops, make `live` yourself, and close it before the application.
    """
    settings = settings or load_settings()
    if settings.redact or settings.redact_tasks:
        app.runtime.services.redaction = app.redaction.with_more(settings.redact, settings.redact_tasks)
    live = Live(app, Tokens(app.store)) if live is None else live
    tokens = live.tokens
    add_http_task(app, settings)
    api = make_api(app, tokens, settings, live)
    measured = metrics.begin(api, app, live) if settings.metrics else None
    return Guard(api, settings, tokens, DeliveryTokens(app.store), measured)


def make_api(app: Mainspring, tokens: Tokens, settings: ServiceSettings, live: Live) -> FastAPI:
    api = FastAPI(
        title="Mainspring",
        version=openapi.version(),
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        redirect_slashes=False,
    )
    api.state.mainspring = app
    api.state.tokens = tokens
    api.state.settings = settings
    api.state.live = live
    api.state.secrets = Secrets(app.store)
    api.router.routes[:0] = [
        *(Route(path, Endpoint(handle), methods=["POST"]) for path, handle in PLAIN_ROUTES.items()),
        WebSocketRoute("/v1/events/ws", event_socket.follow_by_socket),
    ]
    own = (
        event_stream.router,
        jobs.router,
        completion.router,
        system.router,
        orders.router,
        token_routes.router,
        secret_routes.router,
        health.router,
        metrics.router,
    )
    for router in (*own, *ROUTERS, *BROWSER_ROUTERS):
        api.router.routes += router.routes  # `include_router` would make each route again for each application
    api.add_exception_handler(Problem, on_problem)
    api.add_exception_handler(Exception, on_crash)
    api.add_exception_handler(MainspringError, on_error)
    api.add_exception_handler(RequestValidationError, on_invalid)
    api.add_exception_handler(HTTPException, on_http)
    openapi.describe(api)
    api.middleware_stack = PlainRoutes(api.build_middleware_stack())
    return api


class PlainRoutes:
    """Calls the handlers of plain routes. All other requests go through the framework's own layers and routes.

    These layers take as long as a tenth of an enqueue, and do nothing for the plain routes that is not done here. If
    OpenTelemetry watches the framework, no request is kept from it.
    """

    def __init__(self, others: App) -> None:
        self._others = others

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        handle = None if "fastapi.telemetry" in scope else plain_route(scope)
        if handle is None:
            await self._others(scope, receive, send)
            return
        scope["endpoint"] = handle
        request = Request(scope, receive, send)
        try:
            response = await handle(request)
        except Problem as problem:
            response = respond(request, problem)
        except MainspringError as error:
            response = await on_error(request, error)
        await response(scope, receive, send)


def plain_route(scope: MutableMapping[str, Any]) -> Handle | None:
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    root = scope.get("root_path", "")  # where the service is mounted
    return PLAIN_ROUTES.get(scope["path"].removeprefix(root) if root else scope["path"])


def respond(request: Request, problem: Problem) -> Response:
    redacted = replace(problem, detail=app_of(request).redaction.text(problem.detail))
    body = redacted.body(request.state.request_id, request.scope.get("root_path", ""))
    return Response(body, problem.kind.status, problem.headers())


async def on_problem(request: Request, error: Any) -> Response:
    return respond(request, error)


async def on_error(request: Request, error: Any) -> Response:
    problem = problem_of(error)
    if problem.code in {"internal_error", "store_unavailable"}:
        log.error("request_failed", request_id=request.state.request_id, path=request.url.path, error=str(error))
    return respond(request, problem)


async def on_crash(request: Request, error: Any) -> Response:
    """Answer; the guard logs the error, which is raised again after this."""
    del error
    return respond(request, Problem("internal_error", "the service failed; its log has the cause"))


async def on_invalid(request: Request, error: Any) -> Response:
    lines = error.errors()
    if any(line["type"] == "json_invalid" for line in lines):
        return respond(request, Problem("invalid_json", "the body is not valid JSON"))
    if isinstance(error.body, bytes):  # the framework reads only what the header calls JSON
        return respond(request, not_json(request.headers.get("content-type", "")))
    return respond(request, of_lines(lines, error.body))


async def on_http(request: Request, error: Any) -> Response:
    """Give the errors of the framework itself our form."""
    if isinstance(error.__cause__, Problem):  # the guard's, while the framework read the body
        return respond(request, error.__cause__)
    code = CODES.get(error.status_code, "invalid_request")
    response = respond(request, Problem(code, f"{request.method} {request.url.path}: {error.detail}{hint(request)}"))
    if error.status_code == METHOD_NOT_ALLOWED:
        response.headers["allow"] = ", ".join(methods_of(request))
    return response


def hint(request: Request) -> str:
    """Return which path is meant, if the one of the request has a slash too many."""
    path: str = request.scope["path"]
    if not path.endswith("/"):
        return ""
    shorter = {**request.scope, "path": path.rstrip("/")}
    if all(route.matches(shorter)[0] is Match.NONE for route in request.app.routes):
        return ""
    return f"; the path is {request.url.path.rstrip('/')}, without a slash at its end"


def methods_of(request: Request) -> list[str]:
    """Return the methods of a path. If several templates match, the one with the most literal text is meant."""
    matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    meant = max(matching, key=literal_length).path_format
    return sorted({method for route in matching if route.path_format == meant for method in route.methods})


def literal_length(route: Route) -> int:
    return len(route.path_format) - sum(len(f"{{{name}}}") for name in route.param_convertors)
