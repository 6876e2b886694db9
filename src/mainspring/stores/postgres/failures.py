"""Notes about failed runs, written in the transaction of their outcomes, and the dead letters of failure groups.

A note locks no row that others write.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.job import Status
from mainspring.stores.engine.ack import Conclusion, JobState
from mainspring.stores.engine.failures import MAX_PAST_FAILURES, notes, recovered_often
from mainspring.stores.postgres import arrays
from mainspring.stores.postgres.read import Conditions
from mainspring.stores.postgres.rows import FINISHED
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Filter
from mainspring.stores.tables import or_never

NOTE = {
    "collections": "text", "groups": "text", "ids": "text", "data": "text", "versions": "text", "due": "bigint",
    "expiry": "bigint",
}  # fmt: skip
PUT = f"""
INSERT INTO {{s}}.documents (collection, grp, id, data, version, due_at, expires_at)
SELECT * FROM unnest({arrays.casts(NOTE)})
"""
PAST_FAILURES = f"""
SELECT job.job_id::text, fingerprint
FROM unnest(%(jobs)s::uuid[]) AS job(job_id), LATERAL (
    SELECT number, fingerprint FROM {{s}}.attempts AS run WHERE run.job_id = job.job_id AND fingerprint IS NOT NULL
    ORDER BY number DESC LIMIT {MAX_PAST_FAILURES}) AS past
ORDER BY number DESC
"""
DEAD_LETTERS = """
SELECT known, queue, count(*)
FROM unnest(%(fingerprints)s::text[]) AS known, LATERAL (
    SELECT queue FROM {{s}}.archive WHERE fingerprint = known AND {conditions} ORDER BY id LIMIT %(cap)s) AS dead
GROUP BY known, queue
"""


async def note_failures(transaction: Transaction, concluded: Sequence[tuple[JobState, Conclusion]]) -> None:
    if not concluded:
        return
    now, past = concluded[0][0].ref, await past_failures(transaction, recovered_often(concluded))
    rows = [
        (*note.key, note.data, note.version, or_never(note.due_at), or_never(note.expires_at))
        for note in notes(concluded, now, past)
    ]
    for part in arrays.in_parts(rows):
        await transaction.do(PUT, **arrays.of_columns(NOTE, part))


async def past_failures(transaction: Transaction, jobs: Sequence[str]) -> dict[str, list[str]]:
    """Return the fingerprints of the last failures of jobs, newest first."""
    found: dict[str, list[str]] = {}
    for job_id, known in await transaction.rows(PAST_FAILURES, jobs=jobs) if jobs else ():
        found.setdefault(job_id, []).append(known)
    return found


async def dead_letters(
    transaction: Transaction, fingerprints: Sequence[str], cap: int, within: Sequence[str]
) -> dict[str, dict[str, int]]:
    conditions = Conditions(Filter(statuses=(Status.DEAD_LETTER,), within=tuple(within)), FINISHED)
    statement = DEAD_LETTERS.format(conditions=conditions)
    rows = await transaction.rows(statement, **conditions.values, fingerprints=list(fingerprints), cap=cap)
    found: dict[str, dict[str, int]] = {}
    for known, queue, number in rows:
        found.setdefault(known, {})[queue] = number
    return found
