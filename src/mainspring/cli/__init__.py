"""The command line: `mainspring worker`, `enqueue`, `jobs`, `dead`, `schedules`, `people`, `halt`, `doctor`, …

Each module of commands has `add_commands`, which says what they take, and per command a function from the arguments and
the terminal to an exit code. Only the module of the command that was given is imported: the others would take longer
than most commands take to run. What goes wrong is raised, and said here in one line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from mainspring.cli import logs
from mainspring.cli.exits import Exit, UsageError, exit_code_of
from mainspring.cli.parser import EXIT_CODES, Parser, ShowVersion
from mainspring.cli.terminal import Terminal
from mainspring.errors import MainspringError

__all__ = ["entry", "main"]

COMMANDS = {  # per module its commands, each with its line in `mainspring --help`
    "worker": {"worker": "run jobs"},
    "enqueue": {"enqueue": "enqueue a job", "signal": "send a signal to durable functions"},
    "jobs": {"jobs": "look at jobs and change them"},
    "dead": {"dead": "look at jobs that gave up, retry and purge them"},
    "batches": {"batches": "look at batches of jobs and cancel them"},
    "schedules": {"schedules": "look at schedules, try changes out, and make them"},
    "people": {"people": "look at people, delete and import them"},
    "occasions": {"occasions": "look ahead at people's occasions"},
    "breakers": {"breakers": "look at circuit breakers, open and close them"},
    "limits": {"limits": "show limits, rates and fair tasks that are in use"},
    "system": {
        "halt": "start no more jobs, anywhere",
        "resume": "end the halt, or with --queue the pause of one queue",
        "pause": "start no more jobs of one queue",
        "stats": "count jobs per queue, and show workers and halts",
        "audit": "show who changed what by hand, newest first",
    },
    "migrate": {"migrate": "make the store's tables, or bring them up to date"},
    "copy": {"copy": "copy all jobs of one store into another"},
    "doctor": {"doctor": "check that all is well, and say what to do if not"},
    "bench": {"bench": "measure this machine"},
    "version": {"version": "print the version"},
}


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
    parser = build_parser(only=next((word for word in argv if not word.startswith("-")), ""))
    if not argv:
        parser.print_help(terminal.err)
        return Exit.USAGE
    args = parser.parse_args(argv)
    args.argv = argv
    logs.set_up("warning", as_json=terminal.json, structlog=names_app(args))
    try:
        code: int = args.run(args, terminal)
    except UsageError as error:
        error.command = args.prog
        raise
    terminal.out.flush()
    return code


def names_app(args: Namespace) -> bool:
    """Whether the command imports an application, which may log through structlog."""
    return bool(getattr(args, "app", None) or os.environ.get("MAINSPRING_APP"))


def build_parser(only: str | None = None) -> Parser:
    """Return the parser of all commands. With `only` it knows of the others no more than their lines in the help."""
    parser = Parser(prog="mainspring", description="Durable jobs for Python.", epilog=EXIT_CODES)
    parser.add_argument("--version", action=ShowVersion)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for module, lines in COMMANDS.items():
        if only is None or only in lines:
            import_module(f"mainspring.cli.{module}").add_commands(commands)
        else:
            for name, line in lines.items():
                commands.add_parser(name, help=line)
    return parser


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
