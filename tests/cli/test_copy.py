"""`mainspring copy`, as a user meets it: real stores, real workers, real signals."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mainspring.app import Mainspring
from mainspring.errors import SystemHalted
from mainspring.job import Status
from mainspring.stores.protocol import Filter, Severity
from tests.cli.conftest import Run, Shop, Start
from tests.cli.waiting import wait_until
from tests.postgres import dsn, fresh_schema

pytestmark = pytest.mark.slow

TARGET = "sqlite:///other.db"
APP = """
import asyncio, os, pathlib
from mainspring import Mainspring

app = Mainspring(os.environ["SHOP_STORE"])
LEDGER = pathlib.Path(__file__).with_name("ledger")

@app.task()
async def note(number: int) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(f"{number}\\n")

@app.task()
async def slow(number: int) -> None:
    pathlib.Path(__file__).with_name("started").touch()
    while not pathlib.Path(__file__).with_name("go on").exists():
        await asyncio.sleep(0.01)
    with LEDGER.open("a") as ledger:
        ledger.write(f"{number}\\n")
"""


# -- in one process ---------------------------------------------------------------------------------


def absolute(path: Path, name: str) -> str:
    return f"sqlite:///{path / name}"


def test_it_says_what_was_copied_and_what_is_next(run: Run, shop: Shop, tmp_path: Path) -> None:
    job_id, dead = shop.enqueue_later(), shop.bury()
    outcome = run("copy", shop.url, TARGET)
    assert outcome.code == 0
    assert re.search(r"^live +1 +1 +[0-9a-f]{16}$", outcome.out, re.MULTILINE)
    assert re.search(r"^dead +1 +1 +[0-9a-f]{16}$", outcome.out, re.MULTILINE)
    url = absolute(tmp_path, "other.db")
    assert outcome.out.endswith(f"is copied to {url}: 2 jobs, verified\n")
    assert "the source stays halted" in outcome.err
    assert {job["id"] for job in run("jobs", "list", "--json", "--store", url).data["jobs"]} == {job_id, dead}
    assert f"copied to {url}" in run("stats", "--store", shop.url).out


def test_the_source_rejects_new_jobs_and_says_why(run: Run, shop: Shop, tmp_path: Path) -> None:
    run("copy", shop.url, TARGET)
    with pytest.raises(
        SystemHalted, match=rf"halted by copy \(copied to sqlite:///{tmp_path}/other.db\) and rejects new"
    ):
        shop.enqueue()


def test_json_output_reports_what_was_copied(run: Run, shop: Shop) -> None:
    shop.enqueue_later()
    shop.enqueue()
    shop.work()
    data = run("copy", shop.url, TARGET, "--json").data
    assert (data["done"], data["before"], data["conflicts"], data["changed"]) == (True, False, {}, [])
    live = data["kinds"]["live"]
    assert (live["records"], live["copied_now"], live["verified"], len(live["checksum"])) == (1, 1, True, 64)
    assert "history" not in data["kinds"]
    again = run("copy", shop.url, TARGET, "--history", "--json").data
    assert (again["before"], again["kinds"]["history"]["copied_now"]) == (True, 1)


def test_a_dry_run_touches_nothing(run: Run, shop: Shop, tmp_path: Path) -> None:
    shop.enqueue_later()
    outcome = run("copy", shop.url, TARGET, "--dry-run")
    assert outcome.code == 0
    assert "1 job would be copied" in outcome.out
    assert outcome.out.endswith("other.db, which would be created\n")
    assert not (tmp_path / "other.db").exists()
    assert shop.app.run(shop.app.halts()) == []
    data = run("copy", shop.url, TARGET, "--dry-run", "--history", "--json").data
    assert data["kinds"]["live"] == {"records": 1}
    assert (data["target_exists"], data["running"], "history" in data["kinds"]) == (False, 0, True)


def test_a_dry_run_says_what_would_be_refused(run: Run, shop: Shop, tmp_path: Path) -> None:
    run("copy", shop.url, TARGET)
    outcome = run("copy", shop.url, "sqlite:///third.db", "--dry-run")
    assert outcome.code == 1
    assert "is copied to" in outcome.err
    assert not (tmp_path / "third.db").exists()


def test_a_second_copy_says_that_nothing_is_left_to_do(run: Run, shop: Shop) -> None:
    shop.enqueue_later()
    run("copy", shop.url, TARGET)
    outcome = run("copy", shop.url, TARGET)
    assert outcome.code == 0
    assert outcome.out.endswith("before; there is nothing left to do\n")


@pytest.mark.slow
def test_the_source_can_be_taken_up_again_deliberately(run: Run, shop: Shop) -> None:
    run("copy", shop.url, TARGET)
    outcome = run("copy", shop.url, "sqlite:///third.db")
    assert outcome.code == 1
    assert f"mainspring resume --force --store {shop.url}" in outcome.err
    refused = run("resume", "--store", shop.url)
    assert (refused.code, "stays halted" in refused.err) == (1, True)
    assert run("resume", "--force", "--store", shop.url).code == 0
    assert run("copy", shop.url, "sqlite:///third.db").code == 0


def test_conflicts_are_listed_and_can_be_left_behind(run: Run, shop: Shop, tmp_path: Path) -> None:
    loser = shop.enqueue_later(dedupe_key="k")
    other = Shop(tmp_path / "other.db")
    holder = other.enqueue_later(dedupe_key="k")
    outcome = run("copy", shop.url, TARGET)
    assert outcome.code == 1
    assert f"{loser} is not copied: {holder}, live in the target, holds its dedupe key" in outcome.err
    assert "--skip-conflicts" in outcome.err
    assert "run the same command again to continue" in outcome.err
    data = run("copy", shop.url, TARGET, "--json")
    assert (data.code, data.data["done"], data.data["conflicts"]) == (1, False, {loser: holder})
    assert run("copy", shop.url, TARGET, "--skip-conflicts").code == 0
    other.app.run(other.app.close())


def test_a_halted_target_is_told(run: Run, shop: Shop) -> None:
    shop.enqueue_later()
    outcome = run("copy", shop.url, TARGET, "--stay-halted")
    assert outcome.code == 0
    assert re.search(
        r"the target is halted \(copied from .*\): mainspring resume --store sqlite:.*other.db", outcome.err
    )


def test_a_store_is_not_copied_onto_itself(run: Run, shop: Shop) -> None:
    outcome = run("copy", shop.url, "sqlite:///shop.db", "--json")
    assert (outcome.code, outcome.error["type"]) == (2, "ConfigurationError")
    assert shop.app.run(shop.app.halts()) == []


def test_memory_is_no_target(run: Run, shop: Shop) -> None:
    assert run("copy", shop.url, "memory://").code == 2


@pytest.mark.parametrize("source", ["memory://", "sqlite:///typo.db"])
def test_a_source_that_is_not_there_is_an_error_and_creates_nothing(run: Run, tmp_path: Path, source: str) -> None:
    assert run("copy", source, TARGET).code == 4
    assert list(tmp_path.iterdir()) == []


def test_a_target_of_an_unknown_kind_is_a_usage_error(run: Run, shop: Shop) -> None:
    assert run("copy", shop.url, "redis://localhost").code == 2


# -- real processes ---------------------------------------------------------------------------------

real = pytest.mark.slow


@pytest.fixture
def postgres() -> Iterator[str]:
    name = fresh_schema()
    yield f"{dsn()}&schema={name}"
    with psycopg.connect(dsn()) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


def copy(tmp_path: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mainspring", "copy", *argv]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)


class Ledger:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "ledger"

    def runs(self) -> Counter[int]:
        return Counter(map(int, self.path.read_text().split())) if self.path.exists() else Counter()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    (tmp_path / "shop_copy.py").write_text(APP)
    return Ledger(tmp_path)


def enqueue(url: str, *, notes: range, slow: int | None = None) -> None:
    app = Mainspring(url)

    @app.task(name="note")
    async def note(number: int) -> None: ...

    @app.task(name="slow")
    async def slow_one(number: int) -> None: ...

    if slow is not None:
        slow_one.using(priority="urgent").enqueue_sync(number=slow)
    app.run(note.enqueue_many([{"number": number} for number in notes]))
    app.run(app.close())


def work(start: Start, monkeypatch: pytest.MonkeyPatch, url: str, *argv: str) -> Any:
    monkeypatch.setenv("SHOP_STORE", url)
    worker = start("worker", "shop_copy:app", "--json", *argv)
    worker.wait_for("worker_started")
    return worker


def stop(worker: Any) -> None:
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(timeout=90) == 0


@real
@pytest.mark.parametrize("way", ["sqlite to postgres", "postgres to sqlite", "sqlite to sqlite"])
def test_under_a_working_system_every_job_runs_exactly_once(
    way: str, start: Start, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, postgres: str
) -> None:
    """A worker runs a long job; meanwhile all is copied, and a worker of the target does the rest."""
    tmp_path = ledger.path.parent
    source, target = (
        {"sqlite": f"sqlite:///{tmp_path / name}.db", "postgres": postgres}[kind]
        for name, kind in zip("ab", way.split(" to "), strict=True)
    )
    enqueue(source, notes=range(300), slow=1000)
    worker = work(start, monkeypatch, source, "--concurrency", "1")  # the slow one first
    wait_until((tmp_path / "started").exists)
    copying = start("copy", source, target)
    wait_for_halt(source)
    (tmp_path / "go on").touch()
    assert copying.process.wait(timeout=120) == 0, copying.log.read_text()
    stop(worker)
    assert ledger.runs() == Counter([1000])
    heir = work(start, monkeypatch, target)
    wait_until(lambda: ledger.runs().total() == 301)
    stop(heir)
    assert ledger.runs() == Counter([1000, *range(300)])
    assert count(target) == {Status.COMPLETED: 300}
    assert count(source) == {Status.PENDING: 300, Status.COMPLETED: 1}


def halt_of(url: str) -> str:
    app = Mainspring(url)
    halts = app.run(app.halts())
    app.run(app.close())
    return "; ".join(halt.reason for halt in halts)


def wait_for_halt(url: str) -> None:
    app = Mainspring(url)
    wait_until(lambda: app.run(app.halts()))
    app.run(app.close())


def count(url: str) -> dict[Status, int]:
    app = Mainspring(url)
    numbers = {status: app.run(app.jobs.count(Filter(statuses=(status,)))) for status in Status}
    app.run(app.close())
    return {status: number for status, number in numbers.items() if number}


@real
def test_given_up_or_interrupted_it_leaves_the_jobs_where_they_are(
    start: Start, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = f"sqlite:///{tmp_path / 'a.db'}"
    enqueue(source, notes=range(3), slow=1000)
    worker = work(start, monkeypatch, source, "--concurrency", "1")
    wait_until((tmp_path / "started").exists)
    done = copy(tmp_path, source, TARGET, "--timeout", "0.3s")
    assert done.returncode == 1
    assert "did not end within 0.3 s. Nothing was copied, both stores go on as before" in done.stderr
    assert halt_of(source) == ""
    copying = start("copy", source, TARGET)
    wait_for_halt(source)
    copying.process.send_signal(signal.SIGINT)
    assert copying.process.wait(timeout=90) == 130
    assert "run the same command again to continue" in copying.log.read_text()
    assert f"mainspring resume --force --store {source}" in copying.log.read_text()
    (tmp_path / "go on").touch()
    assert copy(tmp_path, source, TARGET).returncode == 0
    stop(worker)
    assert count(f"sqlite:///{tmp_path / 'other.db'}") == {Status.PENDING: 3}


@real
def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path / 'a.db'}"
    enqueue(source, notes=range(12_000))
    process = begin(tmp_path, source)
    wait_until(lambda: rows(tmp_path / "other.db") > 0)
    process.kill()
    process.wait()
    there = rows(tmp_path / "other.db")
    assert 0 < there < 12_000
    assert halt_of(f"sqlite:///{tmp_path / 'other.db'}").startswith("copying from")
    done = copy(tmp_path, source, TARGET, "--json")
    assert done.returncode == 0, done.stderr
    app = Mainspring(f"sqlite:///{tmp_path / 'other.db'}")
    assert app.run(app.jobs.count(Filter())) == 12_000
    assert f'"copied_now": {12_000 - there}' in done.stdout
    assert [finding for finding in app.run(app.store.diagnose()) if finding.severity is Severity.ERROR] == []
    assert halt_of(f"sqlite:///{tmp_path / 'other.db'}") == ""
    app.run(app.close())


def begin(tmp_path: Path, source: str, target: str = TARGET) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mainspring", "copy", source, target]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=tmp_path, stdout=quiet, stderr=quiet)


def rows(path: Path) -> int:
    if not path.exists():
        return 0
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM mainspring_jobs").fetchone()[0])
        except sqlite3.OperationalError:  # not made yet
            return 0


@real
@pytest.mark.chaos
def test_killed_at_random_moments_nothing_is_lost_or_doubled(
    start: Start, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres: str
) -> None:
    rounds = 30 if os.environ.get("MAINSPRING_CHAOS") == "long" else 4
    source = f"sqlite:///{tmp_path / 'a.db'}"
    enqueue(source, notes=range(5000))
    chance = random.Random(7)
    for _ in range(rounds):
        process = begin(tmp_path, source, postgres)
        time.sleep(chance.uniform(0.3, 1.5))
        process.kill()
        process.wait()
    assert copy(tmp_path, source, postgres).returncode == 0
    worker = work(start, monkeypatch, postgres)
    wait_until(lambda: ledger.runs().total() == 5000)
    stop(worker)
    assert ledger.runs() == Counter(range(5000))
