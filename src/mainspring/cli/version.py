"""`mainspring version`: print the version."""

from __future__ import annotations

import sys
from argparse import Namespace
from importlib.metadata import version

from mainspring.cli.exits import Exit
from mainspring.cli.parser import Commands, add_command
from mainspring.cli.terminal import Terminal


def add_commands(commands: Commands) -> None:
    add_command(commands, "version", say_version, "print the version")


def say_version(_args: Namespace, terminal: Terminal) -> int:
    if terminal.json:
        terminal.emit({"mainspring": version("mainspring"), "python": sys.version.split()[0]})
    else:
        terminal.say(f"mainspring {version('mainspring')}")
    return Exit.OK
