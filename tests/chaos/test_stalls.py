"""A worker dies at the worst moments: nothing that waits for its next step stands still for long.

Without recovery, jobs at limits stay suspended for good, keys of fair tasks stand still for a minute, gathers for one
minute and batches for two.
"""

from __future__ import annotations

import signal
import time
from functools import partial

import pytest

from tests.chaos.conftest import LONG, Chaos, each_store
from tests.chaos.processes import Nursery, Process
from tests.chaos.programs.stalls import MOMENTS
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

LONGEST_STALL = 6.0 if LONG else 12.0
"""Seconds from the kill to the end of all jobs. The work takes a second and the death is noticed within two; the short
form, which runs beside other tests, leaves room for a machine that has other things to do. Without the quick notice it
would take the lease, 30 s."""


@pytest.mark.parametrize("moment", MOMENTS)
@each_store
def test_what_waits_goes_on_after_a_kill(nursery: Nursery, chaos: Chaos, moment: str) -> None:
    rng, stalls = chaos.rng(), list[float]()
    healthy = nursery.start("stalls:work")
    healthy.wait_for("worker_started")
    for _ in range(chaos.size(1, 35)):
        victim = nursery.start("stalls:die", at=moment, time=rng.randint(1, 4))
        victim.wait_for("worker_started")
        wait_until(partial(nursery.database.is_watched, victim.who))
        enqueue_until_dead(nursery, victim)
        assert victim.wait() == -signal.SIGKILL
        killed_at = time.monotonic()
        nursery.wait_until_all_is_finished()
        stalls.append(time.monotonic() - killed_at)
    print("stalls", [round(seconds, 2) for seconds in stalls])
    assert max(stalls) < LONGEST_STALL
    assert nursery.ask("SELECT DISTINCT status FROM all_jobs") == [("completed",)]


def enqueue_until_dead(nursery: Nursery, victim: Process) -> None:
    """Enqueue again if the other worker has done all of it before the victim's moment came."""
    while victim.code is None:
        nursery.run("stalls:enqueue")
        wait_until(lambda: victim.code is not None or not nursery.database.unfinished())
