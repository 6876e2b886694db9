"""Writes of running jobs: outcomes (checked against the claim's token), progress and steps.

SQLite returns all rows as one JSON text. The docstring of writer.py explains why nothing is done per row.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mainspring.clock import Millis
from mainspring.job import FINISHED, Inserted, Move, Outcome, ProgressReport, Save, Status
from mainspring.stores.engine import feed
from mainspring.stores.engine.ack import (
    Conclusion,
    JobState,
    conclude,
    first_of_each,
    moves,
    note_inserted,
    refuse_illegal,
    storable,
)
from mainspring.stores.engine.ends import jobs_after
from mainspring.stores.feed import ChangeKind, JobRef
from mainspring.stores.sqlite.failures import note_failures
from mainspring.stores.sqlite.insertion import PreparedJob, insert_jobs, prepare
from mainspring.stores.sqlite.rows import HELD_STATE, archiving, to_state
from mainspring.stores.sqlite.steps import put_steps
from mainspring.stores.sqlite.transaction import Transaction, in_values
from mainspring.stores.sqlite.wakeups import wake_for_ends, wake_if_ended
from mainspring.stores.tables import CODES, COMPLETED, NEVER, RUNNING, archived_values, count_moves

HELD = f"""
WITH outcome(job_id, job_token) AS (VALUES {{values}})
SELECT json_group_array(json_array(job_id, job_token, {HELD_STATE}))
FROM outcome CROSS JOIN mainspring_jobs ON id = job_id AND token = job_token AND status = {RUNNING}
"""
ENDED = (
    "ended_seq, end_status, end_attempts, end_crashes, began_at, ended_at, end_expires_at, end_reason, end_error_type, "
    "end_error, end_error_code, end_fingerprint, end_result"
)
ARCHIVE = f"""
WITH ended({ENDED}) AS (VALUES {{values}})
{
    archiving(
        status="end_status",
        attempts="end_attempts",
        crashes="end_crashes",
        reason="end_reason",
        error_type="coalesce(end_error_type, error_type)",
        error="iif(end_error_type IS NULL, error, end_error)",
        error_code="iif(end_error_type IS NULL, error_code, end_error_code)",
        fingerprint="coalesce(end_fingerprint, fingerprint)",
        started_at="began_at",
        finished_at="ended_at",
        expires_at="end_expires_at",
        result="end_result",
    )
}
FROM ended CROSS JOIN mainspring_jobs ON seq = ended_seq
"""
REMOVE = "DELETE FROM mainspring_jobs WHERE seq IN (SELECT value FROM json_each(?))"
COMPLETED_COLUMNS = archiving(  # for speed, this states again what engine.ack.conclude decides for a plain success
    status=f"{COMPLETED}",
    attempts="attempts + 1",
    reason="''",
    started_at="coalesce(column4, claimed_at)",
    finished_at="?",
    expires_at=f"min({NEVER}, ? + keep)",
    result="column5",
)
ARCHIVE_COMPLETED = f"""
{COMPLETED_COLUMNS} -- columns 1 to 5: seq, id, token, began, result; sqlite3 counts rows only after INSERT
FROM (VALUES {{values}}) CROSS JOIN mainspring_jobs
    ON seq = column1 AND +id = column2 AND token = column3 AND status = {RUNNING}
"""
RESCHEDULE = """
WITH going(
    going_seq, next_status, next_run_at, next_attempts, next_crashes, awaited, why, new_error_type, new_error,
    new_error_code, new_fingerprint, now
) AS (VALUES {values})
UPDATE mainspring_jobs SET status = next_status, run_at = next_run_at, attempts = next_attempts, crashes = next_crashes,
                waits_for = awaited, reason = why, changed_at = now,
                error_type = coalesce(new_error_type, error_type),
                error = iif(new_error_type IS NULL, error, new_error),
                error_code = iif(new_error_type IS NULL, error_code, new_error_code),
                fingerprint = coalesce(new_fingerprint, fingerprint)
FROM going WHERE seq = going_seq
"""
RECORD_RUNS = """
INSERT INTO mainspring_attempts (job_id, number, worker, started_at, finished_at, move, error_type, error, error_code,
                                 traceback, fingerprint, version)
SELECT column1, (SELECT coalesce(max(number), 0) + 1 FROM mainspring_attempts WHERE job_id = column1), column2, column3,
       column4, column5, column6, column7, column8, column9, column10, column11
FROM (VALUES {values})
"""


@dataclass(slots=True)
class AckRequest:
    """The outcomes of one `ack` call.

    If all of them are plain successes, `completions` has their rows. The calling thread makes them, to save the
    writer's time.
    """

    outcomes: list[Outcome]
    completions: list[tuple[Any, ...]] | None

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> AckRequest:
        outcomes = list(outcomes)
        for outcome in outcomes:
            if outcome.move is not Move.DONE or outcome.follow_ups or outcome.steps or outcome.ref is None:
                return cls(outcomes, None)
            if outcome.recovers is not None or outcome.is_followed:
                return cls(outcomes, None)
        return cls(
            outcomes,
            [
                (outcome.ref[0], outcome.job_id, outcome.token, outcome.started_at or None, outcome.result)
                for outcome in outcomes
            ],
        )


def ack(transaction: Transaction, requests: list[AckRequest]) -> list[list[Status | None]]:
    return [
        [Status.COMPLETED] * len(request.outcomes)
        if complete(transaction, request)
        else settle(transaction, request.outcomes)
        for request in requests
    ]


def settle(transaction: Transaction, outcomes: Sequence[Outcome]) -> list[Status | None]:
    """Write outcomes; return the new status of each job, or None if the claim was lost.

    This is the fence: only jobs that run under the outcome's token are changed. So a worker that lost its claim cannot
    finish the run of another worker.
    """
    refuse_illegal(outcomes)
    first = first_of_each(outcomes)
    held = {(job.id, job.token): job for job in held_jobs(transaction, first)}
    written = write(transaction, [(job, first[fence]) for fence, job in held.items()])
    statuses = {fence: conclusion.status for fence, conclusion in zip(held, written, strict=True)}
    return [statuses.pop((outcome.job_id, outcome.token), None) for outcome in outcomes]


def write(transaction: Transaction, ended: Sequence[tuple[JobState, Outcome]]) -> list[Conclusion]:
    """Write the ends of runs that are still held, with their steps and follow-ups; return what the jobs became."""
    conclusions = [conclude(job, outcome, transaction.now) for job, outcome in ended]
    concluded = [(job, conclusion) for (job, _), conclusion in zip(ended, conclusions, strict=True)]
    for part in in_values(RECORD_RUNS, [(job.id, *end.run) for job, end in concluded if end.run is not None]):
        transaction.execute(*part)
    outcomes = [outcome for _, outcome in ended]
    transaction.record([*feed.ended(concluded, outcomes), *feed.starts_taken_back(ended)])
    note_failures(transaction, concluded)
    reschedule(transaction, [pair for pair in concluded if pair[1].status not in FINISHED])
    finish(transaction, [pair for pair in concluded if pair[1].status in FINISHED])
    put_steps(transaction, outcomes)
    follow_ups = prepare([*(job for outcome in outcomes for job in outcome.follow_ups), *jobs_after(concluded)])
    # after `finish`: a follow-up may need the dedupe key that its parent held
    note_inserted(outcomes, insert_jobs(transaction, follow_ups))
    wake_if_ended(transaction, {outcome.job_id: outcome.waits_for for outcome in outcomes})
    return conclusions


def complete(transaction: Transaction, request: AckRequest) -> bool:
    """Write the outcomes if every run succeeded and no claim was lost; otherwise change nothing and return False.

    This handles the usual case in half the time. The claim's `ref` gives the row of the job, but the row may belong to
    another job by now: so id and token must match too.
    """
    rows, now = request.completions, transaction.now
    if not rows:
        return False
    transaction.execute("SAVEPOINT completing")
    try:
        done = sum(transaction.execute(*part).rowcount for part in in_values(ARCHIVE_COMPLETED, rows, now, now))
    except sqlite3.IntegrityError:  # two outcomes for one claim
        done = 0
    if done == len(rows):
        transaction.execute(REMOVE, (json.dumps([row[0] for row in rows]),))
        count_completed(transaction, request.outcomes)
        wake_for_ends(transaction, [row[1] for row in rows])
    else:
        transaction.execute("ROLLBACK TO completing")
    transaction.execute("RELEASE completing")
    return done == len(rows)


def count_completed(transaction: Transaction, outcomes: Sequence[Outcome]) -> None:
    """Count jobs that were completed, and record them in the change feed."""
    by_place, lengths = by_places(outcomes, transaction.now)
    for (queue, _), jobs in by_place.items():
        transaction.count(queue, RUNNING, -len(jobs))
        transaction.count(queue, COMPLETED, len(jobs))
    transaction.record(feed.entries(ChangeKind.COMPLETED, by_place, lengths=lengths))


def by_places(
    outcomes: Sequence[Outcome], now: Millis
) -> tuple[dict[feed.Place, list[str | JobRef]], dict[feed.Place, list[Millis]]]:
    """Return completed jobs, and how long they ran, by queue and task."""
    jobs: dict[feed.Place, list[str | JobRef]] = {}
    ran: dict[feed.Place, list[Millis]] = {}
    for outcome in outcomes:
        _, queue, task, target, claimed_at = outcome.ref
        job = outcome.job_id if target is None else JobRef(outcome.job_id, *target)
        place, length = (queue, task), now - (outcome.started_at or claimed_at)
        if place in jobs:
            jobs[place].append(job)
            ran[place].append(length)
        else:
            jobs[place], ran[place] = [job], [length]
    return jobs, ran


def held_jobs(transaction: Transaction, fences: Iterable[tuple[str, int]]) -> Iterator[JobState]:
    """Return the jobs that run under these tokens."""
    for part in in_values(HELD, list(fences)):
        yield from (to_state(row) for row in json.loads(transaction.value(*part)))


def reschedule(transaction: Transaction, going: Sequence[tuple[JobState, Conclusion]]) -> None:
    """Put jobs that are not finished back: they stay live and wait for their next run."""
    if not going:
        return
    for part in in_values(RESCHEDULE, [rescheduled_row(job, conclusion) for job, conclusion in going]):
        transaction.execute(*part)
    count_moves(transaction, moves(going))
    transaction.woken.update(job.queue for job, _ in going)


def rescheduled_row(job: JobState, conclusion: Conclusion) -> tuple[Any, ...]:
    """Return the values in the order of RESCHEDULE."""
    return (
        job.ref,
        CODES[conclusion.status],
        conclusion.run_at,
        conclusion.attempts,
        conclusion.crashes,
        conclusion.waits_for,
        conclusion.reason,
        conclusion.failure.type if conclusion.failure else None,
        conclusion.failure.message if conclusion.failure else None,
        conclusion.failure.code if conclusion.failure else None,
        conclusion.failure.fingerprint if conclusion.failure else None,
        conclusion.changed_at,
    )


def finish(transaction: Transaction, ended: Sequence[tuple[JobState, Conclusion]]) -> None:
    """Move finished jobs from the live table to the archive, and wake the jobs that wait for their end."""
    if not ended:
        return
    for part in in_values(ARCHIVE, [archived_row(job, conclusion) for job, conclusion in ended]):
        transaction.execute(*part)
    transaction.execute(REMOVE, (json.dumps([job.ref for job, _ in ended]),))
    count_moves(transaction, moves(ended))
    wake_for_ends(transaction, [job.id for job, _ in ended])


def archived_row(job: JobState, conclusion: Conclusion) -> tuple[Any, ...]:
    """Return the values in the order of ARCHIVE."""
    return job.ref, *archived_values(conclusion)


# -- steps ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class SaveRequest:
    """Steps to save and the rows of the jobs that they spawn. The calling thread makes the rows."""

    save: Save
    jobs: list[PreparedJob]

    @property
    def fence(self) -> tuple[str, int]:
        return self.save.job_id, self.save.token


def save_requests(saves: Iterable[Save]) -> list[SaveRequest]:
    return [SaveRequest(save, prepare(save.jobs)) for save in saves]


def save(transaction: Transaction, requests: list[SaveRequest]) -> list[list[Inserted] | None]:
    """Write steps and insert their jobs where the claim is still held; None where it was lost.

    A halt does not reject these jobs, so that a run that has begun can finish.
    """
    held = {(job.id, job.token) for job in held_jobs(transaction, {request.fence for request in requests})}
    accepted = [request for request in requests if request.fence in held]
    put_steps(transaction, [request.save for request in accepted])
    inserted = iter(insert_jobs(transaction, [job for request in accepted for job in request.jobs]))
    return [list(islice(inserted, len(request.jobs))) if request.fence in held else None for request in requests]


# -- progress -------------------------------------------------------------------------------------

REPORT = f"""
UPDATE mainspring_jobs SET progress = ?, note = ?, changed_at = ? WHERE id = ? AND token = ? AND status = {RUNNING}
RETURNING queue, task, target_type, target_id
"""


def report(transaction: Transaction, reports: list[ProgressReport]) -> list[bool]:
    return [report_one(transaction, report) for report in reports]


def report_one(transaction: Transaction, report: ProgressReport) -> bool:
    note = storable(report.note)
    rows = transaction.execute(REPORT, (report.fraction, note, transaction.now, report.job_id, report.token)).fetchall()
    for queue, task, *target in rows:
        transaction.record([feed.progressed(JobRef(report.job_id, *target), queue, task, report.fraction, note)])
    return bool(rows)
