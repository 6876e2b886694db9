"""kill -9 at random moments: nothing that was acknowledged is lost, and no job is in two hands at once."""

from __future__ import annotations

import time

import pytest

from tests.chaos.conftest import Chaos, each_store
from tests.chaos.processes import Nursery
from tests.chaos.workers import Crew, check

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

SHORTEST, LONGEST = 0.02, 0.25  # seconds between two kills


@each_store
def test_killed_workers_and_enqueuers_lose_nothing(nursery: Nursery, chaos: Chaos) -> None:
    crew = Crew(nursery, chaos.rng())
    for _ in range(chaos.size(30, 1000)):
        time.sleep(crew.rng.uniform(SHORTEST, LONGEST))
        crew.kill_one()
    crew.finish()
    check(nursery)
