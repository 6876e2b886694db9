"""Documents in a dictionary: the part of the memory store that is not about jobs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import islice

from mainspring.clock import Millis
from mainspring.stores.documents import Document, Due, Key, Listing, Write

LAST = "\U0010ffff" * 4  # behind every name


class Shelf:
    """What comes due is in a heap per collection; an entry whose document has changed since is void."""

    def __init__(self) -> None:
        self._documents: dict[Key, Document] = {}
        self._in_order: dict[str, list[Key]] = {}  # of a collection; made when asked for
        self._heaps: defaultdict[str, list[tuple[Millis, Key, str]]] = defaultdict(list)

    def write(self, write: Write) -> None:
        if write.data is None:
            self._remove(write.key)
            return
        if write.key not in self._documents:
            self._in_order.pop(write.key.collection, None)
        self._documents[write.key] = Document(write.key, write.data, write.version, write.due_at, write.expires_at)
        if write.due_at is not None:
            heappush(self._heaps[write.key.collection], (write.due_at, write.key, write.version))

    def _remove(self, key: Key) -> None:
        if self._documents.pop(key, None) is not None:
            self._in_order.pop(key.collection, None)

    def read(self, keys: Iterable[Key], now: Millis) -> list[Document]:
        found = (self._documents.get(key) for key in keys)
        return [document for document in found if document is not None and is_alive(document, now)]

    def keys(self, now: Millis) -> set[Key]:
        return {key for key, document in self._documents.items() if is_alive(document, now)}

    def browse(self, listing: Listing, now: Millis) -> list[Document]:
        keys = self._sorted(listing.collection)
        start, end = 0, len(keys)
        if listing.group is not None:
            group = listing.collection, listing.group
            start, end = bisect_left(keys, (*group, "")), bisect_right(keys, (*group, LAST))
        if listing.after is not None:
            seen = listing.collection, *listing.after
            start, end = (
                (start, min(end, bisect_left(keys, seen)))
                if listing.backwards
                else (max(start, bisect_right(keys, seen)), end)
            )
        order = range(end - 1, start - 1, -1) if listing.backwards else range(start, end)
        alive = (document for place in order for document in self.read([keys[place]], now))
        return list(islice(alive, listing.limit))

    def _sorted(self, collection: str) -> list[Key]:
        keys = self._in_order.get(collection)
        if keys is None:
            keys = self._in_order[collection] = sorted(key for key in self._documents if key.collection == collection)
        return keys

    def due(self, collection: str, limit: int, now: Millis, until: Millis) -> Due:
        heap = self._heaps[collection]
        taken: list[tuple[Millis, Key, str]] = []
        documents: list[Document] = []
        while heap and len(documents) < limit and heap[0][0] <= until:
            taken.append(entry := heappop(heap))
            if self._holds(entry, now):
                documents.append(self._documents[entry[1]])
            else:
                taken.pop()
        while heap and not self._holds(heap[0], now):
            heappop(heap)
        next_at = heap[0][0] if heap else None
        for entry in taken:
            heappush(heap, entry)
        return Due(documents, now, next_at)

    def _holds(self, entry: tuple[Millis, Key, str], now: Millis) -> bool:
        due_at, key, version = entry
        document = self._documents.get(key)
        return (
            document is not None
            and (document.due_at, document.version) == (due_at, version)
            and is_alive(document, now)
        )

    def prune(self, limit: int, now: Millis) -> int:
        expired = list(islice((key for key, one in self._documents.items() if not is_alive(one, now)), limit))
        for key in expired:
            self._remove(key)
        return len(expired)


def is_alive(document: Document, now: Millis) -> bool:
    return document.expires_at is None or document.expires_at > now
