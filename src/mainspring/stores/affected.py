"""The list of the jobs that an operation has changed, see `By.list_for`. It outlives the jobs.

The list is in documents, each with the ids of some jobs. Its own id is the last of them. A store writes a document in
the commit that changes its jobs: one for a page of jobs, or one for each job if the store changes each by itself. As an
operation changes a job once, no job is in two documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from mainspring.clock import Millis
from mainspring.stores.documents import By, Document, Key, Listing, Write
from mainspring.stores.paging import check_limit, pages
from mainspring.stores.protocol import Store
from mainspring.stores.sorting import not_a_cursor

COLLECTION = "affected"
SEPARATOR = "/"

Place = tuple[str, str]
"""Of a job in the list: the id of its document, and its own."""


def listed(by: By, ids: Iterable[str], now: Millis) -> list[Write]:
    """Return what a store writes together with a change of these jobs."""
    if by.list_for is None or not (ordered := sorted(ids)):
        return []
    key = Key(COLLECTION, by.operation, ordered[-1])
    return [Write(key, json.dumps(ordered), expires_at=now + by.list_for)]


async def read(store: Store, operation: str, limit: int, cursor: str | None) -> tuple[list[str], str | None]:
    """Return ids of jobs, about in the order in which they were changed, and the cursor of the next page, if any."""
    check_limit(limit)
    last, found = place_of(cursor), []
    if last is not None and last[0] != last[1]:
        found = places(await store.documents([Key(COLLECTION, operation, last[0])]), after=last[1])
    after, size = None if last is None else (operation, last[0]), 1
    while len(found) <= limit and (documents := await store.browse(Listing(COLLECTION, operation, after, size))):
        found += places(documents)
        after = operation, documents[-1].key.id
        size = max(1, (limit + 1 - len(found)) * len(documents) // len(places(documents)))
    shown = found[:limit]
    return [job for _, job in shown], SEPARATOR.join(shown[-1]) if len(found) > limit else None


async def count(store: Store, operation: str, most: int) -> int:
    """Count the listed jobs, up to `most`. This reads the list."""
    number = 0
    async for page in pages(store, COLLECTION, operation):
        number += len(places(page))
        if number >= most:
            return most
    return number


def places(documents: Sequence[Document], after: str = "") -> list[Place]:
    return [(document.key.id, job) for document in documents for job in json.loads(document.data) if job > after]


def place_of(cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    document, separator, job = cursor.partition(SEPARATOR)
    if not separator or SEPARATOR in job:
        raise not_a_cursor(cursor)
    return document, job
