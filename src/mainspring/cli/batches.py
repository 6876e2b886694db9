"""`mainspring batches`: list batches, show how far one is, and cancel one."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime

from mainspring.cli.changes import add_prudence_options, change_many
from mainspring.cli.exits import Exit
from mainspring.cli.ids import BY_ID, full_batch_id
from mainspring.cli.jobs import CANCEL
from mainspring.cli.loading import opened
from mainspring.cli.paging import add_page_options, say_more
from mainspring.cli.parser import Commands, add_command, add_command_about, add_group, add_store_options
from mainspring.cli.progress import draw_bar
from mainspring.cli.table import Cell, Column, Styled
from mainspring.cli.terminal import STATUS_STYLES, Terminal, has_colour
from mainspring.features.batches.rules import BatchProgress, BatchState, BatchSummary, Tally
from mainspring.humanize import show_relative
from mainspring.job import Status

COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("CREATED"),
    Column("JOBS", right=True),
    Column("ENDED", least=12),
)
STYLES = {
    BatchState.COMING_IN: STATUS_STYLES[Status.PENDING],
    BatchState.RUNNING: STATUS_STYLES[Status.RUNNING],
    BatchState.FINISHED: STATUS_STYLES[Status.COMPLETED],
    BatchState.ABANDONED: STATUS_STYLES[Status.CANCELLED],
}


def add_commands(commands: Commands) -> None:
    batches = add_group(commands, "batches", "look at batches of jobs and cancel them")
    add_list(batches)
    add_command_about(batches, "show", show_batch, "show how far a batch is", what=f"the batch, {BY_ID}")
    add_cancel(batches)


def add_list(batches: Commands) -> None:
    parser = add_command(batches, "list", list_batches, "list batches, newest first")
    add_page_options(parser)
    add_store_options(parser)


def add_cancel(batches: Commands) -> None:
    detail = (
        "Cancels the jobs that have not finished: waiting jobs end at once; running jobs are asked to stop, and their\n"
        "worker ends them. Then on_failure and on_finished follow."
    )
    parser = add_command(batches, "cancel", cancel_batch, "cancel the jobs of a batch", detail)
    parser.add_argument("id", metavar="ID", help=f"the batch, {BY_ID}")
    add_prudence_options(parser)


def list_batches(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        page = app.run(app.batches.list(limit=args.limit, cursor=args.cursor))
        now = app.now()
    if terminal.json:
        terminal.emit(page)
        return Exit.OK
    if page.batches:
        terminal.table(COLUMNS, [row_of(batch, now) for batch in page.batches])
    else:
        terminal.note("no batches" if args.cursor is None else "no more batches")
    say_more(args, terminal, page.cursor)
    return Exit.OK


def row_of(batch: BatchSummary, now: datetime) -> Sequence[Cell]:
    ended = "" if batch.ended is None else ", ".join(count_ends(batch.ended))
    created = show_relative(batch.created_at, now)
    return (batch.id, Styled(batch.state, STYLES[batch.state]), created, f"{batch.total:,}", Styled(ended, "dim"))


def cancel_batch(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        batch = full_batch_id(app, args.id)
        return change_many(args, terminal, CANCEL, lambda **options: app.run(app.batches.cancel(batch, **options)))


def show_batch(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        progress = app.run(app.batches.progress(full_batch_id(app, args.id)))
    if terminal.json:
        terminal.emit({"batch": progress.to_report()})
    else:
        bar = draw_bar(progress.fraction, colour=has_colour(terminal.out))
        terminal.say(f"{bar} {progress.fraction:4.0%}  {words_for(progress)}")
    return Exit.OK


def words_for(progress: BatchProgress) -> str:
    left = progress.total - progress.done
    shown = [*count_ends(progress), *([f"{left:,} to come"] if left else [])]
    return f"{progress.done:,} of {progress.total:,}: {', '.join(shown) or 'nothing to do'}"


def count_ends(ended: BatchProgress | Tally) -> list[str]:
    counts = {"completed": ended.completed, "dead": ended.failed, "cancelled": ended.cancelled, "gone": ended.gone}
    return [f"{number:,} {name}" for name, number in counts.items() if number]
