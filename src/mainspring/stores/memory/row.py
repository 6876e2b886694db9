"""A job as it is kept, and as workers and readers see it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from mainspring.clock import Millis, to_datetime
from mainspring.job import (
    UNTIL_WOKEN,
    Attempt,
    Claim,
    Failure,
    Job,
    Move,
    NewJob,
    Outcome,
    Priority,
    Progress,
    Status,
    Step,
    TimelineEntry,
)
from mainspring.stores.protocol import AuditEntry
from mainspring.stores.rules import decoded

DedupeKey = tuple[str, str]  # a task and a dedupe key of it
Operation = tuple[str, str]  # an operation by hand and its action


@dataclass(slots=True)
class Row:
    """A job as it is kept."""

    spec: NewJob  # as inserted, with edits applied
    run_at: Millis
    created_at: Millis
    status: Status = Status.PENDING
    token: int = 0
    attempts: int = 0
    crashes: int = 0
    worker: str | None = None
    claimed_at: Millis = 0
    running_since: float = 0.0  # the monotonic clock
    finished_at: Millis | None = None
    expires_at: Millis | None = None
    progress: Progress | None = None
    result: str | None = None
    failure: Failure | None = None
    reason: str = ""
    cancel_requested: bool = False
    waits_for: str | None = None
    history: list[Attempt] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)
    by_hand: list[Operation] = field(default_factory=list)
    place: int = 0  # grows whenever the job joins or leaves a line, which makes its older heap entries void

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def key(self) -> DedupeKey | None:
        return None if self.spec.dedupe_key is None else (self.spec.task, self.spec.dedupe_key)


def first_run(job: NewJob, now: Millis) -> Millis:
    if job.run_at is not None:
        return job.run_at
    return UNTIL_WOKEN if job.waits_for is not None and not job.delay else now + job.delay


def claim_of(row: Row) -> Claim:
    spec = row.spec
    return Claim(
        id=row.id,
        token=row.token,
        task=spec.task,
        queue=spec.queue,
        payload=spec.payload,
        priority=spec.priority,
        attempts=row.attempts,
        max_attempts=spec.max_attempts,
        crashes=row.crashes,
        timeout=spec.timeout,
        run_at=row.run_at,
        created_at=row.created_at,
        dedupe_key=spec.dedupe_key,
        target=spec.target,
        tags=spec.tags,
        options=spec.options,
    )


def job_of(row: Row) -> Job:
    spec = row.spec
    return Job(
        id=row.id,
        task=spec.task,
        queue=spec.queue,
        status=row.status,
        priority=Priority(spec.priority),
        payload=decoded(spec.payload),
        run_at=to_datetime(row.run_at),
        created_at=to_datetime(row.created_at),
        started_at=to_datetime(row.claimed_at) if row.claimed_at else None,
        finished_at=moment(row.finished_at),
        expires_at=moment(row.expires_at),
        attempts=row.attempts,
        max_attempts=spec.max_attempts,
        crashes=row.crashes,
        token=row.token,
        worker=row.worker,
        timeout=spec.timeout / 1000 if spec.timeout else None,
        dedupe_key=spec.dedupe_key,
        target=spec.target,
        tags=tuple(spec.tags),
        progress=row.progress,
        result=None if row.result is None else decoded(row.result),
        failure=row.failure,
        reason=row.reason,
        cancel_requested=row.cancel_requested,
        waits_for=row.waits_for,
        options=json.loads(spec.options or "{}"),
    )


def attempt_of(row: Row, move: Move, outcome: Outcome, now: Millis) -> Attempt:
    return Attempt(
        number=len(row.history) + 1,
        worker=row.worker or "",
        started_at=to_datetime(outcome.started_at or row.claimed_at),
        finished_at=to_datetime(outcome.finished_at or now),
        move=move,
        failure=outcome.failure,
    )


def life_of(row: Row, audit: Mapping[Operation, AuditEntry]) -> Iterator[TimelineEntry]:
    yield TimelineEntry(to_datetime(row.created_at), "created")
    for run in row.history:
        yield TimelineEntry(run.started_at, "claimed", who=run.worker)
        detail = f"{run.failure.type}: {run.failure.message}" if run.failure else ""
        yield TimelineEntry(run.finished_at, run.move.value, detail, run.worker)
    if row.status is Status.RUNNING:
        yield TimelineEntry(to_datetime(row.claimed_at), "claimed", who=row.worker or "")
    for step in row.steps.values():
        yield TimelineEntry(to_datetime(step.finished_at), step.kind, step.name)
    for entry in (audit[operation] for operation in dict.fromkeys(row.by_hand) if operation in audit):
        yield TimelineEntry(entry.at, entry.action, entry.reason, entry.actor)


def moment(millis: Millis | None) -> datetime | None:
    return None if millis is None else to_datetime(millis)
