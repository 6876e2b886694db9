"""Several programs at once, on one database: nothing is done twice and nothing is left out."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from mainspring.errors import StoreError, StoreUnavailable, SystemHalted
from mainspring.job import Claim, Move, Status
from mainspring.stores.documents import By
from mainspring.stores.postgres import PostgresStore, acks
from mainspring.stores.postgres.partitions import DAY
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Action, Filter, Severity, Want
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    a_halt,
    by_hand,
    claim,
    claim_one,
    end,
    join,
    new_job,
    outcome,
    put,
    put_many,
    running,
    status_of,
)
from tests.stores.postgres.several import Stores
from tests.worker.working import eventually

JOBS = 500
PROGRAMS = 8
WAITING = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"


@pytest.fixture
async def programs(stores: Stores) -> list[PostgresStore]:
    return [await stores.another() for _ in range(PROGRAMS)]


async def assert_sound(store: PostgresStore) -> None:
    assert [finding for finding in await store.diagnose() if finding.severity is Severity.ERROR] == []


# -- claims ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_programs_that_claim_from_one_queue_share_its_jobs(programs: list[PostgresStore], limit: int) -> None:
    ids = await put_many(programs[0], JOBS)

    async def claim_all(number: int) -> list[Claim]:
        """Until there is nothing left; what another is just taking shows as soon due."""
        taken: list[Claim] = []
        while True:
            found = await programs[number].claim(f"w{number}", [Want("default", limit)])
            taken += found.jobs
            if not found.jobs and found.next_due is None:
                return taken

    taken = [held for claims in await asyncio.gather(*map(claim_all, range(PROGRAMS))) for held in claims]
    assert Counter(held.id for held in taken) == Counter(ids)
    assert {held.token for held in taken} == {1}
    statuses = await asyncio.gather(*(random.choice(programs).ack([outcome(held, Move.DONE)]) for held in taken))
    assert statuses == [[Status.COMPLETED]] * JOBS
    assert (await programs[0].stats()).queues[0].by_status == {Status.COMPLETED: JOBS}
    await assert_sound(programs[0])


@pytest.mark.slow
async def test_concurrent_programs_complete_every_job_once(programs: list[PostgresStore]) -> None:
    """Inserted, claimed, failed, retried and completed by whichever program comes first, with a new day's partition."""
    done: Counter[str] = Counter()

    async def live(number: int) -> None:
        store = programs[number]
        for _ in range(15):
            await put_many(store, 5, keep=number * DAY)
            for held in await claim(store, 7, worker=f"w{number}"):
                move = random.choice([Move.DONE, Move.DONE, Move.RETRY, Move.RELEASE])
                status = await end(store, held, move)
                assert status is not None
                done[held.id] += status is Status.COMPLETED
            await store.prune()

    await asyncio.gather(*map(live, range(PROGRAMS)))
    for held in await claim(programs[0], 1000):
        assert await end(programs[0], held, Move.DONE) is Status.COMPLETED
        done[held.id] += 1
    assert sorted(done.values()) == [0] * (len(done) - PROGRAMS * 75) + [1] * (PROGRAMS * 75)
    await assert_sound(programs[0])


# -- dedupe keys ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dedupe_for", [None, 60_000], ids=["live", "lasting"])
async def test_one_of_many_concurrent_inserts_with_one_key_wins(
    programs: list[PostgresStore], dedupe_for: int | None
) -> None:
    for round_ in range(10):
        jobs = [new_job(dedupe_key=f"k{round_}", dedupe_for=dedupe_for) for _ in range(20)]
        answers = await asyncio.gather(*(programs[n % PROGRAMS].insert([job]) for n, job in enumerate(jobs)))
        (winner,) = {inserted.id for (inserted,) in answers}
        assert sum(inserted.created for (inserted,) in answers) == 1
        assert winner in {job.id for job in jobs}
    assert await programs[0].count(Filter()) == 10


@pytest.mark.slow
async def test_inserts_with_the_same_keys_in_another_order_do_not_deadlock(
    programs: list[PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store would retry after a deadlock, so that only the time it takes would show it."""
    keys, met = [f"k{n}" for n in range(10)], list[StoreError]()
    ask = PostgresStore._worth_another_try

    async def noting(store: PostgresStore, error: StoreError) -> bool:
        met.append(error)
        return await ask(store, error)

    monkeypatch.setattr(PostgresStore, "_worth_another_try", noting)

    async def insert(store: PostgresStore) -> int:
        shuffled = random.sample(keys, len(keys))
        return sum(inserted.created for inserted in await store.insert([new_job(dedupe_key=key) for key in shuffled]))

    for _ in range(10):
        assert sum(await asyncio.gather(*map(insert, programs))) == len(keys)
        for held in await claim(programs[0], 100):
            await end(programs[0], held, Move.DONE)
    assert [error for error in met if isinstance(error.__cause__, psycopg.errors.DeadlockDetected)] == []


async def test_the_same_job_inserted_twice_at_once_is_one(programs: list[PostgresStore]) -> None:
    for options in ({}, {"dedupe_key": "a"}):
        job = new_job(**options)
        answers = await asyncio.gather(*(store.insert([job]) for store in programs))
        assert [(inserted.id, inserted.created) for (inserted,) in answers] == [(job.id, True)] * PROGRAMS
    assert (await programs[0].stats()).queues[0].by_status == {Status.PENDING: 2}


async def unanswered(work: Callable[[], Awaitable[Any]], **_options: Any) -> None:
    """The call succeeds, and its answer is lost."""
    await work()
    raise StoreUnavailable


@pytest.mark.parametrize("options", [{}, {"dedupe_key": "a"}])
@pytest.mark.parametrize("others", [0, 1, 300])
async def test_a_repeated_insert_meets_the_end_of_its_job(
    programs: list[PostgresStore], stores: Stores, monkeypatch: pytest.MonkeyPatch, others: int, options: dict[str, Any]
) -> None:
    """Its first try had arrived, only the answer was lost; the job was run, and its end is just being committed."""
    ours, theirs = programs[:2]
    job = new_job(**options)
    with monkeypatch.context() as patch:
        patch.setattr(ours, "_with_retries", unanswered)
        with pytest.raises(StoreUnavailable):
            await ours.insert([job])
    held = await claim_one(theirs)
    ended, seen = asyncio.Event(), asyncio.Event()

    async def end_slowly(transaction: Transaction) -> None:
        await acks.ack(transaction, [outcome(held, Move.DONE)])
        ended.set()
        await seen.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(theirs._run(end_slowly))
        await ended.wait()
        repeating = tasks.create_task(ours.insert([job, *(new_job(delay=60_000) for _ in range(others))]))
        await eventually(lambda: repeating.done() or stores.ask(WAITING, stores.schema))
        seen.set()
    assert repeating.result()[0].id == job.id
    assert await claim(ours) == []
    await assert_sound(ours)


# -- halts ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("queue", [None, "default"])
async def test_after_a_halt_returned_nothing_is_claimed(programs: list[PostgresStore], queue: str | None) -> None:

    async def claim_on(number: int, halted: asyncio.Event) -> list[Claim]:
        """What was claimed last, by a claim that began after the halt."""
        while not halted.is_set():
            await claim(programs[number], 2, worker=f"w{number}")
        return await claim(programs[number], 2, worker=f"w{number}")

    for _ in range(5):
        await put_many(programs[0], 200)
        halted = asyncio.Event()
        claiming = asyncio.gather(*(claim_on(number, halted) for number in range(1, PROGRAMS)))
        await programs[0].halt(a_halt(ManualClock(), queue=queue))
        waiting = (await programs[0].stats()).queues[0][Status.PENDING]
        halted.set()
        assert await claiming == [[]] * (PROGRAMS - 1)
        assert (await programs[0].stats()).queues[0][Status.PENDING] == waiting
        await programs[0].resume(By("ana"), queue)


@pytest.mark.slow
async def test_after_a_halt_that_refuses_returned_nothing_comes_in(programs: list[PostgresStore]) -> None:
    async def insert_on(store: PostgresStore) -> int:
        inserted = 0
        while True:
            try:
                await store.insert([new_job() for _ in range(3)])
            except SystemHalted:
                return inserted
            inserted += 3

    inserting = asyncio.gather(*map(insert_on, programs[1:]))
    await put_many(programs[0], 10)
    await programs[0].halt(a_halt(ManualClock(), accept=False))
    number = await programs[0].count(Filter())
    assert sum(await inserting) + 10 == number
    assert await programs[0].count(Filter()) == number
    await assert_sound(programs[0])


# -- endings --------------------------------------------------------------------------------------


async def test_two_programs_that_reap_one_dead_worker_take_each_job_once(stores: Stores) -> None:
    clock = ManualClock()
    first, second = await stores.another(clock=clock), await stores.another(clock=clock)
    await join(first, "dead")
    await put_many(first, 50)
    held = await claim(first, 50, worker="dead")
    assert len(held) == 50
    await asyncio.gather(first.reap(), second.reap())
    clock.advance(first.lease + 1)
    reaped = await asyncio.gather(first.reap(), second.reap())
    taken = reaped[0].takeovers + reaped[1].takeovers
    assert Counter(takeover.job_id for takeover in taken) == Counter(job.id for job in held)
    assert {takeover.crashes for takeover in taken} == {1}
    assert sorted([*reaped[0].dead, *reaped[1].dead]) == ["dead"]  # one of them recovers what it left half done
    assert await first.ack([outcome(job, Move.DONE) for job in held]) == [None] * 50
    await assert_sound(first)


@pytest.mark.slow
async def test_one_of_a_concurrent_ack_cancel_and_release_wins(programs: list[PostgresStore]) -> None:
    for _ in range(20):
        held = await running(programs[0])
        done, released, _ = await asyncio.gather(
            end(programs[0], held, Move.DONE),
            end(programs[1], held, Move.RELEASE),
            by_hand(programs[2], Action.CANCEL, held.id),
        )
        assert (done is None) != (released is None)
        if released is Status.PENDING and await status_of(programs[3], held.id) is Status.PENDING:
            await by_hand(programs[2], Action.CANCEL, held.id)
        assert await status_of(programs[3], held.id) in {Status.COMPLETED, Status.CANCELLED}
    await assert_sound(programs[0])


async def test_an_outcome_of_an_old_token_is_lost_also_beside_the_right_one(store: PostgresStore) -> None:
    zombie = await running(store)
    await end(store, zombie, Move.RELEASE)
    held = await claim_one(store, worker="w2")
    outcomes = [outcome(zombie, Move.DONE), outcome(held, Move.DONE), outcome(held, Move.DONE)]
    assert await store.ack(outcomes) == [None, Status.COMPLETED, None]


# -- the archive ----------------------------------------------------------------------------------


async def test_a_long_read_of_the_archive_blocks_nothing(store: PostgresStore, stores: Stores) -> None:
    """As a dump does: neither a new day, nor one that is over."""
    await end(store, await running(store, keep=0), Move.DONE)
    stores.ask("CREATE TABLE {s}.archive_3 PARTITION OF {s}.archive FOR VALUES FROM (3) TO (4)")
    with stores.connect() as dump:
        dump.execute(f"SELECT count(*) FROM {stores.schema}.archive".encode())
        async with asyncio.timeout(60):
            assert await end(store, await running(store, keep=DAY), Move.DONE) is Status.COMPLETED
            assert await store.prune() == 1
            await put(store)
    assert stores.ask("SELECT to_regclass('{s}.archive_3') IS NULL") == [False]
    assert sum(await asyncio.gather(store.prune(), (await stores.another()).prune())) == 0
    assert stores.ask("SELECT to_regclass('{s}.archive_3') IS NULL") == [True]
    await assert_sound(store)


# -- looking --------------------------------------------------------------------------------------


async def test_a_commit_during_a_diagnosis_is_not_reported_as_damage(store: PostgresStore, stores: Stores) -> None:
    """It has counted the jobs, and is to read the numbers that are kept of them, when a job comes in."""
    with stores.connect() as connection:
        connection.execute(f"LOCK TABLE {stores.schema}.counts IN ACCESS EXCLUSIVE MODE".encode())
        await store.insert([new_job()], connection)
        look = asyncio.create_task(assert_sound(store))
        await eventually(lambda: stores.ask(WAITING, stores.schema))
    await look
