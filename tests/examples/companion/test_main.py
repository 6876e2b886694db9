"""`make companion`: it shows within seconds that it is alive, and ends cleanly on Ctrl-C."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.alive import lines_of

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
        lines = []
        for line in lines_of(process, "alive"):
            lines.append(line)
            if "That was the story" in line:
                process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        errors = process.stderr.read()
    story = "".join(lines)
    assert (process.returncode, errors) == (0, "")
    assert re.search(r"alive +worker \S+ waits for jobs", story)
    assert "is scheduled already" in story
    assert "retrying      user_sync in 0.2 s: HTTP Error 503" in story
    assert "in Slack      C-bo: • Bo talked about the weather" in story
    assert "in Sentry     SlackError: users.info: user_not_found" in story
    assert story.splitlines()[-1].endswith("another worker would go on with the jobs.")
