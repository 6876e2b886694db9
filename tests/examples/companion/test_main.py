"""`make companion`: it shows within seconds that it is alive, and ends cleanly on Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow  # it starts a DynamoDB server of its own


def test_the_story_is_told_and_ctrl_c_ends_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "examples.companion"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "alive" in line:
                process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        errors = process.stderr.read()
    story = "".join(lines)
    assert (process.returncode, errors) == (0, "")
    assert "is scheduled already" in story
    assert "retrying      user_sync in 0.2 s: HTTP Error 503" in story
    assert "in Slack      C-bo: • Bo talked about the weather" in story
    assert "in Sentry     SlackError: users.info: user_not_found" in story
    assert story.splitlines()[-1].endswith("All jobs are in the table; a worker would continue with them.")
