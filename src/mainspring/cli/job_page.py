"""One job on a screen: its fields, payload, result, attempts, timeline and last traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from mainspring.cli.job_table import reason_of
from mainspring.cli.progress import draw_bar
from mainspring.cli.table import Column, Styled, printable
from mainspring.cli.terminal import STATUS_STYLES, Terminal, has_colour
from mainspring.clock import to_millis
from mainspring.errors import Failure
from mainspring.features.dependencies import options as dependencies
from mainspring.features.durable.states import State, StepState
from mainspring.features.expiry import options as expiry
from mainspring.humanize import show_both, show_exactly, show_length
from mainspring.job import UNTIL_WOKEN, WAITING, Attempt, Job, Move, Status, TimelineEntry
from mainspring.stores.protocol import Action

INDENT = "  "
SAVED = Column("SAVED", least=12)
MAX_SHOWN_IDS = 3  # of other jobs in a line
NO_LONGER_EXPIRES = frozenset({Action.EDIT, Move.RETRY, Move.MANUAL_RETRY})
STEP_STYLES = {
    State.DONE: STATUS_STYLES[Status.COMPLETED],
    State.RUNNING: STATUS_STYLES[Status.RUNNING],
    State.WAITING: STATUS_STYLES[Status.SUSPENDED],
    State.FAILED: STATUS_STYLES[Status.RETRYING],
    State.TO_COME: "dim",
    State.SKIPPED: "dim",
}


def say_job(
    terminal: Terminal,
    job: Job,
    steps: Sequence[StepState],
    attempts: Sequence[Attempt],
    timeline: Sequence[TimelineEntry],
    *,
    now: datetime,
) -> None:
    say_title(terminal, job)
    say_fields(terminal, job, timeline, now)
    say_data(terminal, "Payload", job.payload)
    say_data(terminal, "Result", job.result)
    say_steps(terminal, steps)
    say_attempts(terminal, attempts)
    say_timeline(terminal, timeline)
    say_traceback(terminal, job)
    say_next_step(terminal, job)


def say_title(terminal: Terminal, job: Job) -> None:
    status = terminal.paint(job.status, STATUS_STYLES[job.status])
    terminal.say(f"{terminal.paint(printable(job.task), 'bold')}  {status}  {job.id}")


def say_fields(terminal: Terminal, job: Job, timeline: Sequence[TimelineEntry], now: datetime) -> None:
    fields = [(name, value) for name, value in list_fields(job, timeline, now) if value]
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        terminal.say(f"{INDENT}{terminal.paint(name.ljust(width), 'dim')}  {printable(value)}")
    if job.progress is not None:
        bar = draw_bar(job.progress.fraction, colour=has_colour(terminal.out))
        name = terminal.paint("progress".ljust(width), "dim")
        terminal.say(f"{INDENT}{name}  {bar} {job.progress.fraction:.0%} {printable(job.progress.note)}".rstrip())


def list_fields(job: Job, timeline: Sequence[TimelineEntry], now: datetime) -> Iterator[tuple[str, str]]:
    yield "queue", job.queue
    yield "priority", job.priority.name.lower()
    yield "attempts", f"{job.attempts} of {job.max_attempts}"
    yield "crashes", str(job.crashes) if job.crashes else ""
    yield "created", show_both(job.created_at, now)
    yield "due", "" if to_millis(job.run_at) >= UNTIL_WOKEN else show_both(job.run_at, now)
    yield "expires", show_expiry(job, timeline, now)
    yield "after", show_after(job)
    yield "waits for", job.waits_for or ""
    yield "started", show_both(job.started_at, now)
    yield "finished", show_both(job.finished_at, now)
    yield "kept until", "for ever" if job.finished and job.expires_at is None else show_both(job.expires_at, now)
    yield "worker", job.worker or ""
    yield "timeout", "" if job.timeout is None else show_length(job.timeout)
    yield "timeout at", show_both(job.timeout_at, now)
    yield "updated", show_both(job.updated_at, now)
    yield "target", "" if job.target is None else ":".join(job.target)
    yield "dedupe key", job.dedupe_key or ""
    yield "tags", ", ".join(job.tags)
    yield "reason", reason_of(job)
    yield "cancelling", "asked to stop" if job.cancel_requested and not job.finished else ""
    yield "token", str(job.token)


def show_expiry(job: Job, timeline: Sequence[TimelineEntry], now: datetime) -> str:
    if expiry.OPTION in job.options and any(entry.what in NO_LONGER_EXPIRES for entry in timeline):
        return "not any more: it has been retried, or changed by hand"
    match expiry.of_job(job):
        case datetime() as end:
            return f"{show_both(end, now)}, if it has not started by then"
        case timedelta() as length:
            return f"{show_length(length.total_seconds())} after it may start, if it has not started by then"
    return ""


def show_after(job: Job) -> str:
    """Return the jobs that this job waits for, shortened: there may be a thousand."""
    if (after := job.options.get(dependencies.OPTION)) is None:
        return ""
    ids = after["jobs"]
    more = f" and {len(ids) - MAX_SHOWN_IDS:,} more" if len(ids) > MAX_SHOWN_IDS else ""
    otherwise = "; runs even if one fails" if after["on_failed"] == "run" else ""
    return f"{', '.join(ids[:MAX_SHOWN_IDS])}{more}{otherwise}"


def say_data(terminal: Terminal, title: str, value: Any) -> None:
    if value is not None:
        say_block(terminal, title, json.dumps(value, indent=2, ensure_ascii=False))


def say_steps(terminal: Terminal, steps: Sequence[StepState]) -> None:
    if not steps:
        return
    say_heading(terminal, "Steps")
    columns = (
        Column("STEP", least=12),
        Column("KIND"),
        Column("STATE"),
        Column("TOOK", right=True),
        Column("OUTPUT", least=12),
    )
    saved = any(step.saved is not None for step in steps)
    terminal.table(
        (*columns, SAVED) if saved else columns, [step_row(step, saved=saved) for step in steps], indent=INDENT
    )


def step_row(step: StepState, *, saved: bool) -> Sequence[str | Styled]:
    took = ""
    if step.started_at is not None and step.finished_at is not None:
        took = show_length((step.finished_at - step.started_at).total_seconds())
    elif step.timeout is not None:
        took = f"at most {show_length(step.timeout)}"
    row = (step.name, step.kind, Styled(step.state, STEP_STYLES[step.state]), took, as_text(step.output))
    return (*row, as_text(step.saved)) if saved else row


def as_text(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def say_attempts(terminal: Terminal, attempts: Sequence[Attempt]) -> None:
    if not attempts:
        return
    say_heading(terminal, "Attempts")
    columns = (
        Column("#", right=True),
        Column("STARTED, UTC"),
        Column("TOOK", right=True),
        Column("ENDED"),
        Column("WORKER", least=10),
        Column("ERROR", least=12),
    )
    terminal.table(columns, [attempt_row(attempt) for attempt in attempts], indent=INDENT)


def attempt_row(attempt: Attempt) -> Sequence[str | Styled]:
    failure = attempt.failure
    return (
        str(attempt.number),
        show_exactly(attempt.started_at),
        show_length((attempt.finished_at - attempt.started_at).total_seconds()),
        attempt.move,
        Styled(attempt.worker, "dim"),
        "" if failure is None else Styled(shown_failure(failure), "red"),
    )


def shown_failure(failure: Failure) -> str:
    code = "" if failure.code is None else f" [{failure.code}]"
    return f"{failure.type}{code}: {failure.message}"


def say_timeline(terminal: Terminal, timeline: Sequence[TimelineEntry]) -> None:
    if not timeline:
        return
    say_heading(terminal, "Timeline")
    columns = (Column("AT, UTC"), Column("WHAT"), Column("WHO", least=10), Column("DETAIL", least=12))
    rows = [(show_exactly(entry.at), entry.what, Styled(entry.actor, "dim"), entry.detail) for entry in timeline]
    terminal.table(columns, rows, indent=INDENT)


def say_traceback(terminal: Terminal, job: Job) -> None:
    if job.failure is not None and job.failure.traceback:
        say_block(terminal, "Last traceback", job.failure.traceback)


def say_next_step(terminal: Terminal, job: Job) -> None:
    if job.status is Status.DEAD_LETTER:
        terminal.note(f"\nrun it again: mainspring dead retry {job.id}")
    elif job.status in WAITING:
        terminal.note(f"\nrun it now: mainspring jobs reschedule {job.id} --at now")


def say_heading(terminal: Terminal, title: str) -> None:
    terminal.say()
    terminal.say(title, "bold")


def say_block(terminal: Terminal, title: str, text: str) -> None:
    say_heading(terminal, title)
    for line in text.rstrip("\n").split("\n"):
        terminal.say(INDENT + "".join(c if c.isprintable() else " " for c in line))
