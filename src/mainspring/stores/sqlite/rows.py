"""Between our objects and the rows of schema.sql."""

from __future__ import annotations

import json
from typing import Any

from mainspring.clock import to_datetime
from mainspring.job import Failure, Job, Priority, Progress, Status

STATUSES = (
    Status.PENDING,
    Status.FAILED,
    Status.RUNNING,
    Status.SUSPENDED,
    Status.COMPLETED,
    Status.DEAD_LETTER,
    Status.CANCELLED,
)
CODES = {status: code for code, status in enumerate(STATUSES)}
PENDING, FAILED, RUNNING, SUSPENDED, COMPLETED, DEAD_LETTER, CANCELLED = range(7)

NEVER = 2**62  # a deadline or expiry that does not come

PAYLOAD = "coalesce(payload, (SELECT body FROM payloads WHERE job_id = {table}.id))"
SHARED_COLUMNS = """
id, task, queue, status, priority, run_at, created_at, attempts, max_attempts, crashes, token, worker, timeout,
dedupe_key, target_type, target_id, tags, progress, note, error_type, error, reason
"""
LIVE_COLUMNS = f"""
{SHARED_COLUMNS}, {PAYLOAD.format(table="jobs")} AS payload, nullif(claimed_at, 0) AS started_at,
NULL AS finished_at, NULL AS expires_at, NULL AS result, cancel
"""
FINISHED_COLUMNS = f"""
{SHARED_COLUMNS}, {PAYLOAD.format(table="archive")} AS payload, nullif(started_at, 0) AS started_at,
finished_at, nullif(expires_at, {NEVER}) AS expires_at, result, 0 AS cancel
"""


def to_job(row: tuple[Any, ...], traceback: str = "") -> Job:
    """From LIVE_COLUMNS or FINISHED_COLUMNS."""
    (
        job_id, task, queue, status, priority, run_at, created_at, attempts, max_attempts, crashes, token, worker,
        timeout, dedupe_key, target_type, target_id, tags, progress, note, error_type, error, reason, payload,
        started_at,
        finished_at, expires_at, result, cancel,
    ) = row  # fmt: skip
    return Job(
        id=job_id,
        task=task,
        queue=queue,
        status=STATUSES[status],
        priority=Priority(priority),
        payload=json.loads(payload),
        run_at=to_datetime(run_at),
        created_at=to_datetime(created_at),
        started_at=None if started_at is None else to_datetime(started_at),
        finished_at=None if finished_at is None else to_datetime(finished_at),
        expires_at=None if expires_at is None else to_datetime(expires_at),
        attempts=attempts,
        max_attempts=max_attempts,
        crashes=crashes,
        token=token,
        worker=worker,
        timeout=timeout / 1000 if timeout else None,
        dedupe_key=dedupe_key,
        target=None if target_type is None else (target_type, target_id),
        tags=tuple(json.loads(tags)) if tags else (),
        progress=None if progress is None else Progress(progress, note or ""),
        result=None if result is None else json.loads(result),
        failure=None if error_type is None else Failure(error_type, error or "", traceback),
        reason=reason,
        cancel_requested=bool(cancel),
    )
