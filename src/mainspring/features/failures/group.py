"""A failure group as readers see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

MOST_DEAD = 1000  # dead letters of a group that are counted; to count all of them could take long


class GroupState(StrEnum):
    OPEN = "open"
    RESOLVED = "resolved"  # it opens again with the next failure
    MUTED = "muted"  # it counts failures, but does not ask for attention


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """All failures with one fingerprint. Times are UTC."""

    fingerprint: str
    task: str
    error_type: str
    place: str  # `module:function` of your code in which the error was raised; empty if unknown
    message: str  # of the last failure
    job_id: str  # the job that failed last: a sample
    first_seen: datetime
    last_seen: datetime
    count: int  # runs that failed
    versions: tuple[str, ...]  # of the code that failed: the latest ones, newest last
    state: GroupState
    note: str = ""  # given with the last change by hand
    actor: str = ""  # who made the last change by hand
    changed_at: datetime | None = None  # when the state last changed; None: never
    automatic: bool = False  # it was resolved because the last of its jobs has succeeded
    until: datetime | None = None  # of a muted group: when it is open again
    reopened: int = 0  # times it failed again after it was resolved
    reopened_at: datetime | None = None
    reopened_version: str = ""  # of the code that failed again
    dead: int = 0  # its dead letters; MOST_DEAD: that many or more
    dead_in: Mapping[str, int] = field(default_factory=dict)  # of these, how many are in each queue
    traceback: str = ""  # of the sample; only `app.failures.get` reads it
    complete: bool = True  # False: some of the newest failures are not counted yet; ask again soon

    @property
    def is_regression(self) -> bool:
        """Return whether it failed again after it was resolved, and was not changed by hand since."""
        return self.state is GroupState.OPEN and self.reopened_at is not None and self.reopened_at == self.changed_at


@dataclass(frozen=True, slots=True)
class GroupPage:
    groups: list[FailureGroup]
    cursor: str | None  # pass it to get the next page; None: this was the last
    complete: bool = True  # False: some of the newest failures are not counted yet; ask again soon
