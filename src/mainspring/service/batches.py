"""Routes about batches."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Path, Query
from pydantic import Field, StrictBool
from starlette.requests import Request
from starlette.responses import Response

from mainspring.job import NewJob
from mainspring.json_data import plain
from mainspring.service.answers.batches import BatchCancelled, BatchPage, BatchView, NewBatchView
from mainspring.service.bodies import MOST_IN_BULK, NewJobBody, Reasoned
from mainspring.service.bodies import Body as Checked
from mainspring.service.cursors import cursor_of, last_of
from mainspring.service.enqueue import prepared
from mainspring.service.redacted import MARK_IN_JSON, refuse_mark
from mainspring.service.replay import KeyKind, known_effect
from mainspring.service.requests import Router, answer, app_of, caller_of, location, needs, next_link
from mainspring.service.separation import batches_of
from mainspring.service.tokens import Scope

router = Router(prefix="/v1", tags=["batches"])
BatchId = Annotated[str, Path(max_length=200)]


class BatchBody(Checked):
    """Jobs that belong together, and the jobs that follow once all of them have finished. All are checked first."""

    jobs: list[NewJobBody] = Field(min_length=1, max_length=MOST_IN_BULK)
    on_success: NewJobBody | None = Field(default=None, description="follows if all jobs completed")
    on_failure: NewJobBody | None = Field(default=None, description="follows if at least one job did not complete")
    on_finished: NewJobBody | None = Field(default=None, description="follows in either case")


class BatchCancelBody(Reasoned):
    dry_run: StrictBool = Field(default=False, description="only count the jobs")


class BatchQuery(Checked):
    limit: int = Field(default=50, ge=1, le=500)
    cursor: str | None = Field(default=None, max_length=2_000)


@router.post(
    "/batches",
    response_model=NewBatchView,
    status_code=201,
    summary="Enqueue a batch",
    **needs(
        Scope.ENQUEUE,
        KeyKind.RESUMED,
        projects=True,
        may=("unknown_task", "invalid_payload", "system_halted"),
        tells=("Location",),
    ),
)
async def enqueue_batch(request: Request, body: BatchBody) -> Response:
    """Enqueue jobs that belong together. If one of them is invalid, none is enqueued."""
    app = app_of(request)
    refuse_marks(request, await request.body(), body)
    jobs = [await prepared(request, job) for job in body.jobs]
    follow_ups = {
        name: await follow_up(request, getattr(body, name)) for name in ("on_success", "on_failure", "on_finished")
    }
    begun = known_effect(request)
    batch = await (
        app.batch(jobs, **follow_ups) if begun is None else app.batches.resume(begun["batch"], jobs, follow_ups)
    )
    return answer({"id": batch.id, "jobs": batch.jobs}, 201, location(request, f"/v1/batches/{batch.id}"))


def refuse_marks(request: Request, raw: bytes, body: BatchBody) -> None:
    after = [job for job in (body.on_success, body.on_failure, body.on_finished) if job is not None]
    refuse_mark(request, raw, [(job.task, job.payload) for job in (*body.jobs, *after)] if MARK_IN_JSON in raw else ())


async def follow_up(request: Request, body: NewJobBody | None) -> NewJob | None:
    return None if body is None else await prepared(request, body)


@router.get("/batches", response_model=BatchPage, summary="List batches", **needs(Scope.READ, projects=True))
async def list_batches(request: Request, query: Annotated[BatchQuery, Query()]) -> Response:
    """Return batches, newest first."""
    page = await batches_of(request).list(limit=query.limit, cursor=last_of("batches", query.cursor))
    cursor = cursor_of("batches", page.cursor)
    return answer({"batches": plain(page.batches), "cursor": cursor}, headers=next_link(request, cursor))


@router.get("/batches/{batch_id}", response_model=BatchView, summary="Show a batch", **needs(Scope.READ, projects=True))
async def show_batch(request: Request, batch_id: BatchId) -> Response:
    """Return how many jobs of a batch ended in which way."""
    return answer((await batches_of(request).progress(batch_id)).to_report())


@router.post(
    "/batches/{batch_id}:cancel",
    response_model=BatchCancelled,
    summary="Cancel a batch",
    **needs(Scope.OPERATE, projects=True),
)
async def cancel_batch(
    request: Request, batch_id: BatchId, body: Annotated[BatchCancelBody, Body(default_factory=BatchCancelBody)]
) -> Response:
    """Cancel the jobs of a batch that have not finished. Then `on_failure` and `on_finished` follow."""
    result = await batches_of(request).cancel(
        batch_id, reason=body.reason, actor=caller_of(request).actor, dry_run=body.dry_run
    )
    return answer({"changed": result.changed, "requested": result.requested})
