"""The HTTP clients of the systems outside, against servers that answer in their own ways."""

from __future__ import annotations

from datetime import timedelta
from urllib.error import HTTPError
from uuid import UUID

import pytest

from examples.petitions.application.ports import DeadLetterAlert
from examples.petitions.domain.models import Notice
from examples.petitions.infrastructure.adapters import HttpAlerts, HttpHaltChecker, HttpNotifications
from mainspring.testing.fakes import Answer, FakeEndpoint

JOB = UUID(int=7)
ALERT = DeadLetterAlert(JOB, "referral_timeout", "no ink", 3, 1, timedelta(seconds=2))


@pytest.mark.parametrize("answer", [Answer(204), Answer(200, b"ok"), Answer(202, {"id": 1})], ids=["204", "ok", "202"])
async def test_alerts_and_notices_are_delivered_whatever_a_success_says(answer: Answer) -> None:
    with FakeEndpoint() as server:
        server.reply(answer)
        await HttpAlerts(server.url).send(ALERT, "a")
        await HttpNotifications(server.url).notify(Notice("n", JOB, "hello"))
    assert [(request.path, request.headers["idempotency-key"]) for request in server.received] == [
        ("/alerts", "a"),
        ("/notices", "n"),
    ]


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_an_alert_that_is_refused_raises(status: int) -> None:
    with FakeEndpoint() as server:
        server.fail(status)
        with pytest.raises(HTTPError, match=str(status)):
            await HttpAlerts(server.url).send(ALERT, "a")


@pytest.mark.parametrize("answer", [Answer(204), Answer(200, b"ok"), Answer(200, {"state": "fine"})])
async def test_a_control_room_whose_answer_has_no_meaning_raises_which_counts_as_a_halt(answer: Answer) -> None:
    with FakeEndpoint() as server:
        server.reply(answer)
        with pytest.raises((ValueError, KeyError)):
            await HttpHaltChecker(server.url).is_halted()
