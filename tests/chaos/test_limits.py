"""Four workers, one of which is killed now and then: no limit is ever exceeded, and no job stays blocked.

The judge is a file into which handlers write when they come and go, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import signal
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.conftest import Chaos, each_store
from tests.chaos.processes import Nursery, Process
from tests.chaos.programs.limits import ALL, BURST, EACH, RATE
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

WORKERS = 4
SECOND = 1_000_000_000


@each_store
def test_no_limit_is_exceeded_while_workers_are_killed(nursery: Nursery, chaos: Chaos) -> None:
    rng, places, beats = chaos.rng(), chaos.size(120, 3000), chaos.size(60, 1000)
    assert nursery.start("limits:enqueue", places=places, beats=beats).wait() == 0
    workers = [start(nursery) for _ in range(WORKERS)]
    killed: dict[str, int] = {}
    for part in range(1, chaos.size(1, 10) + 1):
        wait_until(partial(visited, nursery, part * places // chaos.size(3, 12)), every=0.05)
        kill(workers.pop(rng.randrange(WORKERS)), killed)
        workers.append(start(nursery))
    nursery.wait_until_all_is_finished()
    book = Book.read(nursery, killed)
    assert book.most["all"] <= ALL
    assert max(book.most[customer] for customer in ("acme", "bolt", "cord")) <= EACH
    assert book.most["all"] == ALL  # and all places were used
    assert too_many(book.beats) == []
    assert nursery.ask("SELECT DISTINCT status FROM all_jobs") == [("completed",)]


def visited(nursery: Nursery, times: int) -> bool:
    return Book.read(nursery).visits >= times


def start(nursery: Nursery) -> Process:
    return nursery.start("limits:work", settings=nursery.database.watchful, concurrency=6)


def kill(worker: Process, killed: dict[str, int]) -> None:
    killed[worker.who] = worker.send(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL


@dataclass
class Book:
    """What the handlers wrote down."""

    most: Counter[str] = field(default_factory=Counter)  # inside at once: all, and of each customer
    beats: list[int] = field(default_factory=list)
    visits: int = 0

    @classmethod
    def read(cls, nursery: Nursery, killed: dict[str, int] | None = None) -> Book:
        path = Path(nursery.folder) / "places"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        book, inside = cls(), dict[str, tuple[str, str]]()
        for at, who, what, *about in sorted(lines, key=lambda line: int(line[0])):
            if what == "beat":
                book.beats.append(int(at))
                continue
            customer, visit = about
            inside = {one: (by, c) for one, (by, c) in inside.items() if not killed or int(at) < killed.get(by, 2**63)}
            if what == "in":
                book.visits += 1
                inside[visit] = who, customer
            else:
                inside.pop(visit, None)
            book.note(inside)
        return book

    def note(self, inside: dict[str, tuple[str, str]]) -> None:
        now = Counter(customer for _, customer in inside.values())
        for name, number in {**now, "all": sum(now.values())}.items():
            self.most[name] = max(self.most[name], number)


def too_many(beats: list[int]) -> list[str]:
    """Windows in which more started than the docs say: burst + rate × (window + 0.2 s)."""
    found = []
    for seconds in (0.05, 0.2, 1.0):
        for number, begin in enumerate(beats):
            count = bisect_left(beats, begin + int(seconds * SECOND)) - number
            if count > BURST + RATE * (seconds + 0.2):
                found.append(f"{count} within {seconds} s")
    return found
