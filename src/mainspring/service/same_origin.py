"""Whether a browser sent a request for a page of the service itself.

Browsers send cookies by themselves, and passwords for a proxy too. So a request that has one proves nothing about the
page that made it.
`Sec-Fetch-Site` does, and browsers send it over HTTPS and to this machine. Otherwise `Origin` must name the service.
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.service.problems import Problem

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
HEADER = b"x-mainspring"  # pages of other origins cannot send it without asking in advance, and the answer is no
Header = Callable[[bytes], str]


def check_same_origin(header: Header) -> None:
    """Raise Problem unless the request certainly comes from a page of the service."""
    site, origin = header(b"sec-fetch-site"), header(b"origin")
    is_ours = site == "same-origin" if site else bool(origin) and host_in(origin) == header(b"host").lower()
    if not is_ours or (origin not in {"", "null"} and host_in(origin) != header(b"host").lower()):
        raise Problem("forbidden", "a session, or a name from a proxy, may be used only by pages of the service itself")


def check_write(method: str, header: Header) -> None:
    """Raise Problem if a browser may have sent a request that changes something for another page."""
    if method in SAFE_METHODS:
        return
    check_same_origin(header)
    if header(HEADER) != "1":
        msg = "with a session or a name from a proxy, requests that change something need the header X-Mainspring: 1"
        raise Problem("forbidden", msg)


def host_in(origin: str) -> str:
    return origin.partition("://")[2].lower()
