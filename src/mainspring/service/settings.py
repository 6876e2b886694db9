"""The settings of the service: one object, from a TOML file, the environment and the command line.

The command line overrides the environment, and the environment overrides the file. Every setting has a name of ours
(`MAINSPRING_PORT`); some also have the short name that other systems use (`PORT`).
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from mainspring.errors import ConfigurationError
from mainspring.outgoing.addresses import networks_of
from mainspring.published.api import nearest
from mainspring.redaction import check_rule
from mainspring.service.tokens import Scope
from mainspring.stores.protocol import EVERY_QUEUE
from mainspring.worker.settings import subscriptions

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
DEFAULT_FILE = Path("mainspring.toml")
PREFIX = "MAINSPRING_"
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
HEADERS_OF_CLIENTS = frozenset(
    {
        "authorization",
        "cookie",
        "host",
        "origin",
        "referer",
        "user-agent",
        "forwarded",
        "x-forwarded-for",
        "x-mainspring",
    }
)
LONGEST_WAIT = 300.0  # seconds; the most that max_wait can be

OF_OTHERS = {
    "QUEUE_DB_PATH": ("store", "sqlite:///{}"),
    "PORT": ("port", "{}"),
    "HOST": ("host", "{}"),
    "LOG_LEVEL": ("log_level", "{}"),
}
"""Names in the environment that other systems use, the setting and its value. Ours (MAINSPRING_…) come first."""

NOT_OF_THE_SERVICE = (
    *("DEBUG", "ENCRYPTION_KEYS", "ENCRYPTION_KEYS_FILE", "VERSION", "WORKER_NUMBER"),  # of every command
    *("METRICS_HOST", "METRICS_PORT", "METRICS_TOKEN"),  # of `mainspring worker`
    *("ATTEMPT", "JOB", "TOKEN", "URL"),  # of clients, and of workers in other languages
    *("CHAOS", "CHAOS_REPORTS", "CHAOS_SEED", "HISTORIES", "SCREENSHOTS", "TEST_DYNAMODB", "TEST_PG"),  # of tests
)
"""What comes after MAINSPRING_ in the names that other parts of Mainspring read."""

Level = Literal["debug", "info", "warning", "error"]


class NamesOfOthers(PydanticBaseSettingsSource):
    """Reads the names that other systems use."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        del field
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        given = [(os.environ[name], *known) for name, known in OF_OTHERS.items() if name in os.environ]
        return {setting: form.format(text) for text, setting, form in given}


class ServiceSettings(BaseSettings):
    """Everything that can be set about the service."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix=PREFIX, toml_file=DEFAULT_FILE)

    store: str = Field(
        default="sqlite:///mainspring.db",
        description="the URL of the store, if no app is given",
    )
    app: str | None = Field(default=None, description="module:attribute of your application")
    host: str = Field(default="127.0.0.1", description="the address to listen on")
    port: int = Field(
        default=8340,
        ge=0,
        le=65535,
        description="the port; 0: any that is free",
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="names that the Host header may have, besides loopback",
    )
    worker: bool = Field(default=True, description="run jobs in this process too")
    schedules: bool = Field(default=True, description="fire schedules in this process too")
    queues: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(EVERY_QUEUE,),
        min_length=1,
        description="the queues of which this process runs jobs",
    )
    concurrency: int = Field(default=100, ge=1, description="how many jobs this process runs at once")
    log_level: Level = Field(default="info", description="the lowest level")
    log_format: Literal["text", "json"] = Field(default="text", description="the format of log lines")
    metrics: bool = Field(default=True, description="count what this process does, for `/metrics`")
    tokens: Literal["required", "optional"] | None = Field(
        default=None,
        description="whether each request needs a token; by default only `serve` on loopback needs none",
    )
    proxy_header: str | None = Field(
        default=None,
        description="the header in which a reverse proxy names the user, such as X-Forwarded-User",
    )
    proxy_addresses: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="addresses and networks of the proxies that may send proxy_header",
    )
    proxy_scopes: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("read",),
        min_length=1,
        description="what users whom a proxy names may do",
    )
    outgoing_allow: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="networks that jobs' requests may reach besides the public Internet, such as 10.1.0.0/16",
    )
    max_body: int = Field(
        default=1_000_000,
        ge=1_000,
        description="bytes of a request's body; five times as many for bulk",
    )

    header_timeout: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="seconds in which the headers of a request must arrive; then the connection is closed",
    )
    body_timeout: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="seconds in which the body of a request must arrive",
    )

    rate_limit: float = Field(
        default=100.0,
        ge=0,
        allow_inf_nan=False,
        description="requests a second that a token may make; 0: any number",
    )
    rate_burst: int = Field(
        default=200,
        ge=1,
        description="requests that a token may make at once, before rate_limit counts",
    )
    max_wait: float = Field(
        default=30.0,
        ge=0,
        le=LONGEST_WAIT,
        description="seconds that a request of a pull worker may wait for a job",
    )
    otel: bool = Field(default=False, description="send spans of enqueues and runs, by OpenTelemetry")
    sentry_dsn: str | None = Field(default=None, description="report failed jobs and schedules to this Sentry")
    sentry_traces: float = Field(
        default=0.0, ge=0, le=1, description="the share of runs that Sentry gets as transactions"
    )

    redact: tuple[str, ...] = Field(
        default=(),
        description="further rules of what is hidden: names of keys, and JSON pointers",
    )
    redact_tasks: dict[str, tuple[str, ...]] = Field(
        default={},
        description="further rules of what is hidden in jobs of single tasks",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, NamesOfOthers(settings_cls), TomlConfigSettingsSource(settings_cls)

    @field_validator("allowed_hosts", "outgoing_allow", "proxy_addresses", "proxy_scopes", "queues", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Take `a.example,b.example` from the environment, and a list from the file."""
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @field_validator("queues")
    @classmethod
    def _check_queues(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            subscriptions(value)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("outgoing_allow", "proxy_addresses")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            networks_of(value)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("proxy_addresses")
    @classmethod
    def _check_proxies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        networks = networks_of(value)
        for version in (4, 6):
            several: Any = [network for network in networks if network.version == version]
            if any(network.prefixlen == 0 for network in ipaddress.collapse_addresses(several)):
                msg = "these are all addresses, so everybody could name any user; list only those of your proxies"
                raise ValueError(msg)
        return value

    @field_validator("proxy_header")
    @classmethod
    def _check_header(cls, value: str | None) -> str | None:
        if value is not None and (not HEADER_NAME.fullmatch(value) or value.lower() in HEADERS_OF_CLIENTS):
            msg = f"{value!r} cannot be the header of users; name one that only your proxy sets, as X-Forwarded-User"
            raise ValueError(msg)
        return value

    @field_validator("proxy_scopes")
    @classmethod
    def _check_scopes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := sorted(set(value) - set(Scope)):
            msg = f"there is no scope {wrong[0]!r}; give some of {', '.join(Scope)}"
            raise ValueError(msg)
        return value

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("redact", "redact_tasks")
    @classmethod
    def _check_rules(cls, value: Any) -> Any:
        for rule in value if isinstance(value, tuple) else (rule for rules in value.values() for rule in rules):
            try:
                check_rule(rule)
            except ConfigurationError as error:
                raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _check_tokens(self) -> ServiceSettings:
        if self.tokens == "optional" and not self.is_loopback:
            msg = (
                f"tokens are required if the service listens on {self.host}; leave `tokens` out, or listen on 127.0.0.1"
            )
            raise ValueError(msg)
        if self.tokens == "optional" and self.proxy_header is not None:
            msg = "tokens are required with proxy_header: a request without that header would be allowed everything"
            raise ValueError(msg)
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can reach the service."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def needs_tokens(self) -> bool:
        return self.tokens != "optional"

    def bound(self) -> ServiceSettings:
        """Return the settings of a service that listens on `host` itself: on loopback it needs no tokens by default.

        Behind a proxy it does: what comes through the proxy comes from everywhere.
        A service that is mounted into another application cannot know this: `host` says nothing about that one.
        """
        if self.tokens is None and self.is_loopback and self.proxy_header is None:
            return self.model_copy(update={"tokens": "optional"})
        return self

    @property
    def hosts(self) -> frozenset[str]:
        """The names that the Host header may have."""
        literal = f"[{self.host}]" if ":" in self.host else self.host
        bound = () if self.host in {"0.0.0.0", "::"} else (literal.lower(),)  # noqa: S104 - compared, not bound
        return frozenset((*LOOPBACK_NAMES, *bound, *(name.lower() for name in self.allowed_hosts)))


def load_settings(file: Path | None = None, **flags: Any) -> ServiceSettings:
    """Return the settings from a file, the environment and flags, where None means not given.

    Raise ConfigurationError if one is wrong, with a line for each.
    """
    check_file(file)
    path = file or DEFAULT_FILE

    class FromFile(ServiceSettings):
        model_config = SettingsConfigDict(toml_file=path)

    given = {name: value for name, value in flags.items() if value is not None}
    if "store" in given:  # it was asked for by name; the application of the environment or the file has another
        given = {"app": None, **given}
    try:
        return FromFile(**given)
    except ValidationError as error:
        raise ConfigurationError("\n".join(lines_of(error))) from None
    except SettingsError as error:  # a value of the environment that should be JSON
        name = re.search(r'"(\w+)"', str(error))
        what = "a setting" if name is None else f"MAINSPRING_{name[1].upper()}"
        msg = f'{what} is not valid JSON; give a list, such as ["iban"], or an object'
        raise ConfigurationError(msg) from None
    except tomllib.TOMLDecodeError as error:
        msg = f"{path} is not valid TOML: {error}"
        raise ConfigurationError(msg) from None
    except UnicodeDecodeError as error:
        msg = f"{path} is not valid TOML: it must be UTF-8, and byte {error.start} is not"
        raise ConfigurationError(msg) from None
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise ConfigurationError(msg) from None


def check_file(file: Path | None) -> None:
    """Raise ConfigurationError if the settings file cannot be one; Pydantic would ignore it."""
    if file is not None and not file.exists():
        msg = f"there is no settings file {file}"
        raise ConfigurationError(msg)
    if file is not None and not file.is_file():
        msg = f"{file} is not a file; give a TOML file, such as {DEFAULT_FILE}"
        raise ConfigurationError(msg)


def lines_of(error: ValidationError) -> list[str]:
    return [
        f"{'.'.join(map(str, line['loc'])) or 'settings'}: {line['msg'].removeprefix('Value error, ')}"
        for line in error.errors(include_url=False, include_input=False)
    ]


def warnings_of(settings: ServiceSettings) -> list[str]:
    """Return what is allowed but probably not meant."""
    found = []
    if not settings.is_loopback and not settings.allowed_hosts:
        found.append(
            f"host is {settings.host}, but allowed_hosts is empty: requests that name another host are refused"
        )
    if not settings.is_loopback:
        found.append("the service speaks plain HTTP: put a proxy with TLS in front of it")
    found += proxy_warnings(settings)
    if settings.app is not None and "store" in settings.model_fields_set:
        found.append("store is ignored: the application in `app` names its own")
    if not settings.worker and settings.model_fields_set & {"queues", "concurrency"}:
        found.append("queues and concurrency are of the worker in this process, and this one runs no jobs")
    if not settings.worker and settings.store.startswith("memory:"):
        found.append("memory:// exists only within one process, and this one runs no jobs: worker is false")
    return found


def unknown_variables(names: Iterable[str]) -> list[str]:
    """Return a warning for each name that looks like one of ours, but that nothing reads: it may be misspelt."""
    known = sorted({*(name.upper() for name in ServiceSettings.model_fields), *NOT_OF_THE_SERVICE})
    given = [(name, name.upper().removeprefix(PREFIX)) for name in sorted(names) if name.upper().startswith(PREFIX)]
    return [
        f"{name} is not the name of a setting, and is ignored{likely(nearest(rest, known))}"
        for name, rest in given
        if rest not in known
    ]


def likely(names: Sequence[str]) -> str:
    return f"; do you mean {' or '.join(PREFIX + name for name in names)}?" if names else ""


def proxy_warnings(settings: ServiceSettings) -> list[str]:
    """Return what is risky, or has no effect, about users whom a proxy names."""
    networks, found = networks_of(settings.proxy_addresses), []
    if settings.proxy_header is None:
        if settings.model_fields_set & {"proxy_addresses", "proxy_scopes"}:
            found.append("proxy_addresses and proxy_scopes have no effect without proxy_header")
        return found
    if not networks:
        found.append(f"proxy_addresses is empty, so the header {settings.proxy_header} is ignored: list your proxies")
    if any(network.is_loopback for network in networks):
        found.append("proxy_addresses has a loopback address: every program of this machine can name any user")
    if wide := [str(network) for network in networks if network.num_addresses > 1 and network.is_global]:
        found.append(f"proxy_addresses has public networks ({', '.join(wide)}): every machine there can name any user")
    if "admin" in settings.proxy_scopes:
        found.append("proxy_scopes has admin: every user of the proxy can make tokens and reveal secrets")
    return found
