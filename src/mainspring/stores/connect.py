"""Create a store from a URL. Only the store that the URL names is imported: the others would slow down the start."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from mainspring.clock import Clock
from mainspring.errors import ConfigurationError, UnsupportedStore
from mainspring.stores.protocol import Store

if TYPE_CHECKING:
    from mainspring.encryption import Keys

KEYS_FILE = "MAINSPRING_ENCRYPTION_KEYS_FILE"
EXAMPLES = (
    "sqlite:///jobs.db, sqlite:////var/lib/jobs.db, postgresql://user@host/database, "
    "dynamodb://table?region=eu-central-1, memory://"
)
Settings = dict[str, float | int]
SETTINGS = ("lease", "busy_timeout", "stall_grace")  # all in seconds
DYNAMODB_TIMES = ("lease", "stall_grace", "poll")

POSTGRES_SETTINGS = frozenset({"schema", "listen", "migrate", "prepare"})
DYNAMODB_SETTINGS = (
    "region", "endpoint", "profile", "shards", "prefix", "keys", "migrate", "prune", "lease", "stall_grace", "poll",
)  # fmt: skip


def store_of(given: str | Store, clock: Clock | None = None) -> Store:
    """Return the store that a program passed as a URL, or as a store object."""
    if isinstance(given, str):
        return connect(given, clock)
    if not hasattr(given, "claim"):
        msg = f"a store must be a URL or a store object, not {given!r}; use one of {EXAMPLES}"
        raise ConfigurationError(msg)
    return given


def with_encryption(store: Store, keys: Keys | None = None) -> Store:
    """Return the store with these keys, or else with those of the environment, if there are any."""
    if keys is None and not (os.environ.get("MAINSPRING_ENCRYPTION_KEYS") or os.environ.get(KEYS_FILE)):
        return store
    from mainspring.encryption import Keys  # noqa: PLC0415 - few programs need it
    from mainspring.stores.encrypted import encrypted, keys_of  # noqa: PLC0415

    return store if keys_of(store) is not None else encrypted(store, keys or Keys.from_environment())


def connect(url: str, clock: Clock | None = None) -> Store:
    """Return the store that a URL names.

    URLs are `sqlite:///relative.db`, `postgresql://…`, `dynamodb://table` and `memory://`. Settings follow a "?".
    """
    parts = split(url)
    if parts.scheme in {"postgresql", "postgres"}:
        return connect_postgres(url, clock)
    if parts.scheme == "dynamodb":
        return connect_dynamodb(url, parts, clock)
    settings = parse_settings(url, parts.query)
    match parts.scheme:
        case "sqlite":
            return connect_sqlite(url, parts, settings, clock)
        case "memory":
            return connect_memory(settings, clock)
    msg = f"no store for {parts.scheme or url!r}; use one of {EXAMPLES}"
    raise UnsupportedStore(msg)


def connect_sqlite(url: str, parts: SplitResult, settings: Settings, clock: Clock | None) -> Store:
    from mainspring.stores.sqlite import SqliteStore  # noqa: PLC0415 - see the module's docstring

    path = unquote(parts.path.removeprefix("/"))
    if not path or parts.netloc:
        msg = f"{url!r} names no file; write sqlite:///relative.db or sqlite:////absolute.db"
        raise ConfigurationError(msg)
    if parts.fragment:
        msg = f"a # ends the path in {url!r}; write it as %23"
        raise ConfigurationError(msg)
    return SqliteStore(path, clock=clock, **settings)  # type: ignore[arg-type]


def connect_memory(settings: Settings, clock: Clock | None) -> Store:
    from mainspring.stores.sqlite import MemoryStore  # noqa: PLC0415 - see the module's docstring

    settings.pop("busy_timeout", None)
    return MemoryStore(clock=clock, **settings)  # type: ignore[arg-type]


def split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        msg = f"this is not the URL of a store ({error}); use one of {EXAMPLES}"  # not shown: it may have a password
        raise ConfigurationError(msg) from None


def parse_settings(url: str, query: str, known: Collection[str] = SETTINGS) -> Settings:
    settings: Settings = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            msg = f"{url!r} has an unknown setting {name!r}; known are {', '.join(known)}"
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


def connect_postgres(url: str, clock: Clock | None) -> Store:
    """Take Mainspring's settings out of the URL; pass the rest to the PostgreSQL driver unchanged."""
    try:
        from mainspring.stores.postgres import PostgresStore  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        msg = f"{error.name} is missing; install mainspring[postgres]"
        raise ConfigurationError(msg) from error
    place, _, query = url.partition("?")
    given = [(piece, *piece.partition("=")[::2]) for piece in query.split("&") if piece]
    named = {name: unquote(text) for _, name, text in given if name in POSTGRES_SETTINGS}
    times = "&".join(piece for piece, name, _ in given if name in {"lease", "stall_grace"})
    theirs = "&".join(piece for piece, name, _ in given if name not in {"lease", "stall_grace", *named})
    return PostgresStore(
        f"{place}?{theirs}" if theirs else place,
        clock=clock,
        schema_name=named.get("schema", "mainspring"),
        listen_dsn=named.get("listen"),
        migrate=is_on("migrate", named),
        prepare=is_on("prepare", named) if "prepare" in named else None,
        **parse_settings(without_secrets(place, times), times),  # type: ignore[arg-type]
    )


def connect_dynamodb(url: str, parts: SplitResult, clock: Clock | None) -> Store:
    try:
        from mainspring.stores.dynamodb import DynamoStore  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        msg = f"{error.name} is missing; install mainspring[dynamodb]"
        raise ConfigurationError(msg) from error
    if not parts.netloc or parts.path.strip("/") or "@" in parts.netloc or ":" in parts.netloc:
        msg = "write dynamodb://table?region=eu-central-1: a table and settings; credentials are found as AWS's SDKs do"
        raise ConfigurationError(msg)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in given:
        if name not in DYNAMODB_SETTINGS:
            msg = f"{url!r} has an unknown setting {name!r}; known are {', '.join(DYNAMODB_SETTINGS)}"
            raise ConfigurationError(msg)
    shards = given.get("shards")
    if shards is not None and not shards.isdecimal():
        msg = f"shards in {url!r} must be a whole number, not {shards!r}"
        raise ConfigurationError(msg)
    times = urlencode([(name, text) for name, text in given.items() if name in DYNAMODB_TIMES])
    return DynamoStore(
        unquote(parts.netloc),
        region=given.get("region") or None,
        endpoint=given.get("endpoint") or None,
        profile=given.get("profile") or None,
        shards=None if shards is None else int(shards),
        prefix=given.get("prefix"),
        keys=given.get("keys"),
        clock=clock,
        migrate=is_on("migrate", given, default="off"),
        prune=is_on("prune", given, default="off"),
        **parse_settings(url, times, DYNAMODB_TIMES),  # type: ignore[arg-type]
    )


def without_secrets(place: str, query: str) -> str:
    """Return the URL without its credentials, to be shown in a message."""
    scheme, _, rest = place.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}?{query}"


def is_on(name: str, named: Mapping[str, str], default: str = "on") -> bool:
    text = named.get(name, default)
    if text not in {"on", "off"}:
        msg = f"{name} must be on or off, not {text!r}"
        raise ConfigurationError(msg)
    return text == "on"
