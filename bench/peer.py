"""What a peer must do to be measured.

A peer is one file in `bench/peers`, called `<name>.py`. It opens with inline script metadata: what to install in its
environment and how it is shown.

    # /// script
    # requires-python = ">=3.11"
    # dependencies = ["huey==3.5.4"]
    #
    # [tool.bench]
    # title = "huey (SQLite)"
    # durability = "fsync at each commit"
    # drain_jobs = 20_000                              # enough for a few seconds
    # needs = "BENCH_POSTGRESQL"                       # optional: skipped unless this variable says where the server is
    # backlog = 1_000_000                              # optional: the most waiting jobs that it is tried with
    # history = 1_000_000                              # optional: the most finished ones
    # skip = ["latency"]                               # optional: what would mean nothing
    # variants = { "1 thread" = { threads = 1 } }      # optional: the one that drains fastest is used
    # ///

and defines `peer`, the class below filled in. The measurements are written once, in terms of this class, so that each
figure means the same for every peer. What a peer cannot do raises `Unsupported` and is a dash in the table.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TEXT = "a small payload, as most are: an id or two"
"""The second argument of every job; the first is a number."""

PLACE = "BENCH_PLACE"
SETTINGS = "BENCH_SETTINGS"


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

    async def enqueue_at(self, number: int, when: float) -> None:
        """Enqueue one job that is due at a Unix time."""
        self.cannot("jobs for a later time")

    @abstractmethod
    async def fill(self, jobs: int) -> None:
        """Enqueue due jobs as fast as can be; nobody measures this."""

    async def fill_waiting(self, jobs: int) -> None:
        """Enqueue jobs that will not be due for days, at mixed priorities, in the queue that the worker serves."""
        self.cannot("jobs for a later time")

    async def claim(self, limit: int) -> int:
        """Take due jobs as the worker does, and say how many they were."""
        self.cannot("claims apart from its worker")

    async def ack(self) -> None:
        """Finish what was claimed: left alone, it would look like the work of a crashed worker."""
        self.cannot("claims apart from its worker")

    @abstractmethod
    async def settled(self) -> bool:
        """Whether every job that was due has been finished and acked."""

    @abstractmethod
    def worker(self) -> list[str]:
        """The command of one worker process. Its handler must call `bench.tally.mark` with the job's number."""

    def cannot(self, what: str) -> NoReturn:
        raise Unsupported(what)


def here() -> tuple[Path, dict[str, Any]]:
    """Where the data is and which settings apply, for code that a worker process imports."""
    return Path(os.environ.get(PLACE, ".")), json.loads(os.environ.get(SETTINGS, "{}"))
