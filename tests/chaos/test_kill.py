"""kill -9 at random moments: nothing that was acknowledged is lost, and no job is in two hands at once."""

from __future__ import annotations

import time

import pytest

from tests.chaos.conftest import Chaos, each_store
from tests.chaos.processes import Nursery
from tests.chaos.waiting import wait_until
from tests.chaos.workers import Crew, check

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

SHORTEST, LONGEST = 0.02, 0.25  # seconds between two kills
LONGEST_WAIT = 10.0  # seconds; a third of the lease, and room for a machine that has other things to do


@each_store
def test_killed_workers_and_enqueuers_lose_nothing(nursery: Nursery, chaos: Chaos) -> None:
    crew = Crew(nursery, chaos.rng())
    for _ in range(chaos.size(30, 1000)):
        time.sleep(crew.rng.uniform(SHORTEST, LONGEST))
        crew.kill_one()
    crew.finish()
    check(nursery)


@each_store
def test_the_job_of_a_killed_worker_starts_elsewhere_long_before_the_lease_ends(nursery: Nursery) -> None:
    """With the settings that everybody has: the lease is 30 s, and the death is noticed within two."""
    victim = nursery.start("work:work")
    victim.wait_for("worker_started")
    nursery.run("enqueue:some", task="held")
    wait_until(lambda: nursery.ledger.of("start", who=victim.who), victim.said)
    heir = nursery.start("work:work")
    heir.wait_for("worker_started")
    wait_until(lambda: nursery.database.is_watched(victim.who), victim.said)
    victim.kill()
    (start,) = wait_until(lambda: nursery.ledger.of("start", who=heir.who), heir.said)
    waited = (start.at - nursery.ledger.deaths[victim.who]) / 1e9
    print(f"started elsewhere after {waited:.2f} s")
    assert waited < LONGEST_WAIT
