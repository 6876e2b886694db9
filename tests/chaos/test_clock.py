"""The wall clock is set by an hour: the lease does not notice, and what is due by the new time is run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.nursery import Nursery, Process
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

HOUR = 3600  # seconds
WORKER: dict[str, Any] = {"concurrency": 1, "prefetch": 0, "heartbeat": 0.1, "upkeep": 0.1, "settings": "lease=5"}


def turn(nursery: Nursery, seconds: int) -> None:
    """At once: the clock is never half written."""
    new = nursery.folder / "clock.new"
    new.write_text(str(seconds))
    new.rename(nursery.folder / "clock")


def start(nursery: Nursery) -> Process:
    return nursery.start("work:work_by_wound_clock", **WORKER)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_jump_costs_nobody_its_claim(nursery: Nursery, hours: int) -> None:
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
