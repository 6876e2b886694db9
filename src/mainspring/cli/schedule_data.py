"""Schedules as JSON. Local times keep their offset, because it matters for schedules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mainspring.features.schedules.rules import Occurrence, PreviewRow, ScheduleChange
from mainspring.features.schedules.storage import StoredSchedule
from mainspring.json_data import plain


def plain_schedule(stored: StoredSchedule, now: datetime) -> dict[str, Any]:
    pause = stored.schedule.pause
    return {
        "id": stored.id,
        "words": stored.describe(),
        "schedule": stored.schedule.to_data(),
        "task": stored.task,
        "queue": stored.job["queue"],
        "args": json.loads(stored.job["payload"]),
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
