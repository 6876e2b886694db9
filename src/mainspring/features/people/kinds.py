"""Records which kinds of occasions a store has plans for, and the oldest tzdata that those plans were made with."""

from __future__ import annotations

import json

from mainspring.features.schedules.rules import tzdata_version
from mainspring.stores.documents import ABSENT, Bundle, Key, Listing, Write
from mainspring.stores.protocol import Store

COLLECTION = "occasion_kinds"
MAX_KINDS = 1000  # that are read


async def known(store: Store) -> list[str]:
    return [document.key.id for document in await store.browse(Listing(COLLECTION, "", None, MAX_KINDS))]


async def note(store: Store, kind: str) -> None:
    """Record a kind. Call this before the first plan of the kind is written."""
    data = json.dumps({"tzdata": tzdata_version()})
    await store.write([Bundle((Write(_key(kind), data, expected=ABSENT),))])


async def tzdata_of(store: Store, kind: str) -> str | None:
    found = await store.documents([_key(kind)])
    return str(json.loads(found[0].data)["tzdata"]) if found else None


async def mark(store: Store, kind: str, tzdata: str) -> None:
    """Record that all plans of a kind use this tzdata. If another process is faster, it writes the same.

    Fields that only newer versions know are kept.
    """
    for found in await store.documents([_key(kind)]):
        data = json.dumps({**json.loads(found.data), "tzdata": tzdata})
        await store.write([Bundle((Write(_key(kind), data, expected=found.version),))])


def _key(kind: str) -> Key:
    return Key(COLLECTION, "", kind)
