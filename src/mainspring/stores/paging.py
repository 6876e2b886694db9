"""Pages: check what a caller asks for, and read all documents of a collection page by page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from mainspring.clock import shown
from mainspring.errors import ConfigurationError
from mainspring.stores.documents import Document, Listing
from mainspring.stores.protocol import Filter, Sort, Store
from mainspring.stores.sorting import Order, PageRequest, not_a_cursor, to_spot

DOCUMENTS_PER_PAGE = 500
MAX_LIMIT = 2**31 - 1  # the largest `integer` of PostgreSQL
CURSOR = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")  # the id of a page's last job


def check_page(limit: Any, cursor: Any) -> None:
    """Raise if these are not the size and the cursor of a page of changes."""
    check_limit(limit)
    if cursor is not None and not (isinstance(cursor, str) and CURSOR.fullmatch(cursor)):
        raise not_a_cursor(cursor)


def page_request(where: Filter, order: Order, limit: Any, cursor: Any) -> PageRequest:
    """Return what page of jobs is asked for. Raise if these are not the size and the cursor of a page of this list."""
    check_limit(limit)
    if cursor is not None and not isinstance(cursor, str):
        raise not_a_cursor(cursor)
    if cursor is not None and order.sort is Sort.CREATED and CURSOR.fullmatch(cursor):
        return PageRequest(where, order, limit, (0, cursor.lower()))
    return PageRequest(where, order, limit, to_spot(where, order, cursor))


def check_limit(limit: Any, what: str = "limit") -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        msg = f"{what} is {shown(limit)}; give a whole number from 1 to {MAX_LIMIT:,}"
        raise ConfigurationError(msg)


async def newest(
    store: Store, collection: str, number: int, after: str | None, wanted: Callable[[Document], bool]
) -> list[Document]:
    """Return up to `number` wanted documents of a collection without groups, the last id first, after an id."""
    found: list[Document] = []
    place = None if after is None else ("", after)
    while len(found) < number:
        page = await store.browse(Listing(collection, "", place, number, backwards=True))
        found += filter(wanted, page)
        if len(page) < number:
            break
        place = "", page[-1].key.id
    return found[:number]


async def page_by_id(
    store: Store, collection: str, limit: int, after: str | None, *, prefix: str = ""
) -> tuple[Sequence[Document], str | None]:
    """Return documents of a collection without groups by id, after an id, and the last id if there are more."""
    place = None if after is None else ("", after)
    found = await store.browse(Listing(collection, "", place, limit + 1, prefix=prefix))
    return found[:limit], found[limit - 1].key.id if len(found) > limit else None


async def pages(
    store: Store,
    collection: str,
    group: str | None = "",
    *,
    size: int = DOCUMENTS_PER_PAGE,
    after: tuple[str, str] | None = None,
    prefix: str = "",
) -> AsyncIterator[Sequence[Document]]:
    """Yield the documents of a group in pages, in the order of their ids; with group=None those of all groups."""
    seen = after
    while page := await store.browse(Listing(collection, group, seen, size, prefix=prefix)):
        yield page
        seen = page[-1].key.group, page[-1].key.id
