"""Results as JSON. Scripts read this, so names and shapes must not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from mainspring.clock import duration
from mainspring.features.dependencies import options as dependencies
from mainspring.features.expiry import options as expiry
from mainspring.features.limits.options import Rate
from mainspring.job import Counts, Job, Priority, Status
from mainspring.numbers import Histogram, Numbers, Tally
from mainspring.retry import Retry
from mainspring.stores.feed import Change
from mainspring.stores.protocol import Stats

PERCENTILES = (50, 95, 99)


def plain(value: Any) -> Any:  # noqa: PLR0911 - a table
    """Return a value as JSON data: dataclasses as objects, times as ISO 8601 in UTC, priorities by name."""
    match value:
        case Priority():
            return value.name.lower()
        case Enum():
            return value.value
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
    if (form := FORMS.get(type(value))) is not None:
        return form(value)
    return _fields(value) if is_dataclass(value) and not isinstance(value, type) else value


def plain_job(job: Job) -> dict[str, Any]:
    target = None if job.target is None else {"type": job.target[0], "id": job.target[1]}
    start_by, after = expiry.of_job(job), job.options.get(dependencies.OPTION)
    return {
        **_fields(job),
        "target": target,
        "timeout_at": plain(job.timeout_at),
        "start_by": plain(start_by) if isinstance(start_by, datetime) else None,
        "after": plain(after),
        "revision": job.revision,
        "replay_of": job.replay_of,
    }


def plain_stats(stats: Stats) -> dict[str, Any]:
    return {
        "queues": [plain_counts(counts, stats) for counts in stats.queues],
        "workers": plain(stats.workers),
        "halts": plain(stats.halts),
        "due_tasks": plain(stats.due_tasks),
        "unknown_tasks": plain(stats.unknown_tasks),
        "stalled": stats.stalled,
        "stuck": stats.stuck,
        "estimated": stats.estimated,
        "measures": plain(stats.measures),
    }


def plain_counts(counts: Counts, stats: Stats) -> dict[str, Any]:
    return {
        "queue": counts.queue,
        **{status.value: counts[status] for status in Status},
        "due": stats.due.get(counts.queue, 0),
        "oldest_due": plain(stats.oldest_due.get(counts.queue)),
        "oldest_dead": plain(stats.oldest_dead.get(counts.queue)),
    }


def plain_numbers(numbers: Numbers) -> dict[str, Any]:
    data: dict[str, Any] = {
        "step": numbers.step,
        "zone": numbers.zone,
        "bounds": Histogram.bounds,
        "total": plain_tally(numbers.total),
        "series": [plain_tally(tally) for tally in numbers.series],
    }
    if numbers.groups:
        data["groups"] = {name: plain_numbers(part) for name, part in numbers.groups.items()}
    return data


def plain_tally(tally: Tally) -> dict[str, Any]:
    return {
        "start": plain(tally.start),
        "end": plain(tally.end),
        "enqueued": tally.enqueued,
        "started": tally.started,
        "completed": tally.completed,
        "failed": tally.failed,
        "retried": tally.retried,
        "dead": tally.dead,
        "cancelled": tally.cancelled,
        "stalled": tally.stalled,
        "failure_rate": tally.failure_rate,
        "throughput": tally.throughput,
        "wait": plain_histogram(tally.wait),
        "duration": plain_histogram(tally.duration),
    }


def plain_histogram(histogram: Histogram) -> dict[str, Any]:
    percentiles = {f"p{percent}": histogram.percentile(percent) for percent in PERCENTILES}
    return {"count": histogram.count, "mean": histogram.mean, **percentiles, "buckets": histogram.buckets}


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


def plain_rate(rate: Rate) -> dict[str, Any]:
    return {"count": rate.count, "per": duration(rate.per) / 1000, "burst": rate.burst}


FORMS: dict[type, Callable[[Any], Any]] = {
    Job: plain_job,
    Stats: plain_stats,
    Change: lambda change: plain(change.to_dict()),
    Retry: Retry.to_data,
    Rate: plain_rate,
}
"""How objects are shown whose fields alone would not be clear."""
