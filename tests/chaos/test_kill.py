"""kill -9 at random moments: nothing that was acknowledged is lost, and no job is in two hands at once."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mainspring.job import MAX_CRASHES
from tests.chaos.conftest import Chaos
from tests.chaos.database import ailments, ask, statuses, unfinished
from tests.chaos.ledger import Ledger, tally
from tests.chaos.nursery import Nursery, Process
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

WORKERS, ENQUEUERS = 3, 2
WORKER: dict[str, Any] = {"concurrency": 4, "prefetch": 20, "heartbeat": 0.5, "upkeep": 0.2}
CRASHED = "SELECT worker FROM attempts WHERE job_id = ? AND move = 'crash'"
SHORTEST, LONGEST = 0.02, 0.25  # seconds between two kills


def test_killed_workers_and_enqueuers_lose_nothing(nursery: Nursery, chaos: Chaos) -> None:
    crew = Crew(nursery, chaos.rng())
    for _ in range(chaos.size(40, 1000)):
        crew.kill_one()
    crew.finish()
    check_dead_letters(nursery)
    nursery.run("work:replay_dead")
    report(nursery.ledger)
    assert nursery.ledger.problems(statuses(nursery.database)) == []
    check_follow_ups(nursery)
    check_effects(nursery)
    assert ailments(nursery.database) == []


class Crew:
    """The processes, each of which has a successor as soon as it is killed."""

    def __init__(self, nursery: Nursery, rng: random.Random) -> None:
        self._nursery, self._rng = nursery, rng
        self._workers = [self._worker() for _ in range(WORKERS)]
        self._enqueuers = [self._enqueuer() for _ in range(ENQUEUERS)]

    def kill_one(self) -> None:
        time.sleep(self._rng.uniform(SHORTEST, LONGEST))
        chosen = self._rng.randrange(WORKERS + ENQUEUERS)
        if chosen < WORKERS:
            replace(self._workers, chosen, self._worker)
        else:
            replace(self._enqueuers, chosen - WORKERS, self._enqueuer)

    def finish(self) -> None:
        """No new jobs; the workers do what is left and stop in order."""
        for process in self._enqueuers:
            process.kill()
        path = self._nursery.database
        wait_until(lambda: not unfinished(path), lambda: f"the end of {unfinished(path)}", seconds=300, every=0.05)
        for process in self._workers:
            process.wait_for("worker_started")  # the youngest may not even hear signals yet
            process.send(signal.SIGTERM)
        for process in self._workers:
            assert process.wait() == 0, process.said()

    def _worker(self) -> Process:
        return self._nursery.start("work:work", **WORKER)

    def _enqueuer(self) -> Process:
        return self._nursery.start("enqueue:mixture", seed=self._rng.randrange(2**32), pause=0.05)


def replace(crew: list[Process], place: int, successor: Callable[[], Process]) -> None:
    victim = crew[place]
    assert victim.code is None, f"{victim.who} ended by itself:\n{victim.said()}"
    victim.kill()
    crew[place] = successor()


def check_dead_letters(nursery: Nursery) -> None:
    """Only what lost three workers, each of which we killed."""
    deaths = nursery.ledger.deaths
    for job_id, status, crashes in ask(nursery.database, "SELECT id, status, crashes FROM archive WHERE status <> 4"):
        workers = [who for (who,) in ask(nursery.database, CRASHED, job_id)]
        assert (status, crashes) == (5, MAX_CRASHES), f"{job_id} ended as {status} after {crashes} crashes"
        assert len(set(workers)) == MAX_CRASHES, f"{job_id} lost {workers}"
        assert deaths.keys() >= set(workers)


def check_follow_ups(nursery: Nursery) -> None:
    """Each parent has one child: it was committed with the parent's end, or not at all."""
    parents = [job_id for (job_id,) in ask(nursery.database, "SELECT id FROM archive WHERE task = 'parent'")]
    children = [of for (of,) in ask(nursery.database, "SELECT payload ->> 'of' FROM all_jobs WHERE task = 'child'")]
    assert Counter(children) == Counter(parents)


def check_effects(nursery: Nursery) -> None:
    """Each job's row is there once: it was committed with the job's end, or not at all."""
    ended = [job_id for (job_id,) in ask(nursery.database, "SELECT id FROM archive WHERE task = 'effect'")]
    rows = [job_id for (job_id,) in ask(nursery.database, "SELECT job_id FROM effects")]
    assert Counter(rows) == Counter(ended)


def report(ledger: Ledger) -> None:
    numbers = f"{len(ledger.deaths)} kills, {len(ledger.acknowledged)} jobs acknowledged"
    print(f"{numbers}, runs per job: {tally(ledger.runs.values())}")
