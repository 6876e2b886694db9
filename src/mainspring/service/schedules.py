"""Routes about schedules. An id may contain slashes, so the routes with something behind the id come first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import Body, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from mainspring.errors import ScheduleNotFound
from mainspring.features.schedules.api import Schedules, compare_stored
from mainspring.features.schedules.rules import preview_schedule
from mainspring.features.schedules.simulation import choose_schedules, fires_on_first_day, simulate, with_declared
from mainspring.features.schedules.storage import StoredSchedule
from mainspring.job import Inserted, Job
from mainspring.json_data import plain
from mainspring.json_schedules import plain_changes, plain_courses, plain_rows, plain_schedule, state_of
from mainspring.redaction import Redaction, has_mark, restored
from mainspring.service import schedule_bodies as bodies
from mainspring.service import schedule_views as views
from mainspring.service.bodies import Instant, NewJobBody, PageQuery
from mainspring.service.cursors import cursor_of, last_of
from mainspring.service.enqueue import prepared
from mainspring.service.etags import IfMatch, IfNoneMatch, etag, expected
from mainspring.service.problems import Problem
from mainspring.service.redacted import check_receiver
from mainspring.service.replay import KeyKind, forget_ended, known_effect, triggered_job
from mainspring.service.requests import Reason, Router, answer, app_of, caller_of, location, needs, next_link
from mainspring.service.separation import schedules_of
from mainspring.service.tokens import Scope

router = Router(prefix="/v1", tags=["schedules"])
ScheduleId = Annotated[str, Path(max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
MOST_FIRES = 100_000  # of one simulation or comparison; they take a thread a few seconds


# -- looking --------------------------------------------------------------------------------------


@router.get(
    "/schedules", response_model=views.ScheduleList, summary="List schedules", **needs(Scope.READ, projects=True)
)
async def list_schedules(request: Request, query: Annotated[PageQuery, Query()]) -> Response:
    """Return schedules by id, with their states and their next times."""
    page = await schedules_of(request).page(query.limit, last_of("schedules", query.cursor))
    cursor = cursor_of("schedules", page.last)
    shown = await schedules_data(request, page.schedules)
    data = {"schedules": shown, "unreadable": page.unreadable, "cursor": cursor}
    return answer(data, headers=next_link(request, cursor))


async def schedules_data(request: Request, schedules: Sequence[StoredSchedule]) -> list[dict[str, Any]]:
    app, within = app_of(request), caller_of(request).within
    last = [stored.last_job for stored in schedules if stored.last_job is not None]
    jobs = {job.id: job for job in await app.store.get(last, within=within)} if last else {}
    return [schedule_data(stored, jobs.get(stored.last_job or ""), app.now(), app.redaction) for stored in schedules]


def schedule_data(stored: StoredSchedule, last: Job | None, now: datetime, redaction: Redaction) -> dict[str, Any]:
    state, why = state_of(stored, now)
    extra = {"state": state, "why": why or None, "last_status": None if last is None else last.status.value}
    data = plain_schedule(stored, now)
    job = {**data["job"], "payload": redaction.value(data["job"]["payload"], data["job"]["task"])}
    return {**data, "job": job, **extra, "revision": stored.revision}


async def shown(request: Request, stored: StoredSchedule, status: int = 200) -> Response:
    (data,) = await schedules_data(request, [stored])
    return answer(data, status, etag(stored.revision))


@router.post(
    "/schedules:preview", response_model=views.PreviewView, summary="Preview a rule", **needs(Scope.READ, projects=True)
)
async def preview_rule(request: Request, body: bodies.PreviewBody) -> Response:
    """Return the coming times of any rule. Nothing is saved."""
    schedule, since = body.schedule(), body.since or app_of(request).now()
    rows = await asyncio.to_thread(preview_schedule, schedule, since, body.limit, reader=body.reader)
    return answer({"words": schedule.describe(), "tz": schedule.tz, "coming": plain_rows(rows)})


@router.post(
    "/schedules:simulate",
    response_model=views.SimulationView,
    summary="Simulate schedules",
    **needs(Scope.READ, projects=True, may=("not_found",)),
)
async def simulate_schedules(
    request: Request, body: Annotated[bodies.SimulateBody, Body(default_factory=bodies.SimulateBody)]
) -> Response:
    """Return what schedules would do in the coming days. Each job counts as done at once; nothing is run or saved."""
    schedules, now = schedules_of(request), app_of(request).now()
    start = body.since or now
    known = with_declared(await schedules.list(), schedules.declared.values(), now)
    chosen = choose_schedules(known, [schedules.full_id(name) for name in body.ids or ()])
    end = end_of(start, body.days)

    def run() -> dict[str, Any]:
        refuse_too_many(chosen, start, body.days)
        return plain_courses([simulate(stored, start, end) for stored in chosen], start, end)

    return answer(await asyncio.to_thread(run))


def end_of(start: datetime, days: int) -> datetime:
    try:
        return start + timedelta(days=days)
    except OverflowError:
        raise Problem("invalid_request", "this would end after the year 9999; give an earlier time") from None


def refuse_too_many(schedules: Sequence[StoredSchedule], start: datetime, days: int) -> None:
    """Raise Problem if there are too many times to compute in a request, by those of the first day."""
    a_day = sum(fires_on_first_day(stored, start, MOST_FIRES) for stored in schedules)
    if a_day * days > MOST_FIRES:
        most = MOST_FIRES // a_day
        hint = f"ask for up to {most:,} days" if most else "leave out those that fire most often"
        raise Problem("invalid_request", f"there are {a_day:,} times a day; {hint}")


@router.get(
    "/schedules/{schedule_id:path}/preview", response_model=views.PreviewView, summary="Preview a schedule",
    **needs(Scope.READ, projects=True),
)  # fmt: skip
async def preview(
    request: Request,
    schedule_id: ScheduleId,
    limit: Annotated[int, Query(ge=1, le=500)] = 10,
    reader: Annotated[str, Query(max_length=100, description="also show the times in this time zone")] = "UTC",
) -> Response:
    """Return the coming times of a schedule. Days on which clocks change are marked."""
    schedules = schedules_of(request)
    stored = await schedules.get(schedule_id)
    rows = await schedules.preview(schedule_id, limit, reader=reader)
    return answer({"words": stored.describe(), "tz": stored.schedule.tz, "coming": plain_rows(rows)})


@router.get(
    "/schedules/{schedule_id:path}/ledger", response_model=views.LedgerView, summary="Show what became of times",
    **needs(Scope.READ, projects=True),
)  # fmt: skip
async def show_ledger(
    request: Request,
    schedule_id: ScheduleId,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    before: Annotated[Instant | None, Query()] = None,
) -> Response:
    """Return what became of a schedule's times, newest first. The ledger of a deleted schedule stays for a while."""
    schedules = schedules_of(request)
    found = await schedules.ledger(schedule_id, limit=limit + 1, before=before)
    if not found:
        await schedules.get(schedule_id)
    entries = found[:limit]
    following = plain(entries[-1].utc) if len(found) > limit else None
    return answer({"entries": plain(entries), "before": following})


@router.post(
    "/schedules/{schedule_id:path}/diff", response_model=views.DiffView, summary="Compare a change",
    **needs(Scope.READ, projects=True),
)  # fmt: skip
async def diff(request: Request, schedule_id: ScheduleId, body: bodies.DiffBody) -> Response:
    """Return which times a change would add, remove or move. Nothing is saved."""
    before = await schedules_of(request).get(schedule_id)
    now, schedule = app_of(request).now(), body.schedule()
    after = before.replaced(schedule, now).derived()

    def run() -> dict[str, Any]:
        refuse_too_many([before, after], now, body.days)
        changes = compare_stored(before, after, now, timedelta(days=body.days))
        counts = {kind: sum(change.kind == kind for change in changes) for kind in ("added", "removed", "moved")}
        listed = plain_changes(changes[: body.limit])
        return {"words": schedule.describe(), "days": body.days, **counts, "changes": listed}

    return answer(await asyncio.to_thread(run))


@router.get(
    "/schedules/{schedule_id:path}",
    response_model=views.ScheduleView,
    summary="Show a schedule",
    **needs(Scope.READ, projects=True, tells=("ETag",)),
)
async def show_schedule(request: Request, schedule_id: ScheduleId) -> Response:
    """Return a schedule. Its ETag changes when somebody changes the schedule, but not when it fires."""
    return await shown(request, await schedules_of(request).get(schedule_id))


# -- changing -------------------------------------------------------------------------------------


@router.put(
    "/schedules/{schedule_id:path}",
    response_model=views.ScheduleView,
    summary="Create or replace a schedule",
    responses={201: {"model": views.ScheduleView, "description": "it was created"}},
    **needs(Scope.OPERATE, projects=True, may=("unknown_task", "invalid_payload"), tells=("ETag",)),
)
async def put_schedule(
    request: Request,
    schedule_id: ScheduleId,
    body: bodies.ScheduleBody,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Create or replace a schedule. With the ETag that you have read as `If-Match`, nobody's change is overwritten."""
    schedules = schedules_of(request)
    known = await found(schedules, schedule_id)
    expect = expected(None if known is None else known.revision, if_match, if_none_match)
    job = await prepared(request, with_secrets(request, known, body.job.new_job()), traced=False)
    stored = await schedules.put(
        schedule_id, body.schedule(), job, reason=body.reason, actor=caller_of(request).actor, expect=expect
    )
    return await shown(request, stored, 201 if known is None else 200)


def with_secrets(request: Request, known: StoredSchedule | None, job: NewJobBody) -> NewJobBody:
    """Return the job with the stored values for those that are sent back as they were shown: as `[redacted]`."""
    if not has_mark(job.payload):
        return job
    before = None if known is None else known.prepared()
    old = None if before is None else json.loads(before.payload)
    if before is not None and before.task != job.task:  # another task may tell what this caller cannot see
        caller_of(request).check(Scope.ADMIN)
    check_receiver(request, job.task, job.payload, old)
    return job.model_copy(update={"payload": restored(job.payload, old, app_of(request).redaction.of(job.task))})


async def found(schedules: Schedules, schedule_id: str) -> StoredSchedule | None:
    try:
        return await schedules.get(schedule_id)
    except ScheduleNotFound:
        return None


@router.post(
    "/schedules/{schedule_id:path}:pause", response_model=views.ScheduleView, summary="Pause a schedule",
    **needs(Scope.OPERATE, projects=True, tells=("ETag",)),
)  # fmt: skip
async def pause_schedule(
    request: Request,
    schedule_id: ScheduleId,
    body: Annotated[bodies.PauseBody, Body(default_factory=bodies.PauseBody)],
) -> Response:
    """Stop a schedule from firing for now. Times within the pause are not fired later."""
    schedules, actor = schedules_of(request), caller_of(request).actor
    paused = await schedules.pause(schedule_id, until=body.until, reason=body.reason, actor=actor)
    return await shown(request, paused)


@router.post(
    "/schedules/{schedule_id:path}:resume", response_model=views.ScheduleView, summary="Resume a schedule",
    **needs(Scope.OPERATE, projects=True, tells=("ETag",)),
)  # fmt: skip
async def resume_schedule(request: Request, schedule_id: ScheduleId, body: Reason) -> Response:
    """Let a schedule fire again from now on."""
    actor = caller_of(request).actor
    return await shown(request, await schedules_of(request).resume(schedule_id, reason=body.reason, actor=actor))


@router.post(
    "/schedules/{schedule_id:path}:trigger", response_model=views.TriggeredView, status_code=201,
    summary="Trigger a schedule",
    **needs(
        Scope.OPERATE, KeyKind.EXECUTION, projects=True,
        may=("unknown_task", "invalid_payload", "system_halted"), tells=("Location",),
    ),
)  # fmt: skip
async def trigger_schedule(request: Request, schedule_id: ScheduleId, body: Reason) -> Response:
    """Run a schedule's job once now, in addition to its times. An idempotency key lasts as long as the job."""
    app, begun = app_of(request), known_effect(request)
    await forget_ended(app)
    if begun is not None and (job_id := await triggered_job(app, begun)) is not None:
        inserted = Inserted(job_id, created=True)
    else:
        actor = caller_of(request).actor
        inserted = await schedules_of(request).trigger(schedule_id, reason=body.reason, actor=actor)
    headers = location(request, f"/v1/jobs/{inserted.id}")
    return answer({"job_id": inserted.id, "created": inserted.created}, 201, headers)


@router.delete(
    "/schedules/{schedule_id:path}", status_code=204, summary="Delete a schedule",
    **needs(Scope.OPERATE, projects=True),
)  # fmt: skip
async def delete_schedule(
    request: Request,
    schedule_id: ScheduleId,
    reason: Annotated[str, Query(max_length=2_000)] = "",
    if_match: IfMatch = None,
) -> Response:
    """Delete a schedule. Its jobs and its ledger stay."""
    schedules = schedules_of(request)
    expect = expected((await schedules.get(schedule_id)).revision, if_match)
    await schedules.delete(schedule_id, reason=reason, actor=caller_of(request).actor, expect=expect)
    return Response(status_code=204)
