"""`mainspring enqueue` and `mainspring signal`: enqueue jobs and send signals by hand."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

from mainspring.app import Mainspring
from mainspring.cli.exits import Exit, UsageError
from mainspring.cli.filters import parse_target
from mainspring.cli.loading import opened, opened_to_fill
from mainspring.cli.moments import parse_length, parse_when
from mainspring.cli.parser import Commands, Parser, add_command, add_store_options, parse_names
from mainspring.cli.terminal import Terminal
from mainspring.errors import InvalidPayload, UnknownTask
from mainspring.handle import JobHandle
from mainspring.humanize import show_moment, show_relative
from mainspring.job import PriorityName
from mainspring.published.api import UNCHECKED

STDIN = "-"
ENQUEUE = """\
The payload is checked, and the task gives its queue, retries and timeout: the task of the application (--app), or what
a worker has published of it in the store (--store). JSON is the payload as `mainspring jobs show` shows it: for most
tasks an object of the arguments. Use - to read it from standard input."""
SIGNAL = """\
Jobs that wait for the key continue, and so do jobs that begin to wait for it while the signal is kept. JSON is the
payload that they get, or - to read it from standard input."""


def add_commands(commands: Commands) -> None:
    add_enqueue(commands)
    add_signal(commands)


def add_enqueue(commands: Commands) -> None:
    parser = add_command(commands, "enqueue", enqueue_job, "enqueue a job", ENQUEUE)
    parser.add_argument("task", metavar="TASK", help="the task's name")
    parser.add_argument("payload", metavar="JSON", nargs="?", default="{}", help="its arguments (default: none)")
    add_time_options(parser)
    parser.add_argument("--queue", help="use this queue instead of the task's")
    parser.add_argument("--priority", choices=get_args(PriorityName), help="use this priority instead of the task's")
    parser.add_argument("--dedupe-key", metavar="KEY", help="enqueue nothing if a job already holds this key")
    parser.add_argument("--target", type=parse_target, metavar="TYPE:ID", help="what the job is about: reservation:r7")
    parser.add_argument("--allow-unknown", action="store_true", help="enqueue it unchecked if no worker published it")
    parser.add_argument("--tag", action="extend", type=parse_names, default=[], metavar="TAG[,…]", help="its tags")
    add_store_options(parser)


def add_time_options(parser: Parser) -> None:
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--at", type=parse_when, metavar="TIME", help="run it then: ISO 8601; UTC without an offset")
    when.add_argument("--in", type=parse_length, dest="delay", metavar="LENGTH", help="run it this much later: 90s, 2h")


def add_signal(commands: Commands) -> None:
    parser = add_command(commands, "signal", send_signal, "send a signal to durable functions", SIGNAL)
    parser.add_argument("key", metavar="KEY", help="the key that the jobs wait for: checked_in:r1")
    parser.add_argument("payload", metavar="JSON", nargs="?", default="null", help="its payload (default: null)")
    parser.add_argument("--id", metavar="ID", help="send the signal once, even if this is repeated with the same id")
    add_store_options(parser)


# -- running them ---------------------------------------------------------------------------------


def enqueue_job(args: Namespace, terminal: Terminal) -> int:
    payload = read_json(args.payload, "the payload")
    with opened_to_fill(args) as app:
        options = options_of(args, app)
        with advice_of_the_command():
            handle = app.enqueue_sync(args.task, payload, allow_unknown=args.allow_unknown, **options)
        say_enqueued(app, handle, terminal)
    return Exit.OK


@contextmanager
def advice_of_the_command() -> Iterator[None]:
    """Let errors advise the option of this command, not the argument of Python."""
    try:
        yield
    except (UnknownTask, InvalidPayload) as error:
        error.args = tuple(text.replace(UNCHECKED, "add --allow-unknown") for text in error.args)
        raise


def options_of(args: Namespace, app: Mainspring) -> dict[str, Any]:
    """Return only the options that were given; the task has its own values for the rest."""
    options = {
        "delay": args.delay,
        "run_at": None if args.at is None else args.at.after(app.now()),
        "queue": args.queue,
        "priority": args.priority,
        "dedupe_key": args.dedupe_key,
        "target": args.target,
        "tags": args.tag or None,
    }
    return {name: value for name, value in options.items() if value is not None}


def say_enqueued(app: Mainspring, handle: JobHandle[Any], terminal: Terminal) -> None:
    job = app.run(app.jobs.get(handle.id))
    if terminal.json:
        terminal.emit({"job": job, "created": handle.created})
        return
    when = f"due {show_moment(job.run_at)} ({show_relative(job.run_at, app.now())})"
    terminal.say(f"{job.id} enqueued in {job.queue}, {when}" if handle.created else f"{job.id} already exists")


def send_signal(args: Namespace, terminal: Terminal) -> int:
    payload = read_json(args.payload, "the signal's payload")
    with opened(args) as app:
        signal = app.run(app.signal(args.key, payload, id=args.id))
    if terminal.json:
        terminal.emit({"signal": signal})
    else:
        terminal.say(f"signal {signal.id} sent to jobs that wait for {signal.key}")
    return Exit.OK


def read_json(text: str, what: str) -> Any:
    given = sys.stdin.read() if text == STDIN else text
    try:
        return json.loads(given)
    except ValueError as error:
        msg = f"{what} is not JSON: {error}"
        raise UsageError(msg) from None
