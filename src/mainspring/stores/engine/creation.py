"""How a job begins: its status and its time."""

from __future__ import annotations

from typing import Any

from mainspring.clock import Millis
from mainspring.job import NewJob
from mainspring.stores import columns
from mainspring.stores.rules import first_status, first_time


def created(job: NewJob, now: Millis) -> dict[str, Any]:
    """Return the columns of a job that is inserted now."""
    run_at = first_time(job)
    return columns.created(job, first_status(job), now + job.delay if run_at is None else run_at, now)
