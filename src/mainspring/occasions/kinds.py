"""Which kinds of occasions a store has plans of, and by which tzdata they were all planned at least."""

from __future__ import annotations

import json

from mainspring.schedule import tzdata_version
from mainspring.stores.documents import ABSENT, Bundle, Key, Listing, Write
from mainspring.stores.protocol import Store

COLLECTION = "occasion_kinds"
MOST = 1000


async def known(store: Store) -> list[str]:
    return [one.key.id for one in await store.browse(Listing(COLLECTION, "", None, MOST))]


async def note(store: Store, kind: str) -> None:
    """Before the first plan of a kind is written."""
    data = json.dumps({"tzdata": tzdata_version()})
    await store.write([Bundle((Write(_key(kind), data, expected=ABSENT),))])


async def tzdata_of(store: Store, kind: str) -> str | None:
    found = await store.documents([_key(kind)])
    return str(json.loads(found[0].data)["tzdata"]) if found else None


async def mark(store: Store, kind: str, tzdata: str) -> None:
    """If another is quicker, he does the same. Fields that only newer versions know are kept."""
    for found in await store.documents([_key(kind)]):
        data = json.dumps({**json.loads(found.data), "tzdata": tzdata})
        await store.write([Bundle((Write(_key(kind), data, expected=found.version),))])


def _key(kind: str) -> Key:
    return Key(COLLECTION, "", kind)
