"""`mainspring batches show`: how far a batch is."""

from __future__ import annotations

from argparse import Namespace

from mainspring.cli.exits import Exit
from mainspring.cli.loading import opened
from mainspring.cli.parser import Commands, add_command_about, add_group
from mainspring.cli.progress import draw_bar
from mainspring.cli.terminal import Terminal, has_colour
from mainspring.flow.tally import BatchProgress


def add_commands(commands: Commands) -> None:
    batches = add_group(commands, "batches", "look at batches of jobs")
    add_command_about(batches, "show", show_batch, "show how far a batch is", what="the batch")


def show_batch(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        progress = app.run(app.batches.progress(args.id))
    if terminal.json:
        told = {"done": progress.done, "fraction": progress.fraction, "finished": progress.finished}
        terminal.emit({"batch": {**progress.to_data(), **told}})
    else:
        bar = draw_bar(progress.fraction, colour=has_colour(terminal.out))
        terminal.say(f"{bar} {progress.fraction:4.0%}  {words_for(progress)}")
    return Exit.OK


def words_for(progress: BatchProgress) -> str:
    counts = {
        "completed": progress.completed,
        "dead": progress.failed,
        "cancelled": progress.cancelled,
        "gone": progress.gone,
        "to come": progress.total - progress.done,
    }
    shown = [f"{number:,} {name}" for name, number in counts.items() if number]
    return f"{progress.done:,} of {progress.total:,}: {', '.join(shown) or 'nothing to do'}"
