"""The route of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from mainspring.service.answers.audit import AuditPage
from mainspring.service.bodies import Body, Instant
from mainspring.service.cursors import cursor_of, last_of
from mainspring.service.redacted import audit_data
from mainspring.service.requests import Router, answer, app_of, needs, next_link
from mainspring.service.tokens import Scope

router = Router(prefix="/v1", tags=["audit log"])


class AuditQuery(Body):
    """Which entries are shown. Every parameter that is given must match."""

    actor: str | None = None
    action: str | None = Field(default=None, description="such as `cancel`, `halt` or `schedule.put`")
    since: Instant | None = None
    until: Instant | None = Field(default=None, description="exclusive")
    job: str | None = Field(default=None, description="the id of a job that was changed, or deleted by hand")
    operation: str | None = Field(default=None, description="the id of a bulk action")
    limit: int = Field(default=100, ge=1, le=1_000)
    cursor: str | None = None


@router.get("/audit", response_model=AuditPage, summary="Read the audit log", **needs(Scope.READ))
async def read_audit(request: Request, query: Annotated[AuditQuery, Query()]) -> Response:
    """Return who has changed what and why, newest first."""
    where = query.model_dump(exclude={"limit", "cursor"})
    after = last_of("the audit log", query.cursor, where)
    found = await app_of(request).audit(**where, limit=query.limit + 1, cursor=after)
    entries = found[: query.limit]
    cursor = cursor_of("the audit log", entries[-1].cursor if len(found) > query.limit else None, where)
    return answer(
        {"entries": [audit_data(request, entry) for entry in entries], "cursor": cursor},
        headers=next_link(request, cursor),
    )
