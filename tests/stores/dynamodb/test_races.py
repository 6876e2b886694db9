"""Many programs on one table: nothing is done twice, nothing is left out, whatever their clocks say."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mainspring.job import Claim, Move, Status
from mainspring.stores.numbers import Measure
from mainspring.stores.protocol import Action, Filter, TakeoverCause, Want
from mainspring.testing.clock import ManualClock
from tests.conformance.numbers import total
from tests.conformance.scenario import (
    BY,
    a_halt,
    claim,
    claim_one,
    end,
    join,
    look,
    new_job,
    outcome,
    put,
    put_many,
    running,
)
from tests.dynamodb import FreshStore, endpoint
from tests.stores.dynamodb.conftest import Programs, client_of
from tests.stores.dynamodb.faults import Fault

pytestmark = pytest.mark.slow  # a real server

RACERS, ROUNDS = 20, 3


async def test_one_of_twenty_processes_gets_the_job_and_each_wakes_another_job(store: FreshStore) -> None:
    """Of thirty that wait, twenty are woken: none twice, and none before one that has waited for longer."""
    waiting = [new_job(queue="other", waits_for="race") for _ in range(RACERS + 10)]
    await store.insert(waiting)
    for number in range(ROUNDS):
        await put(store, queue=f"race-{number}")
    program = [sys.executable, str(Path(__file__).with_name("racers.py"))]
    command = [*program, store.table.name, endpoint(), str(RACERS), str(ROUNDS)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=120, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    won = Counter({number: sum(jobs for at, jobs in lines if at == number) for number in range(ROUNDS + 1)})
    assert len(lines) == RACERS * (ROUNDS + 1)
    assert won == dict.fromkeys(range(ROUNDS), 1) | {ROUNDS: RACERS}
    statuses = [job.status for job in await store.get([job.id for job in waiting])]
    assert statuses == [Status.PENDING] * RACERS + [Status.SUSPENDED] * 10
    assert await store.wake({"race": 99}) == {"race": 10}


@pytest.mark.parametrize("limit", [1, 10])
async def test_programs_share_a_queue(programs: Programs, limit: int) -> None:
    stores = [await programs.another() for _ in range(4)]
    for number, store in enumerate(stores):
        await join(store, f"w{number}")
    for store in stores:
        await store.reap()  # from now on they know of each other, and each begins with shards of its own
    ids = await put_many(programs.first, 60)

    async def take_all(number: int) -> list[Claim]:
        taken: list[Claim] = []
        while True:
            found = await stores[number].claim(f"w{number}", [Want("default", limit)])
            taken += found.jobs
            if not found.jobs and found.next_due is None:
                return taken

    taken = [job for claims in await asyncio.gather(*map(take_all, range(4))) for job in claims]
    assert sorted(job.id for job in taken) == sorted(ids)


async def test_a_job_halted_during_its_claim_is_not_given_out(programs: Programs) -> None:
    """The claim has written, the halt returns, and only then the claim looks: nothing starts after a halt."""
    store, other = programs.first, await programs.another()
    await join(store, "w1")
    (job_id,) = await put_many(store, 1)
    halted: list[str] = []

    whole = client_of(store).call

    async def call(operation: str, request: Any) -> dict[str, Any]:
        if operation == "BatchGetItem" and not halted:  # with which it looks
            assert (await look(other, job_id)).status is Status.RUNNING
            halted.append(operation)
            await other.halt(a_halt(ManualClock()))
        return await whole(operation, request)

    store.client.call = call  # type: ignore[method-assign]
    assert await claim(store) == []
    assert halted
    job = await look(other, job_id)
    assert (job.status, job.attempts, job.crashes) == (Status.PENDING, 0, 0)
    assert Measure.STARTED not in await total(store)


async def test_a_worker_that_was_buried_gets_nothing_before_it_is_back(programs: Programs, clock: ManualClock) -> None:
    """It was stopped for longer than the lease, and claims before its heart beats again."""
    store, other = programs.first, await programs.another()
    await join(store, "w1")
    await other.reap()
    clock.advance(store.lease + 1)
    await other.reap()
    job_id = await put(other)
    assert await claim(store) == []
    assert (await look(other, job_id)).status is Status.PENDING
    assert (await other.reap()).takeovers == []
    assert (await claim_one(store)).id == job_id


async def test_clocks_five_minutes_apart_lose_and_overlap_nothing(programs: Programs) -> None:
    clocks = [ManualClock() for _ in range(3)]
    for clock, minutes in zip(clocks, (-5, 0, 5), strict=True):
        clock.shift(60 * minutes)
    stores = [await programs.another(clock=clock) for clock in clocks]
    for number, store in enumerate(stores):
        await join(store, f"w{number}")
    ids = [inserted.id for store in stores for inserted in await store.insert([new_job() for _ in range(4)])]
    held: dict[str, tuple[int, Claim]] = {}
    done: set[str] = set()
    for _ in range(40):
        for clock in clocks:
            clock.advance(10)
        for number, store in enumerate(stores):
            for job in await claim(store, 2, worker=f"w{number}"):
                assert job.id not in held
                held[job.id] = number, job
        for number, store in enumerate(stores):
            mine = {job_id: job.token for job_id, (owner, job) in held.items() if owner == number}
            assert (await store.heartbeat(f"w{number}", mine)).lost == frozenset()
            assert (await store.reap()).takeovers == []
        for job_id, (number, job) in list(held.items())[:2]:
            assert await end(stores[number], job, Move.DONE) is Status.COMPLETED
            del held[job_id]
            done.add(job_id)
    assert done == set(ids)


@pytest.mark.parametrize("ahead", [-300, 300])
async def test_the_death_of_a_worker_is_timed_by_the_watchers_clock(programs: Programs, ahead: int) -> None:
    theirs, ours = ManualClock(), ManualClock()
    theirs.shift(ahead)
    store, watcher = await programs.another(clock=theirs), await programs.another(clock=ours)
    await join(store, "w1")
    held = await running(store)
    assert (await watcher.reap()).takeovers == []
    ours.advance(watcher.lease - 1)
    assert (await watcher.reap()).takeovers == []
    ours.advance(1)
    (takeover,) = (await watcher.reap()).takeovers
    assert (takeover.job_id, takeover.cause) == (held.id, TakeoverCause.CRASHED)
    assert await store.ack([outcome(held, Move.DONE)]) == [None]
    assert await watcher.count(Filter(statuses=(Status.PENDING,))) == 1


async def test_time_in_which_the_service_did_not_answer_proves_nothing(programs: Programs, clock: ManualClock) -> None:
    store, watcher = programs.first, await programs.another(budget=0.0)
    await join(store, "w1")
    held = await running(store)
    await watcher.reap()
    clock.advance(watcher.lease - 1)
    client_of(watcher).plan = lambda *_: Fault.LOST_BEFORE
    with pytest.raises(Exception, match="never arrives"):
        await watcher.reap()
    client_of(watcher).plan = lambda *_: None
    clock.advance(2)
    assert (await watcher.reap()).takeovers == []
    assert await end(store, held, Move.DONE) is Status.COMPLETED


async def test_either_an_insert_or_a_manual_retry_gets_the_key(programs: Programs) -> None:
    store, other = programs.first, await programs.another()
    await join(store, "w1")
    dead = await running(store, dedupe_key="k")
    await end(store, dead, Move.DEAD)
    fresh = new_job(dedupe_key="k")
    (inserted,), changed = await asyncio.gather(
        other.insert([fresh]), store.change(Action.RETRY, Filter(ids=(dead.id,)), BY)
    )
    live = await store.count(Filter(statuses=(Status.PENDING,)))
    assert live == 1
    assert inserted.created is (changed.ids == ())


async def test_a_job_that_was_retried_at_the_last_moment_keeps_its_key(programs: Programs) -> None:
    """The key of a job that ended is removed after the fact: not if the job is back by then."""
    store, other = programs.first, await programs.another()
    await join(store, "w1")
    held = await running(store, dedupe_key="k")
    whole = client_of(store).call

    async def call(operation: str, request: Any) -> dict[str, Any]:
        if operation == "DeleteItem":
            assert (await other.change(Action.RETRY, Filter(ids=(held.id,)), BY)).ids == (held.id,)
        return await whole(operation, request)

    store.client.call = call  # type: ignore[method-assign]
    assert await end(store, held, Move.DEAD) is Status.DEAD_LETTER
    (inserted,) = await other.insert([new_job(dedupe_key="k")])
    assert (inserted.id, inserted.created) == (held.id, False)


async def test_a_queues_limit_holds_when_a_claim_goes_on_to_others_shards(programs: Programs) -> None:
    stores = [await programs.another() for _ in range(2)]
    for number, store in enumerate(stores):
        await join(store, f"w{number}")
    for store in stores:
        await store.reap()
        store._turn = 0  # a claim that begins with its own shards
    await put_many(stores[0], 20, queue="mail")
    found = await stores[0].claim("w0", [Want("mail", 2), Want("sms", 5)])
    assert len(found.jobs) == 2


async def test_a_job_that_the_index_shows_at_two_places_is_given_out_once(store: FreshStore) -> None:
    """It was put off a little while the index was read. The try at its old place comes second, and is refused."""
    await join(store, "w1")
    job_id = await put(store)
    whole, is_taken = client_of(store).call, asyncio.Event()

    async def call(operation: str, request: Any) -> dict[str, Any]:
        takes = operation == "UpdateItem" and request["Key"]["PK"]["S"].startswith("job#")
        at_old_place = takes and "#2000-01-01T" in str(request["ExpressionAttributeValues"])
        if at_old_place:
            await is_taken.wait()
        answer = await whole(operation, request)
        if operation == "Query" and request.get("IndexName") == "places":
            now = [item["rank"]["S"] for item in answer["Items"] if item["rank"]["S"].endswith(job_id)]
            old_rank = f"2#2000-01-01T00:00:00.000Z#{job_id}"
            old = [{"rank": {"S": old_rank}, "job_type": {"S": "greet"}} for _ in now]
            answer["Items"] = old + answer["Items"]
        if takes and not at_old_place:
            is_taken.set()
        return answer

    store.client.call = call  # type: ignore[method-assign]
    assert [job.id for job in await claim(store)] == [job_id]
