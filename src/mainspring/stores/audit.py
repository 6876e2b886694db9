"""The entries that every store writes into the audit log. Times are ISO 8601, lengths are seconds. Pure functions."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from mainspring.clock import Millis, shown, to_datetime
from mainspring.errors import InvalidCursor
from mainspring.job import FOREVER, KEEP_FOREVER, Priority
from mainspring.stores.documents import By, Note
from mainspring.stores.feed import place_of
from mainspring.stores.protocol import Action, AuditSpot, Edit, Filter, Halt

MOMENTS = frozenset({"run_at"})
LENGTHS = frozenset({"delay", "timeout", "keep", "keep_dead", "dedupe_for"})


def audit_spot(cursor: object) -> AuditSpot | None:
    """Return the place of a cursor in the audit log."""
    if cursor is None:
        return None
    try:
        text = f"{cursor}"
        at, operation, action = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return place_of(at), str(operation), str(action)
    except (ValueError, TypeError, OverflowError, RecursionError):
        msg = f"{shown(cursor)} is not a cursor of the audit log; pass the cursor of the last entry that you have read"
        raise InvalidCursor(msg) from None


def note_of_change(action: Action, by: By, where: Filter, edit: Edit | None) -> Note:
    return Note(by, action.value, detail_of_change(where, edit))


def note_of_halt(halt: Halt) -> Note:
    return Note(By(halt.actor, halt.reason, once=halt.once), action_of_halt(halt), detail_of_halt(halt))


def note_of_resume(by: By, queue: str | None) -> Note:
    return Note(by, "resume", {"queue": queue})


def detail_of_change(where: Filter, edit: Edit | None) -> dict[str, Any]:
    detail: dict[str, Any] = {"filter": {name: plain(name, value) for name, value in set_fields(where).items()}}
    if edit is not None:
        detail["edit"] = {name: plain(name, value) for name, value in set_fields(edit).items()}
    return detail


def detail_of_halt(halt: Halt) -> dict[str, Any]:
    until = None if halt.until is None else halt.until.isoformat()
    return {"queue": halt.queue, "until": until, "accept": halt.accept}


def action_of_halt(halt: Halt) -> str:
    return "halt" if halt.queue is None else "pause"


def set_fields(data: Filter | Edit) -> Mapping[str, Any]:
    return {name: value for name, value in asdict(data).items() if value not in (None, (), {})}


def plain(name: str, value: Any) -> Any:
    """Return a field of a job or filter in readable form: stores keep times and lengths in milliseconds."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return list(value)
    if name in MOMENTS:
        return to_datetime(value).isoformat()
    if name in LENGTHS:
        return plain_length(value)
    return Priority(value).name.lower() if name == "priority" else value


def plain_length(length: Millis) -> float | str:
    return "forever" if length == FOREVER or length >= KEEP_FOREVER else length / 1000
