"""`make petitions` shows that it is alive, tells its story, and ends cleanly on Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from tests.examples.alive import lines_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
END = "That was the story."


def run(until: str, environment: Mapping[str, str]) -> str:
    """Run the demo until it prints this text, then press Ctrl-C. Return what it printed, from its start to its end."""
    with subprocess.Popen(
        [sys.executable, "-m", "examples.petitions"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        told = ""
        for line in lines_of(process, "alive: "):
            told += line
            if until in line:
                break
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert rest.rstrip().endswith("Stopped.")
    return told + rest


def test_the_demo_tells_its_story_and_ends_on_ctrl_c() -> None:
    told = run(END, {name: value for name, value in os.environ.items() if name != "PETITIONS_DATABASE"})
    for shown in (
        "Starting PostgreSQL …",
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


def test_a_database_of_your_own_is_used_again_and_each_run_shows_only_its_own_work(database: str) -> None:
    environment = {**os.environ, "PETITIONS_DATABASE": database}
    for number in (1, 2):
        told = run("a mill: received", environment)
        assert "Starting PostgreSQL" not in told
        assert "Using the database of PETITIONS_DATABASE" in told
        assert "alive: " in told
        assert "1000 heartbeats" not in told
        assert told.count("a new well: ") == told.count("a mill: ") == 1
        with psycopg.connect(database) as connection:  # what a worker of an earlier run has done
            updated = connection.execute("UPDATE petitions.worker_heartbeats SET beats = 1000, processed = 600")
            assert updated.rowcount == number


def test_make_petitions_runs_the_demo() -> None:
    assert "\t$(BIN)/python -m examples.petitions\n" in (ROOT / "Makefile").read_text("utf-8")
