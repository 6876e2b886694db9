"""Values that complete what a person types, such as the name of a queue. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mainspring.job import Job
from mainspring.stores.protocol import Completable, Filter

SAMPLE = 5_000  # newest rows in which values are searched that no index lists
PAYLOADS = 200  # newest jobs whose payloads are searched for keys
DEPTH = 3  # of the objects in a payload


def beginning_with(prefix: str, values: Iterable[str | None], limit: int) -> list[str]:
    """Return the first distinct values with this prefix, sorted."""
    return sorted({value for value in values if value is not None and value.startswith(prefix)})[:limit]


def searched(task: str | None, within: Sequence[str]) -> Filter:
    """Return the filter for the jobs whose values are wanted."""
    return Filter(tasks=() if task is None else (task,), within=tuple(within))


def values_in(jobs: Sequence[Job], what: Completable) -> Iterable[str]:
    """Return the values of jobs: of a caller that may see only some queues, or of a store without such an index."""
    found: dict[Completable, Iterable[str]] = {
        Completable.QUEUE: (job.queue for job in jobs),
        Completable.TASK: (job.task for job in jobs),
        Completable.TAG: (tag for job in jobs for tag in job.tags),
        Completable.ERROR_TYPE: (job.failure.type for job in jobs if job.failure),
        Completable.PAYLOAD_KEY: payload_keys(jobs),
    }
    return found[what]


def payload_keys(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield the paths in the payloads of jobs, in the form of `Filter.payload`."""
    for job in jobs:
        yield from paths(job.payload, "", DEPTH)


def paths(value: Any, start: str, depth: int) -> Iterator[str]:
    if not isinstance(value, dict) or not depth:
        return
    for name, inner in value.items():
        yield f"{start}{name}"
        yield from paths(inner, f"{start}{name}.", depth - 1)
