"""Notes about failed runs, written in the transaction of their outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.stores.engine.ack import Conclusion, JobState
from mainspring.stores.engine.failures import notes
from mainspring.stores.sqlite.transaction import Transaction, in_values
from mainspring.stores.tables import or_never

PUT = "INSERT INTO mainspring_documents (collection, grp, id, data, version, due_at, expires_at) VALUES {values}"


def note_failures(transaction: Transaction, concluded: Sequence[tuple[JobState, Conclusion]]) -> None:
    rows = [
        (*note.key, note.data, note.version, or_never(note.due_at), or_never(note.expires_at))
        for note in notes(concluded, transaction.now)
    ]
    for part in in_values(PUT, rows):
        transaction.execute(*part)
