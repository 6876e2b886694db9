"""Error reports, as Sentry gets them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from examples.companion.errors import PAUSES, JobError, LogReporter, SentryReporter, frames_of
from examples.companion.settings import Settings
from mainspring.testing.fakes import FakeSentry

TRACEBACK = """\
Traceback (most recent call last):
  File "/app/examples/companion/handlers.py", line 94, in handle
    profile = self.outside.slack.profile(user.slack_id)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/site-packages/slack/client.py", line 7, in profile
examples.companion.slack.SlackError: users.info: user_not_found
"""
ERROR = JobError(
    job_id="j1",
    job_type="user_sync",
    payload={"user_id": "ana"},
    attempt=5,
    worker="w1",
    is_dead_letter=True,
    error_type="SlackError",
    message="users.info: user_not_found",
    traceback=TRACEBACK,
    at=datetime(2026, 7, 1, tzinfo=UTC),
)


def test_a_report_has_job_id_type_payload_and_traceback() -> None:
    with FakeSentry() as sentry:
        SentryReporter(sentry.dsn).report(ERROR)
        (event,) = sentry.events
    assert event["tags"] == {"job_id": "j1", "job_type": "user_sync", "dead_letter": "True"}
    assert event["contexts"]["job"] == {"attempt": 5, "worker": "w1", "payload": {"user_id": "ana"}}
    assert event["extra"]["traceback"] == TRACEBACK
    assert (event["level"], event["timestamp"]) == ("error", "2026-07-01T00:00:00+00:00")


def test_frames_are_read_from_the_traceback() -> None:
    assert [(f["function"], f["lineno"], f["context_line"], f["in_app"]) for f in frames_of(TRACEBACK)] == [
        ("handle", 94, "profile = self.outside.slack.profile(user.slack_id)", True),
        ("profile", 7, None, False),
    ]


def test_a_repeated_report_is_one_event() -> None:
    with FakeSentry() as sentry:
        for _ in range(2):
            SentryReporter(sentry.dsn).report(ERROR)
        assert (len(sentry.received), len(sentry.events)) == (2, 1)


def test_a_report_is_tried_again_while_sentry_fails() -> None:
    pauses: list[float] = []
    with FakeSentry() as sentry:
        sentry.fail(503, times=2)
        SentryReporter(sentry.dsn, pauses.append).report(ERROR)
        assert len(sentry.events) == 1
    assert pauses == list(PAUSES)


@pytest.mark.parametrize(("status", "tries"), [(503, 3), (403, 1)])
def test_a_report_that_sentry_never_takes_is_logged(status: int, tries: int, caplog: pytest.LogCaptureFixture) -> None:
    with FakeSentry() as sentry:
        sentry.fail(status)
        SentryReporter(sentry.dsn, lambda _: None).report(ERROR)
        assert len(sentry.received) == tries
    assert "Sentry did not take the report of user_sync j1" in caplog.text


def test_without_sentry_errors_are_logged_with_payload_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        LogReporter().report(ERROR)
    assert "user_sync j1 failed with payload {'user_id': 'ana'}" in caplog.text
    assert "line 94, in handle" in caplog.text


@pytest.mark.parametrize("dsn", ["", "https://sentry.io/1", "https://key@sentry.io", "https://key@sentry.io/name"])
def test_a_wrong_dsn_is_refused(dsn: str) -> None:
    with pytest.raises(ValueError, match="is not a Sentry DSN; it looks like"):
        SentryReporter(dsn)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Settings()),
        (
            {"COMPANION_SLACK_TOKEN": "x", "COMPANION_BASE_DELAY_SECONDS": "2.5", "COMPANION_MAX_ATTEMPTS": "7"},
            Settings(slack_token="x", base_delay_seconds=2.5, max_attempts=7),
        ),
    ],
)
def test_settings_come_from_the_environment(environment: dict[str, Any], expected: Settings) -> None:
    assert Settings.from_environment(environment) == expected


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="COMPANION_MAX_ATTEMPTS is 'many'; give a number, such as 5"):
        Settings.from_environment({"COMPANION_MAX_ATTEMPTS": "many"})


def test_the_default_store_polls_every_thirty_seconds_in_a_shared_table() -> None:
    settings = Settings()
    assert (settings.table, settings.region, settings.endpoint) == ("companion", "eu-central-1", None)
    assert settings.store.endswith("prefix=jobs/&poll=30")
