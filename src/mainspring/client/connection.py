"""Where the service is, and how long the client waits for it."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from urllib.parse import urlsplit

from mainspring.errors import ConfigurationError

DEFAULT_URL = "http://127.0.0.1:8340"
TOKEN_SHAPE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Connection:
    """The settings of a client. The token is not among them, so that nothing that shows them shows it."""

    url: str
    timeout: float  # seconds to connect, and for each read and write
    retry_for: float  # seconds from the first attempt until the last one may begin
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        check_url(self.url)
        if not (self.timeout > 0 and math.isfinite(self.timeout)):
            msg = f"timeout is {self.timeout}; give seconds above 0"
            raise ConfigurationError(msg)
        if not self.retry_for >= 0:
            msg = f"retry_for is {self.retry_for}; give seconds, or 0 to try once"
            raise ConfigurationError(msg)

    @property
    def agent(self) -> str:
        return f"mainspring-client/{version('mainspring')}"


def check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        msg = f"the URL of the service is {shown(url)!r}; give one such as {DEFAULT_URL}"
        raise ConfigurationError(msg)
    if parts.username is not None or parts.password is not None:
        msg = "the URL of the service has a user name or a password; give the token by token=… or MAINSPRING_TOKEN"
        raise ConfigurationError(msg)
    if parts.query or parts.fragment:
        msg = f"the URL of the service is {shown(url)!r}; leave out what follows ? or #"
        raise ConfigurationError(msg)


def shown(url: str) -> str:
    """Return a URL without what may be a secret."""
    return re.sub(r"//[^/@]*@", "//…@", url.partition("?")[0])


def url_of(given: str | None) -> str:
    return (given or os.environ.get("MAINSPRING_URL") or DEFAULT_URL).rstrip("/")


def token_of(given: str | None) -> str | None:
    """Return the token; never show it, not even if it is wrong."""
    token = given if given is not None else os.environ.get("MAINSPRING_TOKEN") or None
    if token is not None and not TOKEN_SHAPE.fullmatch(token):
        msg = "the token is empty, or has a space, a line break or a letter beyond ASCII in it; copy it again: msk_…"
        raise ConfigurationError(msg)
    return token
