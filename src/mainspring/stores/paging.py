"""Reads all documents of a collection, a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from mainspring.stores.documents import Document, Listing
from mainspring.stores.protocol import Store

PAGE = 500


async def pages(
    store: Store, collection: str, group: str | None = "", *, size: int = PAGE
) -> AsyncIterator[Sequence[Document]]:
    """Yield the documents of a group in pages, in the order of their ids; with group=None those of all groups."""
    seen: tuple[str, str] | None = None
    while page := await store.browse(Listing(collection, group, seen, size)):
        yield page
        seen = page[-1].key.group, page[-1].key.id
