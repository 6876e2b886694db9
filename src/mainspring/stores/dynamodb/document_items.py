"""Documents as items: their keys, and the list of the collections that have been used."""

from __future__ import annotations

from mainspring.errors import StoreError
from mainspring.stores.documents import Key, Write
from mainspring.stores.dynamodb.client import Item
from mainspring.stores.dynamodb.insertion import MAX_ITEM_BYTES
from mainspring.stores.dynamodb.items import key, stamp, text, ttl
from mainspring.stores.dynamodb.table import Table
from mainspring.stores.dynamodb.values import Row, pack, put, size

SEPARATOR = "\0"  # sorts before every other character, so groups keep their order


def partition(collection: str) -> str:
    return f"doc#{collection}"


def due_place(collection: str) -> str:
    return f"due#{collection}"


def item_key(name: Key) -> Item:
    return key(partition(name.collection), f"{name.group}{SEPARATOR}{name.id}")


def to_item(write: Write) -> Item:
    sort = f"{write.key.group}{SEPARATOR}{write.key.id}"
    row: Row = {
        "PK": partition(write.key.collection),
        "SK": sort,
        **text("data", write.data),
        "version": write.version,
        "expires_at": None if write.expires_at is None else stamp(write.expires_at),
        "ttl": ttl(write.expires_at),
    }
    if write.due_at is not None:
        row |= {"place": due_place(write.key.collection), "rank": f"{stamp(write.due_at)}#{sort}"}
    item = pack(row)
    if (needed := size(item)) > MAX_ITEM_BYTES:
        msg = f"document {write.key} would take {needed // 1024} KB; DynamoDB keeps up to {MAX_ITEM_BYTES // 1024} KB"
        raise StoreError(msg)
    return item


async def register_collections(table: Table, collections: set[str]) -> None:
    for name in collections - table.collections:
        await table.put(put({"PK": "collections", "SK": name}))
        table.collections.add(name)
