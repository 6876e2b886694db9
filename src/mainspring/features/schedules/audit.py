"""Audit log notes for changes of schedules: the fields that changed, with their values before and after."""

from __future__ import annotations

from typing import Any

from mainspring.features.schedules.storage import StoredSchedule
from mainspring.stores.audit import plain
from mainspring.stores.documents import Note
from mainspring.stores.protocol import By

MAX_VALUE_LENGTH = 2000  # characters of a value
UNLOGGED_FIELDS = frozenset({"earlier"})  # past pauses, kept for bookkeeping only


def note_change(by: By, action: str, before: StoredSchedule | None, after: StoredSchedule | None) -> Note | None:
    """Return the note for a change, or None if nothing changed."""
    old, new = facts(before), facts(after)
    changed = {
        "before": {name: shortened(value) for name, value in old.items() if new.get(name) != value},
        "after": {name: shortened(value) for name, value in new.items() if old.get(name) != value},
    }
    stored = after or before
    if stored is None or not any(changed.values()):
        return None
    return Note(
        by,
        f"schedule.{action}",
        {"schedule": stored.id, **{when: values for when, values in changed.items() if values}},
    )


def shortened(value: Any) -> Any:
    """Return a value, cut if it is long: a large payload would not fit into a DynamoDB item twice."""
    return f"{value[:MAX_VALUE_LENGTH]}…" if isinstance(value, str) and len(value) > MAX_VALUE_LENGTH else value


def note_trigger(by: By, schedule: str, job_id: str) -> Note:
    return Note(by, "schedule.trigger", {"schedule": schedule, "job": job_id})


def facts(stored: StoredSchedule | None) -> dict[str, Any]:
    """Return the fields that a person or the code sets. What fires change is in the ledger, not in the audit log."""
    if stored is None:
        return {}
    job = {name: plain(name, value) for name, value in stored.job.items()}
    fields = {**stored.schedule.to_data(), **job, "owner": stored.owner, "disabled": stored.disabled}
    return {
        name: value for name, value in fields.items() if name not in UNLOGGED_FIELDS and value not in (None, "", [])
    }
