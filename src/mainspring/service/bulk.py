"""Routes about bulk actions: changes of many jobs that workers make in the background."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import Field, StrictBool, StrictInt, model_validator
from starlette.requests import Request
from starlette.responses import Response

from mainspring.bulk.api import AffectedJob
from mainspring.bulk.change import BulkChange, BulkState, filter_data
from mainspring.json_data import plain
from mainspring.redaction import MARK
from mainspring.service.answers.bulk import AffectedPage, BulkPage, BulkView
from mainspring.service.bodies import Body as Checked
from mainspring.service.bodies import JobFilter, Reasoned
from mainspring.service.cursors import cursor_of, last_of
from mainspring.service.redacted import allowed, redaction_of, texts
from mainspring.service.replay import KeyKind, known_effect
from mainspring.service.requests import Reason, Router, answer, caller_of, location, needs, next_link
from mainspring.service.separation import bulk_of, filter_for
from mainspring.service.tokens import Scope
from mainspring.service.views import job_data
from mainspring.stores.protocol import Filter

router = Router(prefix="/v1/bulk", tags=["bulk actions"])
BulkId = Annotated[str, Path(max_length=200)]
MOST_JOBS = 1_000_000_000
NAMES = {"ids": "id", "statuses": "status", "queues": "queue", "tasks": "task", "tags": "tag"}  # as requests say it


class NewBulkBody(Reasoned):
    """A change of all jobs that match a filter."""

    action: Literal["cancel", "retry", "delete"]
    filter: JobFilter = Field(description="as the parameters of GET /v1/jobs")
    dry_run: StrictBool = Field(default=False, description="only count the jobs")
    expect: StrictInt | None = Field(
        default=None, ge=0, le=MOST_JOBS, description="refuse if the number of jobs differs from this by more than 5 %"
    )
    pace: float | None = Field(
        strict=True, default=None, ge=0.001, le=1_000_000, description="at most so many jobs per second"
    )
    canary: StrictInt | None = Field(
        default=None, ge=1, le=MOST_JOBS, description="change so many jobs, then wait for `:continue`"
    )

    @model_validator(mode="after")
    def _check_filter(self) -> NewBulkBody:
        """Refuse an empty filter by mistake: it would change every job of the store."""
        if not filter_data(self.filter.filter()) and self.expect is None and not self.dry_run:
            msg = "an empty filter means all jobs; give a filter, or confirm the number of jobs by `expect`"
            raise ValueError(msg)
        return self


class BulkQuery(Checked):
    limit: int = Field(default=50, ge=1, le=500)
    cursor: str | None = Field(default=None, max_length=2_000)


def bulk_data(request: Request, change: BulkChange) -> dict[str, Any]:
    hidden = frozenset({"where", "cursor"})
    data = {name: value for name, value in plain(change).items() if name not in hidden}
    return {**texts(request, data), "filter": filter_shown(request, change.where), "progress": change.progress}


def affected_data(request: Request, affected: AffectedJob) -> dict[str, Any]:
    job = None if affected.job is None else job_data(affected.job, redaction_of(request))
    return {"id": affected.id, "job": job}


def filter_shown(request: Request, where: Filter) -> dict[str, Any]:
    """Return a filter as a request gives it."""
    data = {NAMES.get(name, name): value for name, value in plain(filter_data(where)).items()}
    if "payload" in data:
        rules = redaction_of(request).strictest  # the filter may name no task
        data["payload"] = [
            f"{path}={json.dumps(MARK if rules.hides_path(path) else rules.value(value))}"
            for path, value in data["payload"].items()
        ]
    return data


@router.post(
    "",
    response_model=BulkView,
    status_code=202,
    summary="Start a bulk action",
    responses={200: {"model": BulkView, "description": "a dry run, whose jobs are counted"}},
    **needs(Scope.OPERATE, KeyKind.RESUMED, projects=True, may=("count_moved",), tells=("Location",)),
)
async def start_bulk(request: Request, body: NewBulkBody) -> Response:
    """Cancel, retry or delete all jobs that match now. Workers do it; follow the progress at the Location.

    If the jobs cannot be counted quickly, the answer is 202 with the state `counting`, also to a dry run: a worker
    counts them first. If their number then differs from `expect` by more than 5 %, the action fails.
    """
    if (begun := known_effect(request)) is not None:
        change = await bulk_of(request).get(begun["operation"])
    else:
        where = filter_for(caller_of(request), allowed(request, body.filter.filter()))
        change = await bulk_of(request).start(
            body.action, where, expect=body.expect, pace=body.pace, canary=body.canary,
            dry_run=body.dry_run, reason=body.reason, actor=caller_of(request).actor,
        )  # fmt: skip
    if change.state is BulkState.PLANNED and begun is None:
        return answer(bulk_data(request, change))
    return answer(bulk_data(request, change), 202, location(request, f"/v1/bulk/{change.id}"))


@router.get("", response_model=BulkPage, summary="List bulk actions", **needs(Scope.READ, projects=True))
async def list_bulk(request: Request, query: Annotated[BulkQuery, Query()]) -> Response:
    """Return bulk actions, newest first. Ended ones are kept for 30 days."""
    page = await bulk_of(request).list(limit=query.limit, cursor=last_of("bulk actions", query.cursor))
    actions, cursor = [bulk_data(request, change) for change in page.changes], cursor_of("bulk actions", page.cursor)
    return answer({"actions": actions, "cursor": cursor}, headers=next_link(request, cursor))


@router.get("/{bulk_id}", response_model=BulkView, summary="Show a bulk action", **needs(Scope.READ, projects=True))
async def show_bulk(request: Request, bulk_id: BulkId) -> Response:
    """Return how far a bulk action is."""
    return answer(bulk_data(request, await bulk_of(request).get(bulk_id)))


@router.get(
    "/{bulk_id}/jobs", response_model=AffectedPage, summary="List the jobs of a bulk action",
    **needs(Scope.READ, projects=True),
)  # fmt: skip
async def list_bulk_jobs(request: Request, bulk_id: BulkId, query: Annotated[BulkQuery, Query()]) -> Response:
    """Return the jobs that a bulk action has changed, also those that were deleted."""
    what = f"the jobs of bulk action {bulk_id}"
    page = await bulk_of(request).jobs(bulk_id, limit=query.limit, cursor=last_of(what, query.cursor))
    jobs, cursor = [affected_data(request, job) for job in page.jobs], cursor_of(what, page.cursor)
    return answer({"jobs": jobs, "cursor": cursor}, headers=next_link(request, cursor))


@router.post(
    "/{bulk_id}:cancel",
    response_model=BulkView,
    summary="Cancel a bulk action",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move",)),
)
async def cancel_bulk(request: Request, bulk_id: BulkId, body: Reason) -> Response:
    """Stop a bulk action. Jobs that it has changed stay changed."""
    actor = caller_of(request).actor
    return answer(bulk_data(request, await bulk_of(request).cancel(bulk_id, reason=body.reason, actor=actor)))


@router.post(
    "/{bulk_id}:continue",
    response_model=BulkView,
    summary="Continue a bulk action",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move",)),
)
async def continue_bulk(request: Request, bulk_id: BulkId, body: Reason) -> Response:
    """Let a bulk action go on that waits after its canary."""
    actor = caller_of(request).actor
    return answer(bulk_data(request, await bulk_of(request).go_on(bulk_id, reason=body.reason, actor=actor)))
