"""Routes about dead letters."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field, StrictBool
from starlette.requests import Request
from starlette.responses import Response

from mainspring.ids import new_id
from mainspring.jobs import Jobs
from mainspring.json_data import plain
from mainspring.service import export
from mainspring.service.answers.dead import ChangedView, DeadPage, DeadPartPage
from mainspring.service.bodies import JobConditions, Paged, Reasoned, Seconds
from mainspring.service.jobs import page_data
from mainspring.service.redacted import allowed
from mainspring.service.requests import Router, answer, app_of, caller_of, needs, next_link
from mainspring.service.separation import filter_for, jobs_of
from mainspring.service.tokens import Scope
from mainspring.stores.protocol import Filter

router = Router(prefix="/v1", tags=["dead letters"])
MOST_PAGES = 10  # that are read to find the oldest dead letter; each looks at up to 4,000


class DeadQuery(JobConditions, Paged):
    """Which dead letters a list shows. Every parameter that is given must match."""


class PurgeBody(Reasoned):
    older_than: Seconds = Field(description="seconds since they became dead letters; 0: all of them")
    dry_run: StrictBool = Field(default=False, description="only count them")


@router.get(
    "/dead",
    response_model=DeadPage | DeadPartPage,
    summary="List dead letters",
    responses=export.DESCRIBED,
    **needs(Scope.READ, projects=True),
)
async def list_dead(request: Request, query: Annotated[DeadQuery, Query()]) -> Response:
    """Return a page of dead letters, and the age of the oldest one that matches.

    With `fields`, they have just these fields. With `Accept: application/x-ndjson` or `text/csv`, download all that
    match.
    """
    where = allowed(request, Jobs.dead(filter_for(caller_of(request), query.filter())))
    if (form := export.form_of(request.headers.get("accept", ""))) is not None:
        return await export.exported(request, where, query, form)
    data = await page_data(request, where, query)
    data |= await oldest_data(request, where)
    return answer(data, headers=next_link(request, data["cursor"]))


async def oldest_data(request: Request, where: Filter) -> dict[str, Any]:
    """Return when the oldest dead letter failed. A page may end before it has found one: then read on, for a while."""
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await jobs_of(request).find(where, sort="finished", descending=False, limit=1, cursor=cursor)
        if page.jobs and (oldest := page.jobs[0].finished_at) is not None:
            age = (app_of(request).now() - oldest).total_seconds()
            return {"oldest": plain(oldest), "oldest_age": age, "oldest_known": True}
        if (cursor := page.cursor) is None:
            break
    return {"oldest": None, "oldest_age": None, "oldest_known": cursor is None}


@router.post(
    "/dead:purge", response_model=ChangedView, summary="Purge old dead letters", **needs(Scope.OPERATE, projects=True)
)
async def purge_dead(request: Request, body: PurgeBody) -> Response:
    """Delete old dead letters now. To delete very many in the background, use POST /v1/bulk."""
    operation, actor = new_id(), caller_of(request).actor
    result = await jobs_of(request).purge_dead(
        body.older_than, dry_run=body.dry_run, reason=body.reason, actor=actor, operation=operation
    )
    return answer({**plain(result), "operation": operation})
