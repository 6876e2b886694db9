"""`mainspring jobs debug`: run a job again in this process, to see why it failed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback
from argparse import Namespace
from pathlib import Path
from types import TracebackType
from typing import Any

import mainspring
from mainspring.app import Mainspring
from mainspring.cli.exits import Exit, UsageError
from mainspring.cli.ids import BY_ID, full_id
from mainspring.cli.loading import load, opening
from mainspring.cli.parser import Commands, Parser, add_command
from mainspring.cli.table import printable
from mainspring.cli.terminal import Terminal
from mainspring.debug.run import DebugResult, DebugRun, Listener
from mainspring.errors import RunEnd
from mainspring.job import NewJob
from mainspring.stores.connect import connect, with_encryption

DETAIL = (
    "Calls the handler in this process, with the payload and the recorded outputs of its steps. The job is not\n"
    "claimed and nothing is written to the store; jobs that it would enqueue are printed. Everything else that its\n"
    "code does, such as calls of other services, really happens. A step that is not recorded runs only if you agree\n"
    "on the terminal or give --run-steps. To have a worker run the job again, use `mainspring jobs retry`."
)
OURS = (str(Path(mainspring.__file__).parent), str(Path(asyncio.__file__).parent), str(Path(contextlib.__file__)))


def add_debug(jobs: Commands) -> None:
    parser: Parser = add_command(
        jobs, "debug", debug_job, "run a retrying or finished job again, in this process", DETAIL
    )
    parser.add_argument("id", metavar="ID", help=f"the job, {BY_ID}")
    parser.add_argument("--run-steps", action="store_true", help="run steps that are not recorded, without asking")
    parser.add_argument("--from-step", metavar="NAME", help="ignore the record of this step and those after it")
    parser.add_argument("--pdb", action="store_true", help="open the debugger where it fails")
    parser.add_argument(
        "--app", metavar="MODULE:ATTRIBUTE", help="the application that has the job's task (or MAINSPRING_APP)"
    )
    parser.add_argument("--store", metavar="URL", help="the store that has the job, if not the application's own")


def debug_job(args: Namespace, terminal: Terminal) -> int:
    app = application(args, terminal)
    with opening(app):
        watching = Watching(terminal, run_steps=args.run_steps)
        args.id = full_id(app, args.id)
        debug_run = app.run(DebugRun.find(app, args.id, watching, from_step=args.from_step))
        recorded = ", ".join(map(repr, debug_run.recorded)) or "none"
        terminal.note(f"running {printable(debug_run.task.name)} {args.id}; recorded steps: {printable(recorded)}")
        with contextlib.redirect_stdout(sys.stderr) if terminal.json else contextlib.nullcontext():
            result = debug_run.run()
        if terminal.json:
            terminal.emit(as_data(args.id, result))
        else:
            say_end(terminal, result)
        if result.error is not None and args.pdb:
            import pdb  # noqa: T100 - what --pdb is for

            pdb.post_mortem(of_user(result.error.__traceback__))
    return Exit.OK if result.error is None and not result.stopped else Exit.FAILED


def application(args: Namespace, terminal: Terminal) -> Mainspring:
    if args.pdb and terminal.json:
        msg = "--pdb is for people and --json for programs: give only one of them"
        raise UsageError(msg, args.prog)
    path = args.app or os.environ.get("MAINSPRING_APP")
    if not path:
        msg = "the job's code is needed: give --app module:attribute, or set MAINSPRING_APP"
        raise UsageError(msg, args.prog)
    app = load(path)
    if args.store:
        app.runtime.store = with_encryption(connect(args.store))
    return app


class Watching(Listener):
    def __init__(self, terminal: Terminal, *, run_steps: bool) -> None:
        self._terminal = terminal
        self._run_steps = run_steps

    def said(self, text: str) -> None:
        self._terminal.note(printable(text))

    def may_run(self, step: str) -> bool:
        if self._run_steps:
            self.said(f"{step}: not recorded, so it is run")
            return True
        if self._terminal.json or not self._terminal.interactive:
            return False
        return self._terminal.confirm(f"{printable(step)} is not recorded: really run it?")

    def would(self, what: str, job: NewJob) -> None:
        self.said(f"would {what} {job.task} {job.payload} in queue {job.queue}")


def say_end(terminal: Terminal, result: DebugResult) -> None:
    error = result.error
    if result.stopped:
        terminal.say(f"stopped: {printable(result.stopped)}")
        terminal.note("give --run-steps to run what is not recorded")
    elif isinstance(error, RunEnd):
        terminal.say(f"it ended itself with {type(error).__name__}: {printable(error.reason) or 'no reason given'}")
    elif error is not None:
        trace = of_user(error.__traceback__)
        terminal.say("".join(traceback.format_exception(type(error), error, trace)).rstrip("\n"))
    else:
        terminal.say(f"completed, with result {printable(repr(result.result))}")


def as_data(job_id: str, result: DebugResult) -> dict[str, Any]:
    error = result.error
    return {
        "job": job_id,
        "end": "stopped" if result.stopped else "completed" if error is None else "failed",
        "result": result.result,
        "stopped": result.stopped or None,
        "error": None
        if error is None
        else {
            "type": type(error).__name__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(type(error), error, of_user(error.__traceback__))),
        },
        "steps_run": result.steps,
        "jobs": [
            {"would": what, "task": job.task, "queue": job.queue, "payload": job.payload} for what, job in result.jobs
        ],
    }


def of_user(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the user's own code on, without Mainspring's frames."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename.startswith(OURS):
        found = found.tb_next
    return found or trace
