"""The settings of `python -m examples.petitions.serve`."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.petitions.serve import RULES, settings_of
from examples.petitions.system import Settings

ROOT = Path(__file__).parents[3]
NEEDED = {
    "PETITIONS_DATABASE": "postgresql://localhost/petitions",
    "PETITIONS_HALT_URL": "http://control-room",
    "PETITIONS_ALERT_URL": "http://pager",
    "PETITIONS_NOTICE_URL": "http://mail",
}


def test_the_environment_has_the_settings() -> None:
    settings = settings_of({**NEEDED, "PETITIONS_RETRY_DELAYS": "1,2.5", "PETITIONS_ESCALATION_THRESHOLD": "7"})
    assert (settings.halt_url, settings.retry_delays, settings.escalation_threshold) == (
        "http://control-room",
        (1.0, 2.5),
        7,
    )
    assert settings.poll_interval == 10.0


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("RETRY_DELAYS", "soon", "numbers of seconds with commas between them, such as 30,60"),
        ("RETRY_DELAYS", "30,-1", "numbers of seconds with commas between them"),
        ("RETRY_DELAYS", "", "numbers of seconds with commas between them"),
        ("LEASE", "30s", "a number of seconds from 0.001 to 3600, such as 30"),
        ("LEASE", "nan", "a number of seconds from 0.001 to 3600"),
        ("JOB_TIMEOUT", "0", "a number of seconds from 0.001 to 3600"),
        ("POLL_INTERVAL", "-1", "a number of seconds from 0.001 to 3600"),
        ("ESCALATION_EVERY", "abc", "an interval such as 1m, or a cron expression"),
        ("ESCALATION_EVERY", "0s", "an interval such as 1m, or a cron expression"),
        ("ESCALATION_THRESHOLD", "0", "a whole number above 0, such as 5"),
        ("QUEUE_SCHEMA", "a b", "up to 51 lower-case letters, digits and underscores"),
        ("HALT_URL", "control-room", "a URL that begins with http:// or https://"),
        ("DATABASE", "foo", "a URL that begins with postgresql://"),
        ("DATABASE", "sqlite:///jobs.db", "a URL that begins with postgresql://"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(name: str, value: str, allowed: str) -> None:
    message = f"PETITIONS_{name} is {value!r}; give {allowed}"
    with pytest.raises(ValueError, match=re.escape(message)):
        settings_of({**NEEDED, f"PETITIONS_{name}": value})


def test_a_wrong_url_with_a_password_is_not_shown() -> None:
    with pytest.raises(ValueError, match="PETITIONS_DATABASE is wrong; give a URL") as raised:
        settings_of({**NEEDED, "PETITIONS_DATABASE": "mysql://ana:secret@localhost/petitions"})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("schedule", ["30s", "*/5 * * * *", "at 09:00 Monday to Friday"])
def test_escalations_are_checked_by_any_schedule(schedule: str) -> None:
    assert settings_of({**NEEDED, "PETITIONS_ESCALATION_EVERY": schedule}).escalation_every == schedule


def test_each_setting_has_a_rule() -> None:
    assert list(RULES) == [field.name for field in dataclasses.fields(Settings)]


@pytest.mark.parametrize("missing", NEEDED)
def test_a_missing_setting_is_named(missing: str) -> None:
    given = {name: value for name, value in NEEDED.items() if name != missing}
    with pytest.raises(ValueError, match=f"{missing} is not set; give a URL that begins with "):
        settings_of(given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"PETITIONS_DATABASE": "foo"},
            [
                "PETITIONS_DATABASE is 'foo'; give a URL that begins with postgresql://, such as postgresql://user@host/database"
            ],
        ),
        (
            {"PETITIONS_DATABASE": "postgresql://localhost/petitions?colour=red"},
            [
                'this PostgreSQL URL cannot be used: invalid URI query parameter: "colour"',
                "Check PETITIONS_DATABASE and the other settings that begin with PETITIONS_.",
            ],
        ),
    ],
)
def test_the_program_ends_with_a_line_and_without_a_traceback(changes: dict[str, str], lines: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "examples.petitions.serve"],
        cwd=ROOT,
        env={**os.environ, **NEEDED, **changes},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr.splitlines()) == (1, lines)
