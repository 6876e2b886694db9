"""One name per meaning: every option of every command is in the table "Names of options" of docs/cli.md."""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import pytest

from mainspring.cli import build_parser
from tests.cli.test_docs import COMMANDS, PAGE

SECTION = re.compile(r"^## Names of options\n(?P<table>.*?)^## ", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| (?P<names>`-.*?`) \| (?P<meaning>.*) \|$", re.MULTILINE)
DETAIL = re.compile(r"[:;(,].*")  # of a help text: examples, defaults, what else to know


def read_table() -> list[tuple[tuple[str, ...], str]]:
    """Return the names and the meaning of each row."""
    section = SECTION.search(PAGE.read_text())
    assert section, "docs/cli.md has no table of the names of options"
    return [(tuple(re.findall(r"`(.*?)`", row["names"])), row["meaning"]) for row in ROW.finditer(section["table"])]


def options_of(parsers: Iterable[argparse.ArgumentParser]) -> list[argparse.Action]:
    actions = [action for parser in parsers for action in parser._actions]
    return [action for action in actions if action.option_strings and action.help != argparse.SUPPRESS]


OPTIONS = options_of([build_parser(only=""), *COMMANDS.values()])
ALLOWED = {names for names, _ in read_table()}


def names_of(action: argparse.Action) -> tuple[str, ...]:
    return tuple(sorted(action.option_strings, key=len, reverse=True))


def shared_meanings(names_and_meanings: Iterable[tuple[str, str]]) -> Mapping[str, set[str]]:
    """Return the meanings that more than one name has."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, meaning in names_and_meanings:
        found[DETAIL.sub("", meaning).strip().casefold()].add(name)
    return {meaning: names for meaning, names in found.items() if len(names) > 1}


@pytest.mark.parametrize("names", sorted({names_of(action) for action in OPTIONS}))
def test_every_option_has_a_name_from_the_table(names: tuple[str, ...]) -> None:
    written = ", ".join(names)
    assert names in ALLOWED, f"{written}: add it to the table in docs/cli.md or use an existing one"


def test_the_table_has_each_name_once_in_order_and_no_other_names() -> None:
    names = [names[0] for names, _ in read_table()]
    assert names == sorted(names)
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert {names_of(action) for action in OPTIONS} == ALLOWED


def test_no_two_names_of_the_table_have_the_same_meaning() -> None:
    assert shared_meanings((names[0], meaning) for names, meaning in read_table()) == {}


def test_no_two_names_have_the_same_help() -> None:
    assert shared_meanings((names_of(action)[0], action.help or "") for action in OPTIONS) == {}


def test_a_second_name_for_the_same_meaning_is_noticed() -> None:
    first, second = argparse.ArgumentParser(add_help=False), argparse.ArgumentParser(add_help=False)
    first.add_argument("--after", help="begin at this time, not now: ISO 8601")
    second.add_argument("--start", help="begin at this time (default: now)")
    found = shared_meanings((names_of(action)[0], action.help or "") for action in options_of([first, second]))
    assert found == {"begin at this time": {"--after", "--start"}}
