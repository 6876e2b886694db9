"""`mainspring jobs …`: look at jobs and change them."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from mainspring.app import Mainspring
from mainspring.cli import debug
from mainspring.cli.changes import Change, add_change_options, run_change
from mainspring.cli.exits import Exit, UsageError
from mainspring.cli.filters import add_filter_options, make_filter
from mainspring.cli.ids import BY_ID, full_id
from mainspring.cli.job_page import say_job, say_title
from mainspring.cli.job_table import COLUMNS, JobColumn, columns_for, say_jobs
from mainspring.cli.loading import opened
from mainspring.cli.moments import parse_length, parse_when
from mainspring.cli.paging import add_page_options, say_more
from mainspring.cli.parser import (
    Commands,
    Parser,
    add_actor_options,
    add_command,
    add_command_about,
    add_group,
    add_store_options,
    parse_positive,
)
from mainspring.cli.table import printable
from mainspring.cli.terminal import Terminal
from mainspring.humanize import show_moment, show_relative
from mainspring.job import Job, Priority
from mainspring.jobs import Jobs
from mainspring.queue_patterns import is_among
from mainspring.redaction import has_mark, restored
from mainspring.stores.protocol import Filter, Page, Sort

CANCEL = Change("cancel", "cancelled", Jobs.cancel, Jobs.cancel_where)
RETRY = Change("retry", "retried", Jobs.retry, Jobs.retry_where)
DELETE = Change("delete", "deleted", Jobs.delete, Jobs.delete_where)
add_id_command = partial(add_command_about, what=f"the job, {BY_ID}")


def add_commands(commands: Commands) -> None:
    jobs = add_group(commands, "jobs", "look at jobs and change them")
    add_list(jobs)
    add_show(jobs)
    add_why(jobs)
    debug.add_debug(jobs)
    cancel = "Waiting jobs end at once; running jobs are asked to stop, and their worker ends them"
    add_change(jobs, "cancel", CANCEL, "cancel jobs", f"By id or by filter. {cancel}.")
    retry = "Retrying and cancelled jobs and dead letters run again now, with a full budget of attempts"
    add_change(jobs, "retry", RETRY, "run jobs again", f"By id or by filter. {retry}.").add_argument(
        "--from-step", metavar="NAME", help="repeat a durable function from this step on; keep the steps before it"
    )
    add_change(jobs, "delete", DELETE, "remove jobs and their history", "By id or by filter. Not for running jobs.")
    add_replay(jobs)
    add_reschedule(jobs)
    add_edit(jobs)


def add_list(jobs: Commands) -> None:
    parser = add_command(jobs, "list", list_jobs, "list jobs, newest first or sorted")
    add_filter_options(parser)
    add_sort_options(parser)
    add_page_options(parser, cursor=str)
    add_store_options(parser)


def add_sort_options(parser: Parser) -> None:
    parser.add_argument(
        "--sort", choices=[sort.value for sort in Sort], default=Sort.CREATED.value,
        help="the order (default: created); due has only waiting jobs, finished and duration only finished ones",
    )  # fmt: skip
    parser.add_argument("--ascending", action="store_true", help="the oldest, soonest, shortest or fewest first")


def add_show(jobs: Commands) -> None:
    add_id_command(jobs, "show", show_job, "show all there is to know about a job")


def add_why(jobs: Commands) -> None:
    add_id_command(jobs, "why", say_why, "say why a job does not run", "The decisive reason comes first.")


def add_change(jobs: Commands, name: str, change: Change, help: str, detail: str) -> Parser:
    def run(args: Namespace, terminal: Terminal) -> int:
        chosen = from_step(args, change) if getattr(args, "from_step", None) else change
        return run_change(args, terminal, chosen, lambda app: make_filter(args, app.now()), check=lambda *_: None)

    parser = add_command(jobs, name, run, help, detail)
    add_change_options(parser)
    return parser


def from_step(args: Namespace, change: Change) -> Change:
    """Return the change for --from-step. It needs ids, because jobs found by a filter may have different steps."""
    if not args.ids:
        msg = "--from-step needs the jobs' ids; it does not work with filters"
        raise UsageError(msg, args.prog)
    return replace(change, change_one=partial(Jobs.retry, from_step=args.from_step))


def add_replay(jobs: Commands) -> None:
    detail = "The finished job stays as it is. With --app, a new payload is checked against the task's arguments first."
    parser = add_id_command(jobs, "replay", replay_job, "run a finished job once more, as a new job", detail)
    parser.add_argument(
        "--from-step", metavar="NAME", help="repeat a durable function from this step on; keep the steps before it"
    )
    parser.add_argument("--payload", type=parse_payload, metavar="JSON", help="the whole new payload")
    add_actor_options(parser)


def add_reschedule(jobs: Commands) -> None:
    parser = add_id_command(jobs, "reschedule", reschedule_job, "move a waiting job to another time")
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--at", type=parse_when, metavar="TIME", help="ISO 8601, UTC without an offset; or now")
    when.add_argument("--in", type=parse_length, dest="delay", metavar="LENGTH", help="this long from now: 90s, 2h, 3d")
    add_actor_options(parser)


def add_edit(jobs: Commands) -> None:
    detail = "With --app, the payload is checked against the task's arguments first."
    parser = add_id_command(jobs, "edit", edit_job, "change a waiting job", detail)
    parser.add_argument("--payload", type=parse_payload, metavar="JSON", help="the whole new payload")
    parser.add_argument("--priority", choices=[level.name.lower() for level in Priority], help="the new priority")
    parser.add_argument("--queue", help="the queue to move it to")
    parser.add_argument("--max-attempts", type=parse_positive, metavar="N", help="the new number of attempts")
    add_actor_options(parser)


# -- looking --------------------------------------------------------------------------------------


def list_jobs(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        now = app.now()
        page = find_page(app, make_filter(args, now), args)
        show_page(args, terminal, page, now, columns_for(args.sort))
    return Exit.OK


def find_page(app: Mainspring, where: Filter, args: Namespace) -> Page:
    found = app.jobs.find(where, sort=args.sort, descending=not args.ascending, limit=args.limit, cursor=args.cursor)
    return app.run(found)


def show_page(
    args: Namespace, terminal: Terminal, page: Page, now: datetime, columns: Sequence[JobColumn] = COLUMNS
) -> None:
    if terminal.json:
        terminal.emit(page)
        return
    if page.jobs:
        say_jobs(terminal, map(terminal.shown, page.jobs), now, columns)
    else:
        nothing = "no jobs match" if args.cursor is None else "no more jobs"
        terminal.note("no jobs match so far" if page.partial else nothing)
    if page.partial:
        terminal.note("few of many jobs match; the list goes on")
    say_more(args, terminal, page.cursor)


def show_job(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        job = app.run(app.jobs.get(full_id(app, args.id)))
        present_job(app, job, terminal)
    return Exit.OK


def say_why(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        why = app.run(app.jobs.why(full_id(app, args.id)))
    job = terminal.about(why.job)
    if terminal.json:
        terminal.emit({"job": job, "reasons": why.reasons})
        return Exit.OK
    say_title(terminal, job)
    for number, reason in enumerate(why.reasons):
        terminal.say(printable(reason.text), "bold" if number == 0 else "")
    return Exit.OK


def present_job(app: Mainspring, job: Job, terminal: Terminal) -> None:
    attempts, timeline = app.run(app.jobs.attempts(job.id)), app.run(app.jobs.timeline(job.id))
    steps = app.run(app.jobs.steps(job.id))
    job = terminal.about(job)
    if terminal.json:
        terminal.emit({"job": job, "steps": steps, "attempts": attempts, "timeline": timeline})
    else:
        say_job(terminal, job, steps, attempts, timeline, now=app.now())


# -- changing one ---------------------------------------------------------------------------------


def reschedule_job(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        args.id = full_id(app, args.id)
        run_at = None if args.at is None else args.at.after(app.now())
        by = {"reason": args.reason, "actor": args.actor}
        app.run(app.jobs.reschedule(args.id, run_at=run_at, delay=args.delay, **by))
        return say_changed(app, args.id, terminal)


def replay_job(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        args.id, payload = full_id(app, args.id), args.payload
        if has_mark(payload):
            payload = as_it_was(app, app.run(app.jobs.get(args.id)), payload)
        by = {"reason": args.reason, "actor": args.actor}
        new_id = app.run(app.jobs.replay(args.id, from_step=args.from_step, payload=payload, **by))
        if terminal.json:
            terminal.emit({"job": app.run(app.jobs.get(new_id))})
        else:
            terminal.say(f"{new_id} replays {args.id}")
    return Exit.OK


def edit_job(args: Namespace, terminal: Terminal) -> int:
    wanted = {name: getattr(args, name) for name in ("payload", "priority", "queue", "max_attempts")}
    edit = {name: value for name, value in wanted.items() if value is not None}
    if not edit:
        msg = "say what to change: --payload, --priority, --queue or --max-attempts"
        raise UsageError(msg, args.prog)
    with opened(args) as app:
        args.id = full_id(app, args.id)
        if "payload" in edit and has_mark(edit["payload"]):
            job = app.run(app.jobs.get(args.id))
            edit |= {"payload": as_it_was(app, job, edit["payload"]), "expect": job.revision}
        app.run(app.jobs.edit(args.id, **edit, reason=args.reason, actor=args.actor))
        if args.queue is not None and not is_served(app, args.queue):
            terminal.note(f"no live worker takes from queue {args.queue!r}")
        return say_changed(app, args.id, terminal)


def as_it_was(app: Mainspring, job: Job, payload: Any) -> Any:
    """Return a payload with the values that the person was not shown."""
    return restored(payload, job.payload, app.redaction.of(job.task))


def is_served(app: Mainspring, queue: str) -> bool:
    workers = app.run(app.stats()).workers
    return any(worker.alive and is_among(queue, worker.queues) for worker in workers)


def say_changed(app: Mainspring, job_id: str, terminal: Terminal) -> int:
    job = app.run(app.jobs.get(job_id))
    if terminal.json:
        terminal.emit({"job": job})
    else:
        when = f"due {show_moment(job.run_at)} ({show_relative(job.run_at, app.now())})"
        terminal.say(f"{job.id} changed: {job.priority.name.lower()} in queue {job.queue}, {when}")
    return Exit.OK


# -- values ---------------------------------------------------------------------------------------


def parse_payload(text: str) -> Any:
    try:
        payload = json.loads(text)
    except ValueError as error:
        msg = f"the payload is not JSON: {error}"
        raise ArgumentTypeError(msg) from None
    if not isinstance(payload, dict):
        msg = f"the payload must be a JSON object of the task's arguments, not {text}"
        raise ArgumentTypeError(msg)
    return payload
