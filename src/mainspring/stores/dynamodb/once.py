"""The document of a key, written in the transaction of the change that uses the key."""

from __future__ import annotations

from mainspring.errors import AlreadyDone, TakenOver
from mainspring.stores.documents import Held, Write
from mainspring.stores.dynamodb.document_items import is_alive, item_key, register_collections, to_action, to_document
from mainspring.stores.dynamodb.table import Action, Table


async def once_actions(table: Table, once: Write | None) -> list[Action]:
    """Return the write for a transaction: none if this request has written it, AlreadyDone if another request has.

    The write is conditional: if another request is faster, the transaction is cancelled.
    """
    if once is None:
        return []
    row = await table.get(item_key(once.key))
    if row is None or not is_alive(row, table.clock.now()):
        await register_collections(table, {once.key.collection})
        return [to_action(once, table.clock.now())]
    if to_document(row).version != once.version:
        raise AlreadyDone
    return []


async def check_held(table: Table, held: Held | None) -> None:
    """Raise TakenOver if the document has another version by now."""
    if held is None:
        return
    row = await table.get(item_key(held.key))
    if row is None or not is_alive(row, table.clock.now()) or to_document(row).version != held.version:
        raise TakenOver
