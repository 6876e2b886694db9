"""The wall clock is set by an hour: for a moment, which fires nothing and stops nothing, or for good."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.processes import Nursery, Process
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

HOUR = 3600  # seconds
WORKER: dict[str, Any] = {
    "concurrency": 1,
    "prefetch": 0,
    "heartbeat_interval": 0.1,
    "maintenance_interval": 0.1,
    "settings": "lease=5",
}


def turn(nursery: Nursery, seconds: int) -> None:
    """At once: the clock is never half written."""
    new = nursery.folder / "clock.new"
    new.write_text(str(seconds))
    new.rename(nursery.folder / "clock")


def start(nursery: Nursery, settle: float = 1.0) -> Process:
    return nursery.start("work:work_by_wound_clock", **WORKER, settle=settle)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_jump_costs_no_worker_its_claims(nursery: Nursery, hours: int) -> None:
    """One of two workers is killed after the jump: when its job is taken over, the other's would have been too."""
    turn(nursery, 0)
    workers = {process.who: process for process in (start(nursery), start(nursery))}
    nursery.run("enqueue:some_by_wound_clock", task="held", number=2)
    wait_until(lambda: len(nursery.ledger.of("start")) == 2, lambda: "both to run")
    turn(nursery, hours * HOUR)
    (mine, others) = nursery.ledger.of("start")
    workers[mine.who].kill()
    successor = start(nursery)
    (nursery.folder / "go-2").touch()
    wait_until(lambda: mine.job_id in nursery.ledger.done, successor.said)
    (nursery.folder / "go-1").touch()
    wait_until(lambda: others.job_id in nursery.ledger.done, successor.said)
    runs = nursery.ledger.runs
    assert [run.token for run in runs[mine.job_id]] == [1, 2]
    assert [run.token for run in runs[others.job_id]] == [1]


def test_what_is_due_by_the_new_time_is_run(nursery: Nursery) -> None:
    turn(nursery, 0)
    worker = start(nursery)
    nursery.run("enqueue:some_by_wound_clock", delay=HOUR / 2)
    nursery.run("enqueue:some_by_wound_clock")
    wait_until(lambda: len(nursery.ledger.done) == 1, worker.said)
    turn(nursery, HOUR)
    wait_until(lambda: len(nursery.ledger.done) == 2, worker.said)


def test_an_hour_ahead_for_a_moment_fires_nothing_and_stops_nothing(nursery: Nursery) -> None:
    """Also for a process that starts in that moment and enqueues by the wrong clock."""
    turn(nursery, 0)
    workers = [start(nursery, settle=3600) for _ in range(2)]
    nursery.run("enqueue:some_by_wound_clock", delay=HOUR / 2)
    nursery.run("enqueue:some_by_wound_clock", task="paced", number=1000)
    wait_until(lambda: len(nursery.ledger.done) > 5, workers[0].said)
    turn(nursery, HOUR)
    nursery.run("enqueue:some_by_wound_clock")
    meanwhile = nursery.ledger.of("ack")[-1].job_id
    wait_until(lambda: meanwhile in nursery.ledger.done, workers[0].said)
    during = len(nursery.ledger.done)
    wait_until(lambda: len(nursery.ledger.done) > during + 10, workers[0].said)
    turn(nursery, 0)
    after = len(nursery.ledger.done)
    wait_until(lambda: len(nursery.ledger.done) > after + 40, workers[0].said, seconds=20)
    later = nursery.ledger.of("ack")[0].job_id
    assert later not in nursery.ledger.done
