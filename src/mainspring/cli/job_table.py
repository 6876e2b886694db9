"""Jobs as the rows of a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from mainspring.cli.table import Cell, Column, Styled, cut
from mainspring.cli.terminal import STATUS_STYLES, Terminal
from mainspring.clock import to_millis
from mainspring.humanize import show_length, show_relative
from mainspring.job import UNTIL_WOKEN, Job, Status
from mainspring.stores.protocol import Sort

MAX_PAYLOAD_CHARS = 80


@dataclass(frozen=True, slots=True)
class JobColumn:
    column: Column
    cell: Callable[[Job, datetime], Cell]


def say_jobs(terminal: Terminal, jobs: Iterable[Job], now: datetime, columns: Sequence[JobColumn]) -> None:
    rows = [[column.cell(job, now) for column in columns] for job in jobs]
    terminal.table([column.column for column in columns], rows)


def show_when(job: Job, now: datetime) -> str:
    """Return when the job ended, how long it has been running, or when it is due, depending on its status."""
    if job.finished:
        return show_relative(job.finished_at, now)
    if job.status is Status.RUNNING:
        return f"for {show_length(max(0, (now - (job.started_at or now)).total_seconds()))}"
    if job.run_at <= now:
        return f"due {show_relative(job.run_at, now)}"
    return "when woken" if to_millis(job.run_at) >= UNTIL_WOKEN else show_relative(job.run_at, now)


def show_duration(job: Job, _: datetime) -> str:
    """Return how long the job's last run took, if the job has ended after a run."""
    if job.started_at is None or job.finished_at is None:
        return ""
    return show_length(max(0.0, (job.finished_at - job.started_at).total_seconds()))


def describe(job: Job) -> str:
    if job.status is Status.RUNNING and job.progress is not None:
        return f"{job.progress.fraction:.0%} {job.progress.note}"
    if job.status is Status.SUSPENDED and job.waits_for:
        return job.reason or f"waits for {job.waits_for}"
    if job.failure is not None and job.status is not Status.COMPLETED:
        return f"{job.failure.type}: {job.failure.message}"
    return reason_of(job)


def reason_of(job: Job) -> str:
    """Return the job's reason, but none while it runs: it would be what the job waited for before."""
    return "" if job.status is Status.RUNNING else job.reason


ID = JobColumn(Column("ID"), lambda job, _: job.id)
STATUS = JobColumn(Column("STATUS"), lambda job, _: Styled(job.status, STATUS_STYLES[job.status]))
TASK = JobColumn(Column("TASK", least=8), lambda job, _: job.task)
WHEN = JobColumn(Column("WHEN"), show_when)
DURATION = JobColumn(Column("DURATION", right=True), show_duration)
QUEUE = JobColumn(Column("QUEUE", least=5, extra=True), lambda job, _: job.queue)
TRIES = JobColumn(Column("TRIES", right=True, extra=True), lambda job, _: f"{job.attempts}/{job.max_attempts}")
PAYLOAD = JobColumn(
    Column("PAYLOAD", least=16, extra=True),
    lambda job, _: cut(json.dumps(job.payload, ensure_ascii=False), MAX_PAYLOAD_CHARS),
)
NOTE = JobColumn(Column("NOTE", least=24), lambda job, _: Styled(describe(job), "dim"))
COLUMNS = (ID, STATUS, TASK, WHEN, QUEUE, TRIES, PAYLOAD, NOTE)


def columns_for(sort: str, columns: Sequence[JobColumn] = COLUMNS) -> Sequence[JobColumn]:
    """Return the columns of a sorted list. A list by duration shows the durations, after the times."""
    if sort != Sort.DURATION:
        return columns
    place = columns.index(WHEN) + 1
    return *columns[:place], DURATION, *columns[place:]
