"""What routes about the audit log answer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from mainspring.service.views import Moment, View


class AuditView(View):
    """A change by hand."""

    at: Moment
    actor: str
    action: str
    reason: str
    detail: dict[str, Any] = Field(description="the filter, or what was changed")
    count: int = Field(description="jobs that were changed")
    operation: str


class AuditPage(View):
    entries: list[AuditView]
    cursor: str | None = Field(description="pass it as `cursor` to get older entries; null: these were the last")
