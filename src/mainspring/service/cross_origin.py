"""What pages of other sites may use: the routes for public tokens, and the files that such pages load.

A browser lets a page of another origin read an answer only if the answer says so (CORS). Ours does for these routes
alone, and only to requests that carry a public token or ask in advance. It never allows credentials, which are the
cookies that browsers send by themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from mainspring.service.problems import Problem
from mainspring.service.public_tokens import PREFIX

PUBLIC_PATHS = "/v1/public/"
SOCKET_PATH = "/v1/public/events/ws"
STATIC_PATHS = "/static/"  # without a token: a script element cannot send one
PATHS = (PUBLIC_PATHS, STATIC_PATHS)
ONLY_PUBLIC = f"a public token opens {PUBLIC_PATHS}… only, for the jobs or the target that it names"

Headers = list[tuple[bytes, bytes]]
Scope = MutableMapping[str, Any]
ANY_ORIGIN: Headers = [(b"access-control-allow-origin", b"*")]
READABLE: Headers = [*ANY_ORIGIN, (b"access-control-expose-headers", b"retry-after, x-request-id")]
STATIC: Headers = [*ANY_ORIGIN, (b"cross-origin-resource-policy", b"cross-origin")]
PREFLIGHT: Headers = [
    *ANY_ORIGIN,
    (b"access-control-allow-methods", b"GET"),
    (b"access-control-allow-headers", b"authorization, last-event-id"),
    (b"access-control-max-age", b"600"),  # seconds
]


def check_path(path: str) -> None:
    """Refuse what public tokens do not open, before any route decides."""
    if not path.startswith(PUBLIC_PATHS):
        raise Problem("forbidden", ONLY_PUBLIC)


def is_preflight(scope: Scope, path: str) -> bool:
    """Return whether a browser asks in advance whether a page may send a request with its token."""
    if scope["method"] != "OPTIONS" or not path.startswith(PUBLIC_PATHS):
        return False
    return any(name == b"access-control-request-method" for name, _ in scope["headers"])


async def answer_preflight(send: Callable[[MutableMapping[str, Any]], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": list(PREFLIGHT)})
    await send({"type": "http.response.body", "body": b""})


def opened(headers: Headers, scope: Scope, path: str) -> Headers:
    """Return the headers with what lets a page of another origin read the answer, also if it is an error."""
    if path.startswith(STATIC_PATHS):
        return [*dict(reversed(headers)).items(), *STATIC]  # a file says itself for how long it can be kept
    return [*headers, *READABLE] if has_public_token(scope) else headers


def has_public_token(scope: Scope) -> bool:
    kind, _, text = next((value for name, value in scope["headers"] if name == b"authorization"), b"").partition(b" ")
    return kind.lower() == b"bearer" and text.strip().startswith(PREFIX.encode())
