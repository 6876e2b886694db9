"""Routes about jobs, except for those that enqueue (enqueue.py)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Query
from starlette.requests import Request
from starlette.responses import Response

from mainspring.errors import EditConflict, JobNotFound
from mainspring.job import Job
from mainspring.json_data import plain
from mainspring.redaction import has_mark
from mainspring.service import export, views
from mainspring.service.bodies import EditBody, JobQuery, Paged, ReplayBody, RescheduleBody, RetryBody
from mainspring.service.etags import IfMatch, etag, expected
from mainspring.service.problems import Problem
from mainspring.service.redacted import Reveal, allowed, detail_data, redaction_for, redaction_of, restored_payload
from mainspring.service.replay import KeyKind, forget_ended, known_effect, triggered_job
from mainspring.service.requests import Reason, Router, answer, app_of, caller_of, location, needs, next_link
from mainspring.service.separation import filter_for, jobs_of, queue_for
from mainspring.service.tokens import Scope
from mainspring.service.views import job_data
from mainspring.stores.protocol import Filter

COUNT_CAP = 10_000
router = Router(prefix="/v1", tags=["jobs"])
MOST_MERGES = 5  # of an edit with values that are the same as before, while others edit the job too
WhyRevealed = Annotated[str, Query(max_length=2_000, description="why values are revealed, for the audit log")]


@router.get(
    "/jobs",
    response_model=views.JobPage | views.JobPartPage,
    summary="List jobs",
    responses=export.DESCRIBED,
    **needs(Scope.READ, projects=True),
)
async def list_jobs(request: Request, query: Annotated[JobQuery, Query()]) -> Response:
    """Return a page of jobs. Lists by `finished` and `duration` have finished jobs; that by `due`, waiting ones.

    With `fields`, jobs have just these fields. With `Accept: application/x-ndjson` or `text/csv`, download all jobs
    that match.
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
    shown = [job_data(job, redaction, paged.fields) for job in page.jobs]
    return {"jobs": shown, "cursor": page.cursor, "partial": page.partial, "count": count}


@router.get(
    "/jobs/{job_id}",
    response_model=views.JobView,
    summary="Show a job",
    **needs(Scope.READ, projects=True, tells=("ETag",)),
)
async def show_job(request: Request, job_id: str, reveal: Reveal = False, reason: WhyRevealed = "") -> Response:  # noqa: FBT002 - a parameter of the URL
    """Return a job. Secrets in it are shown as `[redacted]`; docs/security.md says what counts as one."""
    redaction = await redaction_for(request, job_id, reveal=reveal, reason=reason)
    job = await jobs_of(request).get(job_id)
    return answer(job_data(job, redaction), headers=etag(job.revision))


@router.get(
    "/jobs/{job_id}/detail",
    response_model=views.JobDetail,
    summary="Show all about a job",
    **needs(Scope.READ, projects=True, tells=("ETag",)),
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
    data = {"job": job_data(job, redaction), **detail_data(job, redaction, parts)}
    return answer(data, headers=etag(job.revision))


@router.post(
    "/jobs/{job_id}:cancel",
    response_model=views.CancelledView,
    summary="Cancel a job",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move",), tells=("ETag",)),
)
async def cancel_job(request: Request, job_id: str, body: Reason, if_match: IfMatch = None) -> Response:
    """Cancel a waiting job at once. A running job is asked to stop."""
    jobs = jobs_of(request)
    expect = await expected_revision(request, job_id, if_match)
    cancelled = await jobs.cancel(job_id, reason=body.reason, actor=caller_of(request).actor, expect=expect)
    job = await changed_job(request, job_id)
    data = {"cancelled": cancelled, "job": job_data(job, redaction_of(request))}
    return answer(data, headers=etag(job.revision))


async def expected_revision(request: Request, job_id: str, if_match: str | None) -> str | None:
    """Return the revision at which the job may be changed; None for any. The store checks it in its change."""
    if if_match is None or if_match.strip() == "*":
        return None
    return expected((await jobs_of(request).get(job_id)).revision, if_match)


async def changed_answer(request: Request, job_id: str) -> Response:
    job = await changed_job(request, job_id)
    return answer(job_data(job, redaction_of(request)), headers=etag(job.revision))


async def changed_job(request: Request, job_id: str) -> Job:
    """Return a job after its change. If others have deleted it since, say that the change was made all the same."""
    try:
        return await jobs_of(request).get(job_id)
    except JobNotFound:
        raise Problem("not_found", f"the change was made, and job {job_id} has been deleted since") from None


@router.post(
    "/jobs/{job_id}:retry",
    response_model=views.JobView,
    summary="Retry a job",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move", "duplicate"), tells=("ETag",)),
)
async def retry_job(
    request: Request,
    job_id: str,
    body: Annotated[RetryBody, Body(default_factory=RetryBody)],
    if_match: IfMatch = None,
) -> Response:
    """Run a dead letter, a cancelled job or one that waits for its retry now. It has all its attempts again."""
    jobs = jobs_of(request)
    expect = await expected_revision(request, job_id, if_match)
    by = {"reason": body.reason, "actor": caller_of(request).actor}
    await jobs.retry(job_id, from_step=body.from_step, **by, expect=expect)
    return await changed_answer(request, job_id)


@router.post(
    "/jobs/{job_id}:replay",
    response_model=views.EnqueuedView,
    status_code=201,
    summary="Replay a job",
    **needs(
        Scope.OPERATE,
        KeyKind.EXECUTION,
        projects=True,
        may=("illegal_move", "invalid_payload", "system_halted"),
        tells=("Location",),
    ),
)
async def replay_job(
    request: Request, job_id: str, body: Annotated[ReplayBody, Body(default_factory=ReplayBody)]
) -> Response:
    """Run a finished job once more, as a new job. An idempotency key lasts as long as the new job.

    With `from_step`, the new job has all that a durable function has recorded before that step.
    """
    app, begun = app_of(request), known_effect(request)
    await forget_ended(app)
    new_id = None if begun is None else await triggered_job(app, begun)
    if new_id is None:
        new_id = await replayed(request, job_id, body)
    return answer({"id": new_id, "created": True}, 201, location(request, f"/v1/jobs/{new_id}"))


async def replayed(request: Request, job_id: str, body: ReplayBody) -> str:
    """Replay a job; return the id of the new one. Redacted values stand for those of the finished job."""
    jobs, payload = jobs_of(request), body.payload
    if has_mark(payload):
        payload = restored_payload(request, await jobs.get(job_id), payload)
    by = {"reason": body.reason, "actor": caller_of(request).actor}
    return await jobs.replay(job_id, from_step=body.from_step, payload=payload, **by)


@router.post(
    "/jobs/{job_id}:reschedule",
    response_model=views.JobView,
    summary="Move a job",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move",), tells=("ETag",)),
)
async def reschedule_job(
    request: Request,
    job_id: str,
    body: Annotated[RescheduleBody, Body(default_factory=RescheduleBody)],
    if_match: IfMatch = None,
) -> Response:
    """Move a waiting job to another time; without one, to now."""
    jobs = jobs_of(request)
    moment: dict[str, Any] = {"run_at": body.run_at, "delay": body.delay}
    expect = await expected_revision(request, job_id, if_match)
    await jobs.reschedule(job_id, **moment, reason=body.reason, actor=caller_of(request).actor, expect=expect)
    return await changed_answer(request, job_id)


@router.patch(
    "/jobs/{job_id}",
    response_model=views.JobView,
    summary="Edit a job",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move", "invalid_payload"), tells=("ETag",)),
)
async def edit_job(request: Request, job_id: str, body: EditBody, if_match: IfMatch = None) -> Response:
    """Change a waiting job. What is left out stays as it is, and so do values that are sent back as `[redacted]`."""
    given = body.model_dump(exclude_unset=True, exclude={"reason"})
    if body.queue is not None:
        given["queue"] = queue_for(caller_of(request), body.queue)
    expect = await expected_revision(request, job_id, if_match)
    given |= {"reason": body.reason, "actor": caller_of(request).actor}
    if not has_mark(body.payload):
        await jobs_of(request).edit(job_id, **given, expect=expect)
    else:
        await merge_edit(request, job_id, given, expect)
    return await changed_answer(request, job_id)


async def merge_edit(request: Request, job_id: str, given: dict[str, Any], expect: str | None) -> None:
    """Edit a job whose new payload has redacted values. They stand for those that the job has when it is changed.

    An edit of another caller in between may have changed just these values, so they are read again then.
    """
    jobs = jobs_of(request)
    for left in reversed(range(MOST_MERGES)):
        job = await jobs.get(job_id)
        payload = restored_payload(request, job, given["payload"])
        try:
            await jobs.edit(job_id, **{**given, "payload": payload}, expect=expect or job.revision)
        except EditConflict:
            if expect is not None or not left:
                raise
        else:
            return


@router.delete(
    "/jobs/{job_id}",
    status_code=204,
    summary="Delete a job",
    **needs(Scope.OPERATE, projects=True, may=("illegal_move",)),
)
async def delete_job(
    request: Request, job_id: str, reason: Annotated[str, Query(max_length=2_000)] = "", if_match: IfMatch = None
) -> Response:
    """Delete a job that does not run."""
    expect = await expected_revision(request, job_id, if_match)
    await jobs_of(request).delete(job_id, reason=reason, actor=caller_of(request).actor, expect=expect)
    return Response(status_code=204)
