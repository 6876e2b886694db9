"""`mainspring dead …`: the dead letters."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from datetime import datetime
from typing import Any

from mainspring.app import Mainspring
from mainspring.cli.changes import add_change_options, add_prudence_options, change_many, run_change
from mainspring.cli.exits import Exit
from mainspring.cli.filters import add_filter_options, make_filter
from mainspring.cli.ids import BY_ID, full_id
from mainspring.cli.job_table import ID, NOTE, PAYLOAD, QUEUE, TASK, TRIES, WHEN, columns_for
from mainspring.cli.jobs import DELETE, RETRY, add_sort_options, find_page, present_job, show_page
from mainspring.cli.loading import opened
from mainspring.cli.moments import parse_length
from mainspring.cli.paging import add_page_options
from mainspring.cli.parser import Commands, add_command, add_group, add_store_options
from mainspring.cli.table import Cell, Column
from mainspring.cli.terminal import Terminal
from mainspring.errors import JobNotFound
from mainspring.features.recovery.report import Recovery
from mainspring.humanize import show_relative
from mainspring.job import Job, Status
from mainspring.json_data import plain
from mainspring.stores.protocol import Filter

WHY = replace(NOTE, column=replace(NOTE.column, least=16))  # narrow enough to be shown at 80 columns
COLUMNS = (ID, TASK, WHEN, WHY, QUEUE, TRIES, PAYLOAD)
PURGE = replace(DELETE, verb="purge", done="purged")


def add_commands(commands: Commands) -> None:
    dead = add_group(commands, "dead", "look at dead letters, retry and purge them")
    add_list(dead)
    add_show(dead)
    add_retry(dead)
    add_purge(dead)
    detail = "A task's recovery retries its dead letters by itself; see `Recover` in the documentation."
    add_store_options(add_command(dead, "recoveries", list_recoveries, "show what tasks have recovered", detail))


def add_list(dead: Commands) -> None:
    parser = add_command(dead, "list", list_dead, "list dead letters, newest first or sorted")
    add_filter_options(parser, status=False)
    add_sort_options(parser)
    add_page_options(parser, cursor=str)
    add_store_options(parser)


def add_show(dead: Commands) -> None:
    parser = add_command(dead, "show", show_dead, "show a dead letter and why it failed")
    parser.add_argument("id", metavar="ID", help=f"the job, {BY_ID}")
    add_store_options(parser)


def add_retry(dead: Commands) -> None:
    detail = "By id or by filter. The jobs run now, with a full budget of attempts."
    add_change_options(add_command(dead, "retry", retry_dead, "run dead letters again", detail), status=False)


def add_purge(dead: Commands) -> None:
    detail = "Retention removes dead letters after 30 days, unless the application says otherwise; this does it now."
    parser = add_command(dead, "purge", purge_dead, "delete old dead letters", detail)
    parser.add_argument(
        "--older-than", type=parse_length, required=True, metavar="LENGTH",
        help="those that became dead letters longer ago than this: 12h, 7d; 0 for all",
    )  # fmt: skip
    add_prudence_options(parser)


def list_dead(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        now = app.now()
        page = find_page(app, dead_filter(args, now), args)
        show_page(args, terminal, page, now, columns_for(args.sort, COLUMNS))
    return Exit.OK


def show_dead(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        present_job(app, require_dead(app, full_id(app, args.id)), terminal)
    return Exit.OK


def retry_dead(args: Namespace, terminal: Terminal) -> int:
    return run_change(args, terminal, RETRY, lambda app: dead_filter(args, app.now()), check=require_dead)


def purge_dead(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        return change_many(
            args, terminal, PURGE, lambda **options: app.run(app.jobs.purge_dead(args.older_than, **options))
        )


def dead_filter(args: Namespace, now: datetime) -> Filter:
    return replace(make_filter(args, now), statuses=(Status.DEAD_LETTER,))


def require_dead(app: Mainspring, job_id: str) -> Job:
    job = app.run(app.jobs.get(job_id))
    if job.status is not Status.DEAD_LETTER:
        msg = f"job {job_id} is {job.status}, not a dead letter; see `mainspring jobs show {job_id}`"
        raise JobNotFound(msg)
    return job


# -- recoveries -----------------------------------------------------------------------------------

RECOVERIES = [
    Column("TASK", least=8),
    Column("LAST TIME"),
    Column("RECOVERED", right=True),
    Column("EXHAUSTED", right=True),
    Column("IN ALL", right=True),
    Column("NEXT LOOK"),
]


def list_recoveries(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        found, now = app.run(app.recoveries()), app.now()
    if terminal.json:
        terminal.emit({"recoveries": [recovery_data(recovery) for recovery in found]})
    elif found:
        terminal.table(RECOVERIES, [recovery_row(recovery, now) for recovery in found])
    else:
        terminal.note("no task has a recovery")
    return Exit.OK


def recovery_row(recovery: Recovery, now: datetime) -> list[Cell]:
    numbers = (f"{number:,}" for number in (recovery.recovered, recovery.exhausted, recovery.total))
    found, following = (show_relative(moment, now) for moment in (recovery.recovered_at, recovery.next_at))
    return [recovery.task, found, *numbers, following]


def recovery_data(recovery: Recovery) -> dict[str, Any]:
    names = ("task", "fired_at", "next_at", "recovered_at", "recovered", "exhausted", "total")
    return {name: plain(getattr(recovery, name)) for name in names}
