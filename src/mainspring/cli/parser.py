"""The parser of the command line, and the options that commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mainspring.cli.exits import MEANINGS, UsageError
from mainspring.cli.terminal import Terminal

Run = Callable[[argparse.Namespace, Terminal], int]
Commands = Any  # argparse's own type for sub-parsers is private
EXIT_CODES = "exit codes:\n" + "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())


class Help(argparse.RawDescriptionHelpFormatter):
    """Shows each command on one line. argparse forgets that commands are indented once more than options."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if action.nargs == argparse.PARSER:
            self._action_max_length += self._indent_increment


class Parser(argparse.ArgumentParser):
    """Raises UsageError for a wrong command line, so that `main` can print all errors in one place."""

    def __init__(self, **options: Any) -> None:
        defaults = {"formatter_class": Help, "allow_abbrev": False}
        super().__init__(**{**defaults, **options})

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.prog)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Report unknown arguments with the name of the command, not of the program."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            msg = f"unknown arguments: {' '.join(unknown)}"
            raise UsageError(msg, parsed.prog)
        return parsed


NO_PARSER = Parser(add_help=False)


def make_parser(*, is_line: bool = False, **options: Any) -> Parser:
    """Return a parser for a command. One that is only a line of the help needs none: making 30 of them takes 4 ms."""
    return NO_PARSER if is_line else Parser(**options)


class ShowVersion(argparse.Action):
    """The option `--version`. It looks up the version only when needed, because that imports a lot."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show program's version number and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"mainspring {version('mainspring')}")
        parser.exit()


def add_group(commands: Commands, name: str, help: str) -> Commands:
    group: Parser = commands.add_parser(name, help=help, description=sentence(help))
    return group.add_subparsers(dest="subcommand", metavar="COMMAND", required=True, parser_class=Parser)


def add_command(commands: Commands, name: str, run: Run, help: str, detail: str = "") -> Parser:
    """Add a command with what every command has: `--json`, and the exit codes in its help."""
    description = f"{sentence(help)}\n\n{detail}" if detail else sentence(help)
    parser: Parser = commands.add_parser(name, help=help, description=description, epilog=EXIT_CODES)
    parser.add_argument("--json", action="store_true", help="print JSON, errors included")
    parser.set_defaults(run=run, prog=parser.prog)
    return parser


def add_command_about(
    commands: Commands, name: str, run: Run, help: str, detail: str = "", *, what: str, by: str = "ID"
) -> Parser:
    """Add a command about one thing in a store, whose id or name is the first argument."""
    parser = add_command(commands, name, run, help, detail)
    parser.add_argument(by.lower(), metavar=by, help=what)
    add_store_options(parser)
    return parser


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def add_store_options(parser: Parser) -> Any:
    """Add `--unredacted`, `--app` and `--store`; return the group of the latter, of which only one may be given."""
    parser.add_argument("--unredacted", action="store_true", help="print secrets as they are, not as [redacted]")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--app", metavar="MODULE:ATTRIBUTE", help="the application whose store to use (or MAINSPRING_APP)"
    )
    source.add_argument(
        "--store", metavar="URL", help="the store's URL (or MAINSPRING_STORE; default: ./mainspring.db if it exists)"
    )
    return source


def add_actor_options(parser: Parser) -> None:
    parser.add_argument("--reason", default="", help="why, for the audit log")
    add_actor_option(parser)


def add_actor_option(parser: Parser) -> None:
    parser.add_argument("--actor", help="who, for the audit log (default: your account and machine)")


# -- values ---------------------------------------------------------------------------------------


def parse_names(text: str) -> list[str]:
    """Parse names with commas between them, such as `mail, default`."""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def parse_positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        msg = f"{text!r} is not a whole number of at least 1"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
