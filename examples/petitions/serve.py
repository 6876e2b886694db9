"""`python -m examples.petitions.serve`: the application as a process of its own, until SIGTERM or Ctrl-C.

The environment names the systems outside: PETITIONS_DATABASE, PETITIONS_HALT_URL, PETITIONS_ALERT_URL and
PETITIONS_NOTICE_URL. Other settings are PETITIONS_RETRY_DELAYS, PETITIONS_POLL_INTERVAL and so on; see `Settings`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from examples.petitions.system import PetitionSystem, Settings
from mainspring import Schedule
from mainspring.errors import ConfigurationError, StoreUnavailable

PREFIX = "PETITIONS_"


def are_delays(values: tuple[float, ...]) -> bool:
    return all(0 <= value < math.inf for value in values)


def is_length(value: float) -> bool:
    return 0.001 <= value <= 3600


def is_postgres(url: str) -> bool:
    return url.startswith(("postgresql://", "postgres://"))


def is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def is_name(text: str) -> bool:
    return re.fullmatch("[a-z_][a-z0-9_]{0,50}", text) is not None


def is_schedule(text: str) -> bool:
    try:
        Schedule(text)
    except ConfigurationError:
        return False
    return True


HTTP = is_http, "a URL that begins with http:// or https://"
SECONDS = is_length, "a number of seconds from 0.001 to 3600, such as 30"
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {  # by setting: whether a value is allowed, and what is
    "database": (is_postgres, "a URL that begins with postgresql://, such as postgresql://user@host/database"),
    "halt_url": HTTP,
    "alert_url": HTTP,
    "notice_url": HTTP,
    "retry_delays": (are_delays, "numbers of seconds with commas between them, such as 30,60"),
    "poll_interval": SECONDS,
    "job_timeout": SECONDS,
    "escalation_every": (is_schedule, "an interval such as 1m, or a cron expression such as */5 * * * *"),
    "escalation_threshold": (lambda number: number > 0, "a whole number above 0, such as 5"),
    "lease": SECONDS,
    "queue_schema": (is_name, "up to 51 lower-case letters, digits and underscores, not with a digit first"),
}


def settings_of(environment: Mapping[str, str]) -> Settings:
    """Return the settings in environment variables; raise ValueError for one that is missing or wrong."""
    values: dict[str, Any] = {}
    for setting in dataclasses.fields(Settings):
        text = environment.get(variable(setting.name))
        if text is not None:
            values[setting.name] = value_of(setting, text)
        elif setting.default is dataclasses.MISSING:
            raise ValueError(f"{variable(setting.name)} is not set; give {RULES[setting.name][1]}")
    return Settings(**values)


def value_of(setting: dataclasses.Field[Any], text: str) -> Any:
    try:
        value = converted(setting.default, text)
    except ValueError:
        raise wrong(setting.name, text) from None
    return checked(setting.name, value, text)


def converted(default: Any, text: str) -> Any:
    """Return the text as a value of the type that the default has."""
    if isinstance(default, tuple):
        return tuple(float(part) for part in text.split(","))
    return text if default is dataclasses.MISSING else type(default)(text)


def checked(name: str, value: Any, text: str) -> Any:
    """Return the value of a setting; raise ValueError if it is not allowed."""
    is_allowed, _ = RULES[name]
    if not is_allowed(value):
        raise wrong(name, text)
    return value


def wrong(name: str, text: str) -> ValueError:
    shown = "wrong" if "@" in text else repr(text)  # a URL may have a password
    return ValueError(f"{variable(name)} is {shown}; give {RULES[name][1]}")


def variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


async def main(settings: Settings) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with PetitionSystem(settings).running():
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await stopping.wait()


if __name__ == "__main__":
    try:
        settings = settings_of(os.environ)
    except ValueError as error:
        sys.exit(str(error))
    try:
        asyncio.run(main(settings))
    except StoreUnavailable as error:
        sys.exit(f"{error}\nCheck PETITIONS_DATABASE.")
    except ConfigurationError as error:
        sys.exit(f"{error}\nCheck PETITIONS_DATABASE and the other settings that begin with PETITIONS_.")
