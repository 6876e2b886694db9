"""Lists that come in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from mainspring.client.operation import Operation, Resource
from mainspring.client.steps import Item, Items


class Page(Protocol):
    """An answer that says where the next one begins."""

    cursor: str | None


T = TypeVar("T")
PageT = TypeVar("PageT", bound=Page)

PAGE_SIZE = 100


def all_pages(
    operation: Operation[..., PageT],
    resource: Resource[Any],
    items: Callable[[PageT], Iterable[T]],
    where: Mapping[str, Any],
) -> Items[T]:
    """Yield the items of all pages. The next page is asked for when all items of the last one were taken."""
    cursor: str | None = None
    while True:
        page = yield from operation.steps(resource, cursor=cursor, **where)
        for item in items(page):
            yield Item(item)
        if (cursor := page.cursor) is None:
            return
