"""A bulk change: what it does, how far it is, and its stored form. Pure functions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from mainspring.clock import Millis, to_datetime
from mainspring.job import FINISHED, Status
from mainspring.stores.documents import Key
from mainspring.stores.engine.change import ALLOWED
from mainspring.stores.protocol import Action, Filter

COLLECTION = "bulk"
PAGE_SIZE = 500  # jobs per step
TOLERANCE = 0.05  # share by which the number of jobs may differ from the expected one
MOMENTS = frozenset(field.name for field in fields(Filter) if field.name.endswith(("_after", "_before")))


class BulkState(StrEnum):
    PLANNED = "planned"  # a dry run: nothing is stored, and nothing will happen
    CANARY = "canary"  # the first few jobs are changed
    WAITING = "waiting"  # the first few jobs were changed; it waits for `go_on`
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"  # the jobs changed until then stay changed
    FAILED = "failed"  # `error` says why


ENDED = frozenset({BulkState.DONE, BulkState.CANCELLED, BulkState.FAILED})


@dataclass(frozen=True, slots=True)
class BulkChange:
    """A change of many jobs. Its id is also the operation under which the audit log and the jobs' timelines show it."""

    id: str
    action: Action
    where: Filter  # when it began; jobs that match later are not changed
    actor: str
    reason: str
    state: BulkState
    total: int  # jobs that matched at the start
    created_at: datetime
    changed: int = 0  # changed or, while they run, asked to stop
    looked_at: int = 0  # jobs that it has dealt with so far, also those that could not be changed
    conflicts: int = 0  # not retried, because another live job holds the dedupe key
    pace: float | None = None  # jobs per second
    canary: int | None = None  # jobs that are changed before it waits
    cursor: str | None = None  # only the timer reads it: where the next step begins
    ended_at: datetime | None = None
    error: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def progress(self) -> float:
        """Return the share that is done, from 0 to 1."""
        if self.state is BulkState.DONE:
            return 1.0
        return min(1.0, self.looked_at / self.total) if self.total else 0.0

    @property
    def key(self) -> Key:
        return Key(COLLECTION, "", self.id)

    @property
    def canary_is_over(self) -> bool:
        return self.state is BulkState.CANARY and self.looked_at >= (self.canary or 0)

    @property
    def page_size(self) -> int:
        """Return how many jobs the next step changes."""
        if self.state is BulkState.CANARY and self.canary is not None:
            return max(1, self.canary - self.looked_at)
        return PAGE_SIZE if self.pace is None else max(1, min(PAGE_SIZE, int(self.pace)))

    def pause_after(self, jobs: int) -> Millis:
        """Return how long to wait after a step that changed this many jobs."""
        return 0 if self.pace is None else int(1000 * jobs / self.pace)


def narrowed(action: Action, where: Filter, now: datetime) -> Filter:
    """Return the filter for jobs that the action can change and that exist now.

    Finished jobs must have finished before: a job that ends later did not match at the start.
    """
    chosen = tuple(status for status in where.statuses or tuple(Status) if status in ALLOWED[action])
    where = replace(where, statuses=chosen)
    if where.created_before is None or where.created_before > now:
        where = replace(where, created_before=now)
    if chosen and FINISHED.issuperset(chosen) and (where.finished_before is None or where.finished_before > now):
        where = replace(where, finished_before=now + timedelta(milliseconds=1))
    return where


def differs(total: int, expected: int) -> bool:
    return abs(total - expected) > TOLERANCE * expected


# -- stored form ----------------------------------------------------------------------------------


def to_data(change: BulkChange) -> str:
    data = {**asdict(change), "where": filter_data(change.where)}
    return json.dumps(data, default=datetime.isoformat)


def from_data(text: str) -> BulkChange:
    data: dict[str, Any] = json.loads(text)
    ended_at = data["ended_at"]
    return BulkChange(
        **{
            **data,
            "action": Action(data["action"]),
            "where": filter_of(data["where"]),
            "state": BulkState(data["state"]),
            "created_at": datetime.fromisoformat(data["created_at"]),
            "ended_at": None if ended_at is None else datetime.fromisoformat(ended_at),
        }
    )


def filter_data(where: Filter) -> dict[str, Any]:
    given = {field.name: getattr(where, field.name) for field in fields(Filter)}
    given["payload"] = dict(where.payload)
    return {name: value for name, value in given.items() if value not in (None, (), {})}


def filter_of(data: dict[str, Any]) -> Filter:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    values |= {name: datetime.fromisoformat(data[name]) for name in MOMENTS & data.keys()}
    if "statuses" in values:
        values["statuses"] = tuple(Status(word) for word in values["statuses"])
    return Filter(**values)


def at(now: Millis) -> datetime:
    return to_datetime(now)
