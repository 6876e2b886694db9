"""Notes about failed runs, written in the transaction of their outcomes, and the dead letters of failure groups."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from mainspring.job import Status
from mainspring.stores.engine.ack import Conclusion, JobState
from mainspring.stores.engine.failures import MAX_PAST_FAILURES, notes, recovered_often
from mainspring.stores.sqlite.read import within_terms
from mainspring.stores.sqlite.transaction import Transaction, in_values
from mainspring.stores.tables import CODES, or_never

PUT = "INSERT INTO mainspring_documents (collection, grp, id, data, version, due_at, expires_at) VALUES {values}"
PAST_FAILURES = f"""
SELECT fingerprint FROM mainspring_attempts WHERE job_id = ? AND fingerprint IS NOT NULL
ORDER BY number DESC LIMIT {MAX_PAST_FAILURES}
"""
DEAD_LETTERS = f"""
SELECT queue, count(*) FROM (
    SELECT queue FROM mainspring_archive INDEXED BY mainspring_archive_failure_status
    WHERE fingerprint = ? AND status = {CODES[Status.DEAD_LETTER]} AND {{within}} ORDER BY id LIMIT ?)
GROUP BY queue
"""


def note_failures(transaction: Transaction, concluded: Sequence[tuple[JobState, Conclusion]]) -> None:
    past = {job_id: past_failures(transaction, job_id) for job_id in recovered_often(concluded)}
    rows = [
        (*note.key, note.data, note.version, or_never(note.due_at), or_never(note.expires_at))
        for note in notes(concluded, transaction.now, past)
    ]
    for part in in_values(PUT, rows):
        transaction.execute(*part)


def past_failures(transaction: Transaction, job_id: str) -> list[str]:
    """Return the fingerprints of the last failures of a job, newest first."""
    return [known for (known,) in transaction.execute(PAST_FAILURES, (job_id,))]


def dead_letters(
    connection: sqlite3.Connection, fingerprints: Sequence[str], cap: int, within: Sequence[str]
) -> dict[str, dict[str, int]]:
    term, *values = within_terms(within) if within else ("1",)
    statement = DEAD_LETTERS.format(within=term)
    found = {known: dict(connection.execute(statement, (known, *values, cap)).fetchall()) for known in fingerprints}
    return {known: queues for known, queues in found.items() if queues}
