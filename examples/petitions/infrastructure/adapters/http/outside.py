"""HTTP clients of the other systems: the one that halts this one, and those that get alerts and notices."""

from __future__ import annotations

from examples.petitions.application.ports import DeadLetterAlert, HaltStatus
from examples.petitions.domain.models import Notice
from examples.petitions.infrastructure.adapters.http import json_client

HALT_TIMEOUT = 0.4  # seconds; without an answer by then, the system counts as halted
SEND_TIMEOUT = 5.0  # seconds


class HttpHaltChecker:
    """Implements HaltCheckerProtocol."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/halt"

    async def is_halted(self) -> bool:
        return (await self.get_halt_status()).halted

    async def get_halt_status(self) -> HaltStatus:
        answer = await json_client.get(self._url, timeout=HALT_TIMEOUT)
        return HaltStatus(bool(answer["halted"]), str(answer.get("reason", "")))


class HttpAlerts:
    """Implements AlertPort."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/alerts"

    async def send(self, alert: DeadLetterAlert, key: str) -> None:
        document = {
            "alert": "dead_letter",
            "job_id": str(alert.job_id),
            "job_type": alert.job_type,
            "failure_reason": alert.failure_reason,
            "attempt_count": alert.attempt_count,
            "depth": alert.depth,
            "oldest_age_seconds": round(alert.oldest_age.total_seconds(), 3),
        }
        await json_client.post(self._url, document, key=key, timeout=SEND_TIMEOUT)


class HttpNotifications:
    """Implements NotificationPort."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/notices"

    async def notify(self, notice: Notice) -> None:
        document = {"petition_id": str(notice.petition_id), "text": notice.text}
        await json_client.post(self._url, document, key=notice.key, timeout=SEND_TIMEOUT)
