"""The ports to people: alerts for operators, and notices for petitioners."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from examples.petitions.domain.models import Notice


@dataclass(frozen=True, slots=True)
class DeadLetterAlert:
    """What operators are told about a dead letter (HC-6)."""

    job_id: UUID
    job_type: str
    failure_reason: str
    attempt_count: int
    depth: int  # dead letters there are now
    oldest_age: timedelta  # of the oldest of them


class AlertPort(Protocol):
    async def send(self, alert: DeadLetterAlert, key: str) -> None:
        """Deliver an alert, or raise. The receiver counts alerts with the same key once."""
        ...


class NotificationPort(Protocol):
    async def notify(self, notice: Notice) -> None:
        """Deliver a notice, or raise. The receiver counts notices with the same key once."""
        ...
