from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from mainspring.cli import build_parser
from mainspring.cli.worker import make_settings
from mainspring.job import Status
from mainspring.worker import WorkerSettings
from tests.cli.conftest import Run, Shop, Start
from tests.cli.waiting import wait_until

pytestmark = pytest.mark.slow  # real processes

APP = """
import asyncio
from mainspring import Mainspring

app = Mainspring("sqlite:///shop.db")

@app.task(queue="mail")
async def welcome(guest: str, number: int = 0) -> str:
    return guest

@app.task()
async def nightly(day: str) -> None:
    await asyncio.sleep(3600)
"""


@pytest.fixture(autouse=True)
def _application(tmp_path: Path) -> None:
    (tmp_path / "shop_app.py").write_text(APP)


def parse(*argv: str) -> Namespace:
    parsed: Namespace = build_parser().parse_args(["worker", "shop:app", *argv])
    return parsed


# -- settings -------------------------------------------------------------------------------------


def test_what_is_not_given_is_left_to_the_worker() -> None:
    assert make_settings(parse()) == {"strict": False, "log_completions": False}


def test_every_option_reaches_its_setting() -> None:
    argv = ["--queues", "mail=3, default", "--strict", "--queue-concurrency", "mail=10", "--concurrency", "7"]
    argv += ["--prefetch", "0"]
    settings = WorkerSettings(**make_settings(parse(*argv, "--child-processes", "2", "--grace", "1min")))
    assert [(queue.queue, queue.weight, queue.concurrency) for queue in settings.queues] == [
        ("mail", 3, 10),
        ("default", 1, None),
    ]
    assert (settings.strict, settings.concurrency, settings.child_processes, settings.grace) == (True, 7, 2, 60.0)
    assert settings.prefetch == 0


@pytest.mark.parametrize(
    ("argv", "share"),
    [
        ([], None),
        (["--exit-when-stuck", "0.25"], 0.25),
        (["--parent-pipe", "3"], 0.5),  # a child of our own supervisor
        (["--parent-pipe", "3", "--exit-when-stuck", "0.25"], 0.25),
        (["--parent-pipe", "3", "--exit-when-stuck", "never"], None),
    ],
)
def test_only_a_supervised_worker_exits_by_default_when_it_is_stuck(argv: list[str], share: float | None) -> None:
    assert WorkerSettings(**make_settings(parse(*argv))).exit_when_stuck == share


def test_limits_may_be_repeated() -> None:
    settings = make_settings(parse("--queues", "a,b,c", "--queue-concurrency", "a=1,b=2", "--queue-concurrency", "c=3"))
    assert [queue.concurrency for queue in settings["queues"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--queues", ","], "does not name a queue"),
        (["--queues", "mail=0"], "at least 1"),
        (["--queues", "mail=much"], "at least 1"),
        (["--queue-concurrency", "mail"], "write mail=10"),
        (["--concurrency", "0"], "at least 1"),
        (["--workers", "none"], "at least 1"),
        (["--grace", "long"], "not a length of time"),
        (["--exit-when-stuck", "2"], "write a number above 0 and up to 1, such as 0.5, or never"),
        (["--exit-when-stuck", "often"], "is not a share of the slots"),
        (["--log-level", "loud"], "invalid choice"),
        (
            ["--queue-concurrency", "other=3", "--queues", "mail"],
            "queue_concurrency names queues that the worker does not take from: other",
        ),
    ],
)
def test_bad_values_are_usage_errors(argv: list[str], told: str, run: Run) -> None:
    outcome = run("worker", "shop_app:app", *argv)
    assert outcome.code == 2
    assert told in outcome.err


def test_an_application_must_be_named(run: Run) -> None:
    outcome = run("worker")
    assert outcome.code == 2
    assert "name the application" in outcome.err


# -- as a process ---------------------------------------------------------------------------------


def test_it_works_until_told_to_stop(start: Start, shop: Shop) -> None:
    job_id = shop.enqueue()
    worker = start("worker", "shop_app:app", "--log-format", "json")
    wait_until(lambda: shop.status(job_id) is Status.COMPLETED, worker.log.read_text)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait() == 0
    assert worker.lines("worker_stopped")


def test_it_creates_its_database_and_takes_only_from_its_queues(start: Start, tmp_path: Path) -> None:
    worker = start("worker", "shop_app:app", "--json", "--queues", "mail=2,other")
    worker.wait_for("worker_started")
    assert (tmp_path / "shop.db").exists()
    started = worker.lines("worker_started")[0]
    assert (started["queues"], started["tasks"]) == (["mail", "other"], ["nightly", "welcome"])
    worker.process.send_signal(signal.SIGINT)
    assert worker.process.wait() == 0


def test_it_logs_completions_if_asked(start: Start, shop: Shop) -> None:
    job_id = shop.enqueue()
    worker = start("worker", "shop_app:app", "--json", "--log-completions")
    worker.wait_for("job_completed")
    assert worker.lines("job_completed")[0]["job_id"] == job_id


def test_it_warns_if_the_application_has_no_tasks(start: Start, tmp_path: Path) -> None:
    (tmp_path / "empty_app.py").write_text("from mainspring import Mainspring\napp = Mainspring('sqlite:///shop.db')")
    worker = start("worker", "empty_app:app", "--json")
    worker.wait_for("worker_has_no_tasks")


def test_a_second_signal_stops_at_once(start: Start, shop: Shop) -> None:
    job_id = shop.nightly.enqueue_sync(day="monday").id
    worker = start("worker", "shop_app:app", "--json")
    wait_until(lambda: shop.status(job_id) is Status.RUNNING, worker.log.read_text)
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_for("worker_stopping")
    insist(worker.process)
    assert shop.status(job_id) is Status.PENDING


def insist(process: subprocess.Popen[bytes]) -> None:
    """Signal again until it ends, which must be long before its grace is over: two signals at once are one wish."""
    for _ in range(20):
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert process.wait(timeout=0.5) == 0
            return
    pytest.fail("the worker does not stop")


def test_the_application_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
    monkeypatch.setenv("MAINSPRING_APP", "shop_app:app")
    start("worker", "--json").wait_for("worker_started")


def test_a_store_that_cannot_be_used_has_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_text("no database" * 100)
    command = [sys.executable, "-m", "mainspring", "worker", "shop_app:app", "--json", "--log-level", "error"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert json.loads(done.stderr.splitlines()[-1])["type"] == "StoreCorrupt"
