"""What the audit log says of a change of a schedule: what was different before, and after."""

from __future__ import annotations

from typing import Any

from mainspring.scheduling.stored import StoredSchedule
from mainspring.stores.audit import plain
from mainspring.stores.documents import Note
from mainspring.stores.protocol import By

LONGEST = 2000  # characters of a value
MOMENTARY = frozenset({"earlier"})  # bookkeeping of pauses that are over


def note_change(by: By, action: str, before: StoredSchedule | None, after: StoredSchedule | None) -> Note | None:
    """None: nothing is different, so that there is nothing to tell."""
    old, new = facts(before), facts(after)
    told = {
        "before": {name: shortened(value) for name, value in old.items() if new.get(name) != value},
        "after": {name: shortened(value) for name, value in new.items() if old.get(name) != value},
    }
    stored = after or before
    if stored is None or not any(told.values()):
        return None
    return Note(by, f"schedule.{action}", {"schedule": stored.id, **{when: one for when, one in told.items() if one}})


def shortened(value: Any) -> Any:
    """A large payload need not be in the log, and would not fit into an item of DynamoDB twice."""
    return f"{value[:LONGEST]}…" if isinstance(value, str) and len(value) > LONGEST else value


def note_trigger(by: By, schedule: str, job_id: str) -> Note:
    return Note(by, "schedule.trigger", {"schedule": schedule, "job": job_id})


def facts(stored: StoredSchedule | None) -> dict[str, Any]:
    """What somebody decides about it: when, what, and whether. How far it has come is the ledger's."""
    if stored is None:
        return {}
    job = {name: plain(name, value) for name, value in stored.job.items()}
    said = {**stored.schedule.to_data(), **job, "owner": stored.owner, "disabled": stored.disabled}
    return {name: value for name, value in said.items() if name not in MOMENTARY and value not in (None, "", [])}
