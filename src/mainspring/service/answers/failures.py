"""What routes about failure groups answer."""

from __future__ import annotations

from pydantic import Field

from mainspring.features.failures.group import MOST_DEAD, GroupState
from mainspring.service.views import Moment, View

COMPLETE = "false: some of the newest failures are not counted yet; ask again soon"


class GroupView(View):
    """All failures with one fingerprint."""

    fingerprint: str
    task: str
    error_type: str
    place: str = Field(description="`module:function` in which the error was raised; empty if unknown")
    message: str = Field(description="of the last failure")
    job_id: str = Field(description="the job that failed last: a sample")
    first_seen: Moment
    last_seen: Moment
    count: int = Field(description="runs that failed")
    versions: list[str] = Field(description="of the code that failed, newest last")
    state: GroupState
    note: str
    actor: str
    changed_at: Moment | None
    automatic: bool = Field(description="it was resolved because the last of its jobs has succeeded")
    until: Moment | None = Field(description="of a muted group: when it is open again")
    reopened: int = Field(description="times it failed again after it was resolved")
    reopened_at: Moment | None
    reopened_version: str
    is_regression: bool = Field(description="it failed again after it was resolved, and nobody has said anything since")
    dead: int = Field(description=f"its dead letters, counted up to {MOST_DEAD:,}")
    dead_in: dict[str, int] = Field(description="of these, how many are in each queue")
    traceback: str = Field(description="of the sample; lists leave it out")
    complete: bool = Field(description=COMPLETE)


class GroupPage(View):
    groups: list[GroupView]
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")
    complete: bool = Field(description=COMPLETE)


class RetriedView(View):
    """What a retry did, or would do in a dry run."""

    changed: int
    conflicts: dict[str, str] = Field(
        description="jobs that were not retried, with the live job that holds their dedupe key"
    )
