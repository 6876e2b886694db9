"""Between our objects and the rows of the migrations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

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

SHARED_COLUMNS = """
id::text, task, queue, status, priority, run_at, created_at, attempts, max_attempts, crashes, token, worker, timeout,
dedupe_key, target_type, target_id, tags, progress, note, error_type, error, reason, payload
"""
LIVE_COLUMNS = f"""
{SHARED_COLUMNS}, nullif(claimed_at, 0) AS started_at, NULL::bigint AS finished_at, NULL::bigint AS expires_at,
NULL AS result, cancel
"""
FINISHED_COLUMNS = f"""
{SHARED_COLUMNS}, nullif(started_at, 0) AS started_at, finished_at, nullif(expires_at, {NEVER}) AS expires_at, result,
false AS cancel
"""


def to_job(row: tuple[Any, ...], traceback: str = "") -> Job:
    """From LIVE_COLUMNS or FINISHED_COLUMNS."""
    (
        job_id, task, queue, status, priority, run_at, created_at, attempts, max_attempts, crashes, token, worker,
        timeout, dedupe_key, target_type, target_id, tags, progress, note, error_type, error, reason, payload,
        started_at, finished_at, expires_at, result, cancel,
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
        tags=tuple(tags or ()),
        progress=None if progress is None else Progress(progress, note or ""),
        result=None if result is None else json.loads(result),
        failure=None if error_type is None else Failure(error_type, error or "", traceback),
        reason=reason,
        cancel_requested=cancel,
    )


def is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def only_ids(texts: Iterable[str]) -> list[str]:
    """Without what cannot be one of ours: the server would refuse the whole statement."""
    return [text for text in texts if is_id(text)]
