"""`make petitions` shows that it is alive, tells its story, and ends cleanly on Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.alive import lines_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
END = "That was the story."


def test_the_demo_tells_its_story_and_ends_on_ctrl_c() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "examples.petitions"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        told = ""
        for line in lines_of(process, "alive: "):
            told += line
            if END in line:
                break
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert rest.rstrip().endswith("Stopped.")
    for shown in (
        "alive: ",
        "Sir Gawain has not answered in time",
        "“a fair in May” has enough co-signers",
        "a mill: received",
        "attempt_count=3",
        "Job worker paused due to system halt",
        "A new deadline is refused: another system has halted this one (fire drill)",
        "Sir Bors has not answered in time",
    ):
        assert shown in told


def test_make_petitions_runs_the_demo() -> None:
    assert "\t$(BIN)/python -m examples.petitions\n" in (ROOT / "Makefile").read_text("utf-8")
