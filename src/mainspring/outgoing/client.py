"""Sends HTTP requests to addresses that others choose.

The address is checked when the socket is made, after all names were resolved. So it does not matter how the address was
written, and a name cannot stand for another address at the second look. Redirects are not followed, proxies of the
environment are not used, and of the answer only so much is read.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from mainspring.errors import RequestFailed, RequestRefused
from mainspring.outgoing.addresses import Reach

LONGEST_URL = 4_000  # characters
MAX_ANSWER = 65_536  # bytes of an answer that are kept
DEFAULT_TIMEOUT, LONGEST_TIMEOUT = 30.0, 1_800.0  # seconds
CONNECT_WITHIN = 5.0  # seconds
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}"
HEADER_VALUE = r"[\t\x20-\x7e\x80-\xff]{0,8000}"
OURS = frozenset({"connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade"})
"""Headers that this client sets: others could let one request look like two."""

IS_NAME, IS_VALUE = re.compile(HEADER_NAME).fullmatch, re.compile(HEADER_VALUE).fullmatch


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server has answered."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes  # the first `MAX_ANSWER` bytes
    cut: bool = False  # there was more


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeout: float = DEFAULT_TIMEOUT


def problem_of_url(text: str) -> str | None:
    """Return why requests are not sent to this URL; None if they may be."""
    if len(text) > LONGEST_URL:
        return f"the URL has {len(text):,} characters; give at most {LONGEST_URL:,}"
    try:
        url = URL(text)
        host, _ = url.host, url.port
    except ValueError as error:
        return f"the URL is not valid: {error}"
    if url.scheme not in {"http", "https"} or not host:
        return "the URL must begin with http:// or https:// and name a host"
    if url.user is not None or url.password is not None:
        return "the URL has a user name or password; send them in the header Authorization"
    return None


def problem_of_headers(headers: Mapping[str, str]) -> str | None:
    """Return what is wrong with headers, such as a line break that would begin another header; None if nothing is."""
    for name, value in headers.items():
        if not IS_NAME(name):
            return f"{name!a:.100} is not the name of a header"
        if name.lower() in OURS:
            return f"the header {name} cannot be set"
        if not IS_VALUE(value):
            return f"the header {name} has a line break, another control character, or more than 8,000 characters"
    return None


def problem_of(request: OutgoingRequest) -> str | None:
    if request.method not in METHODS:
        return f"the method {request.method!r:.40} is not one of {', '.join(sorted(METHODS))}"
    if not 0 < request.timeout <= LONGEST_TIMEOUT:
        return f"the timeout is {request.timeout:g} s; give more than 0 and at most {LONGEST_TIMEOUT:g}"
    return problem_of_url(request.url) or problem_of_headers(request.headers)


class Outgoing:
    """Sends requests. Each has a connection of its own, so an instance can be used on any event loop."""

    def __init__(self, reach: Reach | None = None, *, resolver: AbstractResolver | None = None) -> None:
        self.reach = reach or Reach()
        self._resolver = resolver

    async def send(self, request: OutgoingRequest) -> Answer:
        """Send a request and return the answer, whatever its status.

        Raise RequestRefused if it is not allowed, and RequestFailed if there was no answer in time.
        """
        if problem := problem_of(request):
            raise RequestRefused(problem)
        guard = Guard(self.reach)
        try:
            async with self._session(guard, request.timeout) as session:
                return await exchange(session, request)
        except aiohttp.InvalidURL as error:  # such as 127.1, which is not how an address is written
            msg = f"the URL is not valid: {error}"
            raise RequestRefused(msg) from None
        except TimeoutError as error:
            msg = f"there was no answer within {request.timeout:g} s"
            raise RequestFailed(msg) from error
        except (aiohttp.ClientError, OSError, ValueError, asyncio.IncompleteReadError) as error:
            if guard.refused:
                raise RequestRefused("; ".join(dict.fromkeys(guard.refused))) from None
            msg = f"{type(error).__name__}: {error}"
            raise RequestFailed(msg) from error

    def _session(self, guard: Guard, timeout: float) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            socket_factory=guard.make_socket, use_dns_cache=False, force_close=True, resolver=self._resolver
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_WITHIN, timeout)),
            trust_env=False,
            auto_decompress=False,  # a few bytes could become gigabytes
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "Mainspring"},
        )


class Guard:
    """Makes the sockets of one request, to addresses that may be reached."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self.refused: list[str] = []

    def make_socket(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, (host, port, *_) = address
        if problem := self._reach.problem_of(host, port):
            self.refused.append(problem)
            raise PermissionError(problem)  # an OSError, as connecting would raise: the next address is tried
        return socket.socket(family, kind, protocol)


async def exchange(session: aiohttp.ClientSession, request: OutgoingRequest) -> Answer:
    response = await session.request(
        request.method, request.url, headers=request.headers, data=request.body or None, allow_redirects=False
    )
    with closing(response):  # what was not read is thrown away
        body = await read_start(response)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, headers, body[:MAX_ANSWER], cut=len(body) > MAX_ANSWER)


async def read_start(response: aiohttp.ClientResponse) -> bytes:
    """Read the body until its end, or one byte more than is kept."""
    parts, size = [], 0
    while size <= MAX_ANSWER:
        part = await response.content.read(MAX_ANSWER + 1 - size)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)
