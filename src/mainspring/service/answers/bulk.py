"""What routes about bulk actions answer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from mainspring.bulk.change import BulkState
from mainspring.service.views import JobView, Moment, View


class BulkView(View):
    """A bulk action, and how far it is."""

    id: str = Field(description="also its operation in the audit log")
    action: str
    filter: dict[str, Any] = Field(description="as requests give it; jobs that match it later are not changed")
    actor: str
    reason: str
    state: BulkState = Field(
        description="`counting`: a worker counts the jobs first; `planned`: a dry run; `waiting`: for `:continue`, "
        "after its canary"
    )
    total: int = Field(description="jobs that matched at the start; while `counting`, at least so many")
    changed: int = Field(description="jobs that were changed or, while they run, asked to stop")
    looked_at: int = Field(description="jobs that it has dealt with, also those that could not be changed")
    conflicts: int = Field(description="jobs not retried, because another live job holds the dedupe key")
    progress: float = Field(description="the share that is done, from 0 to 1")
    pace: float | None
    canary: int | None
    expect: int | None = Field(description="jobs that the request expected")
    dry_run: bool
    created_at: Moment
    ended_at: Moment | None
    error: str


class AffectedView(View):
    """A job that a bulk action has changed."""

    id: str
    job: JobView | None = Field(description="as it is now; null if it has been deleted")


class AffectedPage(View):
    jobs: list[AffectedView]
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")


class BulkPage(View):
    actions: list[BulkView]
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")
