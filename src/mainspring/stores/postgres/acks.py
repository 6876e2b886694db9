"""End runs: check the fence, archive or reschedule the job, and record attempts and progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mainspring.clock import Millis
from mainspring.job import FINISHED, Failure, Move, Outcome, ProgressReport, Status, is_end
from mainspring.stores.postgres import arrays, steps
from mainspring.stores.postgres.insertion import insert_jobs
from mainspring.stores.postgres.rows import is_id, storable
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.postgres.wakeups import wake_for_ends, watch
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
from mainspring.stores.tables import CODES, RUNNING, STATUSES

COMPLETE = """
SELECT * FROM {s}.complete(%(ids)s::uuid[], %(tokens)s::bigint[], %(began)s::bigint[], %(results)s::text[], {now})
"""
COMPLETE_ONE = COMPLETE.replace("%(results)s::text[]", "ARRAY[%(results)s::text]")
WRITTEN = """
SELECT archive.id::text, archive.token, status FROM {s}.archive
JOIN unnest(%(ids)s::uuid[], %(tokens)s::bigint[]) AS ended(id, token)
    ON archive.id = ended.id AND archive.token = ended.token
"""
HELD = "SELECT held.*, {now} FROM {s}.held(%(ids)s::uuid[], %(tokens)s::bigint[])"
GOING = {
    "ids": "uuid",
    "statuses": "smallint",
    "times": "bigint",
    "anew": "boolean",
    "attempts": "integer",
    "crashes": "integer",
    "keys": "text",
    "reasons": "text",
    "error_types": "text",
    "errors": "text",
}
GO_ON = f"SELECT {{s}}.go_on({arrays.casts(GOING)}, %(at)s::bigint)"
ENDED = {
    "ids": "uuid",
    "statuses": "smallint",
    "attempts": "integer",
    "crashes": "integer",
    "began": "bigint",
    "reasons": "text",
    "error_types": "text",
    "errors": "text",
    "results": "text",
}
ASKED = "SELECT id::text, reason FROM {s}.jobs WHERE id = ANY(%(ids)s::uuid[])"
FINISH = f"SELECT {{s}}.finish({arrays.casts(ENDED)}, {{now}})"
RECORDED = {
    "ids": "uuid",
    "workers": "text",
    "began": "bigint",
    "ended": "bigint",
    "moves": "text",
    "error_types": "text",
    "errors": "text",
    "tracebacks": "text",
}
RECORD = f"SELECT {{s}}.record_attempts({arrays.casts(RECORDED)})"

Row = tuple[Any, ...]


@dataclass(slots=True)
class Held:
    """A running job whose token matched the outcome's, locked by this transaction."""

    id: str
    token: int
    queue: str
    cancel: bool
    crashes: int
    worker: str
    claimed_at: Millis
    now: Millis


async def ack(transaction: Transaction, outcomes: list[Outcome]) -> list[Status | None]:
    """Write outcomes and return each job's new status, or None if the claim was lost.

    This is the fence: an outcome changes a job only if the job runs under exactly the outcome's token. So the outcome
    of a worker that lost its claim changes nothing.
    """
    refuse_illegal(outcomes)
    done = await complete(transaction, [outcome for outcome in outcomes if is_plain(outcome) and is_id(outcome.job_id)])
    rest = [outcome for outcome in outcomes if not is_plain(outcome)]
    settled = await settle(transaction, [outcome for outcome in rest if is_id(outcome.job_id)]) if rest else {}
    statuses: list[Status | None] = []
    for outcome in outcomes:
        key = outcome.job_id, outcome.token
        statuses.append(Status.COMPLETED if done.pop(key, False) else settled.pop(key, None))
    return statuses


async def written_before(transaction: Transaction, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Status]:
    """Of outcomes that were sent before and got no answer, return those that were written and ended their job."""
    rows = await transaction.rows(WRITTEN, ids=[key[0] for key in keys], tokens=[key[1] for key in keys])
    return {(job_id, token): STATUSES[status] for job_id, token, status in rows}


def all_plain(outcomes: Sequence[Outcome]) -> bool:
    """Return whether one statement can write all outcomes, so that no transaction is needed around it."""
    return all(is_plain(one) for one in outcomes)


def is_plain(outcome: Outcome) -> bool:
    return outcome.move is Move.DONE and not outcome.follow_ups and not outcome.steps


async def complete(transaction: Transaction, outcomes: Sequence[Outcome]) -> dict[tuple[str, int], bool]:
    """Complete the jobs of runs that simply succeeded, in one statement; return those whose claim held."""
    if not outcomes:
        return {}
    alone = len(outcomes) == 1  # its result may be large: an array would have to be quoted here and parsed there
    row = await transaction.row(
        COMPLETE_ONE if alone else COMPLETE,
        ids=arrays.of_plain(one.job_id for one in outcomes),
        tokens=arrays.of_plain(one.token for one in outcomes),
        began=arrays.of_plain(one.started_at or None for one in outcomes),
        results=outcomes[0].result if alone else arrays.of_texts(one.result for one in outcomes),
    )
    accepted, woken = row or ([], None)
    transaction.woken.update(woken or ())
    if accepted is None:
        return dict.fromkeys(((one.job_id, one.token) for one in outcomes), True)
    return {(job_id, int(token)): True for job_id, _, token in (one.partition(" ") for one in accepted)}


async def settle(transaction: Transaction, outcomes: Sequence[Outcome]) -> dict[tuple[str, int], Status]:
    """Write all other kinds of outcomes; return the new statuses. Of two outcomes for one claim the first counts."""
    first: dict[tuple[str, int], Outcome] = {}
    for outcome in outcomes:
        first.setdefault((outcome.job_id, outcome.token), outcome)
    held = await transaction.rows(
        HELD, ids=arrays.of_plain(job_id for job_id, _ in first), tokens=arrays.of_plain(token for _, token in first)
    )
    statuses: dict[tuple[str, int], Status] = {}
    ended: list[tuple[Held, Status, Outcome]] = []
    going: list[tuple[Held, Status, Outcome]] = []
    recorded: list[Row] = []
    for job in (Held(*row) for row in held):
        outcome = first[job.id, job.token]
        status = next_status(outcome, cancel=job.cancel, crashes=job.crashes)
        statuses[job.id, job.token] = status
        (ended if status in FINISHED else going).append((job, status, outcome))
        if (move := recorded_as(outcome, status)) is not None:
            recorded.append(to_record(job, move, outcome))
    await go_on(transaction, going)
    await record(transaction, recorded)
    await end(transaction, ended)
    accepted = [outcome for key, outcome in first.items() if key in statuses]
    await steps.put(transaction, [(outcome.job_id, step) for outcome in accepted for step in outcome.steps])
    follow_ups = [job for outcome in accepted for job in outcome.follow_ups]
    await insert_jobs(transaction, follow_ups)  # last, because one may need the dedupe key that its parent held
    await watch(transaction, {one.job_id: one.waits_for for one in accepted if is_end(one.waits_for)})
    return statuses


async def go_on(transaction: Transaction, going: Sequence[tuple[Held, Status, Outcome]]) -> None:
    """Keep the jobs live: they wait for their next run."""
    for part in arrays.in_parts(to_go_on(job, status, outcome) for job, status, outcome in going):
        at = going[0][0].now  # they were due when they were claimed, even if the clock was set back since then
        await transaction.rows(GO_ON, **arrays.of_columns(GOING, part), at=at)
    for (queue, status), number in Counter((job.queue, status) for job, status, _ in going).items():
        transaction.count(queue, RUNNING, -number)
        transaction.count(queue, CODES[status], number)
        transaction.woken.add(queue)


def to_go_on(job: Held, status: Status, outcome: Outcome) -> Row:
    """Return the values in the order of GOING."""
    failure = outcome.failure
    return (
        job.id,
        CODES[status],
        None if keeps_its_time(outcome) else next_time(outcome, job.now),
        begins_anew(outcome),
        int(outcome.move in COUNTS_AS_ATTEMPT),
        int(outcome.move is Move.CRASH),
        outcome.waits_for if outcome.move is Move.SUSPEND else None,
        storable(outcome.reason),
        failure.type if failure else None,
        storable(failure.message) if failure else None,
    )


async def end(transaction: Transaction, ended: Sequence[tuple[Held, Status, Outcome]]) -> None:
    """Move finished jobs from the live table to the archive."""
    if not ended:
        return
    asked = await reasons_to_stop(transaction, [job.id for job, _, _ in ended if job.cancel])
    await finish(transaction, [to_finish(job, status, outcome, asked.get(job.id)) for job, status, outcome in ended])
    for (queue, status), number in Counter((job.queue, status) for job, status, _ in ended).items():
        transaction.count(queue, RUNNING, -number)
        transaction.count(queue, CODES[status], number)
    await wake_for_ends(transaction, [job.id for job, _, _ in ended])


async def reasons_to_stop(transaction: Transaction, ids: Sequence[str]) -> dict[str, str]:
    """Return why running jobs were asked to stop, by job id."""
    return dict(await transaction.rows(ASKED, ids=list(ids))) if ids else {}


async def finish(transaction: Transaction, rows: Iterable[Row]) -> None:
    for part in arrays.in_parts(rows):
        await transaction.rows(FINISH, **arrays.of_columns(ENDED, part))


def to_finish(job: Held, status: Status, outcome: Outcome, asked: str | None) -> Row:
    """Return the values in the order of ENDED."""
    failure = outcome.failure
    return (
        job.id,
        CODES[status],
        int(outcome.move in COUNTS_AS_ATTEMPT),
        int(outcome.move is Move.CRASH and status is not Status.CANCELLED),
        outcome.started_at or None,
        storable(last_reason(outcome, status, asked=asked)),
        failure.type if failure else None,
        storable(failure.message) if failure else None,
        outcome.result,
    )


async def record(transaction: Transaction, rows: Iterable[Row]) -> None:
    """Add runs to the history of their jobs, at most one per job."""
    for part in arrays.in_parts(rows):
        await transaction.rows(RECORD, **arrays.of_columns(RECORDED, part))


def to_record(job: Held, move: Move, outcome: Outcome) -> Row:
    """Return the values in the order of RECORDED."""
    failure = outcome.failure or Failure("", "")
    return (
        job.id,
        job.worker,
        outcome.started_at or job.claimed_at,
        outcome.finished_at or job.now,
        move,
        failure.type or None,
        storable(failure.message) or None,
        storable(shorten(failure.traceback)) or None,
    )


REPORT = f"""
UPDATE {{s}}.jobs AS j SET progress = new.fraction, note = new.note
FROM unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(fractions)s::float8[], %(notes)s::text[])
    AS new(id, token, fraction, note)
WHERE j.id = new.id AND j.token = new.token AND j.status + 0 = {RUNNING} RETURNING j.id::text
"""


async def report(transaction: Transaction, reports: list[ProgressReport]) -> list[bool]:
    known = [one for one in reports if is_id(one.job_id)]
    rows = await transaction.rows(
        REPORT,
        ids=[one.job_id for one in known],
        tokens=[one.token for one in known],
        fractions=[one.fraction for one in known],
        notes=[storable(one.note) for one in known],
    )
    accepted = {job_id for (job_id,) in rows}
    return [one.job_id in accepted for one in reports]
