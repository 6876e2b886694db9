"""The PostgreSQL server cuts connections, or dies: workers and enqueuers go on, and nothing is lost or done twice."""

from __future__ import annotations

import signal
import time

import pytest

from tests.chaos.conftest import Chaos, only_postgres
from tests.chaos.processes import Nursery
from tests.chaos.workers import Crew, check
from tests.postgres import Server

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

SHORTEST, LONGEST = 0.01, 0.1  # seconds between two cuts


@only_postgres
def test_connections_that_are_cut_lose_nothing(nursery: Nursery, chaos: Chaos) -> None:
    crew, cuts = Crew(nursery, chaos.rng(), patient=True), 0
    crew.wait_for_work()
    for _ in range(chaos.size(40, 3000)):
        time.sleep(crew.rng.uniform(SHORTEST, LONGEST))
        cuts += nursery.postgres.cut(crew.rng)
    crew.finish()
    print(f"{cuts} connections cut")
    check(nursery)


def test_a_killed_server_loses_nothing(mortal: Nursery, server: Server, chaos: Chaos) -> None:
    crew = Crew(mortal, chaos.rng(), patient=True)
    for _ in range(chaos.size(1, 40)):
        crew.wait_for_work(runs=30)
        server.stop(signal.SIGKILL)
        time.sleep(crew.rng.uniform(0, chaos.size(1, 8)))  # the latter is longer than the lease
        server.start()
    crew.wait_for_work(runs=30)
    crew.finish()
    check(mortal)
