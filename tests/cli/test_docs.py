"""docs/cli.md says all that the commands take, and nothing else. After a change: `python -m tests.cli.test_docs`."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.cli import build_parser
from mainspring.cli.exits import MEANINGS

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BLOCK = "<!-- options of {command} -->\n{table}<!-- end -->"
BLOCKS = re.compile(r"<!-- options of (?P<command>[a-z]+(?:[ -][a-z]+)*) -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)
SHARED = ("--help",)


def list_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for command in action.choices.values():
            yield from list_commands(command)


def test_the_short_help_names_all_commands_as_they_describe_themselves() -> None:
    """It is made without importing them."""
    assert build_parser(only="").format_help() == build_parser().format_help()


COMMANDS = {parser.prog: parser for parser in list_commands(build_parser())}


def make_table(parser: argparse.ArgumentParser) -> str:
    rows = [
        f"| {name_of(action)} | {(action.help or '').replace('|', '¦')} |"
        for action in parser._actions
        if is_shown(action)
    ]
    return "\n".join(["| argument | meaning |", "|---|---|", *rows, ""])


def is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not set(SHARED) & set(action.option_strings)


def name_of(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar}`"
    value = ""
    if action.nargs != 0:
        value = (
            f" {{{','.join(map(str, action.choices))}}}"
            if action.choices
            else f" {action.metavar or action.dest.upper()}"
        )
    return ", ".join(f"`{option}{value}`" for option in reversed(action.option_strings))


# -- tests ----------------------------------------------------------------------------------------


def documented() -> dict[str, str]:
    return {found["command"]: found["table"] for found in BLOCKS.finditer(PAGE.read_text())}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented_with_every_option(command: str) -> None:
    assert documented().get(command) == make_table(COMMANDS[command]), "run `python -m tests.cli.test_docs`"
    assert f"`{command}" in PAGE.read_text()


def test_nothing_is_documented_that_does_not_exist() -> None:
    assert documented().keys() == COMMANDS.keys()


def test_every_argument_has_a_help() -> None:
    for command, parser in COMMANDS.items():
        for action in parser._actions:
            assert action.help, f"{command} {action.dest}"


def test_every_exit_code_is_documented() -> None:
    text = PAGE.read_text()
    for code, meaning in MEANINGS.items():
        assert f"| {code.value} | {meaning} |" in text


EXAMPLES = re.findall(r"^\$ (mainspring [^\n|]*)", PAGE.read_text() if PAGE.exists() else "", re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_understood(example: str) -> None:
    build_parser().parse_args(shlex.split(example, comments=True)[1:])


def test_the_page_has_at_least_twenty_examples() -> None:
    assert len(EXAMPLES) >= 20


# -- writing --------------------------------------------------------------------------------------


def write() -> None:
    def replace(found: re.Match[str]) -> str:
        return BLOCK.format(command=found["command"], table=make_table(COMMANDS[found["command"]]))

    PAGE.write_text(BLOCKS.sub(replace, PAGE.read_text()))


if __name__ == "__main__":
    write()

pytestmark = pytest.mark.slow
