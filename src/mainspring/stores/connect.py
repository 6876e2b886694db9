"""From a URL to a store."""

from __future__ import annotations

import math
from urllib.parse import parse_qsl, unquote, urlsplit

from mainspring.clock import Clock
from mainspring.errors import ConfigurationError, UnsupportedStore
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import SqliteStore

EXAMPLES = "sqlite:///jobs.db, sqlite:////var/lib/jobs.db, memory://"
SETTINGS = {"lease": float, "busy_timeout": float, "stall_grace": float}  # all in seconds


def connect(url: str, clock: Clock | None = None) -> Store:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, `memory://`; settings follow a question mark."""
    parts = urlsplit(url)
    settings = parse_settings(url, parts.query)
    match parts.scheme:
        case "sqlite":
            path = unquote(parts.path.removeprefix("/"))
            if not path or parts.netloc:
                msg = f"{url!r} names no file; write sqlite:///relative.db or sqlite:////absolute.db"
                raise ConfigurationError(msg)
            if parts.fragment:
                msg = f"a # ends the path in {url!r}; write it as %23"
                raise ConfigurationError(msg)
            return SqliteStore(path, clock=clock, **settings)  # type: ignore[arg-type]
        case "memory":
            settings.pop("busy_timeout", None)
            return MemoryStore(clock=clock, **settings)  # type: ignore[arg-type]
    msg = f"no store for {parts.scheme or url!r}; use one of {EXAMPLES}"
    raise UnsupportedStore(msg)


def parse_settings(url: str, query: str) -> dict[str, float | int]:
    settings: dict[str, float | int] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in SETTINGS:
            msg = f"{url!r} has an unknown setting {name!r}; known are {', '.join(SETTINGS)}"
            raise ConfigurationError(msg)
        if (seconds := to_seconds(text)) is None:
            msg = f"{name} in {url!r} must be a number of seconds, not {text!r}"
            raise ConfigurationError(msg)
        settings[name] = seconds
    if "stall_grace" in settings:
        settings["stall_grace"] = int(settings["stall_grace"] * 1000)
    return settings


def to_seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None
