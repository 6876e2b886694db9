"""Alerts operators about each dead letter (HC-6, CT-11)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import structlog

from examples.petitions.application.ports import AlertPort, DeadLetterAlert, DeadLetterPort

log = structlog.get_logger("petitions.alerts")


@dataclass(frozen=True, slots=True)
class Death:
    """What is known of a dead letter at the moment of its death, also if it is retried or deleted right after."""

    job_id: UUID
    job_type: str
    failure_reason: str
    attempts: int


class DeadLetterAlertService:
    def __init__(self, dead_letters: DeadLetterPort, alerts: AlertPort) -> None:
        self._dead_letters = dead_letters
        self._alerts = alerts

    async def alert(self, death: Death, key: str) -> None:
        """Log and send the alert, or raise: the caller tries again, with the same key."""
        depth = await self._dead_letters.depth()
        letter = await self._dead_letters.get(death.job_id)
        alert = DeadLetterAlert(
            job_id=death.job_id,
            job_type=death.job_type,
            failure_reason=letter.failure_reason if letter else death.failure_reason,
            attempt_count=letter.attempts if letter else death.attempts,
            depth=max(1, depth.count),
            oldest_age=max(depth.oldest_age, timedelta()),
        )
        log.error(
            "dead_letter_alert",
            job_id=str(alert.job_id),
            job_type=alert.job_type,
            failure_reason=alert.failure_reason,
            attempt_count=alert.attempt_count,
            depth=alert.depth,
            oldest_age=alert.oldest_age.total_seconds(),
        )
        await self._alerts.send(alert, key)
