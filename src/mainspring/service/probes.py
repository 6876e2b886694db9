"""`GET /health/scheduler` and `GET /queue/stats`, for monitoring that expects their names and thresholds.

These routes have field names in camel case. The API's own overview is `GET /v1/stats`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from mainspring.app import Mainspring
from mainspring.health import describe_unreadable, unreadable_now
from mainspring.job import Counts, Job, Status
from mainspring.json_data import plain
from mainspring.queue_patterns import is_among
from mainspring.redaction import Redaction
from mainspring.service.answers.probes import QueueStats, SchedulerHealth
from mainspring.service.guard import Caller
from mainspring.service.requests import Router, answer, app_of, caller_of, needs
from mainspring.service.separation import jobs_of, workers_for
from mainspring.service.tokens import Scope
from mainspring.service.views import job_data
from mainspring.stores.protocol import Stats
from mainspring.stores.unreadable import unreadable_jobs

router = Router()
MAX_DEPTH = 1_000  # due jobs, exclusive; the same for the others
MAX_DEAD = 50
MAX_MINUTES = 60.0
DAY = timedelta(days=1)


@router.get(
    "/health/scheduler",
    response_model=SchedulerHealth,
    summary="Do jobs run on time?",
    tags=["health"],
    responses={503: {"model": SchedulerHealth, "description": "a threshold is reached"}},
    **needs(Scope.READ, projects=True),
)
async def scheduler_health(request: Request) -> Response:
    """Answer 200 if fewer than 1,000 jobs are due, no due job has waited for an hour, and dead letters are below 50.

    Workers must also be able to decrypt the jobs that they claim. Otherwise answer 503 with the same fields.
    """
    app, caller = app_of(request), caller_of(request)
    stats = await app.stats(caller.within)
    numbers, problems = await scheduler_stats(app, caller, stats), await decryption_problems(app, caller, stats)
    healthy = is_healthy(numbers) and not problems
    return answer({"healthy": healthy, "stats": numbers, "problems": problems}, 200 if healthy else 503)


async def decryption_problems(app: Mainspring, caller: Caller, stats: Stats) -> list[str]:
    """Return what is wrong in the queues of the caller, without the names of workers that serve others too."""
    shown = {worker.id for worker in workers_for(caller, stats.workers)}
    return describe_unreadable(
        jobs if jobs.worker in shown else replace(jobs, worker="(shared)")
        for jobs in unreadable_now(stats, await unreadable_jobs(app.store))
        if not caller.within or is_among(jobs.queue, caller.within)
    )


async def scheduler_stats(app: Mainspring, caller: Caller, stats: Stats) -> dict[str, Any]:
    now = app.now()
    day = (await app.numbers(since=DAY, within=caller.within)).total
    return {
        "queueDepth": sum(stats.due.values()),
        "dlqSize": sum(counts[Status.DEAD_LETTER] for counts in stats.queues),
        "jobsLast24h": day.completed,
        "failureRate": day.failure_rate,
        "oldestPendingMinutes": minutes_waited(stats, now),
    }


def minutes_waited(stats: Stats, now: datetime) -> float:
    oldest = min(stats.oldest_due.values(), default=now)
    return round(max(0.0, (now - oldest).total_seconds() / 60), 3)


def is_healthy(stats: dict[str, Any]) -> bool:
    return bool(
        stats["queueDepth"] < MAX_DEPTH and stats["dlqSize"] < MAX_DEAD and stats["oldestPendingMinutes"] < MAX_MINUTES
    )


@router.get(
    "/queue/stats",
    response_model=QueueStats,
    summary="Show queues",
    tags=["queues"],
    **needs(Scope.READ, projects=True),
)
async def queue_stats(
    request: Request, limit: Annotated[int, Query(ge=0, le=500, description="of the list of dead letters")] = 50
) -> Response:
    """Return the jobs of each queue by status, and the newest dead letters."""
    app, jobs = app_of(request), jobs_of(request)
    stats = await app.stats(caller_of(request).within)
    dead = (await jobs.find(jobs.dead(), sort="finished", limit=limit)).jobs if limit else []
    queues = {counts.queue: numbers_of(counts) for counts in stats.queues}
    return answer(
        {"timestamp": plain(app.now()), "queues": queues, "deadLetter": [dead_data(job, app.redaction) for job in dead]}
    )


def numbers_of(counts: Counts) -> dict[str, int]:
    return {
        "pending": counts[Status.PENDING] + counts[Status.SUSPENDED],
        "processing": counts[Status.RUNNING],
        "completed": counts[Status.COMPLETED],
        "failed": counts[Status.RETRYING],
        "deadLetter": counts[Status.DEAD_LETTER],
    }


def dead_data(job: Job, redaction: Redaction) -> dict[str, Any]:
    data = job_data(job, redaction)
    failure = data["failure"]
    error = data["reason"] if failure is None else f"{failure['type']}: {failure['message']}"
    return {
        "id": job.id,
        "queue": job.queue,
        "type": job.task,
        "payload": data["payload"],
        "finalError": error,
        "attempts": job.attempts,
        "movedAt": plain(job.finished_at),
    }
