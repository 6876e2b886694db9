"""`mainspring bench`: measure in a few seconds how fast this machine is."""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mainspring.app import Mainspring
from mainspring.cli.exits import Exit, UsageError
from mainspring.cli.parser import Commands, add_command, parse_positive
from mainspring.cli.progress import Progress
from mainspring.cli.table import Column
from mainspring.cli.terminal import Terminal
from mainspring.job import Status

JOBS_PER_CALL = 1000
SINGLES = 200  # jobs enqueued one by one, each on disk before the next
STARTS = 100  # jobs enqueued for an idle worker
DETAIL = """\
Uses a temporary SQLite file, one worker in this process and a task that does nothing. It shows what the machine and
its disk can do, not how long your tasks take. To compare with other libraries, run `make bench` in the source tree."""


@dataclass(slots=True)
class Measured:
    jobs: int
    enqueue_single: float = 0.0  # jobs per second
    enqueue_bulk: float = 0.0
    run: float = 0.0
    start_p50: float = 0.0  # milliseconds from enqueue to the first line of the handler
    start_p99: float = 0.0


def add_commands(commands: Commands) -> None:
    parser = add_command(commands, "bench", bench, "measure this machine", DETAIL)
    parser.add_argument(
        "--jobs", type=parse_positive, default=10_000, metavar="N", help="how many jobs to run (default: 10000)"
    )
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="where to put the file; use the disk that your jobs will use"
    )


def bench(args: Namespace, terminal: Terminal) -> int:
    if args.directory is not None and not args.directory.is_dir():
        msg = f"there is no directory {args.directory}"
        raise UsageError(msg, args.prog)
    with tempfile.TemporaryDirectory(prefix="mainspring-bench-", dir=args.directory) as directory:
        measured = asyncio.run(measure(Path(directory), args.jobs, terminal))
    machine = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, "processors": os.cpu_count()}
    if terminal.json:
        terminal.emit({**asdict(measured), **machine})
    else:
        say_measured(terminal, measured)
        terminal.note("\n{processors} processors, Python {python}, SQLite {sqlite}".format(**machine))
        terminal.note("to compare with other libraries: `make bench` in the source tree, or docs/benchmarks.md")
    return Exit.OK


def say_measured(terminal: Terminal, measured: Measured) -> None:
    rows = (
        ("enqueue, one by one", f"{measured.enqueue_single:,.0f}", "jobs/s, each on disk before the next"),
        ("enqueue, many", f"{measured.enqueue_bulk:,.0f}", f"jobs/s, {JOBS_PER_CALL:,} at a time"),
        ("run", f"{measured.run:,.0f}", "jobs/s, claimed, run and on disk"),
        ("start, median", f"{measured.start_p50:.1f}", "ms from enqueue to handler, idle worker"),
        ("start, 99 of 100", f"{measured.start_p99:.1f}", "ms"),
    )
    terminal.table((Column("MEASURE"), Column("RESULT", right=True), Column("UNIT", least=4)), rows)


# -- measuring ------------------------------------------------------------------------------------


class Work:
    """An application with one task that only counts its runs."""

    def __init__(self, directory: Path) -> None:
        self.app = Mainspring(f"sqlite:///{directory / 'bench.db'}")
        self.ran = 0
        self.started: asyncio.Future[float] | None = None

        @self.app.task()
        async def nothing(number: int) -> None:  # noqa: ARG001 - a very small payload
            self.ran += 1
            if self.started is not None and not self.started.done():
                self.started.set_result(time.perf_counter())

        self.task = nothing


async def measure(directory: Path, jobs: int, terminal: Terminal) -> Measured:
    work, measured = Work(directory), Measured(jobs)
    async with work.app:
        await work.task.enqueue(number=0)  # opens the file and starts the threads before the measurement
        measured.enqueue_single = await enqueue_singly(work, terminal)
        measured.enqueue_bulk = await enqueue_many(work, jobs, terminal)
        measured.run = await run_all(work, 1 + SINGLES + jobs, terminal)
        measured.start_p50, measured.start_p99 = await measure_starts(work, terminal)
    return measured


async def enqueue_singly(work: Work, terminal: Terminal) -> float:
    async def one(number: int) -> None:
        await work.task.enqueue(number=number)

    return await timed("enqueue, one by one:", SINGLES, terminal, range(1, SINGLES + 1), one)


async def enqueue_many(work: Work, jobs: int, terminal: Terminal) -> float:
    async def enqueue_some(done: int) -> None:
        await work.task.enqueue_many({"number": number} for number in range(done - min(JOBS_PER_CALL, done), done))

    return await timed("enqueue, many:", jobs, terminal, steps(jobs), enqueue_some)


def steps(jobs: int) -> Iterator[int]:
    """Yield the number of jobs after each call."""
    yield from range(JOBS_PER_CALL, jobs, JOBS_PER_CALL)
    yield jobs


async def timed(
    label: str, total: int, terminal: Terminal, reached: Any, step: Callable[[int], Awaitable[None]]
) -> float:
    began = time.perf_counter()
    with terminal.progress(label, total) as bar:
        for done in reached:
            await step(done)
            bar.reach(done)
    return total / (time.perf_counter() - began)


async def run_all(work: Work, jobs: int, terminal: Terminal) -> float:
    began = time.perf_counter()
    with terminal.progress("run:", jobs) as bar:
        async with serving(work):
            await finished(work, jobs, bar)
            took = time.perf_counter() - began
    return jobs / took


async def finished(work: Work, jobs: int, bar: Progress) -> None:
    while True:
        bar.reach(work.ran)
        if work.ran >= jobs:
            stats = await work.app.stats()
            if sum(counts[Status.COMPLETED] for counts in stats.queues) >= jobs:
                return
        await asyncio.sleep(0.005)


async def measure_starts(work: Work, terminal: Terminal) -> tuple[float, float]:
    delays: list[float] = []
    with terminal.progress("start:", STARTS) as bar:
        async with serving(work):
            for number in range(STARTS):
                delays.append(await start_one(work, number))
                bar.reach(number + 1)
    steps_of_100 = statistics.quantiles(delays, n=100)
    return steps_of_100[49], steps_of_100[98]


async def start_one(work: Work, number: int) -> float:
    work.started = asyncio.get_running_loop().create_future()
    began = time.perf_counter()
    await work.task.enqueue(number=number)
    started = await work.started
    await asyncio.sleep(0.002)  # the outcome is written meanwhile, so the worker is idle again
    return (started - began) * 1000


@asynccontextmanager
async def serving(work: Work) -> AsyncIterator[None]:
    """Run a worker during the block. If the worker fails, the block fails too; it would wait for ever."""
    from mainspring.worker import Worker

    worker = Worker(work.app)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.serve())
            yield
            worker.stop()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
