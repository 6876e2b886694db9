"""What routes about routes with fixed names answer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from mainspring.service.views import Moment, View


class SchedulerStats(View):
    queueDepth: int = Field(description="jobs that are due and could start now; jobs for later do not count")  # noqa: N815 - as the document names it
    dlqSize: int = Field(description="dead letters")  # noqa: N815
    jobsLast24h: int = Field(description="jobs that completed within 24 hours")  # noqa: N815
    failureRate: float = Field(description="the share of attempts that failed within 24 hours, from 0 to 1")  # noqa: N815
    oldestPendingMinutes: float = Field(description="how long the oldest due job has waited")  # noqa: N815


class SchedulerHealth(View):
    healthy: bool
    stats: SchedulerStats
    problems: list[str] = Field(description="jobs that workers cannot decrypt, and what to do")


class QueueNumbers(View):
    pending: int = Field(description="jobs that wait, also for other jobs, signals or times")
    processing: int
    completed: int = Field(description="those that retention has not removed yet")
    failed: int = Field(description="jobs that failed and wait for another attempt")
    deadLetter: int  # noqa: N815


class DeadLetterView(View):
    id: str
    queue: str
    type: str = Field(description="the name of the task")
    payload: Any
    finalError: str  # noqa: N815
    attempts: int
    movedAt: Moment  # noqa: N815


class QueueStats(View):
    timestamp: Moment
    queues: dict[str, QueueNumbers]
    deadLetter: list[DeadLetterView] = Field(description="the newest dead letters")  # noqa: N815
