"""Turns on traces by settings: for `mainspring serve` and `mainspring worker`, without code in the application."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mainspring.app import Mainspring
from mainspring.errors import ConfigurationError

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off", ""})


def turn_on(app: Mainspring, *, otel: bool = False) -> None:
    """Turn on what is asked for, unless the application has done it itself. Call it before a worker starts."""
    if otel:
        from mainspring.otel import instrument_by_setting  # noqa: PLC0415 - other programs need not have the packages

        instrument_by_setting(app)


def turn_on_by_environment(app: Mainspring, environment: Mapping[str, str] = os.environ) -> None:
    turn_on(app, otel=flag("MAINSPRING_OTEL", environment))


def flag(name: str, environment: Mapping[str, str]) -> bool:
    text = environment.get(name, "")
    if text.lower() not in TRUE | FALSE:
        msg = f"{name} is {text!r}; give true or false"
        raise ConfigurationError(msg)
    return text.lower() in TRUE
