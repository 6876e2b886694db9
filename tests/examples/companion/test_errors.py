"""Error reports without Sentry. test_story.py and test_kill.py have those with it."""

from __future__ import annotations

import logging

import pytest

from examples.companion.errors import report_errors
from mainspring import Mainspring, Retry
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


async def test_each_log_line_about_a_job_has_its_id(caplog: pytest.LogCaptureFixture) -> None:
    app = Mainspring("memory://")

    @app.task(retry=Retry(max_attempts=2, base=1))
    async def user_sync(user_id: str) -> None:
        raise LookupError(user_id)

    caplog.set_level(logging.INFO)
    async with manual(app) as kit:
        job = await user_sync.enqueue("ana")
        await kit.time.advance(minutes=1)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("mainspring")]
    told = [line for line in lines if line.startswith("job_")]
    assert [line.split()[0] for line in told] == ["job_retrying", "job_dead_lettered"]
    assert all(f"job_id={job.id!r}" in line for line in told)
