"""The window of grouped acks: a kill makes run twice what ended within the delay and one commit before it, no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.conftest import Chaos, each_store_if_long
from tests.chaos.ledger import Ledger
from tests.chaos.processes import Nursery, Process
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

WORKER: dict[str, Any] = {"concurrency": 4, "prefetch": 20, "maintenance_interval": 0.05}
COMMIT = 0.5  # seconds that one commit may take, on a machine that has other things to do
SUSPECTS = "SELECT 1 FROM jobs WHERE crashes > 0 LIMIT 1"


@each_store_if_long
@pytest.mark.parametrize("delay", [0.005, 0.1])
def test_only_what_ended_within_the_delay_and_a_commit_runs_twice(nursery: Nursery, chaos: Chaos, delay: float) -> None:
    killed = kill_while_draining(nursery, chaos, "short", ack_delay=delay)
    ledger = nursery.ledger
    repeated = {worker.who: ledger.repeated(worker.who) for worker in killed}
    print(f"ack_delay {delay}: repeated per kill: {[len(runs) for runs in repeated.values()]}")
    for who, runs in repeated.items():
        oldest = min((run.end for run in runs if run.end is not None), default=ledger.deaths[who])
        assert ledger.deaths[who] - oldest <= (delay + COMMIT) * 1e9
        assert {run.job_id for run in runs} == ended_since(ledger, who, oldest), (
            "it was not the last that were unwritten"
        )
    assert any(repeated.values()) or not chaos.long, "no kill fell into the window: this shows nothing"
    assert ledger.problems(nursery.database.statuses()) == []


@each_store_if_long
def test_of_tasks_with_sync_acks_no_more_than_run_at_once_run_twice(nursery: Nursery, chaos: Chaos) -> None:
    killed = kill_while_draining(nursery, chaos, "quick_sync", ack_delay=0.1)
    ledger = nursery.ledger
    repeated = [len(ledger.repeated(worker.who)) for worker in killed]
    print(f"sync: repeated per kill: {repeated}")
    assert max(repeated) <= WORKER["concurrency"]
    assert ledger.problems(nursery.database.statuses()) == []


def kill_while_draining(nursery: Nursery, chaos: Chaos, task: str, ack_delay: float) -> list[Process]:
    """Kill one worker after another in the middle of quick jobs; the last one does what is left."""
    rng, killed = chaos.rng(), []
    for _ in range(chaos.size(2, 50)):
        worker = nursery.start("work:work", settings=nursery.database.watchful, ack_delay=ack_delay, **WORKER)
        wait_until(lambda: not nursery.ask(SUSPECTS), worker.said)  # those of the last kill
        size = nursery.ledger_size() + rng.randrange(80_000, 140_000)
        nursery.run("enqueue:some", number=700, task=task)
        wait_for_some(nursery, worker, size)
        worker.kill()
        killed.append(worker)
    last = nursery.start("work:work", settings=nursery.database.watchful, ack_delay=ack_delay, **WORKER)
    wait_until(lambda: not nursery.ask("SELECT 1 FROM jobs LIMIT 1"), last.said, seconds=300)
    last.kill()
    return killed


def wait_for_some(nursery: Nursery, worker: Process, size: int) -> None:
    """Until it has run for longer than the window: each of the 700 takes some 220 bytes of the ledger, and 2 ms."""
    wait_until(lambda: nursery.ledger_size() >= size, worker.said, every=0.001)


def ended_since(ledger: Ledger, who: str, moment: int) -> set[str]:
    return {entry.job_id for entry in ledger.of("end", who=who) if entry.at >= moment}
