"""Turns on traces and Sentry by settings: for `mainspring serve` and `mainspring worker`, without code of yours."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mainspring.app import Mainspring
from mainspring.errors import ConfigurationError

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off", ""})


def turn_on(app: Mainspring, *, otel: bool = False, sentry_dsn: str | None = None, sentry_traces: float = 0.0) -> None:
    """Turn on what is asked for, unless the application has done it itself. Call it before a worker starts."""
    if otel:
        from mainspring.otel import instrument_by_setting  # noqa: PLC0415 - other programs need not have the packages

        instrument_by_setting(app)
    if sentry_dsn:
        from mainspring import sentry  # noqa: PLC0415 - likewise

        sentry.instrument_by_setting(app, sentry_dsn, sentry_traces)


def turn_on_by_environment(app: Mainspring, environment: Mapping[str, str] = os.environ) -> None:
    """Turn on what the environment asks for, by the names that the service has for its settings."""
    turn_on(
        app,
        otel=flag("MAINSPRING_OTEL", environment),
        sentry_dsn=environment.get("MAINSPRING_SENTRY_DSN"),
        sentry_traces=share("MAINSPRING_SENTRY_TRACES", environment),
    )


def flag(name: str, environment: Mapping[str, str]) -> bool:
    text = environment.get(name, "")
    if text.lower() not in TRUE | FALSE:
        msg = f"{name} is {text!r}; give true or false"
        raise ConfigurationError(msg)
    return text.lower() in TRUE


def share(name: str, environment: Mapping[str, str]) -> float:
    text = environment.get(name) or "0"
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        msg = f"{name} is {text!r}; give a share from 0 to 1, such as 0.1"
        raise ConfigurationError(msg)
    return found
