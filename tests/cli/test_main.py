from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest

from mainspring import cli
from mainspring.cli import exits
from mainspring.cli.exits import Exit, exit_code_of
from mainspring.errors import (
    DedupeConflict,
    IllegalMove,
    InvalidPayload,
    JobNotFound,
    MainspringError,
    StoreBusy,
    StoreCorrupt,
    SystemHalted,
    UnsupportedStore,
)
from tests.cli.conftest import Run, Shop
from tests.cli.waiting import wait_until

pytestmark = pytest.mark.slow  # real processes


def test_help_tells_the_exit_codes(run: Run) -> None:
    outcome = run("--help")
    assert outcome.code == 0
    assert "130  interrupted" in outcome.out
    assert run("jobs", "list", "--help").out.count("exit codes:") == 1


def test_help_has_a_line_for_each_command(run: Run) -> None:
    lines = run("--help").out.splitlines()
    listed = lines[lines.index("  COMMAND") + 1 : lines.index("options:") - 1]
    assert len(listed) > 10
    assert [line for line in listed if not re.match(r"    \w+  +\w", line)] == []


def test_the_version_is_that_of_the_package(run: Run) -> None:
    assert run("--version").out == run("version").out == f"mainspring {version('mainspring')}\n"
    assert run("version", "--json").data["mainspring"] == version("mainspring")


def test_without_a_command_it_helps_and_fails(run: Run) -> None:
    outcome = run()
    assert outcome.code == 2
    assert outcome.out == ""
    assert "usage: mainspring" in outcome.err


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["nonsense"], "mainspring"),
        (["jobs"], "mainspring jobs"),
        (["jobs", "nonsense"], "mainspring jobs"),
        (["jobs", "show"], "mainspring jobs show"),
        (["jobs", "list", "--nonsense"], "mainspring jobs list"),
        (["jobs", "list", "--limi", "3"], "mainspring jobs list"),
        (["jobs", "list", "--app", "nowhere:app"], "mainspring jobs list"),
    ],
)
def test_wrong_usage_is_told_in_two_lines(argv: list[str], command: str, run: Run) -> None:
    outcome = run(*argv)
    assert outcome.code == 2
    complaint, hint = outcome.err.splitlines()
    assert complaint.startswith("mainspring: ")
    assert hint == f"see {command} --help"


def test_wrong_usage_is_reported_as_json(run: Run) -> None:
    outcome = run("jobs", "list", "--json", "--nonsense")
    assert outcome.code == 2
    assert outcome.error == {"error": "unknown arguments: --nonsense", "type": "UsageError"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobNotFound, 3), (IllegalMove, 1), (DedupeConflict, 1), (SystemHalted, 1), (InvalidPayload, 1),
        (MainspringError, 1), (StoreBusy, 4), (StoreCorrupt, 4), (UnsupportedStore, 2), (exits.StoreMissing, 4),
    ],
)  # fmt: skip
def test_each_error_has_its_code(error: type[MainspringError], code: int) -> None:
    assert exit_code_of(error()) == code


def test_every_exit_code_has_a_meaning() -> None:
    assert set(exits.MEANINGS) == set(Exit)


# -- what goes wrong ------------------------------------------------------------------------------


def test_an_unexpected_error_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run", lambda *_: 1 / 0)
    outcome = run("version")
    assert outcome.code == 1
    assert outcome.err == "mainspring: ZeroDivisionError: division by zero (MAINSPRING_DEBUG=1 shows the traceback)\n"


def test_the_traceback_is_shown_on_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_DEBUG", "1")
    outcome = run("jobs", "list")
    assert outcome.code == 2
    assert "Traceback" in outcome.err


def test_an_interrupt_has_its_own_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupted)
    outcome = run("version")
    assert (outcome.code, outcome.err) == (130, "")


# -- as a process ---------------------------------------------------------------------------------


def mainspring(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "mainspring", *argv], capture_output=True, text=True, check=False)


def test_python_m_mainspring_is_the_same_program(shop: Shop) -> None:
    job_id = shop.enqueue()
    done = mainspring("jobs", "list", "--json", "--store", shop.url)
    assert done.returncode == 0
    assert done.stderr == ""
    assert [job["id"] for job in json.loads(done.stdout)["jobs"]] == [job_id]


def test_the_exit_code_reaches_the_shell(shop: Shop) -> None:
    assert mainspring("jobs", "show", "nope", "--store", shop.url).returncode == 3


def test_a_reader_that_has_seen_enough_is_no_error(shop: Shop) -> None:
    shop.welcome.enqueue_many_sync({"guest": "ann" * 50} for _ in range(900))
    command = [sys.executable, "-m", "mainspring", "jobs", "list", "--json", "--limit", "900", "--store", shop.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait() == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_ctrl_c_ends_a_watch(shop: Shop) -> None:
    command = [sys.executable, "-m", "mainspring", "stats", "--watch", "--json", "--store", shop.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["stats"]["queues"] == []
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err == b""


def test_a_lock_held_by_another_program_is_told(shop: Shop, run: Run) -> None:
    job_id = shop.enqueue_later()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(shop.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ}
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    outcome = run("jobs", "cancel", job_id, "--store", f"{shop.url}?busy_timeout=0.1")
    holder.communicate()
    assert outcome.code == 4
    assert "locked by another program" in outcome.err
    wait_until(lambda: run("jobs", "cancel", job_id, "--store", shop.url).code == 0)


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""
