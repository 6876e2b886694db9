"""`mainspring tasks …`: list the tasks that workers have published, show one, and forget one that is gone."""

from __future__ import annotations

import json
from argparse import Namespace
from datetime import datetime

from mainspring.cli.exits import Exit
from mainspring.cli.loading import opened
from mainspring.cli.parser import (
    Commands,
    add_actor_options,
    add_command,
    add_command_about,
    add_group,
    add_store_options,
)
from mainspring.cli.queues import lines_of_settings
from mainspring.cli.table import Cell, Column
from mainspring.cli.terminal import Terminal
from mainspring.humanize import show_both, show_relative
from mainspring.json_data import plain
from mainspring.published import Description
from mainspring.published.effective import settings_of_task

COLUMNS = [
    Column("TASK", least=12),
    Column("QUEUE"),
    Column("PUBLISHED"),
    Column("BY", least=8, extra=True),
    Column("SUMMARY", least=12, extra=True),
]
SHOW = "Shows the JSON Schema of the task's payload, and the options of its jobs."
FORGET = "Its jobs stay. A worker that still has the task publishes it again when it starts."


def add_commands(commands: Commands) -> None:
    tasks = add_group(commands, "tasks", "look at the tasks that workers have published")
    add_store_options(add_command(tasks, "list", list_tasks, "list the published tasks"))
    what = "the task's name"
    add_command_about(tasks, "show", show_task, "show what is known of a task", SHOW, what=what, by="NAME")
    forget = add_command_about(
        tasks, "forget", forget_task, "remove the description of a task", FORGET, what=what, by="NAME"
    )
    add_actor_options(forget)


def list_tasks(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        found, now = app.run(app.published.list()), app.now()
    if terminal.json:
        terminal.emit({"tasks": found})
    elif found:
        terminal.table(COLUMNS, [row_of(task, now) for task in found])
    else:
        terminal.note("no tasks are published; workers publish theirs when they start")
    return Exit.OK


def row_of(task: Description, now: datetime) -> list[Cell]:
    published = "" if task.published_at is None else show_relative(task.published_at, now)
    return [task.name, task.queue, published, task.worker, task.summary]


def show_task(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        task, now = app.run(app.published.get(args.name)), app.now()
        settings = app.run(settings_of_task(app, task))
    if terminal.json:
        terminal.emit({"task": task, "settings": plain(settings)})
        return Exit.OK
    terminal.say(task.name, "heading")
    for line in [*lines_of(task, now), "settings that count for its jobs:", *lines_of_settings(settings)]:
        terminal.say(line)
    return Exit.OK


def lines_of(task: Description, now: datetime) -> list[str]:
    lines = [task.summary] if task.summary else []
    if task.published_at is not None:
        lines.append(f"published  {show_both(task.published_at, now)} by {task.worker}")
    lines.append(f"queue      {task.queue}")
    own = {name: value for name, value in task.options.items() if name != "queue"}
    lines += [f"{name:<10} {json.dumps(value, ensure_ascii=False)}" for name, value in own.items()]
    if task.chunk:
        lines.append("chunk      one call of its handler runs several jobs")
    if task.steps:
        lines.append(f"steps      {', '.join(task.steps)}")
    schema = f"none: {task.problem}" if task.schema is None else json.dumps(task.schema, indent=2, ensure_ascii=False)
    return [*lines, f"payload    {schema}"]


def forget_task(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        app.run(app.published.forget(args.name, reason=args.reason, actor=args.actor))
    if terminal.json:
        terminal.emit({"forgotten": args.name})
    else:
        terminal.say(f"{args.name} is forgotten")
    return Exit.OK
