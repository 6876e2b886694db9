"""The ports to what the system remembers: dead letters, executions and signs of life."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from examples.petitions.domain.models import DeadLetterJob, ScheduledJob


@dataclass(frozen=True, slots=True)
class QueueDepth:
    count: int
    oldest_age: timedelta


class DeadLetterPort(Protocol):
    async def get(self, job_id: UUID) -> DeadLetterJob | None: ...

    async def depth(self) -> QueueDepth: ...


class ExecutionAuditPort(Protocol):
    async def failed(self, job: ScheduledJob, reason: str) -> None:
        """Record an attempt that failed (CT-12). Successful ones are recorded together with their effect."""
        ...


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life of a job worker (NFR-7.5)."""

    worker: str
    halted: bool
    processed: int  # jobs since the worker started


class HeartbeatPort(Protocol):
    async def beat(self, heartbeat: Heartbeat) -> None: ...
