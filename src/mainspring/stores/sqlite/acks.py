"""Writes of running jobs: outcomes (checked against the claim's token), progress and steps.

SQLite returns the rows of a batch as one JSON text. The docstring of writer.py explains why nothing is done per row.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mainspring.clock import Millis
from mainspring.job import FINISHED, Failure, Inserted, Move, Outcome, ProgressReport, Save, Status
from mainspring.stores.rules import (
    COUNTS_AS_ATTEMPT,
    begins_anew,
    keeps_its_time,
    last_reason,
    next_status,
    next_time,
    recorded_as,
    refuse_illegal,
    shorten,
)
from mainspring.stores.sqlite.insertion import PreparedJob, insert_jobs, prepare
from mainspring.stores.sqlite.steps import put_steps
from mainspring.stores.sqlite.values import in_values
from mainspring.stores.sqlite.wakeups import call_ends, wake_if_ended
from mainspring.stores.sqlite.writer import Transaction
from mainspring.stores.tables import CANCELLED, CODES, COMPLETED, DEAD_LETTER, NEVER, RUNNING, STATUSES, SUSPENDED

HELD = f"""
WITH outcome(number, job_id, job_token) AS (VALUES {{values}})
SELECT json_group_array(json_array(
    number, seq, id, queue, iif(cancel, reason, NULL), attempts, crashes, worker, claimed_at))
FROM outcome CROSS JOIN mainspring_jobs ON id = job_id AND token = job_token AND status = {RUNNING}
"""
ARCHIVE = f"""
WITH ended(
    ended_seq, end_status, is_attempt, is_crash, began_at, end_reason, end_error_type, end_error, end_result, now
) AS (VALUES {{values}})
INSERT INTO mainspring_archive
SELECT id, task, queue, end_status, priority, run_at, attempts + is_attempt, max_attempts, crashes + is_crash, token,
       worker, coalesce(began_at, claimed_at), now,
       min({NEVER}, now + iif(end_status = {DEAD_LETTER}, keep_dead, keep)), timeout, created_at, keep,
       keep_dead, dedupe_key, target_type, target_id, tags, options,
       end_reason, progress, note, coalesce(end_error_type, error_type),
       iif(end_error_type IS NULL, error, end_error), payload, end_result
FROM ended CROSS JOIN mainspring_jobs ON seq = ended_seq
"""
REMOVE = "DELETE FROM mainspring_jobs WHERE seq IN (SELECT value FROM json_each(?))"
ARCHIVE_COMPLETED = f"""
INSERT INTO mainspring_archive -- columns 1 to 5: seq, id, token, began, result; sqlite3 counts rows only after INSERT
SELECT id, task, queue, {COMPLETED}, priority, run_at, attempts + 1, max_attempts, crashes, token, worker,
       coalesce(column4, claimed_at), ?, min({NEVER}, ? + keep), timeout, created_at, keep, keep_dead,
       dedupe_key, target_type, target_id, tags, options, '', progress, note, error_type, error, payload, column5
FROM (VALUES {{values}}) CROSS JOIN mainspring_jobs
    ON seq = column1 AND +id = column2 AND token = column3 AND status = {RUNNING}
"""
RESCHEDULE = """
WITH going(
    going_seq, next_status, next_run_at, anew, is_attempt, is_crash, awaited, why, new_error_type, new_error, now
) AS (VALUES {values})
UPDATE mainspring_jobs SET status = next_status, run_at = coalesce(next_run_at, min(run_at, now)), cancel = 0,
                attempts = iif(anew, 0, attempts + is_attempt), crashes = iif(anew, 0, crashes + is_crash),
                waits_for = awaited, reason = why,
                error_type = coalesce(new_error_type, error_type), error = iif(new_error_type IS NULL, error, new_error)
FROM going WHERE seq = going_seq
"""
RECORD_ATTEMPT = """
INSERT INTO mainspring_attempts (job_id, number, worker, started_at, finished_at, move, error_type, error, traceback)
VALUES (:job_id, (SELECT coalesce(max(number), 0) + 1 FROM mainspring_attempts WHERE job_id = :job_id), :worker,
        :started_at, :finished_at, :move, :error_type, :error, :traceback)
"""


@dataclass(slots=True)
class Held:
    """A running job whose token matches the outcome's."""

    number: int  # index of the outcome
    seq: int
    id: str
    queue: str
    asked: str | None  # the reason, if a cancellation was requested
    attempts: int
    crashes: int
    worker: str
    claimed_at: Millis


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


def settle(transaction: Transaction, outcomes: list[Outcome]) -> list[Status | None]:
    """Write outcomes; return the new status of each job, or None if the claim was lost.

    This is the fence: only jobs that run under the outcome's token are changed. So a worker that lost its claim cannot
    finish the run of another worker.
    """
    refuse_illegal(outcomes)
    statuses: list[Status | None] = [None] * len(outcomes)
    ended: list[tuple[Held, int, Outcome]] = []
    going: list[tuple[Held, int, Outcome]] = []
    for job in first_of_each(held_jobs(transaction, outcomes)):
        outcome = outcomes[job.number]
        status = next_status(outcome, cancel=job.asked is not None, crashes=job.crashes)
        statuses[job.number] = status
        (ended if status in FINISHED else going).append((job, CODES[status], outcome))
        if (move := recorded_as(outcome, status)) is not None:
            record_attempt(transaction, job, move, outcome)
    reschedule(transaction, going)
    end(transaction, ended)
    accepted = [outcome for outcome, status in zip(outcomes, statuses, strict=True) if status]
    put_steps(transaction, accepted)
    follow_ups = prepare([job for outcome in accepted for job in outcome.follow_ups])
    insert_jobs(transaction, follow_ups)  # after `end`: a follow-up may need the dedupe key that its parent held
    wake_if_ended(transaction, {outcome.job_id: outcome.waits_for for outcome in accepted})
    return statuses


def complete(transaction: Transaction, request: AckRequest) -> bool:
    """Write the outcomes if every run succeeded and no claim was lost; otherwise change nothing and return False.

    This handles the usual case in half the time. The claim's `ref` gives the row of the job, but the row may belong to
    another job by now: so id and token must match too.
    """
    rows, now = request.completions, transaction.now
    if rows is None:
        return False
    transaction.execute("SAVEPOINT completing")
    try:
        done = sum(transaction.execute(*chunk).rowcount for chunk in in_values(ARCHIVE_COMPLETED, rows, now, now))
    except sqlite3.IntegrityError:  # two outcomes for one claim
        done = 0
    if done == len(rows):
        transaction.execute(REMOVE, (json.dumps([row[0] for row in rows]),))
        for queue, number in Counter([outcome.ref[1] for outcome in request.outcomes]).items():
            transaction.count(queue, RUNNING, -number)
            transaction.count(queue, COMPLETED, number)
        call_ends(transaction, [row[1] for row in rows])
    else:
        transaction.execute("ROLLBACK TO completing")
    transaction.execute("RELEASE completing")
    return done == len(rows)


def held_jobs(transaction: Transaction, outcomes: Sequence[Outcome | Save]) -> Iterable[Held]:
    fences = [(number, outcome.job_id, outcome.token) for number, outcome in enumerate(outcomes)]
    for chunk in in_values(HELD, fences):
        for row in json.loads(transaction.value(*chunk)):
            yield Held(*row)


def first_of_each(held: Iterable[Held]) -> Iterable[Held]:
    """Drop repeated jobs: of two outcomes for one claim, the first counts."""
    seen: set[int] = set()
    for job in held:
        if job.seq not in seen:
            seen.add(job.seq)
            yield job


def reschedule(transaction: Transaction, going: Sequence[tuple[Held, int, Outcome]]) -> None:
    """Put jobs that are not finished back: they stay live and wait for their next run."""
    rows = [rescheduled_row(job, status, outcome, transaction.now) for job, status, outcome in going]
    for chunk in in_values(RESCHEDULE, rows):
        transaction.execute(*chunk)
    for (queue, status), number in Counter((job.queue, status) for job, status, _ in going).items():
        transaction.count(queue, RUNNING, -number)
        transaction.count(queue, status, number)
        transaction.woken.add(queue)


def rescheduled_row(job: Held, status: int, outcome: Outcome, now: Millis) -> tuple[Any, ...]:
    failure = outcome.failure
    return (
        job.seq,
        status,
        None if keeps_its_time(outcome) else next_time(outcome, now),
        int(begins_anew(outcome)),
        int(outcome.move in COUNTS_AS_ATTEMPT),
        int(outcome.move is Move.CRASH),
        outcome.waits_for if status == SUSPENDED else None,
        outcome.reason,
        failure.type if failure else None,
        failure.message if failure else None,
        now,  # caps run_at: the job was due when claimed, and must stay due if the clock was set back since
    )


def end(transaction: Transaction, ended: Sequence[tuple[Held, int, Outcome]]) -> None:
    """Move finished jobs from the live table to the archive."""
    if not ended:
        return
    archive(transaction, [archived_row(job, status, outcome, transaction.now) for job, status, outcome in ended])
    for (queue, status), number in Counter((job.queue, status) for job, status, _ in ended).items():
        transaction.count(queue, RUNNING, -number)
        transaction.count(queue, status, number)
    call_ends(transaction, [job.id for job, _, _ in ended])


def archive(transaction: Transaction, rows: Sequence[Sequence[Any]]) -> None:
    for chunk in in_values(ARCHIVE, rows):
        transaction.execute(*chunk)
    transaction.execute(REMOVE, (json.dumps([row[0] for row in rows]),))


def archived_row(job: Held, status: int, outcome: Outcome, now: Millis) -> tuple[Any, ...]:
    failure = outcome.failure
    return (
        job.seq,
        status,
        int(outcome.move in COUNTS_AS_ATTEMPT),
        int(outcome.move is Move.CRASH and status != CANCELLED),
        outcome.started_at or None,
        last_reason(outcome, STATUSES[status], asked=job.asked),
        failure.type if failure else None,
        failure.message if failure else None,
        outcome.result,
        now,
    )


def record_attempt(transaction: Transaction, job: Held, move: Move, outcome: Outcome) -> None:
    failure = outcome.failure or Failure("", "")
    transaction.execute(
        RECORD_ATTEMPT,
        {
            "job_id": job.id,
            "worker": job.worker,
            "started_at": outcome.started_at or job.claimed_at,
            "finished_at": outcome.finished_at or transaction.now,
            "move": move,
            "error_type": failure.type or None,
            "error": failure.message or None,
            "traceback": shorten(failure.traceback) or None,
        },
    )


# -- steps ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class SaveRequest:
    """Steps to save and the rows of the jobs that they spawn. The calling thread makes the rows."""

    save: Save
    jobs: list[PreparedJob]


def save_requests(saves: Iterable[Save]) -> list[SaveRequest]:
    return [SaveRequest(save, prepare(save.jobs)) for save in saves]


def save(transaction: Transaction, requests: list[SaveRequest]) -> list[list[Inserted] | None]:
    """Write steps and insert their jobs where the claim is still held; None where it was lost.

    A halt does not refuse these jobs, so that a run that has begun can finish.
    """
    held = {job.number for job in held_jobs(transaction, [request.save for request in requests])}
    accepted = [request for number, request in enumerate(requests) if number in held]
    put_steps(transaction, [request.save for request in accepted])
    inserted = iter(insert_jobs(transaction, [job for request in accepted for job in request.jobs]))
    return [
        list(islice(inserted, len(request.jobs))) if number in held else None for number, request in enumerate(requests)
    ]


# -- progress -------------------------------------------------------------------------------------

REPORT = f"""
UPDATE mainspring_jobs SET progress = ?, note = ? WHERE id = ? AND token = ? AND status = {RUNNING}
"""


def report(transaction: Transaction, reports: list[ProgressReport]) -> list[bool]:
    return [
        transaction.execute(REPORT, (report.fraction, report.note, report.job_id, report.token)).rowcount == 1
        for report in reports
    ]
