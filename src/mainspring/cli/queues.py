"""`mainspring queues show`: the jobs of a queue, and which settings count for them."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable

from mainspring.cli.exits import Exit
from mainspring.cli.loading import opened
from mainspring.cli.parser import Commands, add_command_about, add_group
from mainspring.cli.terminal import Terminal
from mainspring.humanize import show_both
from mainspring.job import Counts, Status, check_queue
from mainspring.json_data import plain, plain_counts
from mainspring.published.effective import Effective, settings_of_queue

SHOW = """\
Shows the jobs of a queue per status, and for each setting of its jobs the value that counts and where it comes from. An
enqueue or a task may give its own."""


def add_commands(commands: Commands) -> None:
    queues = add_group(commands, "queues", "look at a queue and its settings")
    what = "the queue, such as mail"
    add_command_about(queues, "show", show_queue, "show a queue and its settings", SHOW, what=what, by="NAME")


def show_queue(args: Namespace, terminal: Terminal) -> int:
    queue = check_queue(args.name)
    with opened(args) as app:
        stats, settings, now = app.run(app.stats((queue,))), app.run(settings_of_queue(app, queue)), app.now()
    counts = next((counts for counts in stats.queues if counts.queue == queue), Counts(queue))
    if terminal.json:
        terminal.emit({"queue": {**plain_counts(counts, stats), "settings": plain(settings)}})
        return Exit.OK
    terminal.say(queue, "heading")
    terminal.say(", ".join(f"{counts[status]:,} {status.value}" for status in Status))
    if (oldest := stats.oldest_due.get(queue)) is not None:
        terminal.say(f"oldest due {show_both(oldest, now)}")
    for halt in stats.halts:
        if halt.queue in (None, queue):
            what = "halted, with the whole system," if halt.queue is None else "paused"
            terminal.say(f"{what} by {halt.actor}: {halt.reason}")
    for line in lines_of_settings(settings):
        terminal.say(line)
    return Exit.OK


def lines_of_settings(settings: Iterable[Effective]) -> list[str]:
    """Return a line for each setting that has a value."""
    return [
        f"{setting.option:<13}{json.dumps(plain(setting.value), ensure_ascii=False)}  ({setting.source})"
        for setting in settings
        if setting.value is not None
    ]
