"""`/login` and `/logout`: a plain form that needs no JavaScript. It takes a token and opens a session."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mainspring.errors import MainspringError
from mainspring.service.guard import Caller
from mainspring.service.html import Child, page, prose, root_of, tag, wants_html
from mainspring.service.login_limit import LoginLimit
from mainspring.service.problems import Problem
from mainspring.service.requests import Router
from mainspring.service.same_origin import Header, check_same_origin
from mainspring.service.sessions import Session, cookie_header, cookie_in, is_safe
from mainspring.service.settings import LOOPBACK_NAMES
from mainspring.service.token_routes import tokens_of
from mainspring.service.tokens import Token

LOGIN, LOGOUT = "/login", "/logout"
LONGEST_FORM = 2_000  # bytes
FORM_TYPE = "application/x-www-form-urlencoded"
WRONG = "The token is wrong, revoked or expired."


async def show_login(request: Request) -> Response:
    found = await session_of(request)
    return form_page(request) if found is None else welcome_page(request, *found)


def form_page(request: Request, error: str = "", status: int = 200) -> Response:
    field = tag(
        "input", id="token", name="token", type="password", required="", autocomplete="current-password",
        aria_describedby="error" if error else None, autofocus="",
    )  # fmt: skip
    name = tag("input", name="username", value="token", autocomplete="username", hidden="")  # for password managers
    parts = (name, tag("label", "Token", for_="token"), field, tag("button", "Log in"))
    form = tag("form", parts, method="post", action=f"{root_of(request)}{LOGIN}")
    about = prose(
        "Log in with a token: `mainspring tokens create` makes one. The session ends after 12 hours without use."
    )
    said: Child = tag("p", error, class_="error", id="error", role="alert") if error else ""
    return page(request, "Log in", tag("h1", "Log in"), said, form, about, status=status)


def welcome_page(request: Request, session: Session, token: Token) -> Response:
    scopes = ", ".join(sorted(token.scopes))
    about = prose(f"The token `{token.name}` allows: {scopes}. This is the session `{session.id}`.")
    form = tag("form", tag("button", "Log out"), method="post", action=f"{root_of(request)}{LOGOUT}")
    return page(request, "Logged in", tag("h1", "You are logged in"), about, form)


async def log_in(request: Request) -> Response:
    try:
        return await open_session(request)
    except Problem as problem:
        if not wants_html(request):
            raise
        response = form_page(request, problem.detail, problem.kind.status)
        if (seconds := problem.headers().get("retry-after")) is not None:
            response.headers["retry-after"] = seconds
        return response


async def open_session(request: Request) -> Response:
    check_same_origin(header_of(request))
    check_transport(request)
    token = await checked_token(request, await token_in(request))
    await end_session(request)
    sessions = tokens_of(request).sessions
    _, cookie = await sessions.create(token.id, actor=Caller(token).actor, address=address_of(request))
    return redirect(request, cookie)


async def checked_token(request: Request, text: str) -> Token:
    """Return the token. An attempt counts as failed until it has succeeded, so that many at once gain nothing."""
    address, limit = address_of(request), limit_of(request)
    limit.check(address)
    limit.fail(address)
    try:
        token = await tokens_of(request).find(text)
    except MainspringError:  # not the person's fault
        limit.forget(address)
        raise
    if token is None:
        raise Problem("unauthorized", WRONG)
    limit.forget(address)
    return token


async def log_out(request: Request) -> Response:
    check_same_origin(header_of(request))
    await end_session(request)
    return redirect(request, "")


def redirect(request: Request, cookie: str) -> Response:
    headers = {"set-cookie": cookie_header(cookie, secure=is_safe(request.scope))}
    return RedirectResponse(f"{root_of(request)}{LOGIN}", 303, headers)


# -- what a request says --------------------------------------------------------------------------


def header_of(request: Request) -> Header:
    return lambda name: request.headers.get(name.decode(), "")


async def token_in(request: Request) -> str:
    if request.headers.get("content-type", "").partition(";")[0].strip() != FORM_TYPE:
        raise Problem("invalid_request", f"send the form as {FORM_TYPE}")
    body = await request.body()
    if len(body) > LONGEST_FORM:
        raise Problem("body_too_large", f"the form may have up to {LONGEST_FORM:,} bytes")
    return parse_qs(body.decode("latin-1"), max_num_fields=5).get("token", [""])[0].strip()


def check_transport(request: Request) -> None:
    """Refuse a login that others on the network could read."""
    if not is_safe(request.scope) and not is_local(request.headers.get("host", "")):
        msg = (
            "log in over HTTPS: others could read the token on its way; if a proxy in front of the service speaks "
            "HTTPS, set FORWARDED_ALLOW_IPS to the proxy's address"
        )
        raise Problem("forbidden", msg)


async def session_of(request: Request) -> tuple[Session, Token] | None:
    """Return the session of the request's cookie, and its token, if both are valid."""
    cookie = cookie_in(request.headers.get("cookie", ""), secure=is_safe(request.scope))
    return await tokens_of(request).of_session(cookie)


async def end_session(request: Request) -> None:
    found = await session_of(request)
    if found is not None:
        session, token = found
        await tokens_of(request).sessions.end(session.id, actor=Caller(token).actor, reason="logged out")


def address_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def limit_of(request: Request) -> LoginLimit:
    state = request.app.state
    if not hasattr(state, "login_limit"):
        state.login_limit = LoginLimit()
    limit: LoginLimit = state.login_limit
    return limit


router = Router()
router.routes += [
    Route(LOGIN, show_login, methods=["GET"]),
    Route(LOGIN, log_in, methods=["POST"]),
    Route(LOGOUT, log_out, methods=["POST"]),
]


def is_local(host: str) -> bool:
    """Return whether a Host header names this machine."""
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
    return name.lower() in LOOPBACK_NAMES
