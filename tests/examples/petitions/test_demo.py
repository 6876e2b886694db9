"""`make petitions` shows that it is alive, tells its story, and ends cleanly on Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.examples.alive import lines_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
END = "That was the story."
MAX_SECONDS = 60.0  # that the demo may take to wait for the lock, or to end


@contextmanager
def demo(environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run the demo in a process that does not outlive the block, so that no test waits for it without limit."""
    with subprocess.Popen(
        [sys.executable, "-m", "examples.petitions"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(until: str, environment: Mapping[str, str]) -> str:
    """Run the demo until it prints this text, then press Ctrl-C. Return what it printed, from its start to its end."""
    with demo(environment) as process:
        told = ""
        for line in lines_of(process, "alive: "):
            told += line
            if until in line:
                break
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=MAX_SECONDS)
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


def test_ctrl_c_during_the_start_ends_it_without_a_traceback(database: str) -> None:
    """The schema of the queue is locked, so the application waits in its start."""
    with psycopg.connect(database) as holder, psycopg.connect(database, autocommit=True) as connection:
        holder.execute("CREATE SCHEMA mainspring")  # the application's own CREATE SCHEMA waits for this transaction
        with demo({**os.environ, "PETITIONS_DATABASE": database}) as process:
            waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            deadline = time.monotonic() + MAX_SECONDS
            while connection.execute(waits).fetchone() is None:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            told, errors = process.communicate(timeout=MAX_SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert told.rstrip().endswith("Stopped.")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://nobody@127.0.0.1:9/none", "the database cannot be reached"),
        ("postgresql://localhost/petitions?colour=red", "this PostgreSQL URL cannot be used"),
        ("foo", "PETITIONS_DATABASE is 'foo'; give a URL that begins with postgresql://"),
    ],
)
def test_a_database_that_cannot_be_used_is_two_lines_and_not_a_traceback(url: str, problem: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "examples.petitions"],
        cwd=ROOT,
        env={**os.environ, "PETITIONS_DATABASE": url},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    first, second = ended.stderr.splitlines()
    assert problem in first
    assert second == "Check PETITIONS_DATABASE, or unset it: then a server is started for you."


def test_make_petitions_runs_the_demo() -> None:
    assert "\t$(BIN)/python -m examples.petitions\n" in (ROOT / "Makefile").read_text("utf-8")
