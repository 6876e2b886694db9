"""Jobs leave their workers: the fence, the archive, the next try, and progress on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mainspring.clock import Millis
from mainspring.job import FINISHED, Failure, Move, Outcome, ProgressReport, Status, end_of
from mainspring.stores.postgres import arrays, steps
from mainspring.stores.postgres.insertion import insert_jobs
from mainspring.stores.postgres.rows import is_id, storable
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.postgres.waiting import is_end, wake_for_ends, watch
from mainspring.stores.rules import (
    COUNTS_AS_ATTEMPT,
    begins_anew,
    keeps_its_time,
    next_status,
    next_time,
    recorded_as,
    refuse_illegal,
    shorten,
)
from mainspring.stores.tables import CODES, DEAD_LETTER, NEVER, RUNNING, STATUSES

COMPLETE = """
SELECT * FROM {s}.complete(%(ids)s::uuid[], %(tokens)s::bigint[], %(began)s::bigint[], %(results)s::text[], {now})
"""
WRITTEN = """
SELECT archive.id::text, archive.token, status FROM {s}.archive
JOIN unnest(%(ids)s::uuid[], %(tokens)s::bigint[]) AS ended(id, token)
    ON archive.id = ended.id AND archive.token = ended.token
"""
HELD = f"""
WITH ended AS (
    SELECT id, token FROM unnest(%(ids)s::uuid[], %(tokens)s::bigint[]) AS ended(id, token)
)
SELECT j.id::text, j.token, queue, cancel, attempts, crashes, worker, claimed_at, {{now}}
FROM {{s}}.jobs AS j JOIN ended ON j.id = ended.id AND j.token = ended.token
WHERE j.id = ANY (%(ids)s::uuid[]) AND status + 0 = {RUNNING} ORDER BY j.id FOR NO KEY UPDATE OF j
"""  # the sum hides the index of running jobs, which a planner who thinks that none runs would read as a whole
ARCHIVE = f"""
WITH ended AS (
    SELECT * FROM unnest(%(ids)s::uuid[], %(statuses)s::smallint[], %(is_attempt)s::integer[], %(is_crash)s::integer[],
                         %(began)s::bigint[], %(reasons)s::text[], %(error_types)s::text[], %(errors)s::text[],
                         %(results)s::text[])
        AS ended(id, end_status, is_attempt, is_crash, began, end_reason, end_error_type, end_error, result)
), gone AS (
    DELETE FROM {{s}}.jobs AS j USING ended WHERE j.id = ended.id
    RETURNING j.*, end_status, is_attempt, is_crash, began, end_reason, end_error_type, end_error, result,
              CASE WHEN end_status = {DEAD_LETTER} THEN keep_dead ELSE keep END AS keeping
)
INSERT INTO {{s}}.archive
SELECT id, task, queue, end_status, priority, run_at, attempts + is_attempt, max_attempts, crashes + is_crash, token,
       worker, coalesce(began, claimed_at), {{now}}, least({NEVER}, {{now}} + keeping),
       {{s}}.drop_day(keeping, {{now}}), timeout,
       created_at, keep, keep_dead, dedupe_key, target_type, target_id, tags, options, coalesce(end_reason, reason),
       progress, note, coalesce(end_error_type, error_type),
       CASE WHEN end_error_type IS NULL THEN error ELSE end_error END, payload, result
FROM gone
"""
GO_ON = """
UPDATE {s}.jobs SET status = %(status)s, run_at = coalesce(%(run_at)s, least(run_at, %(at)s)),
                    attempts = CASE WHEN %(anew)s THEN 0 ELSE attempts + %(attempts)s END,
                    crashes = CASE WHEN %(anew)s THEN 0 ELSE crashes + %(crashes)s END,
                    cancel = false, waits_for = %(waits_for)s,
                    reason = %(reason)s, error_type = coalesce(%(error_type)s, error_type),
                    error = CASE WHEN %(error_type)s::text IS NULL THEN error ELSE %(error)s END
WHERE id = %(id)s
"""
RECORD_ATTEMPT = """
INSERT INTO {s}.attempts (job_id, number, worker, started_at, finished_at, move, error_type, error, traceback)
SELECT %(id)s, coalesce(max(number), 0) + 1, %(worker)s, %(started_at)s, %(finished_at)s, %(move)s, %(error_type)s,
       %(error)s, %(traceback)s
FROM {s}.attempts WHERE job_id = %(id)s
"""


@dataclass(slots=True)
class Held:
    """A running job of which the fence said yes."""

    id: str
    token: int
    queue: str
    cancel: bool
    attempts: int
    crashes: int
    worker: str
    claimed_at: Millis
    now: Millis


async def ack(transaction: Transaction, outcomes: list[Outcome]) -> list[Status | None]:
    """The fence: only a job that runs under the outcome's very token is touched. A zombie's outcome finds none."""
    refuse_illegal(outcomes)
    done = await complete(transaction, [one for one in outcomes if is_plain(one) and is_id(one.job_id)])
    rest = [one for one in outcomes if not is_plain(one)]
    settled = await settle(transaction, [one for one in rest if is_id(one.job_id)]) if rest else {}
    awaited = {one.waits_for for one in rest if is_end(one.waits_for)}
    if together := [job_id for job_id, _ in done if awaited and end_of(job_id) in awaited]:
        await wake_for_ends(transaction, together)  # once more: who waits for them has been suspended since
    statuses: list[Status | None] = []
    for one in outcomes:
        key = one.job_id, one.token
        statuses.append(Status.COMPLETED if done.pop(key, False) else settled.pop(key, None))
    return statuses


async def written_before(transaction: Transaction, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Status]:
    """Of outcomes that were sent before and never answered: those that had arrived, and ended their job."""
    rows = await transaction.rows(WRITTEN, ids=[key[0] for key in keys], tokens=[key[1] for key in keys])
    return {(job_id, token): STATUSES[status] for job_id, token, status in rows}


def all_plain(outcomes: Sequence[Outcome]) -> bool:
    """Whether one statement does it all, and needs no transaction around it."""
    return all(is_plain(one) for one in outcomes)


def is_plain(outcome: Outcome) -> bool:
    return outcome.move is Move.DONE and not outcome.follow_ups and not outcome.steps


async def complete(transaction: Transaction, outcomes: Sequence[Outcome]) -> dict[tuple[str, int], bool]:
    """Runs that simply succeeded, all in one statement; those whose claim held."""
    if not outcomes:
        return {}
    row = await transaction.row(
        COMPLETE,
        ids=arrays.of_plain(one.job_id for one in outcomes),
        tokens=arrays.of_plain(one.token for one in outcomes),
        began=arrays.of_plain(one.started_at or None for one in outcomes),
        results=arrays.of_texts(one.result for one in outcomes),
    )
    accepted, woken = row or ([], None)
    transaction.woken.update(woken or ())
    if accepted is None:
        return dict.fromkeys(((one.job_id, one.token) for one in outcomes), True)
    return {(job_id, int(token)): True for job_id, _, token in (one.partition(" ") for one in accepted)}


async def settle(transaction: Transaction, outcomes: Sequence[Outcome]) -> dict[tuple[str, int], Status]:
    """Every other way for a run to end. Two outcomes for one claim: the first counts."""
    first: dict[tuple[str, int], Outcome] = {}
    for outcome in outcomes:
        first.setdefault((outcome.job_id, outcome.token), outcome)
    held = await transaction.rows(HELD, ids=[key[0] for key in first], tokens=[key[1] for key in first])
    statuses: dict[tuple[str, int], Status] = {}
    ended: list[tuple[Held, Status, Outcome]] = []
    for job in (Held(*row) for row in held):
        outcome = first[job.id, job.token]
        status = next_status(outcome, cancel=job.cancel, crashes=job.crashes)
        statuses[job.id, job.token] = status
        if status in FINISHED:
            ended.append((job, status, outcome))
        else:
            await go_on(transaction, job, status, outcome)
        if (move := recorded_as(outcome, status)) is not None:
            await record_attempt(transaction, job, move, outcome)
    await end(transaction, ended)
    accepted = [outcome for key, outcome in first.items() if key in statuses]
    await steps.put(transaction, [(outcome.job_id, step) for outcome in accepted for step in outcome.steps])
    follow_ups = [job for outcome in accepted for job in outcome.follow_ups]
    await insert_jobs(transaction, follow_ups)  # last, since one may want the dedupe key that its parent held
    await watch(transaction, {one.job_id: one.waits_for for one in accepted if is_end(one.waits_for)})
    return statuses


async def go_on(transaction: Transaction, job: Held, status: Status, outcome: Outcome) -> None:
    """The job stays live: it waits for its next run."""
    failure = outcome.failure
    await transaction.do(
        GO_ON,
        id=job.id,
        status=CODES[status],
        run_at=None if keeps_its_time(outcome) else next_time(outcome, job.now),
        at=job.now,  # it was due when it was claimed, even if the clock was set back since
        attempts=int(outcome.move in COUNTS_AS_ATTEMPT),
        crashes=int(outcome.move is Move.CRASH),
        anew=begins_anew(outcome),
        waits_for=outcome.waits_for if outcome.move is Move.SUSPEND else None,
        reason=storable(outcome.reason),
        error_type=failure.type if failure else None,
        error=storable(failure.message) if failure else None,
    )
    transaction.count(job.queue, RUNNING, -1)
    transaction.count(job.queue, CODES[status], 1)
    transaction.woken.add(job.queue)


async def end(transaction: Transaction, ended: Sequence[tuple[Held, Status, Outcome]]) -> None:
    """The jobs are finished: they leave the live table for the archive."""
    if not ended:
        return
    failures = [outcome.failure for _, _, outcome in ended]
    await transaction.do(
        ARCHIVE,
        ids=[job.id for job, _, _ in ended],
        statuses=[CODES[status] for _, status, _ in ended],
        is_attempt=[int(outcome.move in COUNTS_AS_ATTEMPT) for _, _, outcome in ended],
        is_crash=[int(o.move is Move.CRASH and status is not Status.CANCELLED) for _, status, o in ended],
        began=[outcome.started_at or None for _, _, outcome in ended],
        reasons=[storable(outcome.reason) or None for _, _, outcome in ended],
        error_types=[failure.type if failure else None for failure in failures],
        errors=[storable(failure.message) if failure else None for failure in failures],
        results=[outcome.result for _, _, outcome in ended],
    )
    for (queue, status), number in Counter((job.queue, status) for job, status, _ in ended).items():
        transaction.count(queue, RUNNING, -number)
        transaction.count(queue, CODES[status], number)
    await wake_for_ends(transaction, [job.id for job, _, _ in ended])


async def record_attempt(transaction: Transaction, job: Held, move: Move, outcome: Outcome) -> None:
    failure = outcome.failure or Failure("", "")
    await transaction.do(
        RECORD_ATTEMPT,
        id=job.id,
        worker=job.worker,
        started_at=outcome.started_at or job.claimed_at,
        finished_at=outcome.finished_at or job.now,
        move=move,
        error_type=failure.type or None,
        error=storable(failure.message) or None,
        traceback=storable(shorten(failure.traceback)) or None,
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
