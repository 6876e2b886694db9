"""Routes about jobs, except for those that enqueue (enqueue.py)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Query
from starlette.requests import Request
from starlette.responses import Response

from mainspring.errors import JobNotFound
from mainspring.json_data import plain
from mainspring.service import export, views
from mainspring.service.bodies import EditBody, JobQuery, Paged, RescheduleBody, RetryBody
from mainspring.service.problems import Problem
from mainspring.service.redacted import Reveal, allowed, detail_data, redaction_for, redaction_of, restored_edit
from mainspring.service.requests import Reason, Router, answer, caller_of, needs, next_link
from mainspring.service.separation import filter_for, jobs_of, queue_for
from mainspring.service.tokens import Scope
from mainspring.service.views import job_data
from mainspring.stores.protocol import Filter

COUNT_CAP = 10_000
router = Router(prefix="/v1", tags=["jobs"])
WhyRevealed = Annotated[str, Query(max_length=2_000, description="why values are revealed, for the audit log")]


@router.get(
    "/jobs",
    response_model=views.JobPage,
    summary="List jobs",
    responses=export.DESCRIBED,
    **needs(Scope.READ, projects=True),
)
async def list_jobs(request: Request, query: Annotated[JobQuery, Query()]) -> Response:
    """Return a page of jobs. Lists by `finished` and `duration` have finished jobs; that by `due`, waiting ones.

    With `Accept: application/x-ndjson` or `text/csv`, download all jobs that match.
    """
    where = filter_for(caller_of(request), allowed(request, query.filter()))
    if (form := export.form_of(request.headers.get("accept", ""))) is not None:
        return await export.exported(request, where, query, form)
    data = await page_data(request, where, query)
    return answer(data, headers=next_link(request, data["cursor"]))


async def page_data(request: Request, where: Filter, paged: Paged) -> dict[str, Any]:
    """Return a page of jobs as JSON data, in the shape of `JobPage`."""
    jobs = jobs_of(request)
    page = await jobs.find(where, sort=paged.sort, descending=paged.descending, limit=paged.limit, cursor=paged.cursor)
    count = plain(await jobs.count(where, cap=COUNT_CAP)) if paged.count else None
    redaction = redaction_of(request)
    shown = [job_data(job, redaction) for job in page.jobs]
    return {"jobs": shown, "cursor": page.cursor, "partial": page.partial, "count": count}


@router.get("/jobs/{job_id}", response_model=views.JobView, summary="Show a job", **needs(Scope.READ, projects=True))
async def show_job(request: Request, job_id: str, reveal: Reveal = False, reason: WhyRevealed = "") -> Response:  # noqa: FBT002 - a parameter of the URL
    """Return a job. Secrets in it are shown as `[redacted]`; docs/security.md says what counts as one."""
    redaction = await redaction_for(request, job_id, reveal=reveal, reason=reason)
    return answer(job_data(await jobs_of(request).get(job_id), redaction))


@router.get(
    "/jobs/{job_id}/detail",
    response_model=views.JobDetail,
    summary="Show all about a job",
    **needs(Scope.READ, projects=True),
)
async def show_detail(request: Request, job_id: str, reveal: Reveal = False, reason: WhyRevealed = "") -> Response:  # noqa: FBT002 - a parameter of the URL
    """Return the job with its attempts, steps and timeline, and why it does not run."""
    jobs = jobs_of(request)
    redaction = await redaction_for(request, job_id, reveal=reveal, reason=reason)
    job = await jobs.get(job_id)
    why = await jobs.why(job_id)
    parts = {
        "attempts": await jobs.attempts(job_id),
        "steps": await jobs.steps(job_id),
        "timeline": await jobs.timeline(job_id),
        "why": {"at": why.at, "reasons": why.reasons},
    }
    return answer({"job": job_data(job, redaction), **detail_data(job, redaction, parts)})


@router.post(
    "/jobs/{job_id}:cancel",
    response_model=views.CancelledView,
    summary="Cancel a job",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move",)),
)
async def cancel_job(request: Request, job_id: str, body: Reason) -> Response:
    """Cancel a waiting job at once. A running job is asked to stop."""
    jobs = jobs_of(request)
    cancelled = await jobs.cancel(job_id, reason=body.reason, actor=caller_of(request).actor)
    return answer({"cancelled": cancelled, "job": await changed_data(request, job_id)})


async def changed_data(request: Request, job_id: str) -> dict[str, Any]:
    """Return a job after its change. If others have deleted it since, say that the change was made all the same."""
    try:
        return job_data(await jobs_of(request).get(job_id), redaction_of(request))
    except JobNotFound:
        raise Problem("not_found", f"the change was made, and job {job_id} has been deleted since") from None


@router.post(
    "/jobs/{job_id}:retry",
    response_model=views.JobView,
    summary="Retry a job",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move", "duplicate")),
)
async def retry_job(
    request: Request, job_id: str, body: Annotated[RetryBody, Body(default_factory=RetryBody)]
) -> Response:
    """Run a dead letter, a cancelled job or one that waits for its retry now. It has all its attempts again."""
    jobs = jobs_of(request)
    await jobs.retry(job_id, from_step=body.from_step, reason=body.reason, actor=caller_of(request).actor)
    return answer(await changed_data(request, job_id))


@router.post(
    "/jobs/{job_id}:reschedule",
    response_model=views.JobView,
    summary="Move a job",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move",)),
)
async def reschedule_job(
    request: Request, job_id: str, body: Annotated[RescheduleBody, Body(default_factory=RescheduleBody)]
) -> Response:
    """Move a waiting job to another time; without one, to now."""
    jobs = jobs_of(request)
    moment: dict[str, Any] = {"run_at": body.run_at, "delay": body.delay}
    await jobs.reschedule(job_id, **moment, reason=body.reason, actor=caller_of(request).actor)
    return answer(await changed_data(request, job_id))


@router.patch(
    "/jobs/{job_id}",
    response_model=views.JobView,
    summary="Edit a job",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move", "invalid_payload")),
)
async def edit_job(request: Request, job_id: str, body: EditBody) -> Response:
    """Change a waiting job. What is left out stays as it is, and so do values that are sent back as `[redacted]`."""
    jobs = jobs_of(request)
    given = await restored_edit(request, job_id, body.model_dump(exclude_unset=True, exclude={"reason"}))
    if body.queue is not None:
        given["queue"] = queue_for(caller_of(request), body.queue)
    await jobs.edit(job_id, **given, reason=body.reason, actor=caller_of(request).actor)
    return answer(await changed_data(request, job_id))


@router.delete(
    "/jobs/{job_id}",
    status_code=204,
    summary="Delete a job",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move",)),
)
async def delete_job(request: Request, job_id: str, reason: Annotated[str, Query(max_length=2_000)] = "") -> Response:
    """Delete a job that does not run."""
    await jobs_of(request).delete(job_id, reason=reason, actor=caller_of(request).actor)
    return Response(status_code=204)
