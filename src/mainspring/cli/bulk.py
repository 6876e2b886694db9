"""`mainspring bulk …`: changes of many jobs in the background."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any

from mainspring.app import Mainspring
from mainspring.bulk.api import AffectedJob
from mainspring.bulk.change import BulkChange, filter_data
from mainspring.cli.exits import Exit
from mainspring.cli.loading import opened
from mainspring.cli.paging import add_page_options, say_more
from mainspring.cli.parser import (
    Commands,
    add_actor_options,
    add_command,
    add_command_about,
    add_group,
    add_store_options,
)
from mainspring.cli.system import show_detail
from mainspring.cli.table import Cell, Column
from mainspring.cli.terminal import Terminal
from mainspring.humanize import show_relative
from mainspring.json_data import plain

COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("ACTION"),
    Column("DONE", right=True),
    Column("CHANGED", right=True),
    Column("JOBS", right=True),
    Column("BEGUN"),
    Column("ACTOR", least=8),
)


JOB_COLUMNS = (Column("ID"), Column("STATUS"), Column("QUEUE", least=8), Column("TASK", least=8))


def add_commands(commands: Commands) -> None:
    line = "look at bulk changes, cancel them or let them go on"
    bulk = add_group(commands, "bulk", line)
    parser = add_command(bulk, "list", list_changes, "list bulk changes, newest first")
    add_page_options(parser)
    add_store_options(parser)
    add_command_about(bulk, "show", show_change, "show how far a bulk change is", what="the bulk change, by its id")
    line = "list the jobs that a bulk change has changed, also those that were deleted"
    add_page_options(add_command_about(bulk, "jobs", list_jobs, line, what="the bulk change, by its id"), str)
    for name, run, words in (
        ("cancel", cancel_change, "stop a bulk change; jobs that it has changed stay changed"),
        ("go-on", go_on, "let a bulk change go on that waits after its canary"),
    ):
        add_actor_options(add_command_about(bulk, name, run, words, what="the bulk change, by its id"))


def list_changes(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        page, now = app.run(app.bulk.list(limit=args.limit, cursor=args.cursor)), app.now()
    if terminal.json:
        terminal.emit(page)
        return Exit.OK
    if page.changes:
        terminal.table(COLUMNS, [row_of(change, now) for change in page.changes])
    else:
        terminal.note("no bulk changes")
    say_more(args, terminal, page.cursor)
    return Exit.OK


def row_of(change: BulkChange, now: datetime) -> Sequence[Cell]:
    return (
        change.id,
        change.state.value,
        change.action.value,
        f"{change.progress:.0%}",
        f"{change.changed:,}",
        f"{change.total:,}",
        show_relative(change.created_at, now),
        change.actor,
    )


def show_change(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        say_change(terminal, app.run(app.bulk.get(args.id)), app.now())
    return Exit.OK


def say_change(terminal: Terminal, change: BulkChange, now: datetime) -> None:
    if terminal.json:
        terminal.emit(change)
        return
    terminal.table(COLUMNS, [row_of(change, now)])
    where = terminal.shown_data({"detail": plain(filter_data(change.where))})["detail"]
    terminal.say(f"filter: {show_detail(where)}")
    for label, text in (("reason", change.reason), ("error", change.error)):
        if text:
            terminal.say(f"{label}: {text}")
    if change.conflicts:
        terminal.say(f"not retried, because other live jobs hold their dedupe keys: {change.conflicts:,}")


def list_jobs(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        page = app.run(app.bulk.jobs(args.id, limit=args.limit, cursor=args.cursor))
    if terminal.json:
        terminal.emit(page)
        return Exit.OK
    if page.jobs:
        terminal.table(JOB_COLUMNS, [job_row(affected) for affected in page.jobs])
    else:
        terminal.note("no jobs")
    say_more(args, terminal, page.cursor)
    return Exit.OK


def job_row(affected: AffectedJob) -> Sequence[Cell]:
    job = affected.job
    return (affected.id, "deleted", "", "") if job is None else (job.id, job.status.value, job.queue, job.task)


def cancel_change(args: Namespace, terminal: Terminal) -> int:
    return alter(args, terminal, lambda app: app.bulk.cancel(args.id, reason=args.reason, actor=args.actor))


def go_on(args: Namespace, terminal: Terminal) -> int:
    return alter(args, terminal, lambda app: app.bulk.go_on(args.id, reason=args.reason, actor=args.actor))


def alter(args: Namespace, terminal: Terminal, change: Callable[[Mainspring], Coroutine[Any, Any, BulkChange]]) -> int:
    with opened(args) as app:
        changed = app.run(change(app))
    if terminal.json:
        terminal.emit(changed)
    else:
        terminal.say(f"bulk change {changed.id} is {changed.state}")
    return Exit.OK
