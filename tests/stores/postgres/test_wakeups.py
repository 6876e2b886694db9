"""Waiting jobs are woken once, whatever runs concurrently."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from mainspring.errors import ConfigurationError, StoreError, StoreUnavailable
from mainspring.job import UNTIL_WOKEN, Claim, Inserted, Move, Outcome, Save, Status, Step, end_of
from mainspring.stores.postgres import PostgresStore, acks, insertion
from mainspring.stores.postgres.partitions import DAY
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Action, Filter, Severity
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    by_hand,
    claim,
    claim_one,
    end,
    new_job,
    outcome,
    put,
    running,
    status_of,
)
from tests.stores.postgres.cutting import cut_line
from tests.stores.postgres.several import Stores
from tests.worker.working import eventually

ODD = 'tab\there, line\nthere\r, back\\slash, "quotes", {braces}, \\N and \\. and ünïcödé'
PROGRAMS = 6
LOCKED_OUT = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
STEP = Step("fetch", 1, "step", '{"rows": 7}', 1_000, 2_000)


@pytest.fixture
async def programs(stores: Stores) -> list[PostgresStore]:
    return [await stores.another() for _ in range(PROGRAMS)]


def suspend(held: Claim, waits_for: str) -> Outcome:
    return outcome(held, Move.SUSPEND, waits_for=waits_for, delay=UNTIL_WOKEN)


async def assert_sound(store: PostgresStore) -> None:
    assert [finding for finding in await store.diagnose() if finding.severity is Severity.ERROR] == []


class Slowly:
    """A transaction that has done its work and takes its time to commit."""

    def __init__(self, store: PostgresStore, *outcomes: Outcome) -> None:
        self._store = store
        self._outcomes = list(outcomes)
        self._done, self._may_commit = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._store._run(self._work))
        await self._done.wait()

    async def _work(self, transaction: Transaction) -> None:
        assert None not in await acks.ack(transaction, self._outcomes)
        self._done.set()
        await self._may_commit.wait()

    async def __aexit__(self, *_: object) -> None:
        self._may_commit.set()
        await self._task


async def meanwhile(stores: Stores, work: Awaitable[Any]) -> asyncio.Future[Any]:
    """Until it is done, or waits for another's lock."""
    task = asyncio.ensure_future(work)
    await eventually(lambda: task.done() or stores.ask(LOCKED_OUT, stores.schema))
    return task


# -- a job begins to wait while what it waits for ends ----------------------------------------------


@pytest.mark.parametrize("move", [Move.DONE, Move.DEAD])
async def test_an_end_that_is_not_committed_is_not_missed(programs: list[PostgresStore], move: Move) -> None:
    child, parent = await running(programs[0]), await running(programs[1])
    async with Slowly(programs[0], outcome(child, move)):
        assert await programs[1].ack([suspend(parent, end_of(child.id))]) == [Status.SUSPENDED]
        assert await status_of(programs[2], child.id) is Status.RUNNING  # so to look once more would not help
    assert [held.id for held in await claim(programs[2])] == [parent.id]
    await assert_sound(programs[0])


@pytest.mark.parametrize("move", [Move.DONE, Move.DEAD])
async def test_a_wait_that_is_not_committed_does_not_miss_the_end(
    stores: Stores, programs: list[PostgresStore], move: Move
) -> None:
    child, parent = await running(programs[0]), await running(programs[1])
    async with Slowly(programs[1], suspend(parent, end_of(child.id))):
        ending = await meanwhile(stores, end(programs[0], child, move))
        assert not ending.done()
    assert await ending in {Status.COMPLETED, Status.DEAD_LETTER}
    assert await status_of(programs[2], parent.id) is Status.PENDING
    await assert_sound(programs[0])


@pytest.mark.parametrize("move", [Move.DONE, Move.DEAD])
async def test_a_suspension_and_the_end_it_waits_for_in_one_ack_make_the_job_due(
    store: PostgresStore, move: Move
) -> None:
    child, parent = await running(store), await running(store)
    await store.ack([suspend(parent, end_of(child.id)), outcome(child, move)])
    assert await status_of(store, parent.id) is Status.PENDING
    await assert_sound(store)


@pytest.mark.parametrize("number", [1, insertion.COPY_THRESHOLD])
async def test_a_job_inserted_as_suspended_does_not_miss_the_end(programs: list[PostgresStore], number: int) -> None:
    child = await running(programs[0])
    jobs = [new_job(waits_for=end_of(child.id)) for _ in range(number)]
    async with Slowly(programs[0], outcome(child, Move.DONE)):
        assert all(inserted.created for inserted in await programs[1].insert(jobs))
    assert len(await claim(programs[2], 1000)) == number
    await assert_sound(programs[0])


async def test_a_job_in_the_callers_transaction_does_not_miss_the_end(
    stores: Stores, programs: list[PostgresStore]
) -> None:
    child = await running(programs[0])
    job = new_job(waits_for=end_of(child.id))
    with stores.connect() as caller:
        await programs[1].insert([job], caller)
        ending = await meanwhile(stores, end(programs[0], child, Move.DONE))
        assert not ending.done()
    await ending
    assert [held.id for held in await claim(programs[2])] == [job.id]


async def test_a_job_that_is_waited_for_can_be_claimed_and_report(programs: list[PostgresStore]) -> None:
    """Only its end has to wait for jobs that are about to wait for it."""
    child, parent = await put(programs[0], queue="children"), await running(programs[1])
    async with Slowly(programs[1], suspend(parent, end_of(child))), asyncio.timeout(20):
        held = await claim_one(programs[0], queue="children")
        assert await end(programs[0], held, Move.RETRY) is Status.RETRYING


@pytest.mark.slow
async def test_a_waiting_job_is_woken_or_sees_the_end(programs: list[PostgresStore]) -> None:
    """Many times at once, as two programs would do it that know nothing of each other."""

    async def wait_for(store: PostgresStore, parent: Claim, child: Claim) -> bool:
        await store.ack([suspend(parent, end_of(child.id))])
        (job,) = await store.get([child.id])
        return job.finished

    async def end_and_wait(number: int) -> None:
        ending, waiting = programs[number % PROGRAMS], programs[(number + 1) % PROGRAMS]
        child, parent = await running(ending, queue=f"c{number}"), await running(waiting, queue=f"p{number}")
        _, seen = await asyncio.gather(end(ending, child, Move.DONE), wait_for(waiting, parent, child))
        assert seen or await status_of(waiting, parent.id) is Status.PENDING

    for start in range(0, 80, 20):
        await asyncio.gather(*map(end_and_wait, range(start, start + 20)))
    await assert_sound(programs[0])


# -- several wake at once ---------------------------------------------------------------------------


@pytest.mark.slow
async def test_no_more_jobs_are_woken_than_asked_for(programs: list[PostgresStore]) -> None:
    await programs[0].insert([new_job(waits_for="bell", priority=number % 4) for number in range(100)])
    for _ in range(5):
        woken = await asyncio.gather(*(store.wake({"bell": 3}) for store in programs))
        assert [counts["bell"] for counts in woken] == [3] * PROGRAMS
    assert len(await claim(programs[0], 1000)) == 15 * PROGRAMS
    woken = await asyncio.gather(*(store.wake({"bell": 1000}) for store in programs))
    assert sum(counts["bell"] for counts in woken) == 100 - 15 * PROGRAMS
    await assert_sound(programs[0])


async def test_a_locked_job_is_woken_when_the_lock_is_released_unchanged(stores: Stores, store: PostgresStore) -> None:
    """The lock may be of a dry run or of a claim that was cut: no other process would wake it."""
    job = new_job(waits_for="bell")
    await store.insert([job])
    with stores.connect() as other:
        other.execute(f"SELECT 1 FROM {stores.schema}.jobs WHERE id = %s FOR UPDATE".encode(), (job.id,))
        waking = await meanwhile(stores, store.wake({"bell": 1}))
        assert not waking.done()
        other.rollback()
    assert await waking == {"bell": 1}
    assert (await claim_one(store)).id == job.id


async def test_a_concurrent_wake_takes_the_next_job(stores: Stores, store: PostgresStore) -> None:
    first, second = new_job(waits_for="bell"), new_job(waits_for="bell")
    await store.insert([first, second])
    with stores.connect() as other:
        other.execute(f"SELECT * FROM {stores.schema}.wake(ARRAY['bell'], ARRAY[1], 1)".encode())
        async with asyncio.timeout(20):
            assert await store.wake({"bell": 1}) == {"bell": 1}
    assert {held.id for held in await claim(store)} == {first.id, second.id}


async def test_a_parent_and_its_child_can_be_cancelled_while_the_child_ends(programs: list[PostgresStore]) -> None:
    for _ in range(10):
        parent, child = await running(programs[0]), await running(programs[0])
        await programs[0].ack([suspend(parent, end_of(child.id))])
        await asyncio.gather(
            end(programs[1], child, Move.DONE), by_hand(programs[2], Action.CANCEL, parent.id, child.id)
        )
        assert await status_of(programs[0], child.id) is Status.COMPLETED
        assert await status_of(programs[0], parent.id) in {Status.CANCELLED, Status.PENDING}
    await assert_sound(programs[0])


# -- keys as they are ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 3, insertion.COPY_THRESHOLD])
async def test_any_text_may_be_a_key(store: PostgresStore, number: int) -> None:
    jobs = [new_job(waits_for=ODD, target=("guest", ODD) if n % 2 else None) for n in range(number)]
    await store.insert(jobs)
    assert {job.waits_for for job in (await store.find(Filter(), limit=1000)).jobs} == {ODD}
    assert await store.wake({ODD: 2**40}) == {ODD: number}
    assert len(await claim(store, 1000)) == number


async def test_a_key_that_is_too_long_is_refused_for_good(store: PostgresStore) -> None:
    long = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz", k=10_000))  # so that no compression helps
    held = await running(store)
    with pytest.raises(ConfigurationError, match="the key that it waits for has more than 500 characters"):
        await store.insert([new_job(waits_for=long)])
    with pytest.raises(StoreError, match="too long") as refused:
        await store.save([Save(held.id, held.token, (Step(long, 1),))])
    assert not isinstance(refused.value, StoreUnavailable)
    assert await end(store, held, Move.DONE) is Status.COMPLETED


async def test_the_end_of_an_unknown_id_can_be_waited_for(store: PostgresStore) -> None:
    parent = await running(store)
    await store.ack([suspend(parent, end_of("nonsense"))])
    assert await store.wake({end_of("nonsense"): 1}) == {end_of("nonsense"): 1}


# -- steps ------------------------------------------------------------------------------------------


async def test_steps_of_many_concurrent_runs_are_all_saved(programs: list[PostgresStore]) -> None:
    store = programs[0]
    await store.insert([new_job() for _ in range(20)])
    claims = await claim(store, 20)

    async def save(held: Claim) -> list[list[Inserted] | None]:
        steps = tuple(Step(f"step {n}", n, output=f'"{ODD[:n]}"') for n in range(1, 6))
        return await store.save([Save(held.id, held.token, steps, (new_job(queue="children"),))])

    answers = await asyncio.gather(*map(save, claims))
    assert [spawned and spawned[0].created for (spawned,) in answers] == [True] * 20
    assert {len(await store.steps(held.id)) for held in claims} == {5}
    assert len(await claim(store, 100, queue="children")) == 20


async def test_the_last_of_two_steps_with_one_name_counts(store: PostgresStore) -> None:
    held = await running(store)
    newer = Step("fetch", 1, output="2")
    assert await store.save([Save(held.id, held.token, (STEP, newer)), Save(held.id, held.token - 1, (STEP,))]) == [
        [],
        None,
    ]
    assert await store.steps(held.id) == [newer]


async def test_a_save_whose_answer_got_lost_is_repeated(stores: Stores, tmp_path: Path) -> None:
    async with cut_line(stores, tmp_path) as line:
        far = PostgresStore(line.dsn, schema_name=stores.schema)
        held = await running(far)
        child = new_job(queue="children", options='{"cut": "here"}')
        line.after = b"COMMIT"
        save = Save(held.id, held.token, (STEP,), (child,))
        assert await far.save([save]) == [[Inserted(child.id, created=True)]]
        await end(far, await claim_one(far, queue="children"), Move.DONE)
        assert await far.save([save]) == [
            [Inserted(child.id, created=True)]
        ]  # whichever program repeats it, and however late
        assert await claim(far, queue="children") == []
        assert await far.steps(held.id) == [STEP]
        await assert_sound(far)
        await far.close()


async def test_a_repeated_save_meets_the_end_of_its_job(stores: Stores, programs: list[PostgresStore]) -> None:
    parent, child = await running(programs[0]), new_job(queue="children")
    save = Save(parent.id, parent.token, (STEP,), (child,))
    await programs[0].save([save])
    held = await claim_one(programs[1], queue="children")
    async with Slowly(programs[1], outcome(held, Move.DONE)):
        repeating = await meanwhile(stores, programs[0].save([save]))
    assert await repeating == [[Inserted(child.id, created=True)]]
    assert await claim(programs[0], queue="children") == []
    await assert_sound(programs[0])


async def test_steps_go_with_the_day_of_their_job(stores: Stores) -> None:
    clock = ManualClock()
    store = await stores.another(clock=clock)
    gone, kept = await running(store, keep=2 * DAY), await running(store, keep=9 * DAY)
    for held in (gone, kept):
        await store.save([Save(held.id, held.token, (STEP,))])
        await end(store, held, Move.DONE)
    clock.advance(4 * DAY / 1000)
    assert await store.prune() == 1
    assert stores.ask("SELECT job_id::text FROM {s}.steps") == [kept.id]
