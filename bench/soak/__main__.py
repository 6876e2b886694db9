"""`make soak`, or `python -m bench.soak --minutes 60 --store sqlite`: the run, its report and its drawing."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench import plot, table
from bench.__main__ import RESULTS, WORK, say
from bench.http_load import HOST
from bench.measurements.http import Follower, free_port, listens, stop
from bench.run import ROOT
from bench.server import Server
from bench.soak import samples, verdict
from bench.soak.application import ENDS, STORE, app
from bench.soak.load import Enqueues, Events
from bench.soak.samples import Sample, early_and_late
from mainspring import Filter, Status
from mainspring.cli.progress import Progress
from mainspring.client import AsyncClient

if TYPE_CHECKING:
    from collections.abc import Iterator

APPLICATION = "bench.soak.application:app"
SAMPLE_SECONDS = 5.0
FINISH_SECONDS = 120.0
PAGE = 1000


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is cleaned up
    WORK.mkdir(exist_ok=True)
    with ExitStack() as cleanup:
        work = Path(tempfile.mkdtemp(prefix="soak-", dir=WORK))
        cleanup.callback(shutil.rmtree, work)
        url = cleanup.enter_context(store(options.store, work))
        soak = Soak(options, url, work)
        asyncio.run(soak.run())
    report(soak)
    sys.exit(1 if soak.problems else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long the load lasts (default: 60)")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--rate", type=int, default=30, help="jobs per second (default: 30)")
    parser.add_argument("--clients", type=int, default=200, help="live clients that follow all jobs (default: 200)")
    return parser.parse_args()


@contextmanager
def store(kind: str, work: Path) -> Iterator[str]:
    """Yield the URL of an empty store."""
    if kind == "sqlite":
        yield f"sqlite:///{work / 'soak.db'}"
        return
    server = Server(work / "server")
    server.start()
    try:
        server.create("soak")
        yield server.url("soak")
    finally:
        server.stop()


@dataclass
class Soak:
    """One run. `problems` has what was wrong, in words."""

    options: argparse.Namespace
    url: str
    work: Path
    enqueues: Enqueues = field(default_factory=Enqueues)
    events: Events = field(default_factory=Events)
    taken: dict[str, list[Sample]] = field(default_factory=dict)
    unhealthy: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    async def run(self) -> None:
        port = free_port()
        with ExitStack() as running:
            service = self._start(running, "service", "serve", APPLICATION, "--port", str(port))
            worker = self._start(running, "worker", "worker", APPLICATION)
            await listens(service, port, self.work / "service.log")
            async with AsyncClient(f"http://{HOST}:{port}") as client:
                await self._load(client, port, {"service": service.pid, "worker": worker.pid})
        await self._judge()

    def _start(self, running: ExitStack, name: str, *command: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, STORE: self.url, ENDS: str(self._ends)}
        log = running.enter_context((self.work / f"{name}.log").open("wb"))
        started = subprocess.Popen(
            [sys.executable, "-m", "mainspring", *command], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
        running.callback(stop, started)
        return started

    async def _load(self, client: AsyncClient, port: int, pids: dict[str, int]) -> None:
        """Run the callers beside the processes, then wait until the last job has ended."""
        begun, finished = asyncio.Event(), asyncio.Event()
        followers = [await Follower.connect(port) for _ in range(self.options.clients)]
        following = asyncio.create_task(self.events.follow(client, begun))
        await begun.wait()
        enqueueing = asyncio.create_task(self.enqueues.run(client, self.options.rate, finished))
        await self._watch(client, pids, enqueueing)
        finished.set()
        await enqueueing
        await self._finish()
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        for follower in followers:
            follower.close()
        self._hear(followers)

    async def _watch(self, client: AsyncClient, pids: dict[str, int], enqueueing: asyncio.Task[None]) -> None:
        """Sample the processes and ask for health, until the time is over or the load fails."""
        begin, seconds = time.monotonic(), self.options.minutes * 60
        is_shown = sys.stderr.isatty()
        with Progress("soaking", round(seconds), sys.stderr, visible=is_shown, colour=is_shown, lines=True) as bar:
            while (now := time.monotonic() - begin) < seconds and not enqueueing.done():
                for name, pid in pids.items():
                    self.taken.setdefault(name, []).append(samples.take(pid, now))
                health = await client.health.scheduler()
                if not health.healthy:
                    self.unhealthy.append(f"after {now:.0f} s health failed: {health.stats}")
                bar.reach(round(now))
                await asyncio.sleep(min(SAMPLE_SECONDS, seconds / 50))

    async def _finish(self) -> None:
        """Wait until the client has seen the end of every job."""
        with suppress(TimeoutError):  # the checks then say which are missing
            async with asyncio.timeout(FINISH_SECONDS):
                await self.events.wait_for(self.enqueues.ids)

    def _hear(self, followers: list[Follower]) -> None:
        """Every live client gets the same events, so none may have much less than the others."""
        most, least = max(each.received for each in followers), min(each.received for each in followers)
        if least < most * 0.9:
            self.problems.append(f"one live client received {least:,} bytes and another {most:,}")

    async def _judge(self) -> None:
        completed = await self._completed()
        ends = self._ends.read_text("utf-8").split()
        checks = (
            verdict.jobs(self.enqueues.ids, completed, ends),
            self.events.problems(self.enqueues.ids),
            verdict.processes(self.taken),
            iter(self.unhealthy),
        )
        for found in checks:
            self.problems.extend(verdict.first_of(found))

    async def _completed(self) -> set[str]:
        """Return the ids of the completed jobs, read from the store by this process."""
        reader = type(app)(self.url)
        ids: set[str] = set()
        cursor: str | None = None
        while True:
            page = await reader.jobs.find(Filter(statuses=(Status.COMPLETED,)), limit=PAGE, cursor=cursor)
            ids |= {str(job.id) for job in page.jobs}
            cursor = page.cursor
            if cursor is None:
                await reader.close()
                return ids

    @property
    def _ends(self) -> Path:
        return self.work / "ends.txt"


def report(soak: Soak) -> None:
    """Print what was seen, and draw the memory of each process over time."""
    rows = [["", "MB early", "MB late", "most MB", "files early", "files late", "threads"]]
    for name, taken in soak.taken.items():
        memory = [sample.megabytes for sample in taken]
        files = early_and_late([float(sample.files) for sample in taken])
        figures = [*early_and_late(memory), max(memory), *files, float(taken[-1].threads)]
        rows.append([name, *(f"{figure:,.0f}" for figure in figures)])
    print(f"\n{len(soak.enqueues.ids):,} jobs in {soak.options.minutes:g} minutes on {soak.options.store}\n")
    print(table.as_text(rows))
    if soak.options.minutes < verdict.MIN_MINUTES:
        print(f"\nGrowth is judged in runs of {verdict.MIN_MINUTES} minutes or more: caches fill at first.")
    RESULTS.mkdir(exist_ok=True)
    drawing = RESULTS / f"soak-{soak.options.store}.svg"
    series = {name: [(each.second, each.megabytes) for each in taken] for name, taken in soak.taken.items()}
    drawing.write_text(plot.lines("Memory over time, MB", series), "utf-8")
    say(f"drew {drawing}")
    for problem in soak.problems:
        print(f"problem: {problem}")
    print("\nnothing was lost, repeated or out of order" if not soak.problems else "\nthe soak has failed")


if __name__ == "__main__":
    main()
