"""Convert rows of the tables in schema.sql to objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.job import Job
from mainspring.stores import tables
from mainspring.stores.engine.state import STATE_COLUMNS, JobState
from mainspring.stores.rules import decoded
from mainspring.stores.tables import CODES, NEVER, STATUSES

PAYLOAD = "coalesce(payload, (SELECT body FROM mainspring_payloads WHERE job_id = {table}.id))"
SHARED_COLUMNS = """
id, task, queue, status, priority, run_at, created_at, attempts, max_attempts, crashes, token, worker, timeout,
dedupe_key, target_type, target_id, tags, progress, note, error_type, error, reason
"""
LIVE_COLUMNS = f"""
{SHARED_COLUMNS}, {PAYLOAD.format(table="mainspring_jobs")} AS payload, nullif(claimed_at, 0) AS started_at,
NULL AS finished_at, NULL AS expires_at, NULL AS result, cancel, waits_for, options
"""
FINISHED_COLUMNS = f"""
{SHARED_COLUMNS}, {PAYLOAD.format(table="mainspring_archive")} AS payload, nullif(started_at, 0) AS started_at,
finished_at, nullif(expires_at, {NEVER}) AS expires_at, result, 0 AS cancel, NULL AS waits_for, options
"""
STATE = ", ".join(STATE_COLUMNS)
LIVE_STATE = STATE.replace("asked", "iif(cancel, reason, NULL), status, seq")
FINISHED_STATE = STATE.replace("claimed_at", "started_at").replace("asked", "NULL, status, NULL")
HELD_STATE = LIVE_STATE.removeprefix("id, token, ")
"""The columns of a `JobState`: of a live job, of a finished one, and of one whose id and token are known."""


def to_state(row: Sequence[Any]) -> JobState:
    *state, status, seq = row
    return JobState(*[*state, STATUSES[status], seq])


def to_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values of a job as SQLite stores them."""
    return {name: CODES[value] if name == "status" else value for name, value in columns.items()}


def to_job(row: tuple[Any, ...], traceback: str = "") -> Job:
    """Make a job from a row of LIVE_COLUMNS or FINISHED_COLUMNS, where the tags are a JSON array."""
    return tables.to_job((*row[:16], read_tags(row[16]), *row[17:]), traceback)


def read_tags(text: str | None) -> tuple[str, ...]:
    """Return the tags of a job; none if they cannot be read, because they were written by hand."""
    tags = decoded(text) if text else ()
    return tuple(map(str, tags)) if isinstance(tags, list) else ()
