"""Notes about failed runs, written in the transaction of their outcomes. They lock no row that others write."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.stores.engine.ack import Conclusion, JobState
from mainspring.stores.engine.failures import notes
from mainspring.stores.postgres import arrays
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.tables import or_never

NOTE = {
    "collections": "text", "groups": "text", "ids": "text", "data": "text", "versions": "text", "due": "bigint",
    "expiry": "bigint",
}  # fmt: skip
PUT = f"""
INSERT INTO {{s}}.documents (collection, grp, id, data, version, due_at, expires_at)
SELECT * FROM unnest({arrays.casts(NOTE)})
"""


async def note_failures(transaction: Transaction, concluded: Sequence[tuple[JobState, Conclusion]]) -> None:
    if not concluded:
        return
    now = concluded[0][0].ref
    rows = [
        (*note.key, note.data, note.version, or_never(note.due_at), or_never(note.expires_at))
        for note in notes(concluded, now)
    ]
    for part in arrays.in_parts(rows):
        await transaction.do(PUT, **arrays.of_columns(NOTE, part))
