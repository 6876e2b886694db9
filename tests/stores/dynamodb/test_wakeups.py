"""Waiting jobs are woken once, whatever process dies or answer is lost, and steps are removed with their job."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from typing import Any

import pytest

from mainspring.errors import StoreError, StoreUnavailable
from mainspring.job import UNTIL_WOKEN, Claim, Inserted, Move, NewJob, Priority, Save, Status, Step, end_of
from mainspring.stores.dynamodb import DynamoStore, transfer
from mainspring.stores.dynamodb.items import history
from mainspring.stores.dynamodb.wakeups import partition
from mainspring.stores.protocol import Action, Filter
from mainspring.stores.records import Kind
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    BY,
    by_hand,
    claim,
    claim_one,
    end,
    join,
    look,
    new_job,
    outcome,
    put,
    running,
    status_of,
)
from tests.conformance.wakeups import suspended
from tests.dynamodb import FreshStore
from tests.stores.dynamodb.conftest import Programs, client_of
from tests.stores.dynamodb.faults import Fault, once

pytestmark = pytest.mark.slow  # a real server

DAY = 86_400


async def waiters(store: DynamoStore, name: str) -> int:
    return len(await store.table.rows(partition(name)))


async def pending_wakeups(store: DynamoStore) -> int:
    return sum([len(await store.table.rows(f"wakeups#{part}")) for part in range(4)])


async def save(store: DynamoStore, held: Claim, *steps: Step, jobs: tuple[NewJob, ...] = ()) -> list[Inserted] | None:
    (answer,) = await store.save([Save(held.id, held.token, steps, jobs, held.ref)])
    return answer


# -- answers that get lost --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("number", [1, 3])
async def test_a_wake_up_wakes_as_many_as_it_is_for(store: FreshStore, fault: Fault, number: int) -> None:
    await store.insert([new_job(waits_for="bell") for _ in range(5)])
    client_of(store).plan = once(fault, "UpdateItem" if number == 1 else "BatchExecuteStatement")
    assert await store.wake({"bell": number}) == {"bell": number}
    assert client_of(store).met[fault] == 1
    assert await store.count(Filter(statuses=(Status.PENDING,))) == number
    assert await waiters(store, "bell") == 5 - number


@pytest.mark.parametrize("fault", Fault)
async def test_a_save_is_written_once(store: FreshStore, fault: Fault) -> None:
    await join(store, "w1")
    held = await running(store)
    child = new_job(queue="children", dedupe_key="k")
    client_of(store).plan = once(fault, "TransactWriteItems")
    assert await save(store, held, Step("spawn", 1), jobs=(child,)) == [Inserted(child.id, created=True)]
    assert client_of(store).met[fault] == 1
    assert len(await store.steps(held.id)) == 1
    assert len(await claim(store, queue="children")) == 1


async def test_a_save_that_was_never_answered_may_be_repeated(programs: Programs) -> None:
    store = await programs.another(budget=0.0)
    await join(store, "w1")
    held = await running(store)
    child = new_job(queue="children")
    client_of(store).plan = once(Fault.LOST_AFTER, "TransactWriteItems")
    with pytest.raises(StoreUnavailable):
        await save(store, held, Step("spawn", 1), jobs=(child,))
    assert await save(store, held, Step("spawn", 1), jobs=(child,)) == [Inserted(child.id, created=True)]
    assert await store.count(Filter(queues=("children",))) == 1


@pytest.mark.parametrize("fault", Fault)
async def test_a_suspension_is_written_once(store: FreshStore, fault: Fault) -> None:
    await join(store, "w1")
    held = await running(store)
    client_of(store).plan = once(fault, "TransactWriteItems")
    assert await end(store, held, Move.SUSPEND, delay=UNTIL_WOKEN, waits_for="bell") is Status.SUSPENDED
    assert await store.wake({"bell": 9}) == {"bell": 1}


async def test_an_outcome_with_many_steps_that_was_never_answered_is_known_again(programs: Programs) -> None:
    store = await programs.another(budget=0.0)
    await join(store, "w1")
    held = await running(store)
    steps = tuple(Step(f"s{number}", number) for number in range(120))
    client_of(store).plan = once(Fault.LOST_AFTER, "UpdateItem")
    with pytest.raises(StoreUnavailable):
        await end(store, held, Move.SUSPEND, delay=1000, steps=steps)
    assert await end(store, held, Move.SUSPEND, delay=1000, steps=steps) is Status.SUSPENDED
    assert len(await store.steps(held.id)) == 120


# -- processes that die -----------------------------------------------------------------------------------------


def dies_after(operation: str) -> Any:
    """This call is made; nothing after it."""
    met: list[str] = []

    def plan(called: str, request: dict[str, Any]) -> Fault | None:
        del request
        if met:
            return Fault.LOST_BEFORE
        if called == operation:
            met.append(called)
        return None

    return plan


@pytest.mark.parametrize("way", [Move.DONE, Move.DEAD, Action.CANCEL, Action.DELETE])
async def test_a_wake_up_that_its_process_did_not_live_to_carry_out_is_carried_out_by_others(
    programs: Programs, way: Any
) -> None:
    store, other = await programs.another(budget=0.0), programs.first
    await join(store, "w1")
    await join(other, "w2")
    child = await running(store)
    if isinstance(way, Action):
        await end(store, child, Move.SUSPEND, delay=UNTIL_WOKEN)
    parent = await suspended(store, end_of(child.id))
    client_of(store).plan = dies_after("TransactWriteItems")
    if isinstance(way, Move):
        child.ref = None  # so that it reads which jobs wait
        assert await end(store, child, way) is not None
    else:
        with contextlib.suppress(StoreUnavailable):  # it dies before it has written the audit log
            await store.change(way, Filter(ids=(child.id,)), BY)
    assert await status_of(other, parent) is Status.SUSPENDED
    await other.reap()  # it gives them the time until it looks again
    assert await status_of(other, parent) is Status.SUSPENDED
    await other.reap()
    assert await status_of(other, parent) is Status.PENDING
    assert await pending_wakeups(other) == 0


async def test_an_end_whose_waiters_were_woken_leaves_nothing(store: FreshStore) -> None:
    await join(store, "w1")
    child = await running(store)
    await suspended(store, end_of(child.id))
    await end(store, child, Move.DONE)
    assert await pending_wakeups(store) == 0
    assert await waiters(store, end_of(child.id)) == 0


async def test_a_late_wake_up_does_not_undo_that_of_a_later_end(programs: Programs) -> None:
    """Between its waking and its tidying up the job is retried by hand, waited for and ended again."""
    store, other = programs.first, await programs.another()
    await join(store, "w1")
    await join(other, "w2")
    child = await running(store)
    await suspended(store, end_of(child.id))
    whole = client_of(store).call
    parents: list[str] = []

    async def call(operation: str, request: Any) -> dict[str, Any]:
        if operation == "DeleteItem" and request["Key"]["PK"]["S"].startswith("wakeups#") and not parents:
            await by_hand(other, Action.RETRY, child.id)
            again = await claim_one(other, worker="w2", queue="default")
            parents.append(await suspended(other, end_of(child.id), queue="parents"))
            client_of(other).plan = dies_after("TransactWriteItems")
            other.client._budget = 0.0
            assert await end(other, again, Move.DEAD) is Status.DEAD_LETTER
            client_of(other).plan = lambda *_: None
        return await whole(operation, request)

    store.client.call = call  # type: ignore[method-assign]
    await claim(store, queue="parents")
    await end(store, child, Move.DEAD)
    assert await status_of(store, parents[0]) is Status.SUSPENDED
    await store.reap()
    await store.reap()
    assert await status_of(store, parents[0]) is Status.PENDING


# -- at once ----------------------------------------------------------------------------------------------


async def test_a_job_that_begins_to_wait_does_not_miss_a_concurrent_end(programs: Programs) -> None:
    store, other = programs.first, await programs.another()
    await join(store, "w1")
    await join(other, "w2")
    for number in range(20):
        child = await running(store, queue="children")
        parent = await running(other, worker="w2", queue=f"parents-{number}")

        async def wait(parent: Claim = parent, child: Claim = child, late: bool = bool(number % 2)) -> None:
            await asyncio.sleep(0.001 * late)
            await end(other, parent, Move.SUSPEND, delay=UNTIL_WOKEN, waits_for=end_of(child.id))
            if (await look(other, child.id)).finished:  # the suspending process looks once more
                await other.wake({end_of(child.id): 1})

        await asyncio.gather(wait(), end(store, child, Move.DONE if number % 3 else Move.DEAD))
        assert await status_of(store, parent.id) is Status.PENDING
    assert await pending_wakeups(store) == 0


async def test_many_may_begin_to_wait_for_one_end_at_once(programs: Programs) -> None:
    store, other = programs.first, await programs.another()
    await join(store, "w1")
    child = await running(store, queue="children")
    await store.insert([new_job() for _ in range(30)])
    held = await claim(store, 30)
    later = [new_job(queue="later", waits_for=end_of(child.id)) for _ in range(30)]
    waits = [outcome(job, Move.SUSPEND, delay=UNTIL_WOKEN, waits_for=end_of(child.id)) for job in held]
    await asyncio.gather(store.ack(waits), other.insert(later))
    await end(store, child, Move.DONE)
    statuses = {job.status for job in await store.get([*(claimed.id for claimed in held), *(job.id for job in later)])}
    assert statuses == {Status.PENDING}


async def test_a_job_is_woken_either_by_a_wake_up_or_by_its_time(programs: Programs, clock: ManualClock) -> None:
    store, other = programs.first, await programs.another()
    await join(store, "w1")
    for number in range(10):
        job_id = await suspended(store, f"bell-{number}", delay=1000)
        clock.advance(1)
        held, woken = await asyncio.gather(claim(store), other.wake({f"bell-{number}": 1}))
        if not held:  # the wake-up came between its look and its write
            assert woken == {f"bell-{number}": 1}
            held = await claim(store)
        assert [job.id for job in held] == [job_id]
        assert await waiters(store, f"bell-{number}") == 0
        await end(store, held[0], Move.DONE)


async def test_an_item_left_from_an_earlier_wait_does_not_wake_a_job_that_suspends_again(
    programs: Programs, clock: ManualClock
) -> None:
    """The process that claimed it at its time died before it had tidied up."""
    store, other = await programs.another(budget=0.0), programs.first
    await join(store, "w1")
    job_id = await suspended(store, "bell", delay=1000)
    clock.advance(1)
    client_of(store).plan = once(Fault.LOST_BEFORE, "BatchWriteItem")
    held = await claim_one(store)
    assert await waiters(store, "bell") == 1
    assert await end(store, held, Move.SUSPEND, delay=UNTIL_WOKEN, waits_for="bell") is Status.SUSPENDED
    assert await waiters(store, "bell") == 2
    assert await other.wake({"bell": 5}) == {"bell": 1}
    assert await waiters(store, "bell") == 0
    assert await status_of(store, job_id) is Status.PENDING


async def test_an_item_left_from_an_earlier_wait_does_not_count_as_woken(
    programs: Programs, clock: ManualClock
) -> None:
    """Both of its items are tried at once. If the void one comes second, it finds the job woken by the same `wake`."""
    store, other = await programs.another(), programs.first
    await join(store, "w1")
    again = await suspended(store, "bell", delay=1000, priority=Priority.HIGH)
    clock.advance(1)
    client_of(store).plan = once(Fault.THROTTLED, "BatchWriteItem")
    store.client._budget = 0.0
    held = await claim_one(store)
    store.client._budget = 15.0
    await end(store, held, Move.SUSPEND, delay=UNTIL_WOKEN, waits_for="bell")
    last = await suspended(store, "bell")
    whole, is_woken = client_of(other).call, asyncio.Event()

    async def call(operation: str, request: Any) -> dict[str, Any]:
        wakes = operation == "UpdateItem" and request["Key"]["PK"]["S"].startswith("job#")
        now = wakes and {"N": str(held.token)} in request["ExpressionAttributeValues"].values()
        if wakes and not now:
            await is_woken.wait()
        answer = await whole(operation, request)
        if now:
            is_woken.set()
        return answer

    other.client.call = call  # type: ignore[method-assign]
    assert await other.wake({"bell": 2}) == {"bell": 2}
    assert [await status_of(store, job_id) for job_id in (again, last)] == [Status.PENDING, Status.PENDING]


# -- other ways in ----------------------------------------------------------------------------------------


async def test_jobs_of_one_insert_may_wait_for_each_other(store: FreshStore) -> None:
    await join(store, "w1")
    first, last = new_job(), new_job()
    second = new_job(waits_for=end_of(first.id))
    last.waits_for = end_of(second.id)
    await store.insert([last, second, first])
    for job in (first, second, last):
        held = await claim(store)
        assert [claimed.id for claimed in held] == [job.id]
        await end(store, held[0], Move.DONE)


async def test_jobs_of_one_save_may_wait_for_each_other_and_for_their_parent(store: FreshStore) -> None:
    await join(store, "w1")
    held = await running(store)
    first = new_job()
    after = (new_job(waits_for=end_of(first.id)), new_job(waits_for=end_of(held.id)))
    assert await save(store, held, Step("spawn", 1), jobs=(*after, first))
    child = await claim_one(store)
    assert child.id == first.id
    await end(store, child, Move.DONE)
    assert [await status_of(store, job.id) for job in after] == [Status.PENDING, Status.SUSPENDED]
    await end(store, held, Move.DONE)
    assert await status_of(store, after[1].id) is Status.PENDING


async def test_follow_ups_may_wait_for_a_job_that_goes_on(store: FreshStore) -> None:
    await join(store, "w1")
    held = await running(store)
    after = new_job(waits_for=end_of(held.id))
    await end(store, held, Move.RETRY, follow_ups=(after,))
    await end(store, await claim_one(store), Move.DONE)
    assert await status_of(store, after.id) is Status.PENDING


async def test_the_first_of_two_jobs_with_one_key_in_a_save_is_inserted(store: FreshStore) -> None:
    await join(store, "w1")
    held = await running(store)
    first, second = new_job(dedupe_key="k"), new_job(dedupe_key="k")
    answers = await save(store, held, Step("spawn", 1), jobs=(first, second))
    assert answers == [Inserted(first.id, created=True), Inserted(first.id, created=False)]
    assert await store.get([second.id]) == []


@pytest.mark.parametrize("child_first", [True, False])
async def test_a_job_that_waits_for_an_end_is_woken_after_a_copy(store: FreshStore, *, child_first: bool) -> None:
    source = MemoryStore(clock=store.clock)
    await join(source, "w1")
    await join(store, "w1")
    child = await running(source, queue="children", delay=0)
    parent = await suspended(source, end_of(child.id), queue="parents")
    await end(source, child, Move.RELEASE)
    records = {record["id"]: record for record in (await source.dump(Kind.LIVE)).records}
    for job_id in (child.id, parent) if child_first else (parent, child.id):
        assert await store.load(Kind.LIVE, [records[job_id]]) == {}
    await end(store, await claim_one(store, queue="children"), Move.DONE)
    assert await status_of(store, parent) is Status.PENDING


async def test_a_waiting_job_and_the_one_it_waits_for_may_be_loaded_in_one_page(store: FreshStore) -> None:
    source = MemoryStore(clock=store.clock)
    await join(source, "w1")
    await join(store, "w1")
    child = await put(source, queue="children")
    parent = await suspended(source, end_of(child), queue="parents")
    await store.load(Kind.LIVE, (await source.dump(Kind.LIVE)).records)
    await end(store, await claim_one(store, queue="children"), Move.DONE)
    assert await status_of(store, parent) is Status.PENDING


async def test_a_pending_wake_up_is_carried_out_before_jobs_are_copied(programs: Programs) -> None:
    store, other = await programs.another(budget=0.0), programs.first
    await join(store, "w1")
    child = await running(store)
    parent = await suspended(store, end_of(child.id))
    child.ref = None
    client_of(store).plan = dies_after("TransactWriteItems")
    await end(store, child, Move.DONE)
    (record,) = (await other.dump(Kind.LIVE)).records
    assert (record["id"], record["status"], record["waits_for"]) == (parent, Status.PENDING, None)


async def test_a_page_ends_where_its_steps_are_too_much(store: FreshStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await join(store, "w1")
    await store.insert([new_job() for _ in range(40)])
    held = await claim(store, 40)
    await store.save([Save(job.id, job.token, (Step("large", 1, output='"' + "x" * 100 + '"'),)) for job in held])
    monkeypatch.setattr(transfer, "MAX_PAGE_BYTES", 3_000)
    first = await store.dump(Kind.LIVE)
    rest = await store.dump(Kind.LIVE, after=first.cursor)
    assert (len(first.records), len(rest.records), rest.cursor) == (32, 8, None)
    assert {record["id"] for record in (*first.records, *rest.records)} == {job.id for job in held}


# -- steps ------------------------------------------------------------------------------------------------


async def test_a_step_that_does_not_fit_is_refused_and_nothing_is_written(store: FreshStore) -> None:
    await join(store, "w1")
    held = await running(store)
    noise = "".join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(300_000))
    child = new_job()
    with pytest.raises(StoreError, match=r"step 'large' of job .* would take .* KB.*let the step return its location"):
        await save(store, held, Step("small", 1), Step("large", 2, output=f'"{noise}"'), jobs=(child,))
    assert await store.steps(held.id) == []
    assert await store.get([child.id]) == []


async def test_a_save_larger_than_one_transaction_is_written(store: FreshStore) -> None:
    await join(store, "w1")
    held = await running(store)
    jobs = tuple(new_job(queue="children", dedupe_key=f"k{number}") for number in range(60))
    steps = tuple(Step(f"spawn {number}", number) for number in range(120))
    answers = await save(store, held, *steps, jobs=jobs)
    assert answers == [Inserted(job.id, created=True) for job in jobs]
    assert await store.steps(held.id) == list(steps)
    assert await store.count(Filter(queues=("children",))) == 60


@pytest.mark.parametrize(("steps", "transactions"), [(2, 1), (3, 2)])
async def test_a_save_that_just_fits_is_one_transaction(store: FreshStore, steps: int, transactions: int) -> None:
    """Of a hundred items: the mark on the job, three for each that has a key and waits for another, and the steps."""
    await join(store, "w1")
    held = await running(store)
    others = [new_job() for _ in range(32)]
    await store.insert(others)
    jobs = [new_job(dedupe_key=f"k{number}", waits_for=end_of(other.id)) for number, other in enumerate(others)]
    made = calls_of(store, "TransactWriteItems")
    assert await save(store, held, *(Step(f"s{number}", number) for number in range(steps)), jobs=tuple(jobs))
    assert len(made) == transactions
    assert len(await store.steps(held.id)) == steps


async def test_steps_larger_than_one_transaction_are_written_in_several(store: FreshStore) -> None:
    """One transaction takes 4 MB."""
    await join(store, "w1")
    held = await running(store)
    chance = random.Random(1)
    steps = [Step(f"s{number}", number, output=f'"{chance.randbytes(190_000).hex()}"') for number in range(12)]
    made = calls_of(store, "TransactWriteItems")
    await save(store, held, *steps)
    assert len(made) == 2
    assert await store.steps(held.id) == steps


def calls_of(store: FreshStore, operation: str) -> list[str]:
    made: list[str] = []

    def plan(called: str, request: dict[str, Any]) -> None:
        del request
        if called == operation:
            made.append(called)

    client_of(store).plan = plan
    return made


async def test_a_zombie_saves_nothing_of_a_large_one_either(store: FreshStore) -> None:
    await join(store, "w1")
    zombie = await running(store)
    await end(store, zombie, Move.DONE)
    steps = tuple(Step(f"s{number}", number) for number in range(60))
    jobs = tuple(new_job() for _ in range(60))
    assert await save(store, zombie, *steps, jobs=jobs) is None
    assert await store.steps(zombie.id) == []
    assert await store.get([job.id for job in jobs]) == []


async def test_a_manual_retry_forgets_very_many_steps(store: FreshStore) -> None:
    await join(store, "w1")
    held = await running(store)
    await save(store, held, *(Step(f"s{number}", number) for number in range(130)))
    await end(store, held, Move.DEAD)
    await by_hand(store, Action.RETRY, held.id, from_step="s3")
    assert [step.name for step in await store.steps(held.id)] == ["s0", "s1", "s2"]


async def test_long_and_unusual_names_are_kept(store: FreshStore) -> None:
    await join(store, "w1")
    held = await running(store)
    steps = [Step("é" * 2000, 1), Step("a#b/c", 2), Step("é" * 2001, 3)]
    await save(store, held, *steps)
    assert await store.steps(held.id) == steps
    key = "k#" * 2000
    await end(store, held, Move.SUSPEND, delay=UNTIL_WOKEN, waits_for=key)
    assert await store.wake({key[:-1]: 1, key: 1}) == {key[:-1]: 0, key: 1}


@pytest.fixture
async def expiring(clock: ManualClock) -> Any:
    """As most tables are: the service deletes jobs, which a local server does not."""
    store = FreshStore(clock=clock, prune=False)
    await store.open()
    await join(store, "w1")
    yield store
    await store.close()


async def test_steps_go_after_their_job_has_expired(expiring: FreshStore, clock: ManualClock) -> None:
    held = await running(expiring, keep=60_000)
    await save(expiring, held, Step("fetch", 1))
    clock.advance(400 * DAY)  # however long it lives
    await end(expiring, held, Move.DONE, steps=(Step("last", 2),))
    assert await expiring.prune() == 0
    clock.advance(61)
    assert await expiring.get([held.id]) == []
    clock.advance(2 * DAY)
    assert await expiring.prune() == 1
    assert await expiring.table.rows(history(held.id)) == []


async def test_steps_of_a_job_that_was_retried_stay(expiring: FreshStore, clock: ManualClock) -> None:
    held = await running(expiring, keep_dead=60_000)
    await save(expiring, held, Step("fetch", 1))
    await end(expiring, held, Move.DEAD)
    await by_hand(expiring, Action.RETRY, held.id)
    clock.advance(2 * DAY)
    assert await expiring.prune() == 0
    assert len(await expiring.steps(held.id)) == 1
    await end(expiring, await claim_one(expiring), Move.DEAD)
    clock.advance(2 * DAY)
    assert await expiring.prune() == 1
    assert await expiring.steps(held.id) == []


async def test_steps_of_a_deleted_job_go_though_its_process_died(programs: Programs, clock: ManualClock) -> None:
    store, other = await programs.another(budget=0.0), programs.first
    await join(store, "w1")
    held = await running(store)
    await save(store, held, Step("fetch", 1))
    await end(store, held, Move.DONE)
    client_of(store).plan = dies_after("TransactWriteItems")
    with pytest.raises(StoreUnavailable):
        await store.change(Action.DELETE, Filter(ids=(held.id,)), BY)
    clock.advance(1)
    assert len(await other.steps(held.id)) == 1
    await other.prune()
    assert await other.steps(held.id) == []


async def test_many_that_wait_come_in_with_few_calls(store: FreshStore) -> None:
    """And with those that are there already, as when an insert is repeated."""
    jobs = [new_job(waits_for="bell") for _ in range(120)]
    await store.insert([new_job(), *jobs[40:45]])
    before = store.client.tally["calls"]
    answers = await store.insert(jobs)
    assert store.client.tally["calls"] - before < 12
    assert answers == [Inserted(job.id, created=True) for job in jobs]
    assert await waiters(store, "bell") == 120
    assert await store.count(Filter(statuses=(Status.SUSPENDED,))) == 120
    assert sum(counts[Status.SUSPENDED] for counts in (await store.stats()).queues) == 120
    assert await store.wake({"bell": 200}) == {"bell": 120}


async def test_large_ones_that_wait_are_several_transactions(store: FreshStore) -> None:
    noise = base64.b64encode(random.Random(1).randbytes(200_000)).decode()
    jobs = [new_job(waits_for="bell", payload=f'"{noise}"') for _ in range(20)]
    assert await store.insert(jobs) == [Inserted(job.id, created=True) for job in jobs]
    assert await waiters(store, "bell") == 20
