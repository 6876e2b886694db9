"""A bulk change: what it does, how far it is, and its stored form. Pure functions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from mainspring.clock import Millis, to_datetime
from mainspring.errors import CountMoved
from mainspring.job import Status
from mainspring.stores.documents import Key
from mainspring.stores.engine.change import ALLOWED
from mainspring.stores.protocol import Action, CappedCount, Filter

COLLECTION = "bulk"
PAGE_SIZE = 500  # jobs per step
TOLERANCE = 0.05  # share by which the number of jobs may differ from the expected one
MOMENTS = frozenset(field.name for field in fields(Filter) if field.name.endswith(("_after", "_before")))


class BulkState(StrEnum):
    COUNTING = "counting"  # too many jobs may match to count them in the request; a worker counts them first
    PLANNED = "planned"  # a dry run: nothing will happen
    CANARY = "canary"  # the first few jobs are changed
    WAITING = "waiting"  # the first few jobs were changed; it waits for `go_on`
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"  # the jobs changed until then stay changed
    FAILED = "failed"  # `error` says why


ENDED = frozenset({BulkState.PLANNED, BulkState.DONE, BulkState.CANCELLED, BulkState.FAILED})


@dataclass(frozen=True, slots=True)
class BulkChange:
    """A change of many jobs. Its id is also the operation under which the audit log and the jobs' timelines show it."""

    id: str
    action: Action
    where: Filter  # when it began; jobs that match later are not changed
    actor: str
    reason: str
    state: BulkState
    total: int  # jobs that matched at the start; while it is counting: a lower bound
    created_at: datetime
    changed: int = 0  # changed or, while they run, asked to stop
    looked_at: int = 0  # jobs that it has dealt with so far, also those that could not be changed
    conflicts: int = 0  # not retried, because another live job holds the dedupe key
    pace: float | None = None  # jobs per second
    canary: int | None = None  # jobs that are changed before it waits
    expect: int | None = None  # jobs that its caller expected to match
    dry_run: bool = False  # only count the jobs
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
        size = PAGE_SIZE if self.pace is None else max(1, min(PAGE_SIZE, int(self.pace)))
        if self.state is BulkState.CANARY and self.canary is not None:
            return min(size, max(1, self.canary - self.looked_at))
        return size

    def begun(self, total: CappedCount, now: datetime) -> BulkChange:
        """Return it after its jobs were counted; raise CountMoved if they are not as many as expected."""
        if self.expect is not None:
            check_count(total, self.expect)
        change = replace(self, total=total.value)
        if not total.exact:
            return replace(change, state=BulkState.COUNTING)
        if self.dry_run:
            return replace(change, state=BulkState.PLANNED, ended_at=now)
        return replace(change, state=BulkState.RUNNING if self.canary is None else BulkState.CANARY)

    def pause_after(self, jobs: int) -> Millis:
        """Return how long to wait after a step that changed this many jobs."""
        return 0 if self.pace is None else int(1000 * jobs / self.pace)


def changeable(action: Action, where: Filter) -> Filter:
    """Return the filter for jobs that the action can change."""
    return replace(where, statuses=tuple(s for s in where.statuses or tuple(Status) if s in ALLOWED[action]))


def narrowed(action: Action, where: Filter, now: datetime) -> Filter:
    """Return the filter for jobs that match now.

    A job that changes later may not match now: it may run, and become a dead letter later. Deleting it would lose its
    result, and retrying it would run it once more. A cancellation takes jobs that change later: a job that waits now is
    to be cancelled although it has started.
    """
    if where.created_before is None or where.created_before > now:
        where = replace(where, created_before=now)
    if action is not Action.CANCEL and (where.changed_before is None or where.changed_before > now):
        where = replace(where, changed_before=now + timedelta(milliseconds=1))
    return where


def check_count(total: CappedCount, expected: int) -> None:
    """Raise CountMoved if the jobs are not as many as expected, or already more."""
    more = total.value - expected
    if more > TOLERANCE * expected or (total.exact and -more > TOLERANCE * expected):
        msg = (
            f"{total} jobs match, but {expected:,} were expected, which is more than {TOLERANCE:.0%} off; "
            "look at the jobs again, and start with the new number"
        )
        raise CountMoved(msg)


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
