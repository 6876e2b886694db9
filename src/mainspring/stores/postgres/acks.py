"""End runs: check the fence, archive or reschedule the job, and record attempts and progress."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

from mainspring.job import FINISHED, Move, Outcome, ProgressReport, Status, is_end
from mainspring.stores.engine import feed
from mainspring.stores.engine.ack import (
    Conclusion,
    Fence,
    JobState,
    Run,
    conclude,
    first_of_each,
    moves,
    note_inserted,
    refuse_illegal,
    storable,
)
from mainspring.stores.engine.ends import jobs_after
from mainspring.stores.feed import JobRef
from mainspring.stores.postgres import arrays, steps
from mainspring.stores.postgres.failures import note_failures
from mainspring.stores.postgres.insertion import insert_jobs
from mainspring.stores.postgres.rows import LIVE_STATE, is_id, to_state
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.postgres.wakeups import wake_for_ends, watch
from mainspring.stores.tables import CODES, RUNNING, STATUSES, archived_values, count_moves

COMPLETE = """
SELECT * FROM {s}.complete(%(ids)s::uuid[], %(tokens)s::bigint[], %(began)s::bigint[], %(results)s::text[], {now})
"""
COMPLETE_ONE = COMPLETE.replace("%(results)s::text[]", "ARRAY[%(results)s::text]")
WRITTEN = """
SELECT archive.id::text, archive.token, status FROM {s}.archive
JOIN unnest(%(ids)s::uuid[], %(tokens)s::bigint[]) AS ended(id, token)
    ON archive.id = ended.id AND archive.token = ended.token
"""
HELD = f"SELECT {LIVE_STATE} FROM {{s}}.held(%(ids)s::uuid[], %(tokens)s::bigint[])"
GOING = {
    "ids": "uuid",
    "statuses": "smallint",
    "times": "bigint",
    "attempts": "integer",
    "crashes": "integer",
    "keys": "text",
    "reasons": "text",
    "error_types": "text",
    "errors": "text",
    "codes": "text",
    "fingerprints": "text",
    "at": "bigint",
}
RESCHEDULE = f"SELECT {{s}}.reschedule({arrays.casts(GOING)})"
ENDED = {
    "ids": "uuid",
    "statuses": "smallint",
    "attempts": "integer",
    "crashes": "integer",
    "began": "bigint",
    "ended": "bigint",
    "expiries": "bigint",
    "reasons": "text",
    "error_types": "text",
    "errors": "text",
    "codes": "text",
    "fingerprints": "text",
    "results": "text",
}
FINISH = f"SELECT {{s}}.finish({arrays.casts(ENDED)})"
RECORDED = {
    "ids": "uuid",
    "workers": "text",
    "began": "bigint",
    "ended": "bigint",
    "moves": "text",
    "error_types": "text",
    "errors": "text",
    "codes": "text",
    "tracebacks": "text",
    "fingerprints": "text",
    "versions": "text",
}
RECORD = f"SELECT {{s}}.record_attempts({arrays.casts(RECORDED)})"

Row = tuple[Any, ...]


async def ack(transaction: Transaction, outcomes: list[Outcome]) -> list[Status | None]:
    """Write outcomes and return each job's new status, or None if the claim was lost.

    This is the fence: an outcome changes a job only if the job runs under exactly the outcome's token. So the outcome
    of a worker that lost its claim changes nothing.
    """
    refuse_illegal(outcomes)
    known = [outcome for outcome in outcomes if is_id(outcome.job_id)]
    if len(known) == len(outcomes) and all_plain(known):
        return [Status.COMPLETED if held else None for held in await complete(transaction, known)]
    plain = [outcome for outcome in known if is_plain(outcome)]
    held = await complete(transaction, plain) if plain else []
    done = {(outcome.job_id, outcome.token) for outcome in compress(plain, held)}
    settled = await settle(transaction, [outcome for outcome in known if not is_plain(outcome)])
    statuses: list[Status | None] = []
    for outcome in outcomes:
        key = outcome.job_id, outcome.token
        if key in done:
            done.discard(key)
            statuses.append(Status.COMPLETED)
        else:
            statuses.append(settled.pop(key, None))
    return statuses


async def written_before(transaction: Transaction, keys: Sequence[Fence]) -> dict[Fence, Status]:
    """Of outcomes that were sent before and got no answer, return those that were written and ended their job."""
    rows = await transaction.rows(WRITTEN, ids=[key[0] for key in keys], tokens=[key[1] for key in keys])
    return {(job_id, token): STATUSES[status] for job_id, token, status in rows}


def all_plain(outcomes: Sequence[Outcome]) -> bool:
    """Return whether one statement can write all outcomes, so that no transaction is needed around it."""
    return all(is_plain(outcome) for outcome in outcomes)


def is_plain(outcome: Outcome) -> bool:
    return outcome.move is Move.DONE and not (
        outcome.follow_ups or outcome.steps or outcome.recovers or outcome.is_followed
    )


async def complete(transaction: Transaction, outcomes: Sequence[Outcome]) -> list[bool]:
    """Complete the jobs of runs that simply succeeded, in one statement; return of each run whether its claim held."""
    alone = len(outcomes) == 1  # its result may be large: an array would have to be quoted here and parsed there
    row = await transaction.row(
        COMPLETE_ONE if alone else COMPLETE,
        ids=arrays.of_plain([outcome.job_id for outcome in outcomes]),
        tokens=arrays.of_plain([outcome.token for outcome in outcomes]),
        began=arrays.of_plain([outcome.started_at or None for outcome in outcomes]),
        results=outcomes[0].result if alone else arrays.of_texts([outcome.result for outcome in outcomes]),
    )
    accepted, woken, heard = row or ([], None, False)
    transaction.woken.update(woken or ())
    transaction.note_readers(heard)
    if accepted is None:
        return [True] * len(outcomes)
    left = set(accepted)  # each once: the same outcome may be given twice
    return [take(left, f"{outcome.job_id} {outcome.token}") for outcome in outcomes]


def take(texts: set[str], text: str) -> bool:
    """Remove a text from the set; return whether it was there."""
    is_there = text in texts
    texts.discard(text)
    return is_there


async def settle(transaction: Transaction, outcomes: Sequence[Outcome]) -> dict[Fence, Status]:
    """Write all other kinds of outcomes; return the new statuses of the jobs whose claim held."""
    if not outcomes:
        return {}
    first = first_of_each(outcomes)
    ids, tokens = (arrays.of_plain(column) for column in zip(*first, strict=True)) if first else ("{}", "{}")
    held = [to_state(row) for row in await transaction.rows(HELD, ids=ids, tokens=tokens)]
    written = await write(transaction, [(job, first[job.id, job.token]) for job in held])
    return {(job.id, job.token): end.status for job, end in zip(held, written, strict=True)}


async def write(transaction: Transaction, ended: Sequence[tuple[JobState, Outcome]]) -> list[Conclusion]:
    """Write the ends of runs that this transaction has locked, with their steps and follow-ups."""
    conclusions = [conclude(job, outcome, job.ref) for job, outcome in ended]
    concluded = [(job, conclusion) for (job, _), conclusion in zip(ended, conclusions, strict=True)]
    outcomes = [outcome for _, outcome in ended]
    await transaction.record([*feed.ended(concluded, outcomes), *feed.starts_taken_back(ended)])
    await note_failures(transaction, concluded)
    await reschedule(transaction, [pair for pair in concluded if pair[1].status not in FINISHED])
    await record(transaction, [(job.id, end.run) for job, end in concluded if end.run is not None])
    await finish(transaction, [pair for pair in concluded if pair[1].status in FINISHED])
    await steps.put(transaction, [(outcome.job_id, step) for outcome in outcomes for step in outcome.steps])
    follow_ups = [*(job for outcome in outcomes for job in outcome.follow_ups), *jobs_after(concluded)]
    # last, because a follow-up may need the dedupe key that its parent held
    note_inserted(outcomes, await insert_jobs(transaction, follow_ups))
    await watch(transaction, {outcome.job_id: outcome.waits_for for outcome in outcomes if is_end(outcome.waits_for)})
    return conclusions


async def reschedule(transaction: Transaction, going: Sequence[tuple[JobState, Conclusion]]) -> None:
    """Keep the jobs live: they wait for their next run."""
    for part in arrays.in_parts(rescheduled_row(job, conclusion) for job, conclusion in going):
        await transaction.rows(RESCHEDULE, **arrays.of_columns(GOING, part))
    count_moves(transaction, moves(going))
    transaction.woken.update(job.queue for job, _ in going)


def rescheduled_row(job: JobState, conclusion: Conclusion) -> Row:
    """Return the values in the order of GOING."""
    return (
        job.id,
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


async def finish(transaction: Transaction, ended: Sequence[tuple[JobState, Conclusion]]) -> None:
    """Move finished jobs from the live table to the archive, and wake the jobs that wait for their end."""
    if not ended:
        return
    for part in arrays.in_parts(archived_row(job, conclusion) for job, conclusion in ended):
        await transaction.rows(FINISH, **arrays.of_columns(ENDED, part))
    count_moves(transaction, moves(ended))
    await wake_for_ends(transaction, [job.id for job, _ in ended])


def archived_row(job: JobState, conclusion: Conclusion) -> Row:
    """Return the values in the order of ENDED."""
    return job.id, *archived_values(conclusion)


async def record(transaction: Transaction, runs: Sequence[tuple[str, Run]]) -> None:
    """Add runs to the history of their jobs, at most one per job."""
    rows = [(job_id, *run) for job_id, run in runs]
    for part in arrays.in_parts(rows):
        await transaction.rows(RECORD, **arrays.of_columns(RECORDED, part))


REPORT = f"""
UPDATE {{s}}.jobs AS j SET progress = new.fraction, note = new.note, changed_at = {{now}}
FROM unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(fractions)s::float8[], %(notes)s::text[])
    AS new(id, token, fraction, note)
WHERE j.id = new.id AND j.token = new.token AND j.status + 0 = {RUNNING}
RETURNING j.id::text, j.queue, j.task, j.target_type, j.target_id, new.fraction, new.note
"""


async def report(transaction: Transaction, reports: list[ProgressReport]) -> list[bool]:
    known = [report for report in reports if is_id(report.job_id)]
    rows = await transaction.rows(
        REPORT,
        ids=[report.job_id for report in known],
        tokens=[report.token for report in known],
        fractions=[report.fraction for report in known],
        notes=[storable(report.note) for report in known],
    )
    await transaction.record(
        [
            feed.progressed(JobRef(job_id, *target), queue, task, fraction, note)
            for job_id, queue, task, *target, fraction, note in rows
        ]
    )
    accepted = {row[0] for row in rows}
    return [report.job_id in accepted for report in reports]
