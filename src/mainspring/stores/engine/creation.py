"""How a job begins: its status, its time and its columns."""

from __future__ import annotations

from typing import Any

from mainspring.clock import Millis
from mainspring.job import NewJob
from mainspring.stores.rules import first_status, first_time


def created(job: NewJob, now: Millis) -> dict[str, Any]:
    """Return the columns of a job that is inserted now."""
    run_at = first_time(job)
    target_type, target_id = job.target or (None, None)
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "priority": int(job.priority),
        "created_at": now,
        "max_attempts": job.max_attempts,
        "timeout": job.timeout,
        "keep": job.keep,
        "keep_dead": job.keep_dead,
        "payload": job.payload,
        "dedupe_key": job.dedupe_key,
        "target_type": target_type,
        "target_id": target_id,
        "tags": list(job.tags),
        "options": job.options,
        "status": first_status(job),
        "run_at": now + job.delay if run_at is None else run_at,
        "waits_for": job.waits_for,
        "attempts": 0,
        "crashes": 0,
        "token": 0,
    }
