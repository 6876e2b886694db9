"""Column lists and conversions between Python objects and table rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from mainspring.job import Job
from mainspring.stores import columns
from mainspring.stores.columns import JOB
from mainspring.stores.engine.ack import STATE_COLUMNS, JobState
from mainspring.stores.tables import NEVER, STATUSES, from_row

LIVE, FINISHED = "jobs", "archive"
UPDATED_AT = "greatest(created_at, claimed_at, changed_at)"  # of a live job


def selected(**expressions: str) -> str:
    """Return the columns in `JOB`, for SELECT. Some have another form in a table than readers see."""
    given = {"id": "id::text", **expressions}
    return ", ".join(f"{given[name]} AS {name}" if name in given else name for name in JOB)


COLUMNS = {
    LIVE: selected(
        started_at="nullif(claimed_at, 0)", finished_at="NULL::bigint", expires_at="NULL::bigint", result="NULL::text"
    ),
    FINISHED: selected(
        started_at="nullif(started_at, 0)",
        expires_at=f"nullif(expires_at, {NEVER})",
        cancel="false",
        waits_for="NULL::text",
        changed_at="0::bigint",
    ),
}
STATE = ", ".join(STATE_COLUMNS).replace("id,", "id::text,", 1)
LIVE_STATE = STATE.replace("updated_at", UPDATED_AT).replace(
    "cancel_reason", "CASE WHEN cancel THEN reason END, status, {now}"
)
FINISHED_STATE = (
    STATE.replace("claimed_at", "started_at")
    .replace("updated_at", "finished_at")
    .replace("cancel_reason", "NULL::text, status, {now}")
)
"""The columns of a `JobState` in the two tables, and the time."""

ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_id(text: str) -> bool:
    return ID.fullmatch(text) is not None


def to_state(row: tuple[Any, ...]) -> JobState:
    """Make a job's state from a row of LIVE_STATE or FINISHED_STATE. Its `ref` is the time at which it was read."""
    *state, status, now = row
    return JobState(*[*state, STATUSES[status], now])


def to_job(row: Sequence[Any], traceback: str = "") -> Job:
    """Make a job from a row of COLUMNS."""
    return columns.to_job(from_row(row), traceback)


def only_ids(texts: Iterable[str]) -> list[str]:
    """Leave out texts that are not job ids: one of them would make the server reject the whole statement."""
    return [text for text in texts if is_id(text)]
