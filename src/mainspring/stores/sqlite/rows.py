"""Convert rows of the tables in schema.sql to objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.clock import Millis
from mainspring.job import Job
from mainspring.stores import columns, tables
from mainspring.stores.columns import JOB, decoded
from mainspring.stores.engine.ack import STATE_COLUMNS, JobState
from mainspring.stores.tables import NEVER, STATUSES

LIVE, FINISHED = "mainspring_jobs", "mainspring_archive"
WEEK: Millis = 7 * 86_400_000  # how long jobs are usually kept; the conditions of three indexes have the same number
KEPT_A_WEEK = f"{FINISHED}.expires_at = {FINISHED}.finished_at + {WEEK}"
KEPT_OTHERWISE = f"{FINISHED}.expires_at <> {FINISHED}.finished_at + {WEEK}"
PAYLOAD = "coalesce(payload, (SELECT body FROM mainspring_payloads WHERE job_id = {table}.id))"
UPDATED_AT = "max(created_at, claimed_at, changed_at)"  # of a live job
TAGS = JOB.index("tags")


def selected(table: str, **expressions: str) -> str:
    """Return the columns in `JOB` of a table, for SELECT. Some have another form there than readers see."""
    given = {"payload": PAYLOAD.format(table=table), **expressions}
    return ", ".join(f"{given[name]} AS {name}" if name in given else name for name in JOB)


COLUMNS = {
    LIVE: selected(LIVE, started_at="nullif(claimed_at, 0)", finished_at="NULL", expires_at="NULL", result="NULL"),
    FINISHED: selected(
        FINISHED,
        started_at="nullif(started_at, 0)",
        expires_at=f"nullif(expires_at, {NEVER})",
        cancel="0",
        waits_for="NULL",
        changed_at="0",
    ),
}


def archiving(**expressions: str) -> str:
    """Return how a statement begins that moves jobs to the archive. Columns not given come from the live row."""
    chosen = ", ".join(expressions.get(name, name) for name in columns.FINISHED)
    return f"INSERT INTO {FINISHED} ({', '.join(columns.FINISHED)})\nSELECT {chosen}"


STATE = ", ".join(STATE_COLUMNS)
LIVE_STATE = STATE.replace("updated_at", UPDATED_AT).replace("cancel_reason", "iif(cancel, reason, NULL), status, seq")
FINISHED_STATE = (
    STATE.replace("claimed_at", "started_at")
    .replace("updated_at", "finished_at")
    .replace("cancel_reason", "NULL, status, NULL")
)
HELD_STATE = LIVE_STATE.removeprefix("id, token, ")
"""The columns of a `JobState`: of a live job, of a finished one, and of one whose id and token are known."""


def to_state(row: Sequence[Any]) -> JobState:
    *state, status, seq = row
    return JobState(*[*state, STATUSES[status], seq])


def from_row(row: Sequence[Any]) -> dict[str, Any]:
    """Return the values of a row of COLUMNS, where the tags are a JSON array."""
    return tables.from_row((*row[:TAGS], list(read_tags(row[TAGS])), *row[TAGS + 1 :]))


def to_job(row: Sequence[Any], traceback: str = "") -> Job:
    return columns.to_job(from_row(row), traceback)


def read_tags(text: str | None) -> tuple[str, ...]:
    """Return the tags of a job; none if they cannot be read, because they were written by hand."""
    tags = decoded(text) if text else ()
    return tuple(map(str, tags)) if isinstance(tags, list) else ()
