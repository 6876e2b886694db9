"""Cursors of lists whose pages go on after an id.

A cursor names its list and the conditions of its request. Another list refuses it, and so does the same list with other
conditions: its pages would not fit together.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mainspring.clock import shown
from mainspring.errors import InvalidCursor
from mainspring.names import UNSEARCHABLE

NO_CONDITIONS: Mapping[str, Any] = {}


def cursor_of(what: str, last: str | None, where: Mapping[str, Any] = NO_CONDITIONS) -> str | None:
    """Return the cursor of a page that ends with this id; None if it was the last page."""
    if last is None:
        return None
    text = json.dumps([what, last, *digest_of(where)], ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def last_of(what: str, cursor: str | None, where: Mapping[str, Any] = NO_CONDITIONS) -> str | None:
    """Return the id with which the page of a cursor ended. Raise InvalidCursor if it is not a cursor of this list."""
    if cursor is None:
        return None
    try:
        named, last, *digest = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError, RecursionError):
        named, last, digest = None, None, []
    if [named, *digest] != [what, *digest_of(where)] or not isinstance(last, str) or UNSEARCHABLE.search(last):
        msg = (
            f"{shown(cursor)} is not a cursor of {what} with these conditions; pass the cursor of the page before, "
            "unchanged, and the same conditions"
        )
        raise InvalidCursor(msg)
    return last


def digest_of(where: Mapping[str, Any]) -> list[str]:
    """Return a hash of the conditions that are given; nothing if there are none."""
    given = {name: value for name, value in where.items() if value not in (None, [], False)}
    text = json.dumps(given, sort_keys=True, default=str)
    return [hashlib.sha256(text.encode()).hexdigest()[:16]] if given else []
