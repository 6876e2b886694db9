"""Schedules as JSON. Local times keep their offset, because it matters for schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from mainspring.features.schedules.rules import Occurrence, PreviewRow, ScheduleChange
from mainspring.features.schedules.simulation import Course, fires_per_day
from mainspring.features.schedules.storage import StoredSchedule
from mainspring.humanize import show_moment
from mainspring.job import Level, NewJob, Priority
from mainspring.json_data import plain
from mainspring.stored_options import options_of

OF_PAUSES = frozenset({"pause", "earlier"})
ScheduleState = Literal["active", "paused", "disabled", "over"]


def state_of(stored: StoredSchedule, now: datetime) -> tuple[ScheduleState, str]:
    """Return the state in a word, and why the schedule does not fire, if so."""
    if stored.disabled:
        return "disabled", stored.disabled
    pause = stored.schedule.pause
    if pause is not None and pause.covers(now):
        end = "until it is resumed" if pause.until is None else f"until {show_moment(pause.until)}"
        return "paused", f"paused since {show_moment(pause.since)}, {end}"
    if stored.next is None and not stored.schedule.rule.from_finish:
        return "over", "it has no more times"
    return "active", ""


def plain_schedule(stored: StoredSchedule, now: datetime) -> dict[str, Any]:
    pause = stored.schedule.pause
    if pause is not None and not pause.covers(now):
        pause = None  # it is over, and only kept for the times that it covered
    return {
        "id": stored.id,
        "words": stored.describe(),
        "schedule": {name: value for name, value in stored.schedule.to_data().items() if name not in OF_PAUSES},
        "job": plain_job(stored.prepared()),
        "owner": stored.owner,
        "disabled": stored.disabled or None,
        "paused": None if pause is None else {"since": plain(pause.since), "until": plain(pause.until)},
        "since": plain(stored.since),
        "next": plain_occurrence(stored.coming(now)),
        "decided": plain_occurrence(stored.decided),
        "fires": stored.fires,
        "last_job": stored.last_job,
        "tzdata": stored.tzdata,
    }


def plain_job(job: NewJob) -> dict[str, Any]:
    """Return the job of a schedule as `PUT /v1/schedules/{id}` takes it. None: its task or settings decide."""
    of_enqueue = {
        "timeout": job.timeout / 1000 if job.timeout and job.timeout_level is Level.ENQUEUE else None,
        "max_attempts": job.max_attempts if job.attempts_level is Level.ENQUEUE else None,
    }
    return {
        "task": job.task,
        "payload": json.loads(job.payload),
        "queue": job.queue,
        "priority": Priority(job.priority).name.lower(),
        **of_enqueue,
        "retry": plain_retry(options_of(job.options).get("retry")),
        "target": None if job.target is None else dict(zip(("type", "id"), job.target, strict=True)),
        "tags": list(job.tags),
    }


def plain_retry(policy: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if policy is None:
        return None
    data = {name: policy[name] for name in ("base", "max_delay", "factor", "jitter_share")}
    return {"delays": policy["explicit"] or None, **data}


def plain_occurrence(occurrence: Occurrence | None) -> dict[str, Any] | None:
    if occurrence is None:
        return None
    return {
        "nominal": occurrence.nominal.isoformat(),
        "local": occurrence.local.isoformat(),
        "utc": plain(occurrence.utc),
        "key": occurrence.key,
    }


def plain_rows(rows: Sequence[PreviewRow]) -> list[dict[str, Any]]:
    return [
        {
            "local": row.local.isoformat(),
            "utc": plain(row.utc),
            "reader": row.reader.isoformat(),
            "nominal": row.occurrence.nominal.isoformat(),
            "notes": list(row.notes),
        }
        for row in rows
    ]


def plain_changes(changes: Sequence[ScheduleChange]) -> list[dict[str, Any]]:
    return [
        {"kind": change.kind, "before": plain_occurrence(change.before), "after": plain_occurrence(change.after)}
        for change in changes
    ]


def plain_courses(courses: Sequence[Course], start: datetime, end: datetime) -> dict[str, Any]:
    return {
        "start": plain(start),
        "end": plain(end),
        "schedules": [plain_course(course, start) for course in courses],
        "days": {day.isoformat(): number for day, number in sorted(fires_per_day(courses).items())},
    }


def plain_course(course: Course, start: datetime) -> dict[str, Any]:
    state, why = state_of(course.stored, start)
    return {
        "id": course.stored.id,
        "words": course.stored.describe(),
        "tz": course.stored.schedule.tz,
        "state": state,
        "why": why or None,
        "fires": course.fires,
        "first": None if course.first is None else plain(course.first.utc),
        "last": None if course.last is None else plain(course.last.utc),
        "skipped": dict(course.skipped),
        "remarks": [{"day": day.isoformat(), "remark": text} for day, text in course.remarks],
        "days": {day.isoformat(): number for day, number in sorted(course.days.items())},
    }
