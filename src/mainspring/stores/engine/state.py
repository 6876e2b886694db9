"""The columns of a job on which decisions depend."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mainspring.clock import Millis
from mainspring.job import Status


@dataclass(slots=True)
class JobState:
    """A job as a store found it, and perhaps locked it."""

    id: str
    token: int
    task: str
    queue: str
    worker: str | None
    run_at: Millis
    attempts: int
    max_attempts: int
    crashes: int
    claimed_at: Millis  # of the last run; 0: never claimed
    timeout: Millis  # 0: none
    keep: Millis
    keep_dead: Millis
    dedupe_key: str | None
    options: str | None
    cancel_reason: str | None  # given with a request to cancel it, may be empty; None: there was no request
    status: Status = Status.RUNNING
    ref: Any = None  # only the store reads it, to find the job again


STATE_COLUMNS = tuple(field.name for field in fields(JobState))[:-2]
"""What a store reads of a job besides its status, in order. `cancel_reason` is the job's reason, if `cancel` is set."""

Place = tuple[str, Status]
"""A queue and a status: jobs are counted by both."""
