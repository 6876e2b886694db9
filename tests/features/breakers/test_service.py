"""Against a real HTTP server that fails and recovers, with two worker processes that share what they know."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, Status
from mainspring.features.breakers.rules import Phase
from tests.worker.working import eventually

pytestmark = pytest.mark.slow

JOBS = 200
PROGRAM = """
import os, sys, urllib.request
from mainspring import Breaker, Context, Mainspring, Retry
from mainspring.events import BreakerClosed, BreakerHalfOpened, BreakerOpened

app = Mainspring("sqlite:///{directory}/jobs.db")
breaker = Breaker(error_rate=0.5, min_calls=5, open_for=0.4, max_open_for=0.4, probes=2, counts=(OSError,))
app.breakers.configure("mail", breaker)
RETRY = Retry(max_attempts=4, base=0.01, jitter_share=0)

@app.on(BreakerOpened, BreakerHalfOpened, BreakerClosed)
def tell(event):
    with open("{directory}/events", "a") as file:
        file.write(f"{{os.getpid()}} {{type(event).__name__}}\\n")

def post(number):
    urllib.request.urlopen(urllib.request.Request("{url}/{{}}".format(number), method="POST"), timeout=5).close()

@app.task(breaker="mail", retry=RETRY)
def declared(number: int) -> None:
    post(number)

@app.task(retry=RETRY)
def within(ctx: Context, number: int) -> None:
    with ctx.breaker("mail"):
        post(number)
"""


class MailServer:
    """Takes messages, or answers 500."""

    def __init__(self) -> None:
        self.well = False
        self.refused = 0
        self.taken: Counter[str] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if outer.well:
                    outer.taken[self.path] += 1
                else:
                    outer.refused += 1
                self.send_response(200 if outer.well else 500)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def mail() -> Iterator[MailServer]:
    mail = MailServer()
    thread = threading.Thread(target=mail.server.serve_forever, args=(0.01,))
    thread.start()
    yield mail
    mail.server.shutdown()
    thread.join()
    mail.server.server_close()


@contextmanager
def workers(directory: Path, number: int) -> Iterator[None]:
    command = [sys.executable, "-m", "mainspring", "worker", "post:app", "--concurrency", "4"]
    running = [subprocess.Popen(command, cwd=directory, stderr=subprocess.DEVNULL) for _ in range(number)]
    try:
        yield
    finally:
        for worker in running:
            worker.send_signal(signal.SIGTERM)
        assert [worker.wait(timeout=30) for worker in running] == [0] * number


@pytest.mark.parametrize("task", ["declared", "within"])
async def test_closed_open_half_open_closed_and_nothing_lost(mail: MailServer, tmp_path: Path, task: str) -> None:
    (tmp_path / "post.py").write_text(textwrap.dedent(PROGRAM.format(directory=tmp_path, url=mail.url)), "utf-8")
    async with Mainspring(f"sqlite:///{tmp_path}/jobs.db") as app:
        work = app.task(name=task, max_attempts=4)(nothing)
        using = work.using(breaker="mail" if task == "declared" else None)
        with workers(tmp_path, 2):
            await eventually(lambda: have_joined(app, 2), within=60)
            ids = [handle.id for handle in await using.enqueue_many([{"number": n} for n in range(JOBS)])]
            await eventually(lambda: is_in(app, Phase.OPEN), within=30)
            await eventually(lambda: told_of(tmp_path, "BreakerHalfOpened") >= 2, within=30)  # with probes that fail
            assert mail.refused < JOBS / 2, "far fewer calls than jobs: those before all knew of it, and probes"
            mail.well = True
            await eventually(lambda: all_done(app, ids), within=30)
            await eventually(lambda: is_in(app, Phase.CLOSED))
        jobs = await app.store.get(ids)
    assert {job.status for job in jobs} == {Status.COMPLETED}
    assert mail.taken == Counter({f"/{number}": 1 for number in range(JOBS)})
    assert sum(job.attempts for job in jobs) == JOBS + mail.refused, "an attempt was burnt without a call"
    told = (tmp_path / "events").read_text().split()[1::2]
    assert told[0] == "BreakerOpened"
    assert set(told) == {"BreakerOpened", "BreakerHalfOpened", "BreakerClosed"}


def told_of(directory: Path, event: str) -> int:
    events = directory / "events"
    return events.read_text().split().count(event) if events.exists() else 0


async def nothing(number: int) -> None:
    """Runs in the workers only."""


async def have_joined(app: Mainspring, number: int) -> bool:
    return len((await app.stats()).workers) == number


async def is_in(app: Mainspring, phase: Phase) -> bool:
    return (await app.breakers.get("mail")).phase is phase


async def all_done(app: Mainspring, ids: list[str]) -> bool:
    return all(job.finished for job in await app.store.get(ids))
