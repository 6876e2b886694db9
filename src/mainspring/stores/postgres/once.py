"""The document of a key, committed with the change that uses the key."""

from __future__ import annotations

from mainspring.errors import AlreadyDone
from mainspring.stores.documents import Write
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.tables import or_never

USE = """
INSERT INTO {s}.documents AS used (collection, grp, id, data, version, due_at, expires_at)
VALUES (%(collection)s, %(grp)s, %(id)s, %(data)s, %(version)s, %(due_at)s, %(expires_at)s)
ON CONFLICT (collection, grp, id) DO UPDATE
SET data = excluded.data, version = excluded.version, due_at = excluded.due_at, expires_at = excluded.expires_at
WHERE used.expires_at <= {now}
"""
USED_BY = "SELECT version FROM {s}.documents WHERE collection = %(collection)s AND grp = %(grp)s AND id = %(id)s"


async def commit_once(transaction: Transaction, once: Write | None) -> None:
    """Write the document, unless this request has written it; raise AlreadyDone if another request has.

    If another transaction is using the key, this waits until that one has ended.
    """
    if once is None:
        return
    place = dict(zip(("collection", "grp", "id"), once.key, strict=True))
    times = {"due_at": or_never(once.due_at), "expires_at": or_never(once.expires_at)}
    if await transaction.do(USE, **place, data=once.data, version=once.version, **times):
        return
    if await transaction.value(USED_BY, **place) != once.version:
        raise AlreadyDone
