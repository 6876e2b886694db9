"""The columns of a job, declared once. The stores make their statements, row readers and copies from these lists.

The types are PostgreSQL's. A table may have further columns of its own, such as `deadline` or `aside`.
"""

from __future__ import annotations

GIVEN = {
    "id": "uuid", "task": "text", "queue": "text", "priority": "smallint", "created_at": "bigint",
    "max_attempts": "integer", "timeout": "bigint", "keep": "bigint", "keep_dead": "bigint", "payload": "text",
    "dedupe_key": "text", "target_type": "text", "target_id": "text", "tags": "text[]", "options": "text",
}  # fmt: skip
"""What a job is given when it is enqueued. Runs do not change it; edits may."""

CHANGING = {
    "status": "smallint", "run_at": "bigint", "attempts": "integer", "crashes": "integer", "token": "bigint",
    "worker": "text", "reason": "text", "progress": "float8", "note": "text", "error_type": "text", "error": "text",
}  # fmt: skip
"""What runs, wake-ups and changes by hand make of it."""

SHARED = GIVEN | CHANGING
"""The columns that live and finished jobs have in common."""

LIVE = SHARED | {"claimed_at": "bigint", "cancel": "boolean", "waits_for": "text"}
FINISHED = SHARED | {"started_at": "bigint", "finished_at": "bigint", "expires_at": "bigint", "result": "text"}

RESTORED = (*GIVEN, "token")
"""What a finished job keeps when it becomes live again."""
