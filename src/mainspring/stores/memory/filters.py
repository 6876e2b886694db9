"""Whether a job is one of those that are asked for."""

from __future__ import annotations

from datetime import datetime

from mainspring.clock import Millis, to_datetime
from mainspring.stores.memory.row import Row
from mainspring.stores.protocol import Filter
from mainspring.stores.rules import carries


def matches(row: Row, where: Filter) -> bool:
    spec = row.spec
    target_type, target_id = spec.target or (None, None)
    return (
        among(where.ids, row.id)
        and among(where.statuses, row.status)
        and among(where.queues, spec.queue)
        and among(where.tasks, spec.task)
        and where.target_type in (None, target_type)
        and where.target_id in (None, target_id)
        and set(where.tags) <= set(spec.tags)
        and where.dedupe_key in (None, spec.dedupe_key)
        and where.worker in (None, row.worker)
        and where.error_type in (None, row.failure and row.failure.type)
        and within(row.created_at, where.created_after, where.created_before)
        and within(row.run_at, where.due_after, where.due_before)
        and within(row.finished_at, where.finished_after, where.finished_before)
        and carries(spec.payload, where.payload)
    )


def among(wanted: tuple[str, ...], value: str) -> bool:
    return not wanted or value in wanted


def within(millis: Millis | None, after: datetime | None, before: datetime | None) -> bool:
    if millis is None:
        return after is None and before is None
    moment = to_datetime(millis)
    return (after is None or after <= moment) and (before is None or moment < before)
