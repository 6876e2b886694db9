"""The command line: `mainspring worker`, `enqueue`, `jobs`, `dead`, `schedules`, `people`, `halt`, `doctor`, …

Each module of commands has `add_commands`, which declares their arguments, and a function per command that takes the
arguments and the terminal and returns an exit code. Only the module of the given command is imported: importing the
others would take longer than most commands take to run. Commands raise errors, and this module prints them in one line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, cast

from mainspring.cli import logs
from mainspring.cli.exits import Exit, UsageError, exit_code_of
from mainspring.cli.parser import EXIT_CODES, Parser, ShowVersion, make_parser
from mainspring.cli.terminal import Terminal
from mainspring.errors import MainspringError

__all__ = ["entry", "main"]

COMMANDS = {  # the commands of each module, each with its line in `mainspring --help`
    "worker": {"worker": "run jobs"},
    "serve": {"serve": "serve the HTTP API, and run jobs", "config": "check the settings of the service"},
    "tokens": {"tokens": "create, list and revoke tokens for the HTTP API"},
    "enqueue": {"enqueue": "enqueue a job", "signal": "send a signal to durable functions"},
    "tasks": {"tasks": "look at the tasks that workers have published"},
    "jobs": {"jobs": "look at jobs and change them"},
    "queues": {"queues": "look at a queue and its settings"},
    "dead": {"dead": "look at dead letters, retry and purge them"},
    "failures": {"failures": "look at failure groups, resolve, mute and retry them"},
    "bulk": {"bulk": "look at bulk changes, cancel them or let them go on"},
    "batches": {"batches": "look at batches of jobs and cancel them"},
    "schedules": {"schedules": "look at schedules, preview changes and make them"},
    "people": {"people": "look at people, delete and import them"},
    "occasions": {"occasions": "look ahead at people's occasions"},
    "breakers": {"breakers": "look at circuit breakers, open and close them"},
    "limits": {"limits": "show limits, rates and fair tasks that are in use"},
    "follow": {"follow": "print changes of jobs, workers and halts as they happen"},
    "subscribers": {"subscribers": "look at durable subscribers of the change feed, forget one"},
    "settings": {"settings": "change limits, retries, timeouts and pauses at run time"},
    "system": {
        "halt": "stop starting jobs, on all workers",
        "resume": "end the halt, or the pause of one queue",
        "pause": "stop starting jobs of one queue",
        "stats": "count jobs per queue, and show workers and halts",
        "audit": "show who changed what by hand, newest first",
    },
    "keys": {"keys": "make, list and change encryption keys"},
    "metrics": {"metrics": "print a dashboard for Grafana, and alert rules for Prometheus"},
    "migrate": {"migrate": "create the store's tables, or bring them up to date"},
    "copy": {"copy": "copy all jobs of one store into another"},
    "doctor": {"doctor": "check that all is well, and say what to do if not"},
    "bench": {"bench": "measure this machine"},
    "version": {"version": "print the version"},
}


def entry() -> NoReturn:
    """Run the program. Once the command is done, ignore signals; after an interrupt, do not wait for threads."""
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
    except BrokenPipeError:  # the reader, such as `| head`, has stopped reading
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
    args.argv, args.terminal = argv, terminal
    logs.set_up("warning", as_json=terminal.json, import_structlog=False)
    try:
        code: int = args.run(args, terminal)
    except UsageError as error:
        error.command = args.prog
        raise
    terminal.out.flush()
    return code


def build_parser(only: str | None = None) -> Parser:
    """Return the parser of all commands. With `only`, the other commands have only their lines in the help."""
    parser = Parser(prog="mainspring", description="Durable jobs for Python.", epilog=EXIT_CODES)
    parser.add_argument("--version", action=ShowVersion)
    make = cast("type[Parser]", make_parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=make)
    for module, lines in COMMANDS.items():
        if only is None or only in lines:
            import_module(f"mainspring.cli.{module}").add_commands(commands)
        else:
            for name, line in lines.items():
                commands.add_parser(name, help=line, is_line=True)
    return parser


def explain(error: Exception, terminal: Terminal) -> int:
    """Print an error in one line, with the traceback only if MAINSPRING_DEBUG=1, and return the exit code."""
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
    """Let a terminal that cannot show a character show another one, instead of ending the command with an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def silence_stdout() -> None:
    """Redirect stdout to /dev/null: Python flushes at exit, and would report the broken pipe again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
