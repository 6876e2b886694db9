"""Workers and enqueuers for a test that troubles them, and what must hold whatever the trouble was."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from mainspring.job import MAX_CRASHES
from tests.chaos.ledger import Ledger, tally
from tests.chaos.processes import Nursery, Process
from tests.chaos.waiting import wait_until

WORKERS, ENQUEUERS = 3, 2
WORKER: dict[str, Any] = {"concurrency": 4, "prefetch": 20, "heartbeat_interval": 0.2, "maintenance_interval": 0.2}
CRASHED = "SELECT worker FROM attempts WHERE job_id = ? AND move = 'crash'"


class Crew:
    """The processes, each of which has a successor as soon as it is killed."""

    def __init__(
        self, nursery: Nursery, rng: random.Random, *, settings: str | None = None, patient: bool = False
    ) -> None:
        """Patient enqueuers bear it if the store cannot take a job; to the others it must not happen."""
        self._nursery, self.rng, self._patient = nursery, rng, patient
        self._settings = nursery.database.watchful if settings is None else settings
        self.workers = [self._worker() for _ in range(WORKERS)]
        self.enqueuers = [self._enqueuer() for _ in range(ENQUEUERS)]

    def kill_one(self) -> None:
        chosen = self.rng.randrange(WORKERS + ENQUEUERS)
        if chosen < WORKERS:
            replace(self.workers, chosen, self._worker)
        else:
            replace(self.enqueuers, chosen - WORKERS, self._enqueuer)

    def stop_one(self, seconds: float) -> None:
        """A worker, for as long as that; then it goes on as if nothing had happened."""
        with self.rng.choice(self.workers).stopped():
            time.sleep(seconds)

    def wait_for_work(self, runs: int = 1) -> None:
        """Until so many more have been completed: whatever happened is over."""
        size = self._nursery.ledger_size()
        wait_until(lambda: self._nursery.ledger_since(size).count("done") >= runs, self._said, every=0.1)

    def finish(self) -> None:
        """No new jobs; the workers do what is left and stop in order."""
        for process in self.enqueuers:
            assert process.code is None, f"{process.who} ended by itself:\n{process.said()}"
            process.kill()
        self._nursery.wait_until_all_is_finished()
        for process in self.workers:
            process.wait_for("worker_started")  # the youngest may not even hear signals yet
        left = partial(self._nursery.database.leftovers, [process.who for process in self.workers])
        wait_until(lambda: not left(), lambda: f"a worker to tidy up after {left()}")
        for process in self.workers:
            process.send(signal.SIGTERM)
        for process in self.workers:
            assert process.wait() == 0, process.said()

    def _worker(self) -> Process:
        return self._nursery.start("work:work", settings=self._settings, **WORKER)

    def _enqueuer(self) -> Process:
        return self._nursery.start("enqueue:mixture", seed=self.rng.randrange(2**32), pause=0.05, patient=self._patient)

    def _said(self) -> str:
        return "\n".join(process.said() for process in self.workers)


def replace(crew: list[Process], place: int, successor: Callable[[], Process]) -> None:
    victim = crew[place]
    assert victim.code is None, f"{victim.who} ended by itself:\n{victim.said()}"
    victim.kill()
    crew[place] = successor()


def check(nursery: Nursery) -> None:
    """Nothing lost, nothing in two hands, and all effects there exactly once."""
    check_dead_letters(nursery)
    nursery.run("work:retry_dead")
    report(nursery.ledger)
    problems = nursery.ledger.problems(nursery.database.statuses())
    assert not problems, "\n".join(problems[:20])
    check_follow_ups(nursery)
    check_effects(nursery)
    assert nursery.database.ailments() == []


def check_dead_letters(nursery: Nursery) -> None:
    """Only what lost three workers, each of which we killed, or stopped for longer than the lease."""
    ledger = nursery.ledger
    lost = ledger.deaths.keys() | ledger.stops.keys()
    for job_id, status, crashes in nursery.ask("SELECT id, status, crashes FROM archive WHERE status <> 4"):
        workers = [who for (who,) in nursery.ask(CRASHED, job_id)]
        assert (status, crashes) == (5, MAX_CRASHES), f"{job_id} ended as {status} after {crashes} crashes"
        assert len(workers) == MAX_CRASHES, f"{job_id} lost {workers}"
        assert lost >= set(workers)


def check_follow_ups(nursery: Nursery) -> None:
    """Each parent has one child: it was committed with the parent's end, or not at all."""
    parents = [job_id for (job_id,) in nursery.ask("SELECT id FROM archive WHERE task = 'parent'")]
    children = [of for (of,) in nursery.ask("SELECT payload ->> 'of' FROM all_jobs WHERE task = 'child'")]
    assert Counter(children) == Counter(parents)


def check_effects(nursery: Nursery) -> None:
    """Each job's row is there once: it was committed with the job's end, or not at all."""
    ended = [job_id for (job_id,) in nursery.ask("SELECT id FROM archive WHERE task = 'effect'")]
    rows = [job_id for (job_id,) in nursery.ask("SELECT job_id FROM effects")]
    assert Counter(rows) == Counter(ended)


def report(ledger: Ledger) -> None:
    numbers = f"{len(ledger.deaths)} kills, {len(ledger.acknowledged)} jobs acknowledged"
    if ledger.stops:
        numbers += f", {sum(map(len, ledger.stops.values()))} stops, {len(ledger.late)} started late by a zombie"
    print(f"{numbers}, runs per job: {tally(ledger.runs.values())}")
