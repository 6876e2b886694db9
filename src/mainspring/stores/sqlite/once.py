"""Documents that are committed with a change by hand, such as that of a key which the change uses."""

from __future__ import annotations

from mainspring.errors import AlreadyDone, TakenOver
from mainspring.stores.documents import Held, Write
from mainspring.stores.sqlite.transaction import Transaction
from mainspring.stores.tables import or_never

VERSION = """
SELECT version FROM mainspring_documents WHERE collection = ? AND grp = ? AND id = ? AND expires_at > ?
"""
PUT = """
INSERT OR REPLACE INTO mainspring_documents (collection, grp, id, data, version, due_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""


def commit_once(transaction: Transaction, once: Write | None) -> None:
    """Write the document, unless this request has written it; raise AlreadyDone if another request has."""
    if once is None:
        return
    version = transaction.value(VERSION, (*once.key, transaction.now))
    if version is None:
        put_document(transaction, once)
    elif version != once.version:
        raise AlreadyDone


def check_held(transaction: Transaction, held: Held | None) -> None:
    """Raise TakenOver if the document has another version by now."""
    if held is not None and transaction.value(VERSION, (*held.key, transaction.now)) != held.version:
        raise TakenOver


def put_document(transaction: Transaction, write: Write) -> None:
    times = or_never(write.due_at), or_never(write.expires_at)
    transaction.execute(PUT, (*write.key, write.data, write.version, *times))
