"""`mainspring stats` on a screen: queues, workers, halts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mainspring.cli.table import Cell, Column, Styled
from mainspring.cli.terminal import STATUS_STYLES, Terminal
from mainspring.humanize import show_length, show_moment, show_relative
from mainspring.job import Counts, Status
from mainspring.stores.protocol import DueTask, Halt, Stats, WorkerInfo, shown_due

ALWAYS = (Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.DEAD_LETTER)
TITLES = {Status.DEAD_LETTER: "DEAD"}


def say_stats(terminal: Terminal, stats: Stats, now: datetime) -> None:
    for halt in stats.halts:
        terminal.say(describe_halt(halt, now), "yellow")
    if stats.halts:
        terminal.say()
    say_queues(terminal, stats, now)
    if stats.stalled:
        terminal.say(f"{stats.stalled:,} jobs run longer than their timeout and grace", "yellow")
    for queue, oldest in sorted(stats.oldest_dead.items()):
        terminal.say(f"the oldest dead letter of queue {queue} failed {show_relative(oldest, now)}", "dim")
    for task in stats.unknown_tasks:
        terminal.say(describe_unknown(task, now), "yellow")
    terminal.say()
    say_workers(terminal, stats.workers, now)


def describe_halt(halt: Halt, now: datetime) -> str:
    what = "the whole system is halted" if halt.queue is None else f"queue {halt.queue} is paused"
    refused = "" if halt.accept else ", new jobs are rejected"
    end = "" if halt.until is None else f", until {show_moment(halt.until)} ({show_relative(halt.until, now)})"
    reason = f": {halt.reason}" if halt.reason else ""
    return f"{what}{refused} since {show_relative(halt.since, now)}{end}, by {halt.actor}{reason}"


# -- queues ---------------------------------------------------------------------------------------


def say_queues(terminal: Terminal, stats: Stats, now: datetime) -> None:
    if not stats.queues:
        terminal.note("no jobs yet")
        return
    shown = [status for status in Status if status in ALWAYS or any(counts[status] for counts in stats.queues)]
    columns = [
        Column("QUEUE", least=8),
        Column("DUE", right=True),
        Column("WAITING", right=True),
        *(Column(TITLES.get(status, status.upper()), right=True) for status in shown),
    ]
    rows = [queue_row(counts, shown, stats, now) for counts in stats.queues]
    if len(rows) > 1:
        rows.append(total_row(shown, stats))
    terminal.table(columns, rows)
    if stats.estimated:
        terminal.note("counts are estimates")


def queue_row(counts: Counts, shown: Sequence[Status], stats: Stats, now: datetime) -> Sequence[Cell]:
    oldest = stats.oldest_due.get(counts.queue)
    waiting = "" if oldest is None else show_length(max(0, int((now - oldest).total_seconds())))
    numbers = (number_cell(counts[status], STATUS_STYLES[status]) for status in shown)
    return counts.queue, due_cell(stats.due.get(counts.queue, 0)), waiting, *numbers


def total_row(shown: Sequence[Status], stats: Stats) -> Sequence[Cell]:
    numbers = (number_cell(sum(counts[status] for counts in stats.queues), "bold") for status in shown)
    return Styled("total", "bold"), due_cell(sum(stats.due.values())), "", *numbers


def number_cell(number: int, style: str) -> Styled:
    return Styled(f"{number:,}", style if number else "dim")


def due_cell(number: int) -> Styled:
    return Styled(shown_due(number), "cyan" if number else "dim")


def describe_unknown(task: DueTask, now: datetime) -> str:
    due, oldest = shown_due(task.due), show_relative(task.oldest_due, now)
    return f"no live worker of queue {task.queue} knows task {task.task}: {due} due, the oldest {oldest}"


# -- workers --------------------------------------------------------------------------------------


def say_workers(terminal: Terminal, workers: Sequence[WorkerInfo], now: datetime) -> None:
    if not workers:
        terminal.note("no workers; start one with: mainspring worker module:app")
        return
    any_stuck = any(worker.stuck for worker in workers)
    columns = (
        Column("WORKER", least=12),
        Column("STATE"),
        Column("SEEN"),
        Column("UP", right=True),
        Column("PID", right=True),
        Column("SLOTS", right=True),
        *([Column("STUCK", right=True)] if any_stuck else []),
        Column("QUEUES", least=8),
    )
    terminal.table(columns, [worker_row(worker, now, any_stuck=any_stuck) for worker in workers])


def worker_row(worker: WorkerInfo, now: datetime, *, any_stuck: bool = False) -> Sequence[Cell]:
    up = "" if worker.started_at is None else show_length(int((now - worker.started_at).total_seconds()))
    return (
        worker.id,
        Styled("alive", "green") if worker.alive else Styled("dead", "red"),
        show_relative(worker.seen_at, now),
        up,
        str(worker.pid),
        str(worker.concurrency),
        *([number_cell(worker.stuck, "red")] if any_stuck else []),
        ", ".join(worker.queues),
    )
