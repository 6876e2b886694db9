"""Would the other tests notice? Faults of a store, planted in its tables while real processes work, must be found."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import each_store
from tests.chaos.processes import Nursery
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@each_store
def test_a_job_that_a_store_gives_to_two_workers_is_found(nursery: Nursery) -> None:
    workers = [nursery.start("work:work", concurrency=1, prefetch=0) for _ in range(2)]
    nursery.run("enqueue:some", task="held_thread")
    wait_until(lambda: nursery.ledger.runs, workers[0].said)
    nursery.database.plant("UPDATE jobs SET status = 0")
    nursery.run("enqueue:some", delay=3600)  # wakes them
    ((job_id, (first, second)),) = wait_until(
        lambda: [(job, runs) for job, runs in nursery.ledger.runs.items() if len(runs) == 2], workers[0].said
    )
    found = f"{job_id} was run by {second.who} (2) while {first.who} (1) had it"
    assert found in nursery.ledger.problems(nursery.database.statuses())


@each_store
def test_a_job_that_a_store_loses_is_found(nursery: Nursery) -> None:
    nursery.run("enqueue:some", number=2, delay=3600)
    lost, _ = sorted(nursery.ledger.acknowledged)
    nursery.database.plant(f"DELETE FROM jobs WHERE id = '{lost}'")
    assert f"{lost} was acknowledged and is missing" in nursery.ledger.problems(nursery.database.statuses())
    assert nursery.database.ailments(), "the numbers of jobs are kept apart, and do not fit any more"
