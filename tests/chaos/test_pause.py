"""SIGSTOP past the takeover, then SIGCONT: the zombie can say nothing in its job's name any more."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mainspring.stores.tables import COMPLETED, RUNNING
from tests.chaos.conftest import LONG, STORES, Chaos, each_store, each_store_if_long, long_only
from tests.chaos.ledger import Run
from tests.chaos.processes import Nursery, Process
from tests.chaos.waiting import wait_until
from tests.chaos.workers import Crew, check

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

WORKER: dict[str, Any] = {"heartbeat_interval": 0.1, "maintenance_interval": 0.1}

LEASE = 4.0  # seconds, where it is not for the first to run out


@dataclass(frozen=True)
class Way:
    """One way to lose a claim, and settings of the store that make it quick for the first worker only."""

    first: str
    second: str
    timeout: float | None
    move: str  # as the history has it


WAYS = {
    "lease": Way("", "lease=1", None, "crash"),  # no sign of life from its worker
    "stall": Way("stall_grace=0.2", "", 0.3, "retry"),  # it overran its timeout and the grace
}


def ways(*chosen: str) -> pytest.MarkDecorator:
    """`store-way`; in the long form all of them."""
    every = [f"{store}-{way}" for store in STORES for way in WAYS]
    cases = [(name.partition("-")[0], WAYS[name.partition("-")[2]]) for name in (every if LONG else chosen)]
    return pytest.mark.parametrize(("nursery", "way"), cases, indirect=["nursery"], ids=every if LONG else chosen)


@dataclass
class Scene:
    """A job that runs in two processes: the first lost its claim while it was stopped, the second has it now."""

    nursery: Nursery
    zombie: Process
    successor: Process
    job_id: str

    def let_go(self, token: int) -> None:
        (self.nursery.folder / f"go-{token}").touch()

    def run(self, token: int) -> Run:
        return next(run for run in self.nursery.ledger.runs[self.job_id] if run.token == token)

    def wait_ended(self, token: int) -> None:
        wait_until(lambda: self.run(token).end or self.run(token).fail, lambda: f"the end of run {token}")

    def job(self) -> tuple[Any, ...]:
        """How the store sees the running job: status, token, worker and the last progress."""
        columns = "status, token, worker, note"
        (row,) = self.nursery.ask(f"SELECT {columns} FROM jobs WHERE id = ?", self.job_id)
        return row

    def follow_ups(self) -> list[str]:
        children = "SELECT payload ->> 'of' FROM all_jobs WHERE task = 'child'"
        return [of for (of,) in self.nursery.ask(children)]

    def effects(self) -> list[str]:
        return [job for (job,) in self.nursery.ask("SELECT job_id FROM effects")]

    def check_untouched(self) -> None:
        """The second run still has the job, and nothing of the first is there."""
        assert self.job() == (RUNNING, 2, self.successor.who, "by 2")
        assert self.follow_ups() == []
        assert self.effects() == []

    def finish(self) -> None:
        self.let_go(2)
        ended = "SELECT status, token, worker, result FROM archive WHERE id = ?"
        (end,) = wait_until(lambda: self.nursery.ask(ended, self.job_id), lambda: "the job's end")
        assert end == (COMPLETED, 2, self.successor.who, "2")


def lose_claim(nursery: Nursery, way: Way, task: str) -> Scene:
    zombie = nursery.start("work:work", "zombie", settings=way.first, **WORKER)
    nursery.run("enqueue:some", task=task, timeout=way.timeout)
    wait_until(lambda: nursery.ask("SELECT 1 FROM jobs WHERE note = 'by 1'"), lambda: "the first run")
    zombie.stop(between_writes=True)
    successor = nursery.start("work:work", "successor", settings=way.second, **WORKER)
    wait_until(lambda: nursery.ask("SELECT 1 FROM jobs WHERE note = 'by 2'"), lambda: "the takeover")
    ((job_id,),) = nursery.ask("SELECT id FROM jobs")
    assert nursery.ask("SELECT worker, move FROM attempts WHERE job_id = ?", job_id) == [("zombie", way.move)]
    zombie.send(signal.SIGCONT)
    return Scene(nursery, zombie, successor, job_id)


@ways("sqlite-lease", "sqlite-stall", "postgres-lease")
@pytest.mark.parametrize("task", ["held_thread", "held_quietly"])
def test_a_zombie_cannot_ack_report_or_follow_up(nursery: Nursery, way: Way, task: str) -> None:
    """Its thread goes on as if nothing had happened; the store refuses all it says."""
    scene = lose_claim(nursery, way, task)
    scene.let_go(1)
    scene.wait_ended(1)
    scene.zombie.wait_for("claim_lost")
    scene.check_untouched()
    scene.finish()
    assert scene.follow_ups() == ([f"{scene.job_id}/2"] if task == "held_thread" else [])


@ways("sqlite-lease", "sqlite-stall", "postgres-lease")
def test_a_zombie_cannot_commit_a_transaction(nursery: Nursery, way: Way) -> None:
    scene = lose_claim(nursery, way, "held_transaction")
    scene.let_go(1)
    scene.wait_ended(1)
    assert scene.run(1).fail, "ClaimLost was to be raised"
    scene.check_untouched()
    scene.finish()
    assert scene.follow_ups() == scene.effects() == [f"{scene.job_id}/2"]


@ways("sqlite-lease", "sqlite-stall")
def test_a_zombie_coroutine_is_stopped_when_its_worker_hears_of_it(nursery: Nursery, way: Way) -> None:
    patient = replace(way, timeout=way.timeout and 4.0)  # the second run is stopped at its timeout too
    scene = lose_claim(nursery, patient, "held")
    scene.wait_ended(1)
    assert scene.run(1).fail
    scene.check_untouched()
    scene.finish()


@each_store_if_long
def test_a_zombie_works_again_once_it_goes_on(nursery: Nursery) -> None:
    scene = lose_claim(nursery, WAYS["lease"], "held")
    scene.wait_ended(1)
    scene.finish()
    wait_until(lambda: scene.job_id in nursery.ledger.done, scene.successor.said)  # it tells after it has written
    scene.successor.kill()
    nursery.run("enqueue:some", number=3)
    wait_until(lambda: nursery.ledger.acknowledged <= nursery.ledger.done.keys(), scene.zombie.said)
    assert len(nursery.ledger.of("end", who="zombie")) >= 3


@each_store
def test_a_machine_that_slept_takes_nothing_from_its_workers(nursery: Nursery, chaos: Chaos) -> None:
    """All stop and go on together, as when a laptop or a virtual machine is suspended: no worker was dead."""
    alone: dict[str, Any] = {"concurrency": 1, "prefetch": 0, "settings": "lease=2"}
    workers = [nursery.start("work:work", **alone, **WORKER) for _ in range(2)]
    nursery.run("enqueue:some", number=2, task="held")
    wait_until(lambda: len(nursery.ledger.of("start")) == 2, lambda: "both runs")
    for _ in range(chaos.size(1, 10)):
        wait_for_heartbeats(nursery, workers)
        suspend(workers, seconds=2.5)
    (nursery.folder / "go-1").touch()
    nursery.wait_until_all_is_finished()
    assert nursery.ask("SELECT token, crashes FROM archive WHERE task = 'held'") == [(1, 0), (1, 0)]


@long_only
@each_store
def test_workers_that_are_stopped_for_longer_than_the_lease_at_random(nursery: Nursery, chaos: Chaos) -> None:
    crew = Crew(nursery, chaos.rng(), settings=f"lease={LEASE}")
    for _ in range(30):
        crew.wait_for_work()
        crew.stop_one(seconds=crew.rng.uniform(1.0, 2.0) * LEASE)
    crew.finish()
    check(nursery)


def suspend(workers: Sequence[Process], seconds: float) -> None:
    for worker in workers:
        worker.send(signal.SIGSTOP)
    time.sleep(seconds)  # longer than the lease
    for worker in workers:
        worker.send(signal.SIGCONT)


def wait_for_heartbeats(nursery: Nursery, workers: Sequence[Process]) -> None:
    """Until each has given one more."""
    before = nursery.database.beats()
    wait_until(lambda: all(nursery.database.beats()[worker.who] > before[worker.who] for worker in workers))
