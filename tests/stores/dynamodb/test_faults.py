"""What becomes of a job when calls are throttled, refused, or never answered: nothing lost, nothing done twice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mainspring.errors import StoreBusy, StoreUnavailable
from mainspring.job import UNTIL_WOKEN, Claim, Inserted, Move, Save, Status, Step, end_of
from mainspring.stores.documents import By
from mainspring.stores.dynamodb import DynamoStore
from mainspring.stores.numbers import Measure
from mainspring.stores.protocol import Action, Filter, Severity, Want
from mainspring.testing.clock import ManualClock
from tests.conformance.numbers import total
from tests.conformance.scenario import claim, claim_one, end, join, new_job, outcome, put, put_many, running
from tests.dynamodb import FreshStore
from tests.stores.dynamodb.conftest import Programs, client_of
from tests.stores.dynamodb.faults import Fault, once

pytestmark = pytest.mark.slow  # a real server

JOBS = 24
PARENTS = 8


# -- one call -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("key", [None, "k"])
async def test_an_insert_is_there_once(store: FreshStore, fault: Fault, key: str | None) -> None:
    client_of(store).plan = once(fault, "TransactWriteItems" if key else "PutItem", 2)
    await join(store, "w1")
    job = new_job(dedupe_key=key)
    assert await store.insert([job]) == [Inserted(job.id, created=True)]
    assert client_of(store).met[fault] == 2
    assert [held.id for held in await claim(store)] == [job.id]


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("number", [1, 5])
async def test_a_claim_is_made_once(store: FreshStore, fault: Fault, number: int) -> None:
    await join(store, "w1")
    ids = await put_many(store, number)
    client_of(store).plan = once(fault, "UpdateItem" if number == 1 else "BatchExecuteStatement")
    held = await claim(store)
    assert sorted(job.id for job in held) == sorted(ids)
    assert {job.token for job in held} == {1}
    assert await store.ack([outcome(job, Move.DONE) for job in held]) == [Status.COMPLETED] * number


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("move", [Move.DONE, Move.RETRY, Move.RELEASE])
async def test_an_ack_is_written_once_and_known_again(store: FreshStore, fault: Fault, move: Move) -> None:
    await join(store, "w1")
    held = await running(store)
    client_of(store).plan = once(fault, "TransactWriteItems" if move is Move.RETRY else "UpdateItem")
    statuses = {Move.DONE: Status.COMPLETED, Move.RETRY: Status.RETRYING, Move.RELEASE: Status.PENDING}
    assert await end(store, held, move) is statuses[move]
    assert client_of(store).met[fault] == 1
    assert await end(store, held, move) is None


@pytest.mark.parametrize("fault", Fault)
async def test_acks_of_one_call_are_written_once_and_recognised(store: FreshStore, fault: Fault) -> None:
    await join(store, "w1")
    await put_many(store, 4)
    held = await claim(store)
    client_of(store).plan = once(fault, "BatchExecuteStatement")
    assert await store.ack([outcome(job, Move.DONE) for job in held]) == [Status.COMPLETED] * 4


async def test_a_throttled_part_of_a_batch_request_is_tried_again(store: FreshStore) -> None:
    """As it is when a batch request meets the limit of one partition."""
    await join(store, "w1")
    await put_many(store, 4)
    whole = client_of(store).call

    async def in_part(operation: str, request: Any) -> dict[str, Any]:
        if operation != "BatchExecuteStatement":
            return await whole(operation, request)
        answer = await whole(operation, {"Statements": request["Statements"][1:]})
        return {"Responses": [{"Error": {"Code": "ThrottlingError", "Message": "…"}}, *answer["Responses"]]}

    store.client.call = in_part  # type: ignore[method-assign]
    held = await claim(store)
    assert len(held) == 4
    assert await store.ack([outcome(job, Move.DONE) for job in held]) == [Status.COMPLETED] * 4


async def test_items_that_a_batch_request_left_over_are_written_too(store: FreshStore) -> None:
    ids = await put_many(store, 3)
    whole = client_of(store).call
    left_over: list[Any] = []

    async def in_part(operation: str, request: Any) -> dict[str, Any]:
        if operation == "BatchGetItem" and not left_over:
            (name, asked), *_ = request["RequestItems"].items()
            left_over.append({name: {**asked, "Keys": asked["Keys"][1:]}})
            first = await whole(operation, {"RequestItems": {name: {**asked, "Keys": asked["Keys"][:1]}}})
            return {**first, "UnprocessedKeys": left_over[0]}
        return await whole(operation, request)

    store.client.call = in_part  # type: ignore[method-assign]
    assert [job.id for job in await store.get(ids)] == ids
    assert left_over
    assert store.client.tally["throttled"] == 1


# -- beyond the budget ------------------------------------------------------------------------------------


async def test_lasting_throttling_is_raised_and_counted(programs: Programs) -> None:
    store = await programs.another(budget=0.1)
    client_of(store).plan = lambda *_: Fault.THROTTLED
    with pytest.raises(StoreBusy, match="throttles"):
        await store.insert([new_job()])
    assert store.client.tally["throttled"] > 1
    client_of(store).plan = lambda *_: None
    (finding,) = [found for found in await store.diagnose() if found.check == "setbacks"]
    assert finding.severity is Severity.WARNING
    assert "throttled" in finding.message


async def test_an_ack_whose_answer_never_came_is_known_when_it_is_repeated(programs: Programs) -> None:
    """Also when the job is in other hands by then."""
    store, other = await programs.another(budget=0.0), programs.first
    await join(store, "w1")
    await join(other, "w2")
    held = await running(store)
    client_of(store).plan = once(Fault.LOST_AFTER, "UpdateItem")
    with pytest.raises(StoreUnavailable):
        await end(store, held, Move.RELEASE)
    again = await claim_one(other, worker="w2")
    assert await end(store, held, Move.RELEASE) is Status.PENDING
    assert await end(other, again, Move.DONE) is Status.COMPLETED


async def test_a_zombies_ack_does_not_take_a_takeover_with_a_lost_answer_for_its_own(
    programs: Programs, clock: ManualClock
) -> None:
    """Both are in one process and speak of one run; the job waits for its next one."""
    store = await programs.another(budget=0.0, lease=10.0)
    await join(store, "w1")
    held = await running(store)
    await store.reap()
    clock.advance(11)
    client_of(store).plan = once(Fault.LOST_AFTER, "TransactWriteItems")
    with pytest.raises(StoreUnavailable):
        await store.reap()
    client_of(store).plan = lambda *_: None
    assert [job.crashes for job in await store.get([held.id])] == [1]
    assert await end(store, held, Move.DONE) is None
    assert [job.status for job in await store.get([held.id])] == [Status.PENDING]


async def test_an_ack_with_a_lost_answer_is_not_reported_as_a_takeover(programs: Programs, clock: ManualClock) -> None:
    """It is written while another loop of the process is about to take the job from a worker that it thinks dead."""
    store = await programs.another(budget=0.0, lease=10.0)
    await join(store, "w1")
    held = await running(store)
    await store.reap()
    clock.advance(11)
    whole = client_of(store).call

    async def ack_meanwhile(operation: str, request: Any) -> dict[str, Any]:
        answer = await whole(operation, request)
        if operation == "BatchGetItem":
            store.client.call = whole  # type: ignore[method-assign]
            client_of(store).plan = once(Fault.LOST_AFTER, "UpdateItem")
            with pytest.raises(StoreUnavailable):
                await end(store, held, Move.DONE)
        return answer

    store.client.call = ack_meanwhile  # type: ignore[method-assign]
    assert (await store.reap()).takeovers == []
    assert client_of(store).met[Fault.LOST_AFTER] == 1
    assert await end(store, held, Move.DONE) is Status.COMPLETED


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.LOST_BEFORE])
async def test_all_acks_of_a_call_are_repeated_if_one_failed(programs: Programs, fault: Fault) -> None:
    """Those that were written the first time are no lost claims."""
    store = await programs.another(budget=0.0)
    await join(store, "w1")
    await put_many(store, 4)
    held = await claim(store)
    moves = [Move.DONE, Move.RETRY, Move.DONE, Move.CANCEL]
    outcomes = [outcome(job, move, delay=60_000) for job, move in zip(held, moves, strict=True)]
    client_of(store).plan = once(fault, "TransactWriteItems")
    with pytest.raises(StoreUnavailable):
        await store.ack(outcomes)
    client_of(store).plan = lambda *_: None
    written = [Status.COMPLETED, Status.RETRYING, Status.COMPLETED, Status.CANCELLED]
    assert await store.ack(outcomes) == written
    assert await store.ack(outcomes) == [None] * 4


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.LOST_BEFORE])
async def test_a_claim_whose_answer_never_came_is_given_back(programs: Programs, fault: Fault) -> None:
    store, other = await programs.another(budget=0.0), programs.first
    await join(store, "w1")
    job_id = await put(store)
    client_of(store).plan = once(fault, "UpdateItem")
    with pytest.raises(StoreUnavailable):
        await claim(store)
    client_of(store).plan = lambda *_: None
    await store.heartbeat("w1", {})
    taken = await claim_one(other, worker="w2")
    assert (taken.id, taken.crashes, taken.attempts) == (job_id, 0, 0)
    assert await starts(store, other) == 1


async def test_claims_that_could_not_be_confirmed_are_given_back(programs: Programs) -> None:
    store, other = await programs.another(budget=0.0), programs.first
    await join(store, "w1")
    ids = await put_many(store, 3)
    client_of(store).plan = once(Fault.LOST_BEFORE, "BatchGetItem")
    with pytest.raises(StoreUnavailable):
        await claim(store)
    assert await claim(other, worker="w2") == []
    await store.leave("w1")
    assert sorted(job.id for job in await claim(other, worker="w2")) == sorted(ids)
    assert await starts(store, other) == 3


async def starts(*programs: DynamoStore) -> int:
    """Return the starts in the numbers, to which each program has added what it has counted."""
    return [(await total(program)).get(Measure.STARTED, 0) for program in programs][-1]


# -- all at once ------------------------------------------------------------------------------------------


class Hands:
    """Which worker holds which job just now: no job may have two."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.done: list[str] = []

    def take(self, worker: str, claims: list[Claim]) -> None:
        for job in claims:
            assert job.id not in self.held, f"{job.id} runs on {self.held[job.id]} and {worker}"
            self.held[job.id] = worker

    def drop(self, job_id: str) -> None:
        self.held.pop(job_id, None)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_or_overlaps_among_random_faults(programs: Programs, seed: int) -> None:
    chance = random.Random(seed)

    def plan(operation: str, request: dict[str, Any]) -> Fault | None:
        del operation, request
        return chance.choice(list(Fault)) if chance.random() < 0.15 else None

    stores = [await programs.another(budget=0.4) for _ in range(3)]
    ids = set()
    for number, store in enumerate(stores):
        await join(store, f"w{number}")
        client_of(store).plan = plan
    for number in range(JOBS):
        job = new_job(dedupe_key=f"k{number}" if number % 3 == 0 else None, max_attempts=50)
        assert await insist(stores[number % 3], "insert", [job]) == [Inserted(job.id, created=True)]
        ids.add(job.id)
    hands = Hands()
    for _ in range(200):
        for number, store in enumerate(stores):
            await work(store, f"w{number}", hands, chance)
        if len(hands.done) == JOBS:
            break
    assert sorted(hands.done) == sorted(ids)
    for store in stores:
        client_of(store).plan = lambda *_: None
    jobs = (await stores[0].find(Filter(), limit=100)).jobs
    assert {job.id: job.status for job in jobs} == dict.fromkeys(ids, Status.COMPLETED)
    assert {job.crashes for job in jobs} == {0}
    met = sum((client_of(store).met for store in stores), start=client_of(stores[0]).met.__class__())
    assert set(met) == set(Fault)


async def work(store: DynamoStore, worker: str, hands: Hands, chance: random.Random) -> None:
    """A worker's round: look, run, write down; what fails is tried again, as the worker does it."""
    try:
        claims = (await store.claim(worker, [Want("default", chance.randint(1, 6))])).jobs
    except StoreUnavailable:
        claims = []
    hands.take(worker, claims)
    for job in claims:
        move = Move.RETRY if chance.random() < 0.2 else Move.DONE
        hands.drop(job.id)  # from here on it may be in other hands: its outcome is on its way
        (status,) = await insist(store, "ack", [outcome(job, move)])
        assert status in {Status.RETRYING, Status.COMPLETED}
        if status is Status.COMPLETED:
            hands.done.append(job.id)
    await insist(store, "heartbeat", worker, {})


@pytest.mark.parametrize("seed", range(2))
async def test_waiting_jobs_are_woken_despite_random_faults(programs: Programs, seed: int) -> None:
    """Parents spawn a child each and wait for its end; no job has a time at which it would wake by itself."""
    chance = random.Random(seed)
    stores = [await programs.another(budget=0.2) for _ in range(2)]
    for number, store in enumerate(stores):
        await join(store, f"w{number}")
        client_of(store).plan = lambda *_: chance.choice(list(Fault)) if chance.random() < 0.15 else None
    parents = [new_job(queue="parents") for _ in range(PARENTS)]
    await insist(stores[0], "insert", parents)
    done: set[str] = set()
    for _ in range(100):
        for number, store in enumerate(stores):
            done |= await live_a_while(store, f"w{number}")
        if len(done) == 2 * PARENTS:
            break
    assert {parent.id for parent in parents} <= done
    assert len(done) == 2 * PARENTS


async def live_a_while(store: DynamoStore, worker: str) -> set[str]:
    """What was done."""
    try:
        claims = (await store.claim(worker, [Want("parents", 3), Want("children", 3)])).jobs
    except StoreUnavailable:
        claims = []
    done: set[str] = set()
    for claimed in claims:
        steps = await insist(store, "steps", claimed.id) if claimed.queue == "parents" else []
        if claimed.queue == "children" or steps:
            if (await insist(store, "ack", [outcome(claimed, Move.DONE)])) == [Status.COMPLETED]:
                done.add(claimed.id)
            continue
        child = new_job(queue="children")
        save = Save(claimed.id, claimed.token, (Step("spawn", 1),), (child,), claimed.ref)
        assert await insist(store, "save", [save]) == [[Inserted(child.id, created=True)]]
        waits = outcome(claimed, Move.SUSPEND, delay=UNTIL_WOKEN, waits_for=end_of(child.id))
        assert await insist(store, "ack", [waits]) == [Status.SUSPENDED]
        (job,) = await insist(store, "get", [child.id])
        if job.finished:
            await insist(store, "wake", {end_of(child.id): 1})
    await insist(store, "heartbeat", worker, {})
    await insist(store, "reap")
    return done


async def insist(store: DynamoStore, name: str, *arguments: Any) -> Any:
    for _ in range(50):
        try:
            return await getattr(store, name)(*arguments)
        except StoreUnavailable:
            continue
    raise AssertionError("fifty times in a row")


# -- by hand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [Action.CANCEL, Action.DELETE])
@pytest.mark.parametrize("fault", Fault)
async def test_a_change_by_hand_is_made_once(store: FreshStore, action: Action, fault: Fault) -> None:
    job_id = await put(store, dedupe_key="k")
    client_of(store).plan = once(fault, "TransactWriteItems" if action is Action.CANCEL else "DeleteItem")
    await store.change(action, Filter(ids=(job_id,)), By("ana"))
    assert [job.status for job in await store.get([job_id])] == ([Status.CANCELLED] if action is Action.CANCEL else [])
    assert await put(store, dedupe_key="k")


async def test_a_clock_that_jumps_changes_no_lease(programs: Programs, clock: ManualClock) -> None:
    store = programs.first
    await join(store, "w1")
    held = await running(store)
    assert (await store.reap()).takeovers == []
    clock.shift(3600)
    assert (await store.reap()).takeovers == []
    assert await end(store, held, Move.DONE) is Status.COMPLETED
