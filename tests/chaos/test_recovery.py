"""After a trouble on PostgreSQL the workers drain as fast as before it; and while a transaction is held open, too."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.chaos.conftest import Chaos, long_only, only_postgres
from tests.chaos.ledger import Ledger
from tests.chaos.processes import Nursery, Process
from tests.chaos.waiting import wait_until
from tests.postgres import Server

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

JOBS = 2000  # jobs that are drained for one measurement
SAMPLES = 9  # measurements of which the median counts
RECOVERED = 0.9  # of the rate before
KEPT = 0.5  # of it, while a transaction is held open
WITHIN = 180.0  # seconds for that; most of them are measurements
LEASE = 4.0  # seconds
WORKER: dict[str, Any] = {"heartbeat_interval": 0.5, "maintenance_interval": 0.5, "settings": f"lease={LEASE}"}


class Drains:
    """Measures how fast quick jobs are drained, group after group."""

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self.workers = [self.worker() for _ in range(2)]
        self.rates: list[float] = []  # jobs a second, of each group

    def worker(self) -> Process:
        return self.nursery.start("work:work", **WORKER)

    def one(self) -> None:
        """Enqueued in one transaction, so that from its commit on nobody waits for anything but the drain."""
        before = self.nursery.ledger_size()
        self.nursery.run("enqueue:some", number=JOBS)
        wait_until(lambda: self._since(before).count("end") >= JOBS, self.workers[0].said, every=0.1)
        self.rates.append(rate_of(self._since(before)))

    def some(self, number: int) -> float:
        """Their median."""
        for _ in range(number):
            self.one()
        return statistics.median(self.rates[-number:])

    def until_recovered(self, before: float) -> float:
        """The seconds that it took until the median of the last measurements was good again."""
        began = time.monotonic()
        after = self.some(SAMPLES)
        while after < RECOVERED * before:
            assert time.monotonic() - began < WITHIN, f"{before:.0f} jobs/s before, {after:.0f} after {WITHIN} s"
            self.one()
            after = statistics.median(self.rates[-SAMPLES:])
        print(f"{before:.0f} jobs/s before, {after:.0f} after")
        return time.monotonic() - began

    def check(self) -> None:
        self.nursery.wait_until_all_is_finished()
        assert self.nursery.ledger.problems(self.nursery.database.statuses()) == []
        self._rebuild_indexes()
        assert self.nursery.database.ailments() == []

    def _rebuild_indexes(self) -> None:
        """Do what doctor advises: an index that grew while no row could be removed does not shrink by itself."""
        advice = " ".join(self.nursery.database.ailments())
        with contextlib.closing(self.nursery.postgres.connect(autocommit=True)) as connection:
            for command in re.findall(r"REINDEX INDEX CONCURRENTLY [\w.]+", advice):
                print(command)
                connection.execute(command)

    def _since(self, size: int) -> Ledger:
        return self.nursery.ledger_since(size)


def rate_of(ledger: Ledger) -> float:
    """From the first start to the last end."""
    ends = [entry.at for entry in ledger.of("end")]
    return len(ends) / ((max(ends) - ledger.of("start")[0].at) / 1e9)


# -- troubles -------------------------------------------------------------------------------------


def kill_workers(drains: Drains, _: Server, rng: random.Random) -> None:
    """All of them, in the middle of a group; what they held is run by their successors, one at a time."""
    drains.nursery.run("enqueue:some", number=JOBS)
    for worker in drains.workers:
        time.sleep(rng.uniform(0, 0.2))
        worker.kill()
    drains.workers = [drains.worker() for _ in drains.workers]
    drains.nursery.wait_until_all_is_finished()


def cut_connections(drains: Drains, server: Server, rng: random.Random) -> None:
    for _ in range(100):
        time.sleep(rng.uniform(0, 0.1))
        drains.nursery.postgres.cut(rng)


def kill_server(drains: Drains, server: Server, rng: random.Random) -> None:
    drains.nursery.run("enqueue:some", number=JOBS)
    time.sleep(rng.uniform(0, 0.3))
    server.stop(signal.SIGKILL)
    time.sleep(rng.uniform(0, 5))
    server.start()


def stop_a_worker(drains: Drains, _: Server, rng: random.Random) -> None:
    with rng.choice(drains.workers).stopped():
        drains.nursery.run("enqueue:some", number=JOBS)
        time.sleep(2 * LEASE)


def hold_a_transaction(drains: Drains, _: Server, rng: random.Random) -> None:
    """A report that takes a minute, while the queue goes on at nearly its old rate."""
    before = statistics.median(drains.rates[-SAMPLES:])
    with held_transaction(drains.nursery):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            drains.one()
        held = statistics.median(drains.rates[-SAMPLES:])
    print(f"{before:.0f} jobs/s before, {held:.0f} at the end of the minute")
    assert held >= KEPT * before


@contextlib.contextmanager
def held_transaction(nursery: Nursery) -> Iterator[None]:
    """With a snapshot: no row that dies from now on can be removed."""
    with contextlib.closing(nursery.postgres.connect()) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM jobs")
        yield


Trouble = Callable[[Drains, Server, random.Random], None]
TROUBLES: list[Trouble] = [kill_workers, cut_connections, kill_server, stop_a_worker, hold_a_transaction]


@long_only
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_the_rate_recovers(mortal: Nursery, server: Server, chaos: Chaos, trouble: Trouble) -> None:
    drains = Drains(mortal)
    drains.some(5)  # until caches are warm and workers claim ahead
    before = drains.some(SAMPLES)
    trouble(drains, server, chaos.rng())
    print(f"{trouble.__name__}: recovered within {drains.until_recovered(before):.0f} s")
    drains.check()


@only_postgres
def test_a_transaction_that_is_held_open_does_not_stop_the_drain(nursery: Nursery) -> None:
    """Dead rows stay in the way of every claim. How little that matters is measured in the long form."""
    drains = Drains(nursery)
    drains.one()
    before = drains.some(2)
    with held_transaction(nursery):
        drains.some(2)
        held = drains.some(2)
    print(f"{before:.0f} jobs/s before, {held:.0f} beside {4 * JOBS} dead rows")
    assert held >= before / 4
    drains.check()
