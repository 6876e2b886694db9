"""Split a filter into conditions for the service and a rest that Python checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from mainspring.clock import Millis, to_millis
from mainspring.errors import ConfigurationError
from mainspring.queue_patterns import beginning_of, is_among
from mainspring.stores.columns import decoded
from mainspring.stores.dynamodb.items import WORDS, payload_of, stamp, unstamp
from mainspring.stores.dynamodb.values import Condition, Row, equals
from mainspring.stores.protocol import Filter

NO_OPERATIONS = "DynamoDB cannot find the jobs of an operation; read the timelines of the jobs instead"


def conditions(where: Filter) -> tuple[list[Condition], Filter]:
    """Return the conditions for the service, and the rest of the filter."""
    if where.operation is not None:
        raise ConfigurationError(NO_OPERATIONS)
    found: list[Condition] = []
    met: dict[str, Any] = {}
    singles = (("statuses", "status"), ("queues", "queue"), ("tasks", "job_type"))
    for name, attribute in singles:
        values = getattr(where, name)
        if len(values) == 1:
            found.append(equals(attribute, WORDS[values[0]] if name == "statuses" else values[0]))
            met[name] = ()
    equal = (("target_type", "target_type"), ("target_id", "target_id"), ("dedupe_key", "dedupe_key"),
             ("worker", "locked_by"), ("error_type", "error_type"), ("fingerprint", "fingerprint"))  # fmt: skip
    for name, attribute in equal:
        if (value := getattr(where, name)) is not None:
            found.append(equals(attribute, value))
            met[name] = None
    if len(where.within) == 1:
        beginning = beginning_of(where.within[0])
        begins = Condition("begins_with({name}, {value})", "queue", beginning)
        found += [equals("queue", where.within[0])] if beginning is None else [begins] if beginning else []
        met["within"] = ()
    return found, replace(where, **met)


def unexpired(now: Millis) -> Condition:
    return Condition("(attribute_not_exists({name}) OR {name} > {value})", "expires_at", stamp(now))


def matches(row: Row, where: Filter) -> bool:
    if where.operation is not None:
        raise ConfigurationError(NO_OPERATIONS)
    return (
        among(where.ids, row["SK"])
        and among(tuple(WORDS[status] for status in where.statuses), row["status"])
        and among(where.queues, row["queue"])
        and (not where.within or is_among(row["queue"], where.within))
        and among(where.tasks, row["job_type"])
        and where.target_type in (None, row.get("target_type"))
        and where.target_id in (None, row.get("target_id"))
        and set(where.tags) <= set(row.get("tags", ()))
        and where.dedupe_key in (None, row.get("dedupe_key"))
        and where.worker in (None, row.get("locked_by"))
        and where.error_type in (None, row.get("error_type"))
        and where.fingerprint in (None, row.get("fingerprint"))
        and within(row["created_at"], where.created_after, where.created_before)
        and within(row["scheduled_for"], where.due_after, where.due_before)
        and within(row.get("completed_at"), where.finished_after, where.finished_before)
        and within(updated_at(row), where.changed_after, where.changed_before)
        and (not where.payload or carries(payload_of(row), where.payload))
    )


def updated_at(row: Row) -> str:
    """Return when a job changed last, see columns.updated_at."""
    finished: str | None = row.get("completed_at")
    return finished or max(row["created_at"], row.get("started_at", ""), row.get("changed_at", ""))


def among(wanted: tuple[str, ...], value: str) -> bool:
    return not wanted or value in wanted


def within(text: str | None, after: datetime | None, before: datetime | None) -> bool:
    if after is None and before is None:
        return True
    if text is None:
        return False
    moment = unstamp(text)
    return (after is None or to_millis(after) <= moment) and (before is None or moment < to_millis(before))


# -- filters by payload: the service cannot search in JSON texts ------------------------------------------


def carries(payload: str, wanted: Mapping[str, Any]) -> bool:
    if not wanted:
        return True
    data = decoded(payload)
    return all(equal(at_path(data, path.split(".")), value) for path, value in wanted.items())


def at_path(data: Any, path: list[str]) -> Any:
    """Return the value at the end of the path, or an object that equals nothing."""
    for name in path:
        if not isinstance(data, dict) or name not in data:
            return object()
        data = data[name]
    return data


def equal(found: Any, wanted: Any) -> bool:
    """Compare as JSON values, where true is not 1."""
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)
