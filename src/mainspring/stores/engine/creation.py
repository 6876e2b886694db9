"""How a job begins: its status, its time and its columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from mainspring.clock import Millis
from mainspring.job import UNTIL_WOKEN, NewJob, Status
from mainspring.stores.columns import PLAIN


def created(job: NewJob, now: Millis) -> dict[str, Any]:
    """Return the columns of a job that is inserted now."""
    run_at = first_time(job)
    target_type, target_id = job.target or (None, None)
    return {
        **{name: getattr(job, name) for name in PLAIN},
        "priority": int(job.priority),
        "payload": job.payload,
        "tags": list(job.tags),
        "target_type": target_type,
        "target_id": target_id,
        "created_at": now,
        "status": first_status(job),
        "run_at": now + job.delay if run_at is None else run_at,
        "waits_for": job.waits_for,
        "attempts": 0,
        "crashes": 0,
        "token": 0,
    }


def first_status(job: NewJob) -> Status:
    return Status.PENDING if job.waits_for is None else Status.SUSPENDED


def first_time(job: NewJob) -> Millis | None:
    """Return when the job is due; None: after its delay from now.

    A job that waits for a key and has neither a time nor a delay waits until it is woken.
    """
    if job.run_at is None and job.waits_for is not None and not job.delay:
        return UNTIL_WOKEN
    return job.run_at


def rounds_by_key(jobs: Iterable[NewJob]) -> list[list[int]]:
    """Return the indexes of jobs with a dedupe key, in rounds: the first job of each key, then the second of each, …

    Jobs with different keys can be inserted together. The second job of a key must be inserted after the first.
    """
    rounds: list[list[int]] = []
    seen: Counter[tuple[str, str]] = Counter()
    for place, job in enumerate(jobs):
        if job.dedupe_key is not None:
            key = job.task, job.dedupe_key
            if seen[key] == len(rounds):
                rounds.append([])
            rounds[seen[key]].append(place)
            seen[key] += 1
    return rounds
