"""Column lists and conversions between Python objects and table rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mainspring.stores.engine.state import STATE_COLUMNS, JobState
from mainspring.stores.tables import CODES, NEVER, STATUSES

SHARED_COLUMNS = """
id::text, task, queue, status, priority, run_at, created_at, attempts, max_attempts, crashes, token, worker, timeout,
dedupe_key, target_type, target_id, tags, progress, note, error_type, error, reason, payload
"""
LIVE_COLUMNS = f"""
{SHARED_COLUMNS}, nullif(claimed_at, 0) AS started_at, NULL::bigint AS finished_at, NULL::bigint AS expires_at,
NULL AS result, cancel, waits_for, options
"""
FINISHED_COLUMNS = f"""
{SHARED_COLUMNS}, nullif(started_at, 0) AS started_at, finished_at, nullif(expires_at, {NEVER}) AS expires_at, result,
false AS cancel, NULL AS waits_for, options
"""
STATE = ", ".join(STATE_COLUMNS).replace("id,", "id::text,", 1)
LIVE_STATE = STATE.replace("asked", "CASE WHEN cancel THEN reason END, status, {now}")
FINISHED_STATE = STATE.replace("claimed_at", "started_at").replace("asked", "NULL::text, status, {now}")
"""The columns of a `JobState` in the two tables, and the time."""

ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_id(text: str) -> bool:
    return ID.fullmatch(text) is not None


def to_state(row: tuple[Any, ...]) -> JobState:
    """Make a job's state from a row of LIVE_STATE or FINISHED_STATE. Its `ref` is the time at which it was read."""
    *state, status, now = row
    return JobState(*[*state, STATUSES[status], now])


def to_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values of a job as PostgreSQL stores them."""
    return {name: CODES[value] if name == "status" else value for name, value in columns.items()}


def storable(text: str) -> str:
    """Replace NUL characters, which PostgreSQL cannot store in text. A handler's error message may contain them."""
    return text.replace("\0", "�")


def only_ids(texts: Iterable[str]) -> list[str]:
    """Leave out texts that are not job ids: one of them would make the server reject the whole statement."""
    return [text for text in texts if is_id(text)]
