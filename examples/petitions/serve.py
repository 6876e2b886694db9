"""`python -m examples.petitions.serve`: the application as a process of its own, until SIGTERM or Ctrl-C.

The environment names the systems outside: PETITIONS_DATABASE, PETITIONS_HALT_URL, PETITIONS_ALERT_URL and
PETITIONS_NOTICE_URL. Other settings are PETITIONS_RETRY_DELAYS, PETITIONS_POLL_INTERVAL and so on; see `Settings`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from examples.petitions.system import PetitionSystem, Settings
from mainspring.errors import StoreUnavailable

PREFIX = "PETITIONS_"


def settings_of(environment: Mapping[str, str]) -> Settings:
    """Return the settings in environment variables; raise ValueError for one that is missing or wrong."""
    values: dict[str, Any] = {}
    for setting in dataclasses.fields(Settings):
        text = environment.get(PREFIX + setting.name.upper())
        if text is not None:
            values[setting.name] = value_of(setting, text)
        elif setting.default is dataclasses.MISSING:
            raise ValueError(f"{PREFIX}{setting.name.upper()} is not set; set it to a URL, see Settings in system.py")
    return Settings(**values)


def value_of(setting: dataclasses.Field[Any], text: str) -> Any:
    default = setting.default
    try:
        if isinstance(default, tuple):
            return tuple(float(part) for part in text.split(","))
        return text if default is dataclasses.MISSING else type(default)(text)
    except ValueError:
        example = ",".join(f"{part:g}" for part in default) if isinstance(default, tuple) else default
        raise ValueError(f"{PREFIX}{setting.name.upper()} is {text!r}; give a value such as {example}") from None


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
        sys.exit(str(error))
