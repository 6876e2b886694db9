"""Documents that are committed with a change by hand, such as that of a key which the change uses."""

from __future__ import annotations

from mainspring.errors import AlreadyDone, TakenOver
from mainspring.stores.documents import Held, Key, Write
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.tables import or_never

PUT = """
INSERT INTO {s}.documents AS used (collection, grp, id, data, version, due_at, expires_at)
VALUES (%(collection)s, %(grp)s, %(id)s, %(data)s, %(version)s, %(due_at)s, %(expires_at)s)
ON CONFLICT (collection, grp, id) DO UPDATE
SET data = excluded.data, version = excluded.version, due_at = excluded.due_at, expires_at = excluded.expires_at
WHERE used.expires_at <= {now}
"""
VERSION = "SELECT version FROM {s}.documents WHERE collection = %(collection)s AND grp = %(grp)s AND id = %(id)s"
LOCKED_VERSION = f"{VERSION} FOR SHARE"  # other transactions write the document after this one


async def commit_once(transaction: Transaction, once: Write | None) -> None:
    """Write the document, unless this request has written it; raise AlreadyDone if another request has.

    If another transaction is using the key, this waits until that one has ended.
    """
    if once is None:
        return
    if await put_document(transaction, once):
        return
    if await transaction.value(VERSION, **place_of(once.key)) != once.version:
        raise AlreadyDone


async def put_document(transaction: Transaction, write: Write) -> bool:
    """Write a document that does not exist or has expired; return whether it was so."""
    times = {"due_at": or_never(write.due_at), "expires_at": or_never(write.expires_at)}
    return bool(await transaction.do(PUT, **place_of(write.key), data=write.data, version=write.version, **times))


async def check_held(transaction: Transaction, held: Held | None) -> None:
    """Raise TakenOver if the document has another version by now. Otherwise keep it locked until the commit."""
    if held is not None and await transaction.value(LOCKED_VERSION, **place_of(held.key)) != held.version:
        raise TakenOver


def place_of(key: Key) -> dict[str, str]:
    return dict(zip(("collection", "grp", "id"), key, strict=True))
