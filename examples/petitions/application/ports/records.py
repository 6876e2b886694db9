"""The ports to what the system remembers: dead letters, executions and signs of life."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from examples.petitions.domain.models import DeadLetterJob


@dataclass(frozen=True, slots=True)
class QueueDepth:
    count: int
    oldest_age: timedelta


class DeadLetterPort(Protocol):
    async def get(self, job_id: UUID) -> DeadLetterJob | None: ...

    async def depth(self) -> QueueDepth: ...


class ExecutionOutcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"  # also by its timeout
    KILLED = "killed"  # its process died
    INTERRUPTED = "interrupted"  # its worker stopped before it ended
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a job that has ended (CT-12)."""

    key: str  # the same whenever this execution is reported
    job_id: UUID
    job_type: str
    outcome: ExecutionOutcome
    ended_at: datetime
    error_type: str | None = None
    reason: str | None = None


class ExecutionAuditPort(Protocol):
    async def record(self, execution: Execution) -> None:
        """Record an execution, or raise: the caller tries again. A key that is known adds nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life of a job worker (NFR-7.5)."""

    worker: str
    halted: bool
    processed: int  # jobs since the worker started


class HeartbeatPort(Protocol):
    async def beat(self, heartbeat: Heartbeat) -> None: ...
