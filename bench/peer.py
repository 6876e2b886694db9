"""What a peer must do to be measured.

A peer is one file in `bench/peers/<field>`, called `<name>.py`. It opens with inline script metadata: what to install
in its environment and how it is shown.

    # /// script
    # requires-python = ">=3.11"
    # dependencies = ["huey==3.5.4"]
    #
    # [tool.bench]
    # title = "huey (SQLite)"
    # durability = "fsync at each commit"
    # drain_jobs = 20_000                              # enough for a few seconds
    # finished = "kept"                                # what becomes of finished jobs
    # packages = ["pg-boss@12.35.0"]                   # optional: of npm; such a peer is skipped where there is no Node
    # backlog = 1_000_000                              # optional: the most waiting jobs that it is tried with
    # history = 1_000_000                              # optional: the most finished ones
    # skip = ["latency"]                               # optional: what would mean nothing
    # variants = { "1 thread" = { threads = 1 } }      # optional: the one that drains fastest is used
    # ///

and defines `peer`, the class below filled in. The measurements are written once, in terms of this class, so that each
figure means the same for every peer. What a peer cannot do raises `Unsupported` and is a dash in the table.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from abc import ABC, abstractmethod
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST_JOBS = 2_000_000

TEXT = "a small payload, as most are: an id or two"
"""The second argument of every job; the first is a number."""

PLACE = "BENCH_PLACE"
SETTINGS = "BENCH_SETTINGS"
DATABASE = "BENCH_DATABASE"  # the URL of its database, where there is a server
SERVER = "BENCH_SERVER"  # the id of the server's process
PACKAGES = "BENCH_PACKAGES"  # where its npm packages are


class Unsupported(Exception):
    """The peer has no such feature."""


class Peer(ABC):
    """One system, with its data in `place`."""

    def __init__(self, place: Path, settings: Mapping[str, Any]) -> None:
        self.place = place
        self.settings = settings

    @abstractmethod
    async def open(self) -> None:
        """Create what is missing and connect."""

    async def close(self) -> None:  # noqa: B027 - not all have something to close
        """Disconnect."""

    @abstractmethod
    async def enqueue(self, number: int) -> None:
        """Enqueue one no-op job with the arguments `number` and `TEXT`. It is durable on return."""

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Enqueue jobs at once."""
        self.cannot("bulk enqueue")

    async def enqueue_now(self) -> None:
        """Enqueue one job whose number is the time before the call, in nanoseconds since 1970."""
        await self.enqueue(time.time_ns())

    async def enqueue_at(self, number: int, when: float) -> None:
        """Enqueue one job that is due at a Unix time."""
        self.cannot("jobs for a later time")

    @abstractmethod
    async def fill(self, jobs: int) -> None:
        """Enqueue due jobs as fast as can be; nobody measures this."""

    async def fill_waiting(self, jobs: int) -> None:
        """Enqueue jobs that will not be due for days, at mixed priorities, in the queue that the worker serves."""
        self.cannot("jobs for a later time")

    async def fill_finished(self, jobs: int) -> None:
        """Leave as many finished jobs as if a worker had run them."""
        self.cannot("way to make finished jobs but to run them")

    async def claim(self, limit: int) -> int:
        """Take due jobs as the worker does, and say how many they were."""
        self.cannot("claims apart from its worker")

    async def ack(self) -> None:
        """Finish what was claimed: left alone, it would look like the work of a crashed worker."""
        self.cannot("claims apart from its worker")

    def in_chunks(self, size: int) -> None:
        """From now on fill in jobs whose handler is called once for so many, and start workers that do so."""
        self.cannot("handler of chunks here")

    def reader(self) -> list[str]:
        """The command of a process that reads the change feed, to which the number of changes is added."""
        self.cannot("change feed")

    async def forget_readers(self) -> None:
        """Have the store record only what it records without a reader of the change feed."""
        self.cannot("change feed")

    def limited(self, task: str, keys: int = 1) -> None:
        """From now on fill in jobs of that task of limited.py, of so many keys, and start workers for them.

        An empty name means the usual task again.
        """
        self.cannot("limits that are measured here")

    async def fill_blocked(self, jobs: int) -> None:
        """Leave as many jobs as if a limit had been in their way."""
        self.cannot("limits that are measured here")

    async def probe(self, tenant: str, timeout: float) -> float:
        """Run one job of another tenant, and say for how many service times it had to wait."""
        self.cannot("limits that are measured here")

    async def import_people(self, path: Path) -> None:
        """Put the people of a CSV file as celebrated.py writes it."""
        self.cannot("people")

    async def last_fired(self) -> float:
        """The Unix time at which the last job of an occasion was made."""
        self.cannot("occasions")

    def server(self, port: int, *, worker: bool) -> list[str]:
        """The command of a web server on this port that enqueues a job at `POST /v1/jobs`; it may run jobs too."""
        self.cannot("web server")

    def job(self, number: int) -> bytes:
        """The body of a request that enqueues one job."""
        self.cannot("web server")

    def bulk(self, batch: int) -> bytes:
        """The body of a request that enqueues many jobs."""
        self.cannot("bulk enqueue by HTTP")

    @abstractmethod
    async def settled(self) -> bool:
        """Whether every job that was due has been finished and acked."""

    @abstractmethod
    def worker(self) -> list[str]:
        """The command of one worker process. Its handler must call `bench.tally.mark` with the job's number."""

    # -- enqueueing for some seconds: what is not written in Python overrides these with loops of its own -----------
    async def enqueue_for(self, seconds: float, tasks: int) -> float:
        """Jobs per second from a number of tasks, each of which waits for one job before the next."""
        numbers = count(1)
        begin = time.perf_counter()
        await asyncio.gather(*(self._enqueue_until(numbers, begin + seconds) for _ in range(tasks)))
        return (next(numbers) - 1) / (time.perf_counter() - begin)

    async def _enqueue_until(self, numbers: Iterator[int], end: float) -> None:
        for number in numbers:
            await self.enqueue(number)
            if time.perf_counter() > end or number > MOST_JOBS:
                break

    async def enqueue_many_for(self, seconds: float, batch: int) -> float:
        """Jobs per second, so many at once."""
        jobs = 0
        begin = time.perf_counter()
        while time.perf_counter() < begin + seconds and jobs < MOST_JOBS:
            await self.enqueue_many(range(batch))
            jobs += batch
        return jobs / (time.perf_counter() - begin)

    def cannot(self, what: str) -> NoReturn:
        raise Unsupported(what)


def here() -> tuple[Path, dict[str, Any]]:
    """Where the data is and which settings apply, for code that a worker process imports."""
    return Path(os.environ.get(PLACE, ".")), json.loads(os.environ.get(SETTINGS, "{}"))


def database() -> str:
    """The URL of the database that is measured, for peers that need one."""
    return os.environ.get(DATABASE, "postgresql:///")
