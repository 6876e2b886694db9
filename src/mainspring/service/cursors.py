"""Cursors of lists whose pages go on after an id. A cursor names its list, so that another list refuses it."""

from __future__ import annotations

import base64
import json

from mainspring.clock import shown
from mainspring.errors import InvalidCursor
from mainspring.names import UNSEARCHABLE


def cursor_of(what: str, last: str | None) -> str | None:
    """Return the cursor of a page that ends with this id; None if it was the last page."""
    if last is None:
        return None
    return base64.urlsafe_b64encode(json.dumps([what, last], ensure_ascii=False).encode()).decode().rstrip("=")


def last_of(what: str, cursor: str | None) -> str | None:
    """Return the id with which the page of a cursor ended. Raise InvalidCursor if it is not a cursor of this list."""
    if cursor is None:
        return None
    try:
        named, last = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError, RecursionError):
        named = last = None
    if named != what or not isinstance(last, str) or UNSEARCHABLE.search(last):
        msg = f"{shown(cursor)} is not a cursor of {what}; pass the cursor of the page before, unchanged"
        raise InvalidCursor(msg)
    return last
