"""The columns of a job, declared once. The stores make their statements, row readers and copies from these lists.

To add a column, add it here and to both schemas. If it is given when a job is enqueued, add it to `NewJob` and to the
insertion of SQLite and PostgreSQL, which spell the columns out for speed. If readers or handlers are to see it, add it
to `Job` and `to_job`, or to `Claim` and PostgreSQL's `take`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mainspring.clock import Millis, to_datetime
from mainspring.errors import Failure
from mainspring.job import Claim, Job, NewJob, Priority, Progress

GIVEN = {
    "id": "uuid", "task": "text", "queue": "text", "priority": "smallint", "created_at": "bigint",
    "max_attempts": "integer", "timeout": "bigint", "keep": "bigint", "keep_dead": "bigint", "payload": "text",
    "dedupe_key": "text", "target_type": "text", "target_id": "text", "tags": "text[]", "options": "text",
}  # fmt: skip
"""What a job is given when it is enqueued, with PostgreSQL's types. Runs do not change it; edits may."""

CHANGING = {
    "status": "smallint", "run_at": "bigint", "attempts": "integer", "crashes": "integer", "token": "bigint",
    "worker": "text", "reason": "text", "progress": "float8", "note": "text", "error_type": "text", "error": "text",
    "error_code": "text", "fingerprint": "text", "version": "text",
}  # fmt: skip
"""What runs, wake-ups and changes by hand make of it."""

SHARED = GIVEN | CHANGING
"""The columns that live and finished jobs have in common. A table may have more, such as `deadline` or `aside`."""

LIVE = SHARED | {"claimed_at": "bigint", "cancel": "boolean", "waits_for": "text", "changed_at": "bigint"}
FINISHED = SHARED | {"started_at": "bigint", "finished_at": "bigint", "expires_at": "bigint", "result": "text"}

JOB = (*SHARED, "started_at", "finished_at", "expires_at", "result", "cancel", "waits_for", "changed_at")
"""All that readers see of a job, live or finished. Of a live one, `started_at` is the time of its last claim, and
`changed_at` the time of its last change without a column of its own: all but its creation, a claim and its end."""

RESTORED = (*GIVEN, "token", "fingerprint")
"""What a finished job keeps when it becomes live again. By its fingerprint, its success can resolve the group."""

PLAIN = tuple(field.name for field in fields(NewJob) if field.name in GIVEN.keys() - {"priority", "payload", "tags"})
"""What is stored in the same form in which a `NewJob` has it."""

CLAIMED = tuple(
    name
    for field in fields(Claim)[:-1]
    for name in (("target_type", "target_id") if field.name == "target" else (field.name,))
)
"""The columns of a `Claim`, in the order of its fields, without `ref`."""


def to_job(values: Mapping[str, Any], traceback: str = "") -> Job:
    """Make a job from the columns in `JOB`. The status is a `Status`, the tags are a list."""
    timeout, progress, error_type = values["timeout"], values["progress"], values["error_type"]
    return Job(
        id=values["id"],
        task=values["task"],
        queue=values["queue"],
        status=values["status"],
        priority=priority_of(values["priority"]),
        payload=decoded(values["payload"]),
        run_at=to_datetime(values["run_at"]),
        created_at=to_datetime(values["created_at"]),
        started_at=None if values["started_at"] is None else to_datetime(values["started_at"]),
        finished_at=None if values["finished_at"] is None else to_datetime(values["finished_at"]),
        updated_at=to_datetime(updated_at(values)),
        expires_at=None if values["expires_at"] is None else to_datetime(values["expires_at"]),
        attempts=values["attempts"],
        max_attempts=values["max_attempts"],
        crashes=values["crashes"],
        token=values["token"],
        worker=values["worker"],
        timeout=timeout / 1000 if timeout else None,
        dedupe_key=values["dedupe_key"],
        target=target_of(values["target_type"], values["target_id"]),
        tags=tuple(values["tags"]),
        progress=None if progress is None else Progress(progress, values["note"] or ""),
        result=None if values["result"] is None else decoded(values["result"]),
        failure=None
        if error_type is None
        else Failure(
            error_type,
            values["error"] or "",
            traceback,
            values["fingerprint"] or "",
            code=values["error_code"],
        ),
        reason=values["reason"],
        cancel_requested=values["cancel"],
        waits_for=values["waits_for"],
        options=as_object(decoded(values["options"] or "{}")),
        fingerprint=values["fingerprint"],
        version=values["version"] or "",
    )


def updated_at(values: Mapping[str, Any]) -> Millis:
    """Return when a job changed last. Inserts, claims and ends have columns of their own, and write no `changed_at`."""
    if values["finished_at"] is not None:
        return int(values["finished_at"])
    return int(max(values["created_at"], values["started_at"] or 0, values["changed_at"] or 0))


def target_of(target_type: str | None, target_id: str | None) -> tuple[str, str] | None:
    return None if target_type is None or target_id is None else (target_type, target_id)


def priority_of(number: int) -> Priority:
    """Return the priority, or the nearest valid one: a row that was changed by hand may have any number."""
    return Priority(max(Priority.URGENT, min(number, Priority.LOW)))


def as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def decoded(text: str) -> Any:
    """Return the value of a JSON text; or the text itself, if it cannot be read.

    A payload that was written by hand or by an older version may have integers of thousands of digits, or not be JSON.
    One such row must not prevent the listing of all others.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
