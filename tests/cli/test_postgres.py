"""As a user meets it: a worker here, a program that enqueues there, a person who looks, one server between them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from mainspring.app import Mainspring
from mainspring.job import Status
from tests.cli.conftest import Run, Start, Started
from tests.cli.waiting import wait_until
from tests.postgres import dsn, fresh_schema

pytestmark = pytest.mark.slow  # real processes

APP = """
import asyncio
from mainspring import Mainspring

app = Mainspring({url!r})

@app.task(queue="mail", max_attempts=1)
async def welcome(guest: str) -> str:
    if guest == "nobody":
        raise LookupError("no such guest")
    return f"Welcome, {{guest}}!"

@app.task()
async def sleep() -> None:
    await asyncio.sleep(3600)
"""
ENQUEUE = """
from shop_app import welcome

jobs = [welcome.enqueue_sync(guest=guest) for guest in ("Ada", "Ben")]
print(*(job.result_sync(timeout=30) for job in jobs))
welcome.enqueue_sync(guest="nobody")
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    name = fresh_schema()
    url = f"{dsn()}&schema={name}&lease=2"
    (tmp_path / "shop_app.py").write_text(APP.format(url=url))
    (tmp_path / "enqueue.py").write_text(ENQUEUE)
    yield url
    with psycopg.connect(dsn()) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


@pytest.fixture
def app(url: str) -> Iterator[Mainspring]:
    app = Mainspring(url)
    yield app
    app.run(app.close())


def begin(start: Start) -> Started:
    worker = start("worker", "shop_app:app", "--json")
    worker.wait_for("worker_started")
    return worker


def test_a_worker_runs_what_another_process_enqueues_and_stops_when_told(
    start: Start, run: Run, url: str, tmp_path: Path
) -> None:
    worker = begin(start)
    command = [sys.executable, "enqueue.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "Welcome, Ada! Welcome, Ben!\n"
    worker.wait_for("job_dead_lettered")
    assert run("dead", "list", "--json", "--store", url).data["jobs"][0]["payload"] == {"guest": "nobody"}
    stats = run("stats", "--json", "--store", url).data
    assert [(queue["completed"], queue["dead_letter"]) for queue in stats["queues"]] == [(2, 1)]
    assert [worker["alive"] for worker in stats["workers"]] == [True]
    assert run("doctor", "--store", url).code == 0
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(timeout=90) == 0
    assert worker.lines("worker_stopped")
    assert run("stats", "--json", "--store", url).data["workers"] == []


def test_a_running_job_is_cancelled_from_another_process(start: Start, run: Run, url: str, app: Mainspring) -> None:
    worker = begin(start)
    job_id = enqueue_sleep(app)
    wait_until(lambda: app.run(app.jobs.get(job_id)).status is Status.RUNNING)
    assert run("jobs", "cancel", job_id, "--store", url).code == 0
    wait_until(lambda: app.run(app.jobs.get(job_id)).status is Status.CANCELLED)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(timeout=90) == 0


def test_a_worker_that_was_killed_is_shown_as_dead(start: Start, run: Run, url: str, app: Mainspring) -> None:
    worker = begin(start)
    job_id = enqueue_sleep(app)
    wait_until(lambda: app.run(app.jobs.get(job_id)).status is Status.RUNNING)
    worker.process.kill()
    wait_until(lambda: not run("stats", "--json", "--store", url).data["workers"][0]["alive"])
    (claims,) = (
        finding for finding in run("doctor", "--json", "--store", url).data["findings"] if finding["check"] == "claims"
    )
    assert claims["message"].startswith("jobs are held by dead workers")


def test_workers_end_at_once_if_there_is_no_such_database(start: Start, tmp_path: Path) -> None:
    url = urlsplit(dsn())._replace(path="/no_such_database").geturl()
    (tmp_path / "shop_app.py").write_text(APP.format(url=url))
    worker = start("worker", "shop_app:app", "--json", "--workers", "2")
    assert worker.process.wait(timeout=90) == 4
    told = [line for line in worker.lines() if line.get("type") == "StoreRefused"]
    assert all("create it, or correct the database's name in the URL" in line["error"] for line in told)
    assert 1 <= len(told) <= 2  # each said it once


def enqueue_sleep(app: Mainspring) -> str:
    @app.task()
    async def sleep() -> None: ...

    return sleep.enqueue_sync().id
