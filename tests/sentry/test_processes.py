"""Sentry across processes: workers that are killed, child processes, and settings without code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.sentry.crons import check_in_id
from mainspring.testing.fakes import FakeSentry
from tests.cli.waiting import wait_until

pytestmark = pytest.mark.slow  # real processes

REPORTED = """
import os, time
from pathlib import Path

import sentry_sdk
from mainspring import Mainspring

app = Mainspring("sqlite:///jobs.db")
if os.environ.get("IN_CODE"):
    from mainspring.sentry import instrument
    sentry_sdk.init(dsn=os.environ["IN_CODE"], traces_sample_rate=1.0)
    instrument(app)


@app.task(max_attempts=1)
async def fail(n: int) -> None:
    raise LookupError(n)


@app.task(max_attempts=1, isolation="process")
def fail_apart(n: int) -> None:
    sentry_sdk.capture_message("from the child")
    raise LookupError(n)


@app.task(isolation="process")
def dies() -> None:
    os._exit(7)


@app.task()
def hang() -> None:
    with Path("began").open("a") as file:
        file.write("x")
    while not Path("released").exists():
        time.sleep(0.01)
"""


class Reported:
    def __init__(self, path: Path, sentry: FakeSentry) -> None:
        self.path, self.sentry = path, sentry
        self.started: list[subprocess.Popen[bytes]] = []
        self.app = Mainspring(f"sqlite:///{path / 'jobs.db'}")
        (path / "reported.py").write_text(REPORTED)

    def enqueue(self, task: str, **payload: object) -> str:
        return self.app.run(self.app.enqueue(task, payload, allow_unknown=True, max_attempts=1)).id

    def trigger(self, task: str) -> str:
        job = self.app.run(self.app.prepare(task, {}, allow_unknown=True))
        self.app.run(self.app.schedules.put("nightly", "0 2 * * *", job, tz="UTC"))
        return self.app.run(self.app.schedules.trigger("nightly")).id

    def work(self, **environment: str) -> subprocess.Popen[bytes]:
        with (self.path / "log").open("ab") as log:
            command = [sys.executable, "-m", "mainspring", "worker", "reported:app"]
            given = {**os.environ, **environment}
            self.started.append(subprocess.Popen(command, cwd=self.path, stderr=log, env=given))
        return self.started[-1]

    def log(self) -> str:
        events = [event.get("exception") or event.get("message") for event in self.sentry.events]
        return f"{(self.path / 'log').read_text()}\n{events}\n{self.sentry.check_ins}"

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
        self.app.run(self.app.close())


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


@pytest.fixture
def reported(tmp_path: Path) -> Iterator[Reported]:
    with FakeSentry() as sentry:
        reported = Reported(tmp_path, sentry)
        yield reported
        reported.end()


def test_a_check_in_survives_the_worker_that_began_it(reported: Reported) -> None:
    job_id, sentry, began = reported.trigger("hang"), reported.sentry, reported.path / "began"
    first = reported.work(IN_CODE=sentry.dsn)
    wait_until(lambda: text_of(began) == "x" and len(sentry.check_ins) == 1, reported.log)
    first.kill()
    first.wait()
    assert sentry.runs == {check_in_id(job_id): "in_progress"}  # Sentry reports a timeout if nothing follows
    reported.work(IN_CODE=sentry.dsn)
    wait_until(lambda: text_of(began) == "xx", reported.log)
    (reported.path / "released").touch()
    wait_until(lambda: sentry.runs == {check_in_id(job_id): "ok"}, reported.log)
    assert [each["status"] for each in sentry.check_ins] == ["in_progress", "in_progress", "ok"]
    assert sentry.monitors["mainspring-nightly"]["schedule"] == {"type": "crontab", "value": "0 2 * * *"}
    assert sentry.events == []


def test_a_job_that_kills_its_processes_ends_as_one_event_and_an_error(reported: Reported) -> None:
    job_id, sentry = reported.trigger("dies"), reported.sentry
    reported.work(IN_CODE=sentry.dsn)
    wait_until(lambda: sentry.events and sentry.runs.get(check_in_id(job_id)) == "error", reported.log)
    (event,) = sentry.events
    assert event["exception"]["values"][0]["type"] == "WorkerCrashed"
    assert (event["tags"]["schedule"], event["contexts"]["job"]["crashes"]) == ("nightly", 3)


def test_a_failure_in_a_child_process_has_its_frames(reported: Reported) -> None:
    job_id, sentry = reported.enqueue("fail_apart", n=7), reported.sentry
    reported.work(IN_CODE=sentry.dsn)
    wait_until(lambda: len(sentry.events) == 2 and len(sentry.transactions) == 1, reported.log)
    told, failed = sorted(sentry.events, key=lambda event: "exception" in event)
    (value,) = failed["exception"]["values"]
    assert (value["type"], value["stacktrace"]["frames"][-1]["function"]) == ("LookupError", "fail_apart")
    assert (told["message"], told["tags"]["job_id"], failed["tags"]["job_id"]) == ("from the child", job_id, job_id)
    traces = {each["contexts"]["trace"]["trace_id"] for each in (told, failed, *sentry.transactions)}
    assert len(traces) == 1


def test_a_setting_turns_sentry_on_without_code(reported: Reported) -> None:
    sentry = reported.sentry
    ids = {reported.enqueue("fail", n=7), reported.enqueue("fail_apart", n=7)}
    reported.work(MAINSPRING_SENTRY_DSN=sentry.dsn, MAINSPRING_SENTRY_TRACES="1")
    wait_until(lambda: len(sentry.events) == 3 and len(sentry.transactions) == 2, reported.log)
    assert {event["tags"]["job_id"] for event in sentry.events if "exception" in event} == ids


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("MAINSPRING_SENTRY_DSN", "sentry.io/7", "the DSN of Sentry is not valid"),
        ("MAINSPRING_SENTRY_TRACES", "2", "give a share from 0 to 1"),
    ],
)
def test_a_wrong_setting_is_an_error(reported: Reported, name: str, value: str, error: str) -> None:
    assert reported.work(**{name: value}).wait(60) != 0
    assert error in reported.log()
