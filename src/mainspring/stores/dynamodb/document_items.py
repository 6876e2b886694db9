"""Documents as items: their keys, conditional writes of them, and the list of the collections that have been used."""

from __future__ import annotations

from mainspring.clock import Millis
from mainspring.errors import StoreError
from mainspring.stores.documents import ABSENT, Document, Key, Write
from mainspring.stores.dynamodb.client import Item
from mainspring.stores.dynamodb.filters import unexpired
from mainspring.stores.dynamodb.insertion import MAX_ITEM_BYTES
from mainspring.stores.dynamodb.items import key, stamp, text, text_of, ttl, unstamp
from mainspring.stores.dynamodb.table import Action, Table
from mainspring.stores.dynamodb.values import Condition, Row, delete, equals, pack, put, put_item, size

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


def to_document(row: Row) -> Document:
    group, _, name = row["SK"].partition(SEPARATOR)
    return Document(
        key=Key(row["PK"].removeprefix("doc#"), group, name),
        data=text_of("data", row) or "",
        version=row["version"],
        due_at=unstamp(row["rank"].partition("#")[0]) if "rank" in row else None,
        expires_at=unstamp(row["expires_at"]) if "expires_at" in row else None,
    )


def is_alive(row: Row, now: Millis) -> bool:
    return "expires_at" not in row or row["expires_at"] > stamp(now)


def to_action(write: Write, now: Millis) -> Action:
    """Return the write with a condition for the expected version. An expired document counts as absent.

    The service checks what `accepted` (stores/documents.py) decides in the other stores.
    """
    expected: list[Condition] = []
    if write.expected == ABSENT:
        expired = "(attribute_not_exists({name}) OR expires_at <= {value})"
        expected = [Condition(expired, "PK", stamp(now))]
    elif write.expected is not None:
        expected = [equals("version", write.expected), unexpired(now)]
    if write.data is None:
        return "Delete", delete(item_key(write.key), expected)
    return "Put", put_item(to_item(write), expected)


async def register_collections(table: Table, collections: set[str]) -> None:
    for name in collections - table.collections:
        await table.put(put({"PK": "collections", "SK": name}))
        table.collections.add(name)
