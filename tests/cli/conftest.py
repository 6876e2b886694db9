"""A shop with jobs in every state, and ways to call the command line: in this process, and as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mainspring.app import Mainspring
from mainspring.cli import logs, main
from mainspring.job import Status
from mainspring.retry import Retry
from mainspring.stores.protocol import Filter
from tests.cli.waiting import wait_until


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)


Run = Callable[..., Outcome]
NIGHTLY_ONLY = """
from mainspring import Mainspring

app = Mainspring("sqlite:///shop.db")

@app.task()
def nightly(day: str): ...
"""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MAINSPRING_APP", "MAINSPRING_STORE", "MAINSPRING_DEBUG", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Call `main` here. How this test process logs is not changed for good."""
    monkeypatch.setattr(logs, "set_up", lambda *_args, **_options: None)

    def call(*argv: str) -> Outcome:
        capsys.readouterr()
        code = main(list(argv))
        out, err = capsys.readouterr()
        return Outcome(int(code), out, err)

    with capture_logs():
        yield call


class Shop:
    """An application on a file, and what the tests put into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.app = Mainspring(self.url)

        @self.app.task(queue="mail", retry=Retry(max_attempts=1))
        async def welcome(guest: str, number: int = 0) -> dict[str, str]:
            if guest == "bad":
                msg = "no such guest"
                raise LookupError(msg)
            return {"sent": guest}

        @self.app.task()
        async def nightly(day: str) -> None: ...

        self.welcome, self.nightly = welcome, nightly

    def enqueue(self, guest: str = "ann", **options: Any) -> str:
        return self.welcome.using(**options).enqueue_sync(guest=guest).id

    def enqueue_later(self, days: int = 3, **options: Any) -> str:
        return self.nightly.using(delay=timedelta(days=days), **options).enqueue_sync(day="monday").id

    def bury(self, **options: Any) -> str:
        """A dead letter."""
        job_id = self.enqueue("bad", **options)
        self.work()
        return job_id

    def work(self) -> None:
        self.app.run(self.app.worker().drain())

    def status(self, job_id: str) -> Status:
        return self.app.run(self.app.jobs.get(job_id)).status

    def count(self, **fields: Any) -> int:
        return self.app.run(self.app.jobs.count(Filter(**fields)))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    shop.app.run(shop.app.store.open())
    yield shop
    shop.app.run(shop.app.close())


# -- real processes -------------------------------------------------------------------------------


@dataclass
class Started:
    """A `mainspring …` process whose log lines are JSON."""

    process: subprocess.Popen[bytes]
    log: Path
    seen: list[int] = field(default_factory=list)

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [entry for entry in entries if not event or entry.get("event") == event]

    def wait_for(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.lines(event)) >= count, lambda: f"{event} in:\n{self.log.read_text()}")
        return self.lines(event)

    def children(self) -> list[int]:
        return [int(line["child"]) for line in self.lines("worker_process_started")]

    def end(self) -> None:
        """Whatever the test left, by its own id."""
        self.process.kill()
        self.process.wait()
        for pid in self.children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Started] = []

    def begin(*argv: str) -> Started:
        log = tmp_path / f"log-{len(started)}"
        with log.open("wb") as stream:
            process = subprocess.Popen([sys.executable, "-m", "mainspring", *argv], cwd=tmp_path, stderr=stream)
        started.append(Started(process, log))
        return started[-1]

    yield begin
    for process in started:
        process.end()
