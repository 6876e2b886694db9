"""Error reports without Sentry. test_story.py and test_kill.py have those with it."""

from __future__ import annotations

import pytest

from examples.companion.errors import report_errors
from mainspring import Mainspring
from mainspring.testing import manual


async def test_without_sentry_errors_are_logged_with_payload_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    app = Mainspring("memory://")
    report_errors(app, dsn="")

    @app.task(max_attempts=1)
    async def user_sync(user_id: str) -> None:
        raise LookupError(user_id)

    async with manual(app) as kit:
        job = await user_sync.enqueue("ana")
        await kit.drain()
    assert f"user_sync {job.id} failed with payload {{'user_id': 'ana'}}" in caplog.text
    assert "raise LookupError(user_id)" in caplog.text
