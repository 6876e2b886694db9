"""The command line: `mainspring worker`, `enqueue`, `jobs`, `dead`, `schedules`, `people`, `halt`, `doctor`, …

Each module of commands has `add_commands`, which says what they take, and per command a function from the arguments and
the terminal to an exit code. What goes wrong is raised, and said here in one line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from mainspring.cli import (
    batches,
    bench,
    breakers,
    copy,
    dead,
    doctor,
    enqueue,
    jobs,
    limits,
    logs,
    migrate,
    occasions,
    people,
    schedules,
    system,
    worker,
)
from mainspring.cli.exits import Exit, UsageError, exit_code_of
from mainspring.cli.parser import EXIT_CODES, Commands, Parser, add_command
from mainspring.cli.terminal import Terminal
from mainspring.errors import MainspringError

__all__ = ["entry", "main"]


def entry() -> NoReturn:
    """The program. Once its command is done, a signal changes nothing; one that was interrupted waits for no thread."""
    code = main()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if code == Exit.INTERRUPTED:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    make_streams_lenient()
    terminal = Terminal(json_wanted="--json" in argv)
    try:
        return run(argv, terminal)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    except KeyboardInterrupt:
        terminal.err.write("\n" if terminal.interactive else "")
        return Exit.INTERRUPTED
    except BrokenPipeError:  # the reader (`| head`) has all it wants
        silence_stdout()
        return Exit.OK
    except Exception as error:  # noqa: BLE001 - the last resort
        return explain(error, terminal)


def run(argv: list[str], terminal: Terminal) -> int:
    parser = build_parser()
    if not argv:
        parser.print_help(terminal.err)
        return Exit.USAGE
    args = parser.parse_args(argv)
    args.argv = argv
    logs.set_up("warning", as_json=terminal.json)
    try:
        code: int = args.run(args, terminal)
    except UsageError as error:
        error.command = args.prog
        raise
    terminal.out.flush()
    return code


def build_parser() -> Parser:
    parser = Parser(prog="mainspring", description="Durable jobs for Python.", epilog=EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"mainspring {version('mainspring')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for module in (
        worker, enqueue, jobs, dead, batches, schedules, people, occasions, breakers, limits, system, migrate, copy,
        doctor, bench,
    ):  # fmt: skip
        module.add_commands(commands)
    add_version(commands)
    return parser


def add_version(commands: Commands) -> None:
    def say_version(_args: Namespace, terminal: Terminal) -> int:
        if terminal.json:
            terminal.emit({"mainspring": version("mainspring"), "python": sys.version.split()[0]})
        else:
            terminal.say(f"mainspring {version('mainspring')}")
        return Exit.OK

    add_command(commands, "version", say_version, "print the version")


def explain(error: Exception, terminal: Terminal) -> int:
    """One line; the traceback only for those who ask for it."""
    if os.environ.get("MAINSPRING_DEBUG") == "1":
        traceback.print_exception(error, file=terminal.err)
    if isinstance(error, UsageError):
        terminal.report(error)
        if not terminal.json:
            terminal.note(f"see {error.command} --help")
        return Exit.USAGE
    if isinstance(error, MainspringError):
        terminal.report(error)
        return exit_code_of(error)
    terminal.report(error, f"{type(error).__name__}: {error} (MAINSPRING_DEBUG=1 shows the traceback)")
    return Exit.FAILED


def make_streams_lenient() -> None:
    """A terminal that cannot show a character shows another, rather than end the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def silence_stdout() -> None:
    """Python flushes at exit, and would complain about the pipe once more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
