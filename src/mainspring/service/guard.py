"""What happens to every request before a route sees it: request id, host, token, origin, size of the body.

This is plain ASGI: frameworks' own middleware classes would cost more than an enqueue.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.requests import ClientDisconnect

from mainspring.errors import MainspringError, StoreUnavailable
from mainspring.health import within
from mainspring.ids import new_request_id
from mainspring.json_text import is_deep
from mainspring.log import get_log, request_id
from mainspring.meter import enqueued_via
from mainspring.metrics.metrics import Metrics
from mainspring.service import cross_origin
from mainspring.service.cross_origin import STATIC_PATHS
from mainspring.service.problems import ABOUT, Problem, problem_of
from mainspring.service.proxy_users import ProxyUsers
from mainspring.service.public_tokens import PREFIX as PUBLIC_PREFIX
from mainspring.service.public_tokens import Grant, PublicTokens
from mainspring.service.rate_limits import Header, RateLimits
from mainspring.service.same_origin import check_write
from mainspring.service.secrets import PREFIX, DeliveryTokens
from mainspring.service.sessions import cookie_in, is_safe
from mainspring.service.settings import ServiceSettings
from mainspring.service.tokens import Scope, Token, Tokens

log = get_log("mainspring.service")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
"""For everyone: probes have no token and name any host, and these paths say nothing but a state."""

OPEN_PAGES = frozenset({"/v1/docs", "/v1/errors", "/login", "/logout"})
OPEN_FOLDERS = (STATIC_PATHS, ABOUT)
"""Paths without a token: they say what every copy of the service says, and nothing about its jobs. Or they log in."""

UNLIMITED = frozenset({"/v1/leases:report", "/v1/leases:leave"})
"""Not counted: a worker whose reports are refused would lose its jobs, and others would run them again."""

ENDS_A_JOB = re.compile(r"/v1/jobs/([0-9a-f-]{36}):(?:complete|fail)")
METRICS_PATH = "/metrics"
"""A token that may read it stays good while the store does not answer: the metrics tell of the outage."""

MAX_HEADERS = 16_384  # bytes of all names and values
MAX_DEPTH = 64  # levels of lists and objects in a body
TOKEN_TIMEOUT = 2.0  # seconds for a store that hangs, at METRICS_PATH
BULK_FACTOR = 5  # the body of a bulk enqueue may be five times as large as others
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request."""

    token: Token | None  # None: a program of this machine, without a token
    request_number: int | None = None  # the receiver of a pushed job: the number of the request that it got
    grant: Grant | None = None  # it came with a public token, made in the name of `token`
    session: str = ""  # the id of the session, if it came with a cookie
    user: str = ""  # the name that a listed proxy has given; `token` is then not in the store

    @property
    def actor(self) -> str:
        """The name for the audit log."""
        if self.token is None:
            return "local"
        return f"user {self.user}" if self.user else f"token {self.token.name}"

    @property
    def id(self) -> str:
        if self.grant is not None:
            return self.grant.id
        return "" if self.token is None else self.token.id

    @property
    def name(self) -> str:
        return "" if self.token is None else self.token.name

    @property
    def is_known(self) -> bool:
        """Whether it came with a token of any kind, with a cookie, or with a name from a listed proxy."""
        return self.token is not None or self.grant is not None

    @property
    def is_browser(self) -> bool:
        """Whether it may be a browser that sends what admits it by itself, whichever page makes the request."""
        return bool(self.session or self.user)

    @property
    def project(self) -> str | None:
        return None if self.token is None else self.token.project

    @property
    def within(self) -> tuple[str, ...]:
        """The queues that it may see, as patterns; empty: all of them."""
        return () if self.token is None else self.token.within

    def check(self, scope: Scope | None, *, projects: bool = False) -> None:
        """Refuse a caller without this scope. A receiver got past the guard to end its job, and needs no scope.

        `projects`: the operation keeps to the queues of the caller. Others refuse tokens of a project or of queues.
        """
        if self.request_number is not None:
            return
        if self.grant is not None:
            raise Problem("forbidden", cross_origin.ONLY_PUBLIC)
        if self.within and not projects:
            msg = (
                f"the token {self.name!r} is limited to {', '.join(self.within)}, and such tokens may not do this; "
                "use a token without a project and without queues"
            )
            raise Problem("forbidden", msg)
        if scope is None:
            return
        if self.token is not None and not self.token.allows(scope):
            has = ", ".join(sorted(self.token.scopes))
            msg = f"this needs the scope {scope}; the {'user' if self.user else 'token'} {self.name!r} has {has}"
            raise Problem("forbidden", msg)


LOCAL = Caller(None)


class Guard:
    """The outermost application."""

    def __init__(
        self,
        app: App,
        settings: ServiceSettings,
        tokens: Tokens,
        delivery_tokens: DeliveryTokens,
        metrics: Metrics | None = None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._tokens = tokens
        self._delivery_tokens = delivery_tokens
        self._public_tokens = PublicTokens(tokens)
        self._users = ProxyUsers.of(settings)
        self._hosts = settings.hosts
        self._needs_tokens = settings.needs_tokens
        self._max_body = settings.max_body
        self._body_timeout = settings.body_timeout
        self._limits = RateLimits(settings.rate_limit, settings.rate_burst)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._open_socket(Socket(scope, receive, send))
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        about = request_id.set(request.id), enqueued_via.set("api")
        try:
            request.check_text()
            request.check_headers()
            if cross_origin.is_preflight(scope, request.path):
                self._check_host(request)
                await cross_origin.answer_preflight(request.send)
                return
            request.caller = await self._admit(request)
            request.max_body = self._max_body * (BULK_FACTOR if request.path.endswith(":bulk") else 1)
            request.body_timeout = self._body_timeout
            request.check_length()
            await self._app(scope, request.receive, request.send)
        except Problem as problem:  # refused before a route was found, or while it read the body
            await request.answer(problem)
        except MainspringError as error:  # the store could not say whose the token is
            await request.answer(request.problem_of(error))
        except ClientDisconnect:
            pass  # the client has hung up, and would not get an answer
        except Exception:  # noqa: BLE001 - whatever it was, the caller gets an answer
            log.error(  # noqa: TRY400 - our log has no `exception`
                "request_failed", request_id=request.id, path=request.path, traceback=traceback.format_exc()
            )
            await request.answer(Problem("internal_error", "the service failed; its log has the cause"))
        finally:
            request.log()
            if self._metrics is not None:
                self._metrics.process.requested(*request.measured())
            request_id.reset(about[0])
            enqueued_via.reset(about[1])
            scope["state"].pop("guarded", None)  # a cycle of references would keep it until the next collection

    async def _admit(self, request: Request) -> Caller:
        """Return who makes a request. Raises Problem if it may not come in."""
        if request.path in OPEN_PATHS:
            return LOCAL
        self._check_host(request)
        if request.path in OPEN_PAGES or request.path.startswith(OPEN_FOLDERS):
            return LOCAL
        caller = await self._caller(request)
        if caller.is_browser:
            check_write(request.method, request.header)
        if caller.is_browser or not caller.is_known:
            request.check_origin()
        if caller.is_known and request.path not in UNLIMITED:
            request.limits = self._limits.take(caller.id)
        return caller

    async def _open_socket(self, socket: Socket) -> None:
        """Open a WebSocket. Browsers cannot send a token in a header: their first message has it (event_socket.py)."""
        try:
            socket.check_headers()
            self._check_host(socket)
            if socket.path != cross_origin.SOCKET_PATH:
                socket.check_origin()
            socket.scope["state"]["limits"] = self._limits  # for a token in the first message
            socket.scope["state"]["caller"] = await self._caller_of_socket(socket)
            await self._app(socket.scope, socket.receive, socket.send)
        except Problem as problem:
            await socket.refuse(problem)
        except MainspringError as error:
            await socket.refuse(socket.problem_of(error))

    async def _caller_of_socket(self, socket: Socket) -> Caller | None:
        """Return None if the first message must have a token."""
        if socket.path == cross_origin.SOCKET_PATH:
            return None
        if socket.header(b"authorization") or not self._needs_tokens:
            caller: Caller | None = await self._caller(socket)
        else:
            caller = await self._caller_by_cookie(socket) or self._user(socket)
        if caller is not None and caller.is_known:
            self._limits.take(caller.id)
        return caller

    def _check_host(self, request: Connection) -> None:
        """Refuse other names than ours: a page of another site could point its name at this address."""
        host = request.header(b"host").lower()
        name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
        if name not in self._hosts:
            msg = f"the Host header names {host!r}; add it to `allowed_hosts` if the service has this name"
            raise Problem("host_not_allowed", msg)

    async def _caller(self, request: Connection) -> Caller:
        kind, _, text = request.header(b"authorization").partition(" ")
        if not kind or (self._users is not None and kind.lower() != "bearer"):  # a password may be for the proxy
            caller = await self._caller_by_cookie(request) or self._user(request)
            if caller is not None:
                return caller
        if not kind:
            if self._needs_tokens:
                raise Problem("unauthorized", "send a token: `Authorization: Bearer msk_…` (mainspring tokens create)")
            return LOCAL
        if kind.lower() == "bearer" and text.strip().startswith(PUBLIC_PREFIX):
            cross_origin.check_path(request.path)
            return await public_caller(self._public_tokens, text.strip())
        if text.strip().startswith(PREFIX):
            return await self._receiver(request, text.strip())
        token = await self._token(request, text.strip()) if kind.lower() == "bearer" else None
        if token is None:
            raise Problem("unauthorized", "the token is wrong, revoked or expired")
        return Caller(token)

    async def _receiver(self, request: Connection, text: str) -> Caller:
        """Return the receiver of a pushed job, which may end this job and do nothing else."""
        path = ENDS_A_JOB.fullmatch(request.path)
        number = None if path is None else await self._delivery_tokens.number_of(text, path[1])
        if path is None or number is None:
            raise Problem("unauthorized", "the token is that of a delivery, and ends only the job of that delivery")
        moment = datetime.fromtimestamp(0, UTC)
        return Caller(Token(path[1], f"delivery of {path[1]}", frozenset(), moment, "service"), number)

    async def _token(self, request: Connection, text: str) -> Token | None:
        if request.path != METRICS_PATH:
            return await self._tokens.find(text)
        try:
            return await within(TOKEN_TIMEOUT, self._tokens.find(text))
        except StoreUnavailable:
            if (token := self._tokens.last_known(text)) is None:
                raise
            return token

    def _user(self, request: Connection) -> Caller | None:
        token = None if self._users is None else self._users.find(request.scope)
        return None if token is None else Caller(token, user=token.name)

    async def _caller_by_cookie(self, request: Connection) -> Caller | None:
        if not request.header(b"cookie"):
            return None
        found = await self._tokens.of_session(request.cookie)
        return None if found is None else Caller(found[1], session=found[0].id)


async def public_caller(public_tokens: PublicTokens, text: str) -> Caller:
    holder = await public_tokens.find(text)
    if holder is None:
        raise Problem("unauthorized", "the public token is wrong or expired, or what made it is not valid any more")
    return Caller(holder.issuer, grant=holder.grant)


def check_depth(body: bytes) -> None:
    """Raise Problem if JSON is nested too deep. Most bodies have so few brackets that counting them is enough."""
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and is_deep(body, MAX_DEPTH):
        raise Problem("invalid_request", f"the body may have up to {MAX_DEPTH} levels of lists and objects")


class Connection:
    """What a request and a WebSocket have in common."""

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        self.id = new_request_id()
        self.root: str = scope.get("root_path", "")  # where the service is mounted
        self.path: str = scope["path"].removeprefix(self.root)
        self.scope = scope
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of two with one name, the first
        scope.setdefault("state", {})["request_id"] = self.id

    def header(self, name: bytes) -> str:
        return self._headers.get(name, b"").decode("latin-1")

    def has(self, name: bytes) -> bool:
        return name in self._headers

    def check_headers(self) -> None:
        """Refuse long headers. The server refuses those that arrive in parts, but not those that arrive at once."""
        if sum(len(name) + len(value) for name, value in self.scope["headers"]) > MAX_HEADERS:
            raise Problem("headers_too_large", f"the headers of a request may have up to {MAX_HEADERS:,} bytes")

    @property
    def cookie(self) -> str:
        """The cookie of a session."""
        return cookie_in(self.header(b"cookie"), secure=is_safe(self.scope))

    def problem_of(self, error: MainspringError) -> Problem:
        log.error("request_failed", request_id=self.id, path=self.path, error=str(error))
        return problem_of(error)

    def check_origin(self) -> None:
        """Refuse what pages of other sites send: browsers let any page send requests to this machine.

        A link on such a page may lead here. A form may not: browsers send its page's origin, which is `null` for some.
        """
        origin = self.header(b"origin")
        if origin and origin.partition("://")[2].lower() != self.header(b"host").lower():
            raise Problem("forbidden", f"pages of {origin!r} may not use this service from a browser")
        if self.header(b"sec-fetch-site") == "cross-site" and self.header(b"sec-fetch-mode") != "navigate":
            raise Problem("forbidden", "pages of other sites may not use this service from a browser")


class Socket(Connection):
    """A WebSocket that a client asks for."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        super().__init__(scope)
        self.receive, self.send = receive, send

    async def refuse(self, problem: Problem) -> None:
        """Answer before the WebSocket is open."""
        if "websocket.http.response" not in self.scope.get("extensions", {}):
            await self.send({"type": "websocket.close", "code": 1008, "reason": problem.code})
            return
        headers = [(name.encode(), value.encode()) for name, value in problem.headers().items()]
        start = {"type": "websocket.http.response.start", "status": problem.kind.status}
        await self.send({**start, "headers": [*headers, *SECURITY_HEADERS]})
        await self.send({"type": "websocket.http.response.body", "body": problem.body(self.id, self.root)})


class Begun(Generator[Any, Any, Message]):
    """Something that is awaited, and has already been run until it had to wait for `waits_for`."""

    def __init__(self, waiting: Generator[Any, Any, Message], waits_for: Any) -> None:
        self._waiting = waiting
        self._waits_for = [waits_for]

    def __await__(self) -> Generator[Any, Any, Message]:
        return self

    def send(self, value: Any) -> Any:
        return self._waits_for.pop() if self._waits_for else self._waiting.send(value)

    def throw(self, *error: Any) -> Any:
        return self._waiting.throw(*error)


class Request(Connection):
    """One request on its way."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        super().__init__(scope)
        scope["state"]["guarded"] = self
        self.max_body = 0
        self.body_timeout = 0.0
        self.limits: list[Header] = []  # headers that say how many requests are left
        self._receive, self._send = receive, send
        self._read = 0
        self._parts: list[bytes] = []  # what has arrived of the body
        self._body: bytes | None = None  # all of it, once it has arrived and was checked
        self._status = 0
        self._began = time.monotonic()
        self._answered: float | None = None  # when the answer began; a stream may go on for hours
        self._outer = scope.get("endpoint"), scope.get("route")  # of the application that this one is mounted into

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def caller(self) -> Caller:
        caller: Caller = self.scope["state"]["caller"]
        return caller

    @caller.setter
    def caller(self, caller: Caller) -> None:
        self.scope["state"]["caller"] = caller

    def check_text(self) -> None:
        """Refuse NUL in the URL. No name has it, and PostgreSQL fails on it."""
        if "\0" in self.path or b"%00" in self.scope["query_string"]:
            raise Problem("invalid_request", "the URL has a NUL character (%00); leave it out")

    def check_length(self) -> None:
        length = self.header(b"content-length")
        if length.isdigit() and int(length) > self.max_body:
            raise self._too_large()

    async def body(self) -> bytes:
        """Return the whole body; the same bytes at each call."""
        while self._body is None:
            if (await self.receive())["type"] == "http.disconnect":
                raise ClientDisconnect
        return self._body

    async def receive(self) -> Message:
        if self._body is not None:
            return await self._receive()
        message = await self._part()
        if message["type"] == "http.disconnect":
            return message
        part = message.get("body", b"")
        self._read += len(part)
        if self._read > self.max_body:
            raise self._too_large()
        self._parts.append(part)
        if not message.get("more_body", False):
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            check_depth(body)
            self._body = body
        return message

    async def _part(self) -> Message:
        """Return the next part of the body. A client that sends it slowly would hold a connection for ever."""
        waiting = self._receive().__await__()
        try:
            waits_for = next(waiting)
        except StopIteration as arrived:  # most bodies arrive together with their headers, and need no timer
            message: Message = arrived.value
            return message
        try:
            async with asyncio.timeout(self.body_timeout - (time.monotonic() - self._began)):
                return await Begun(waiting, waits_for)
        except TimeoutError:
            msg = f"the body did not arrive within {self.body_timeout:g} seconds; send the request again"
            raise Problem("request_timeout", msg) from None

    def _too_large(self) -> Problem:
        return Problem("body_too_large", f"the body of this request may have up to {self.max_body:,} bytes")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._answered = time.monotonic()
            own = ((b"x-request-id", self.id.encode()), *SECURITY_HEADERS, *self.limits)
            headers = [*message.get("headers", ()), *own]
            if self.path.startswith(cross_origin.PATHS):
                headers = cross_origin.opened(headers, self.scope, self.path)
            message["headers"] = headers
        await self._send(message)

    async def answer(self, problem: Problem) -> None:
        if self._status:  # the answer has begun, and cannot be taken back
            return
        body = problem.body(self.id, self.root)
        headers = [(name.encode(), value.encode()) for name, value in problem.headers().items()]
        headers.append((b"content-length", str(len(body)).encode()))
        await self.send({"type": "http.response.start", "status": problem.kind.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def measured(self) -> tuple[str, str, int, float]:
        """Return the route, the method, the status and the seconds until the answer began."""
        until = time.monotonic() if self._answered is None else self._answered
        return self._template(), self.scope["method"], self._status, until - self._began

    def _template(self) -> str:
        """Return the path of the route, with names for what varies. A path that no route has could be anything."""
        endpoint, route = self.scope.get("endpoint"), self.scope.get("route")
        if route is not None and route is not self._outer[1]:
            return str(route.path_format)
        return self.path if endpoint is not None and endpoint is not self._outer[0] else "unmatched"

    def log(self) -> None:
        if log.wants(logging.DEBUG):
            took = round((time.monotonic() - self._began) * 1000, 1)
            about = {"method": self.scope["method"], "path": self.path, "status": self._status}
            log.debug("request", request_id=self.id, **about, ms=took)
