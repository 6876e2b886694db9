"""Shared by all stores that keep jobs in tables, independent of SQL: status codes, rows and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mainspring.clock import Millis, to_datetime
from mainspring.errors import Failure
from mainspring.job import UNTIL_WOKEN, Attempt, Counts, Job, Move, Priority, Status, Step, TimelineEntry
from mainspring.stores.columns import JOB
from mainspring.stores.engine.ack import Conclusion, Place
from mainspring.stores.protocol import DUE_CAP, Action, DueTask, Finding, Severity
from mainspring.stores.records import Record

STATUSES = (
    Status.PENDING,
    Status.RETRYING,
    Status.SUSPENDED,
    Status.RUNNING,
    Status.COMPLETED,
    Status.DEAD_LETTER,
    Status.CANCELLED,
)
CODES = {status: code for code, status in enumerate(STATUSES)}
PENDING, RETRYING, SUSPENDED, RUNNING, COMPLETED, DEAD_LETTER, CANCELLED = range(7)
"""Claimable statuses come before RUNNING, finished ones after it: so indexes need only one comparison."""

NEVER = 2**62  # milliseconds; a deadline or expiry that never comes

# -- reading ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DueIn:
    """The due jobs of one queue."""

    queue: str
    number: int  # up to DUE_CAP
    oldest: Millis | None
    tasks: list[DueTask]


Line = tuple[str, Millis, int]  # a task, when its first job was due, and the number of due jobs


def due_in(queue: str, number: int, oldest: Millis | None, first: Iterable[Line], apart: Sequence[Line]) -> DueIn:
    """Add up the main queue (`number`, `oldest`, and its `first` jobs) and the jobs that are kept apart by task."""
    heads: dict[str, Millis] = {}
    numbers: Counter[str] = Counter()
    for task, head, due in (*first, *apart):
        heads[task] = min(head, heads.get(task, head))
        numbers[task] += due
    tasks = [DueTask(task, queue, min(due, DUE_CAP), to_datetime(heads[task])) for task, due in sorted(numbers.items())]
    times = [head for _, head, _ in apart] if oldest is None else [oldest, *(head for _, head, _ in apart)]
    total = number + sum(due for _, _, due in apart)
    return DueIn(queue, min(total, DUE_CAP), min(times, default=None), tasks)


def status_of(code: int, *, finished: bool) -> Status:
    """Return the status for a code. An unknown code is shown as a status in which nothing happens by itself.

    Only rows that were changed by hand have unknown codes. They must not prevent the listing of all other jobs.
    `mainspring doctor` reports them.
    """
    if 0 <= code < len(STATUSES):
        return STATUSES[code]
    return Status.CANCELLED if finished else Status.SUSPENDED


def status_name(code: int) -> str:
    return STATUSES[code].value if 0 <= code < len(STATUSES) else f"unknown status {code}"


def by_queue(counts: Iterable[tuple[str, int, int]]) -> list[Counts]:
    """Return the jobs of each queue by status, from rows of queue, code and number."""
    queues: dict[str, dict[Status, int]] = {}
    for queue, code, number in counts:
        if number and 0 <= code < len(STATUSES):
            queues.setdefault(queue, {})[STATUSES[code]] = number
    return [Counts(queue, statuses) for queue, statuses in queues.items()]


def to_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values of a job as tables store them."""
    return {name: CODES[value] if name == "status" else value for name, value in columns.items()}


def from_row(row: Sequence[Any]) -> dict[str, Any]:
    """Return the values of a row of the columns in `JOB`, where the status is a code."""
    values = dict(zip(JOB, row, strict=True))
    if values["status"] != SUSPENDED:
        values["waits_for"] = None
    values["status"] = status_of(values["status"], finished=values["finished_at"] is not None)
    values["cancel"] = bool(values["cancel"])
    values["tags"] = values["tags"] or []
    return values


def to_attempt(row: tuple[Any, ...]) -> Attempt:
    number, worker, started_at, finished_at, move, error_type, error, code, traceback, fingerprint, version = row
    return Attempt(
        number=number,
        worker=worker or "",
        started_at=to_datetime(started_at),
        finished_at=to_datetime(finished_at),
        move=Move(move),
        failure=None
        if error_type is None
        else Failure(error_type, error or "", traceback or "", fingerprint or "", code=code),
        version=version or "",
    )


def timeline_of(
    job: Job, attempts: Iterable[Attempt], by_hand: Iterable[tuple[Any, ...]], steps: Iterable[Step] = ()
) -> list[TimelineEntry]:
    """Return what happened to a job, from its attempts, its steps and its audit entries (at, actor, action, reason)."""
    due = job.token == 0 and job.run_at < to_datetime(UNTIL_WOKEN)  # after a claim, run_at may be that of a later run
    entries = [TimelineEntry(job.created_at, "created", f"for {job.run_at:%Y-%m-%d %H:%M:%S} UTC" if due else "")]
    for attempt in attempts:
        detail = f"{attempt.failure.type}: {attempt.failure.message}" if attempt.failure else ""
        entries.append(TimelineEntry(attempt.started_at, "claimed", f"run {attempt.number}", attempt.worker))
        entries.append(TimelineEntry(attempt.finished_at, attempt.move, detail, attempt.worker))
    if job.started_at and job.status is Status.RUNNING:
        entries.append(TimelineEntry(job.started_at, "claimed", "", job.worker or ""))
    calls = (step for step in steps if step.kind != "state")  # a saved state is not something that happened
    entries += (TimelineEntry(to_datetime(step.finished_at), step.kind, step.name) for step in calls)
    for at, actor, action, reason in by_hand:
        what = Move.MANUAL_RETRY if action == Action.RETRY else action  # Move.RETRY is the end of a run that failed
        entries.append(TimelineEntry(to_datetime(at), what, reason, actor))
    return sorted(entries, key=lambda entry: entry.at)


# -- diagnosis ----------------------------------------------------------------------------------------------

COUNT_JOBS = f"""
SELECT queue, status, count(*) FROM {{jobs}} WHERE status BETWEEN {PENDING} AND {RUNNING} GROUP BY queue, status
UNION ALL
SELECT queue, status, count(*) FROM {{archive}} WHERE status BETWEEN {COMPLETED} AND {CANCELLED} GROUP BY queue, status
"""
ODD_ROWS = f"""
SELECT id, '{{jobs}}' FROM {{jobs}} WHERE status NOT BETWEEN {PENDING} AND {RUNNING} OR {{priority}}
UNION ALL
SELECT id, '{{archive}}' FROM {{archive}} WHERE status NOT BETWEEN {COMPLETED} AND {CANCELLED} OR {{priority}}
""".replace("{priority}", f"priority NOT BETWEEN {Priority.URGENT:d} AND {Priority.LOW:d}")
"""Rows whose status or priority does not exist in their table. Mainspring never writes such rows."""


def odd_rows(rows: Sequence[tuple[Any, str]]) -> Finding:
    """Return what `mainspring doctor` says about such rows, given as (job id, table)."""
    if not rows:
        return Finding(Severity.OK, "rows", "each job has a valid status and priority")
    job_id, table = rows[0]
    more = f", and {len(rows) - 1:,} more" if len(rows) > 1 else ""
    message = f"job {job_id} in {table} has a status or priority that does not exist{more}: no worker claims it"
    known = f"status {'0 to 3' if table.endswith('jobs') else '4 to 6'}, priority 0 to 3"
    advice = f"was it changed by hand? Set {known} with UPDATE {table} SET … WHERE id = '{job_id}', or DELETE it"
    return Finding(Severity.ERROR, "rows", message, advice)


# -- counts --------------------------------------------------------------------------------------------------


class Counting(Protocol):
    """A transaction that keeps the number of jobs per queue and status."""

    def count(self, queue: str, status: int, change: int, /) -> None: ...


def count_moves(transaction: Counting, moves: Iterable[tuple[Place, Place | None]]) -> None:
    """Update the counts for jobs that move from one place to another; None: they were deleted."""
    for (old, new), number in Counter(moves).items():
        transaction.count(old[0], CODES[old[1]], -number)
        if new is not None:
            transaction.count(new[0], CODES[new[1]], number)


# -- records ------------------------------------------------------------------------------------------------


def grouped(rows: Iterable[Sequence[Any]]) -> dict[str, list[list[Any]]]:
    """Group rows by the job id in their first column."""
    groups: dict[str, list[list[Any]]] = {}
    for job_id, *rest in rows:
        groups.setdefault(job_id, []).append(rest)
    return groups


def deadline_of(record: Record, stall_grace: Millis) -> Millis:
    if record["status"] != Status.RUNNING:
        return 0
    timeout: Millis = record["timeout"]
    return int(record["started_at"]) + timeout + stall_grace if timeout else NEVER


def or_never(moment: Millis | None) -> Millis:
    return NEVER if moment is None else moment


def none_if_never(moment: Millis) -> Millis | None:
    return None if moment >= NEVER else moment


def archived_values(conclusion: Conclusion) -> tuple[Any, ...]:
    """Return the columns that a run's end changes in the archive, in the order in which the statements name them."""
    failure = conclusion.failure
    return (
        CODES[conclusion.status],
        conclusion.attempts,
        conclusion.crashes,
        conclusion.started_at,
        conclusion.finished_at,
        conclusion.expires_at,
        conclusion.reason,
        failure.type if failure else None,
        failure.message if failure else None,
        failure.code if failure else None,
        failure.fingerprint if failure else None,
        conclusion.result,
    )
