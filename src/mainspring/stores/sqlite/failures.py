"""Notes about failed runs, written in the transaction of their outcomes, and the dead letters of failure groups."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from mainspring.job import Status
from mainspring.stores.engine.ack import Conclusion, JobState
from mainspring.stores.engine.failures import notes
from mainspring.stores.sqlite.read import within_terms
from mainspring.stores.sqlite.transaction import Transaction, in_values
from mainspring.stores.tables import CODES, or_never

PUT = "INSERT INTO mainspring_documents (collection, grp, id, data, version, due_at, expires_at) VALUES {values}"
DEAD_LETTERS = f"""
SELECT queue, count(*) FROM (
    SELECT queue FROM mainspring_archive INDEXED BY mainspring_archive_failure_status
    WHERE fingerprint = ? AND status = {CODES[Status.DEAD_LETTER]} AND {{within}} ORDER BY id LIMIT ?)
GROUP BY queue
"""


def note_failures(transaction: Transaction, concluded: Sequence[tuple[JobState, Conclusion]]) -> None:
    rows = [
        (*note.key, note.data, note.version, or_never(note.due_at), or_never(note.expires_at))
        for note in notes(concluded, transaction.now)
    ]
    for part in in_values(PUT, rows):
        transaction.execute(*part)


def dead_letters(
    connection: sqlite3.Connection, fingerprints: Sequence[str], cap: int, within: Sequence[str]
) -> dict[str, dict[str, int]]:
    term, *values = within_terms(within) if within else ("1",)
    statement = DEAD_LETTERS.format(within=term)
    found = {known: dict(connection.execute(statement, (known, *values, cap)).fetchall()) for known in fingerprints}
    return {known: queues for known, queues in found.items() if queues}
