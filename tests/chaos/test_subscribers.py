"""Durable subscribers whose processes die or are stopped: each change is handled once, or again with the same id.

Again is allowed only if a process died, or lost its place, between its action and the save of its place.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mainspring.ids import new_id
from mainspring.job import NewJob
from mainspring.stores.connect import connect
from tests.chaos.conftest import ALL_STORES, LONG, Chaos, dynamodb_if_long, each_store_and_dynamodb
from tests.chaos.processes import Nursery, Process
from tests.chaos.programs.subscribers import MOMENTS
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

LEASE = 3.0  # seconds; a live process on a busy machine must not look dead
DEATHS = [
    (store, moment)
    for store in ALL_STORES
    for moment in MOMENTS
    if LONG or store != "dynamodb" or moment == "after the action"
]


@pytest.mark.parametrize(("nursery", "moment"), DEATHS, indirect=["nursery"])
def test_a_change_is_handled_again_only_if_its_process_died_after_the_action(nursery: Nursery, moment: str) -> None:
    victim = serving(nursery, die=moment, number=3)
    jobs = enqueue(nursery, 5)
    assert victim.wait() == -signal.SIGKILL
    heir = serving(nursery)
    done = handled(nursery, jobs)
    heir.send(signal.SIGTERM)
    assert heir.wait() == 0, heir.said()
    again = [change for change, times in Counter(change for change, _, _ in done).items() if times > 1]
    third = next(change for change, job_id, _ in done if job_id == jobs[2])
    assert again == ([third] if moment == "after the action" else [])
    assert [job_id for _, job_id, _ in done] == sorted(
        jobs + ([jobs[2]] if again else []), key=jobs.index
    )  # in order, and the repeated one at once


@dynamodb_if_long
def test_several_processes_handle_each_change_once_and_the_next_takes_over(nursery: Nursery, chaos: Chaos) -> None:
    """Processes are killed at random; a change that was handled twice was the last one of a process that was killed."""
    rng = chaos.rng()
    crew = [serving(nursery, wait=number == 0) for number in range(3)]
    jobs: list[str] = []
    for _ in range(chaos.size(3, 60)):
        jobs += enqueue(nursery, rng.randint(1, 20))
        owner = owner_of(nursery, crew)
        owner.kill()
        crew.remove(owner)
        crew.append(serving(nursery, wait=False))
    jobs += enqueue(nursery, 5)
    done = handled(nursery, jobs)
    last_of = {who: change for change, _, who in done}
    dead = nursery.ledger.deaths
    for change, times in Counter(change for change, _, _ in done).items():
        assert times == 1 or any(last_of[who] == change for who in dead if who in last_of), f"{change}: {times} times"
    first = list(dict.fromkeys(job_id for _, job_id, _ in done))
    assert first == jobs


@dynamodb_if_long
def test_an_owner_that_was_stopped_for_longer_than_the_lease_cannot_move_the_place(nursery: Nursery) -> None:
    stopped = serving(nursery)
    handled(nursery, enqueue(nursery, 2))
    with stopped.stopped(between_writes=True):
        heir = serving(nursery)
        jobs = enqueue(nursery, 3)
        wait_until(lambda: set(jobs) <= {job_id for _, job_id, _ in actions(nursery)}, heir.said)
    stopped.wait_for("subscriber_lost")
    more = enqueue(nursery, 3)
    done = [action for action in handled(nursery, more) if action[1] in {*jobs, *more}]
    assert max(Counter(change for change, _, _ in done).values()) == 1
    assert {who for _, _, who in done} == {heir.who}


@each_store_and_dynamodb
def test_a_worker_that_stops_hands_over_the_place_before_the_lease_ends(nursery: Nursery) -> None:
    first = serving(nursery, lease=60.0)
    handled(nursery, enqueue(nursery, 2))
    first.send(signal.SIGTERM)
    assert first.wait() == 0, first.said()
    assert b'"owner": null' in owner_text(nursery)
    serving(nursery, lease=60.0)
    done = handled(nursery, enqueue(nursery, 2))
    assert max(Counter(change for change, _, _ in done).values()) == 1


# -- the scene ----------------------------------------------------------------------------------------------


def serving(nursery: Nursery, *, wait: bool = True, lease: float = LEASE, **settings: Any) -> Process:
    """A worker that serves the subscriber; with `wait`, it has joined and the subscriber has a place."""
    process = nursery.start("subscribers:serve", lease=lease, **settings)
    if wait:
        process.wait_for("worker_started")
        wait_until(lambda: nursery.database.documents("subscribers"), process.said)
    return process


def enqueue(nursery: Nursery, number: int) -> list[str]:
    jobs = [NewJob(id=new_id(), task="t", payload="{}") for _ in range(number)]

    async def insert() -> None:
        store = connect(nursery.database.url)
        for job in jobs:
            await store.insert([job])
        await store.close()

    asyncio.run(insert())
    return [job.id for job in jobs]


def actions(nursery: Nursery) -> list[tuple[str, str, str]]:
    path: Path = nursery.folder / "actions"
    if not path.exists():
        return []
    return [(change, job_id, who) for change, job_id, who in map(str.split, path.read_text().splitlines())]


def handled(nursery: Nursery, jobs: list[str]) -> list[tuple[str, str, str]]:
    """Wait until all these jobs were handled; return all actions."""
    wanted = set(jobs)
    wait_until(
        lambda: wanted <= {job_id for _, job_id, _ in actions(nursery)},
        lambda: "\n".join(process.said() for process in nursery.started if process.code is None),
    )
    return actions(nursery)


def owner_text(nursery: Nursery) -> bytes:
    (data,) = nursery.database.documents("subscribers")
    return data.encode()


def owner_of(nursery: Nursery, crew: list[Process]) -> Process:
    """The process that serves the subscriber now."""
    found = wait_until(lambda: [process for process in crew if f":{process.pid}:".encode() in owner_text(nursery)])
    return found[0]
