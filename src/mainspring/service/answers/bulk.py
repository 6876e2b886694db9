"""What routes about bulk actions answer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from mainspring.bulk.change import BulkState
from mainspring.service.views import Moment, View


class BulkView(View):
    """A bulk action, and how far it is."""

    id: str = Field(description="also its operation: GET /v1/jobs?operation=… lists the jobs that it has changed")
    action: str
    filter: dict[str, Any] = Field(description="as requests give it; jobs that match it later are not changed")
    actor: str
    reason: str
    state: BulkState = Field(description="`planned`: a dry run; `waiting`: for `:continue`, after its canary")
    total: int = Field(description="jobs that matched at the start")
    changed: int = Field(description="jobs that were changed or, while they run, asked to stop")
    looked_at: int = Field(description="jobs that it has dealt with, also those that could not be changed")
    conflicts: int = Field(description="jobs not retried, because another live job holds the dedupe key")
    progress: float = Field(description="the share that is done, from 0 to 1")
    pace: float | None
    canary: int | None
    created_at: Moment
    ended_at: Moment | None
    error: str


class BulkPage(View):
    actions: list[BulkView]
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")
