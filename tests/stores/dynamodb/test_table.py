"""The contents of the table, for readers with other tools, and what is left to the service itself."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.errors import Failure, StoreError
from mainspring.job import UNTIL_WOKEN, Move, Status
from mainspring.stores.dynamodb import DynamoStore, values
from mainspring.stores.dynamodb.client import Item
from mainspring.stores.dynamodb.counts import Counts, sum_up
from mainspring.stores.dynamodb.items import dedupe_key, key, stamp, target_key, unstamp
from mainspring.stores.dynamodb.local_workers import LONGEST_POLL, SHORTEST_POLL
from mainspring.stores.dynamodb.schema import MAX_SHARDS
from mainspring.stores.dynamodb.table import MAX_PARALLEL, Refused, Table, owned, together
from mainspring.stores.protocol import Filter, Wake
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import claim, claim_one, end, join, look, new_job, put, put_many, running
from tests.dynamodb import FreshStore, client
from tests.stores.dynamodb.conftest import Programs, client_of
from tests.worker.working import ended, eventually, working

slow = pytest.mark.slow  # a real server


async def item(store: FreshStore, job_id: str) -> dict[str, Any]:
    found = await store.table.get(store.table.job_key(job_id))
    assert found is not None
    return found


# -- for a reader -----------------------------------------------------------------------------------------


@slow
async def test_a_job_can_be_read_in_the_table(store: FreshStore, clock: ManualClock) -> None:
    await join(store, "w1")
    job_id = await put(store, task="daily_summary", payload='{"user": 7}')
    row = await item(store, job_id)
    assert (row["status"], row["job_type"], row["payload"]) == ("pending", "daily_summary", '{"user": 7}')
    assert row["scheduled_for"] == row["created_at"] == "2026-01-01T00:00:00.000Z"
    assert row["rank"] == f"2#{row['scheduled_for']}#{job_id}"

    held = await claim_one(store)
    row = await item(store, job_id)
    assert (row["status"], row["locked_by"], row["lock_expires_at"]) == (
        "in_progress",
        "w1",
        "2026-01-01T00:00:30.000Z",
    )

    await end(store, held, Move.RETRY, delay=60_000, failure=Failure("ValueError", "boom", "Traceback …"))
    row = await item(store, job_id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("retrying", 1, "boom")
    assert row["scheduled_for"] == "2026-01-01T00:01:00.000Z"
    assert row["rank"].startswith(f"2#{row['scheduled_for']}#")
    assert "lock_expires_at" not in row

    clock.advance(60)
    await end(store, await claim_one(store), Move.DONE)
    row = await item(store, job_id)
    assert (row["status"], row["completed_at"]) == ("completed", "2026-01-01T00:01:00.000Z")


@slow
async def test_the_lock_of_a_living_worker_is_always_in_the_future(store: FreshStore, clock: ManualClock) -> None:
    await join(store, "w1")
    jobs = [await running(store) for _ in range(2)]
    seen = set()
    for _ in range(int(store.lease) * 3):
        clock.advance(1)
        await store.heartbeat("w1", {held.id: held.token for held in jobs})
        locks = [unstamp((await item(store, held.id))["lock_expires_at"]) for held in jobs]
        assert min(locks) > clock.now()
        seen.update(locks)
    assert len(seen) == 7  # at the claim, and then once in half a lease


@slow
async def test_the_lock_of_a_dead_worker_ends_within_a_lease(store: FreshStore, clock: ManualClock) -> None:
    await join(store, "w1")
    held = await running(store)
    clock.advance(store.lease * 0.9)
    await store.heartbeat("w1", {held.id: held.token})
    clock.advance(store.lease + 1)
    assert unstamp((await item(store, held.id))["lock_expires_at"]) < clock.now()


@slow
async def test_a_worker_that_has_lost_a_job_does_not_extend_its_lock(store: FreshStore, clock: ManualClock) -> None:
    await join(store, "w1")
    lost = await running(store)
    await end(store, lost, Move.RELEASE)
    clock.advance(20)
    held = await claim_one(store)
    before = (await item(store, held.id))["lock_expires_at"]
    clock.advance(20)
    pulse = await store.heartbeat("w1", {lost.id: lost.token})
    assert pulse.lost == {lost.id}
    assert (await item(store, held.id))["lock_expires_at"] == before


@slow
async def test_a_heartbeat_is_answered_although_locks_cannot_be_extended(
    store: FreshStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await join(store, "w1")
    held = await running(store)
    clock.advance(20)

    async def fail(*_: object) -> list[Any]:
        raise StoreError("throttled")

    monkeypatch.setattr(Table, "update_many", fail)
    assert (await store.heartbeat("w1", {held.id: held.token})).lost == frozenset()


@slow
@pytest.mark.parametrize(("move", "word"), [(Move.DEAD, "dead_letter"), (Move.CANCEL, "cancelled")])
async def test_how_a_job_was_given_up_can_be_read_in_the_table(store: FreshStore, move: Move, word: str) -> None:
    await join(store, "w1")
    held = await running(store)
    await end(store, held, move)
    assert (await item(store, held.id))["status"] == word


def test_times_are_in_order_as_text() -> None:
    moments = [-1, 0, 1, 999, 1000, 1_700_000_000_000, UNTIL_WOKEN]
    assert [unstamp(stamp(moment)) for moment in moments] == moments
    assert sorted(map(stamp, moments)) == list(map(stamp, moments))


def test_names_that_look_alike_are_kept_apart() -> None:
    assert dedupe_key("a#b", "c") != dedupe_key("a", "b#c")
    assert dedupe_key("a%23b", "c") != dedupe_key("a#b", "c")
    assert len(target_key("t", "x" * 5000)) < 100
    assert target_key("t", "x" * 5000) != target_key("t", "x" * 5001)


# -- sizes --------------------------------------------------------------------------------------------------


@slow
async def test_a_job_that_does_not_fit_is_refused_before_anything_is_written(store: FreshStore) -> None:
    noise = json.dumps(os.urandom(200_000).hex() + "é")
    store.table.recording_read_at = float("inf")  # whether changes are recorded is read once a second
    calls = store.client.tally["calls"]
    with pytest.raises(StoreError, match=r"would take .* KB; in DynamoDB a job may have up to 350 KB"):
        await store.insert([new_job(), new_job(payload=json.dumps(noise * 2))])
    assert store.client.tally["calls"] == calls
    assert await store.count(Filter()) == 0


@slow
async def test_a_long_payload_and_result_are_kept_compressed(store: FreshStore) -> None:
    await join(store, "w1")
    long = json.dumps("Zoë " * 250_000)
    held = await running(store, payload=long)
    assert held.payload == long
    await end(store, held, Move.DONE, result=long)
    job = await look(store, held.id)
    assert job.payload == job.result == json.loads(long)
    assert (await item(store, held.id)).keys() >= {"payload_zlib", "result_zlib"}


@slow
async def test_a_result_that_does_not_fit_is_left_out_and_the_job_says_so(store: FreshStore) -> None:
    await join(store, "w1")
    held = await running(store)
    assert await end(store, held, Move.DONE, result=json.dumps(os.urandom(600_000).hex())) is Status.COMPLETED
    job = await look(store, held.id)
    assert job.result is None
    assert "does not fit" in job.reason


@slow
async def test_more_follow_ups_than_one_transaction_takes_are_refused(store: FreshStore) -> None:
    await join(store, "w1")
    held = await running(store)
    with pytest.raises(StoreError, match="at most 100 items"):
        await end(store, held, Move.DONE, follow_ups=tuple(new_job() for _ in range(100)))
    assert (await look(store, held.id)).status is Status.RUNNING
    assert await end(store, held, Move.DONE, follow_ups=tuple(new_job() for _ in range(99))) is Status.COMPLETED


# -- expiry by the service ------------------------------------------------------------------------------------


@slow
async def test_expired_items_that_are_not_deleted_yet_are_not_shown(programs: Programs, clock: ManualClock) -> None:
    store = await programs.another(prune=False)
    await join(store, "w1")
    held = await running(store, keep=90_500, dedupe_key="k")
    await end(store, held, Move.RETRY)
    await end(store, await claim_one(store), Move.DONE)
    kept = await put(store)
    row = await store.table.get(store.table.job_key(held.id))
    assert row is not None
    assert row["ttl"] == clock.now() // 1000 + 91  # whole seconds, and not before its time
    clock.advance(90.5)
    assert await store.get([held.id]) == []
    assert [job.id for job in (await store.find(Filter())).jobs] == [kept]
    assert await store.count(Filter()) == 1
    assert await store.attempts(held.id) == []
    assert await store.timeline(held.id) == []
    assert await store.prune() == 0


@slow
async def test_finished_jobs_are_counted_until_the_day_of_their_expiry_is_over(
    programs: Programs, clock: ManualClock
) -> None:
    store = await programs.another(prune=False)
    await join(store, "w1")
    await end(store, await running(store, keep=86_400_000), Move.DONE)
    await put(store)
    for days, expected in ((0, {Status.PENDING: 1, Status.COMPLETED: 1}), (2, {Status.PENDING: 1})):
        clock.advance(86_400 * days)
        (counts,) = (await store.stats()).queues
        assert counts.by_status == expected
    assert (await store.stats()).estimated


@slow
async def test_live_jobs_and_their_keys_never_expire(store: FreshStore) -> None:
    await join(store, "w1")
    held = await running(store, dedupe_key="k", dedupe_for=1000, keep=0)
    await end(store, held, Move.RETRY)
    assert "ttl" not in await item(store, held.id)
    key = await store.table.get(dedupe_key("greet", "k"))
    assert key is not None
    assert "ttl" not in key
    await end(store, await claim_one(store), Move.DONE)
    key = await store.table.get(dedupe_key("greet", "k"))
    assert key is not None
    assert "ttl" in key


# -- counts ---------------------------------------------------------------------------------------------------


@slow
async def test_counts_that_went_wrong_are_counted_anew(store: FreshStore) -> None:
    await put_many(store, 3)
    store.table.counts.add("default", Status.PENDING, 40)
    assert (await store.stats()).queues[0][Status.PENDING] == 43
    await store.repair()
    assert (await store.stats()).queues[0][Status.PENDING] == 3


@slow
async def test_counts_cost_a_write_a_second_and_not_one_per_job(store: FreshStore) -> None:
    await put(store)
    store.table.recording_read_at = float("inf")  # whether changes are recorded is read once a second
    before = dict(store.client.tally)["calls"]
    for _ in range(10):
        await put(store)
    assert store.client.tally["calls"] - before <= 10 * 2 + 2  # the halts, the job; and perhaps the counts


def test_counts_that_could_not_be_written_are_kept() -> None:
    counts = Counts()
    counts.add("q", Status.PENDING, 2)
    tally = counts.take()
    counts.add("q", Status.PENDING, 1)
    counts.restore(tally)
    assert counts.take() == {("q", "live"): {"pending": 3}}


def test_days_that_are_over_are_not_counted() -> None:
    rows = [
        {"SK": "a#b#live", "pending": 2, "running": -1},
        {"SK": "a#b#2026-01-01", "completed": 5},
        {"SK": "a#b#2026-01-03", "completed": 7},
    ]
    assert sum_up(rows, "2026-01-02") == {"a#b": {Status.PENDING: 2, Status.COMPLETED: 7}}
    assert sum_up(rows, None) == {"a#b": {Status.PENDING: 2, Status.COMPLETED: 12}}


# -- shards and polling -----------------------------------------------------------------------------------------


def test_every_shard_has_one_owner_and_few_move_when_a_process_goes() -> None:
    processes = [f"p{number}" for number in range(8)]
    before = {shard: [process for process in processes if owned(shard, process, processes)] for shard in range(256)}
    assert {len(owners) for owners in before.values()} == {1}
    assert min(sum([process] == owners for owners in before.values()) for process in processes) > 10
    after = {
        shard: [process for process in processes[:-1] if owned(shard, process, processes[:-1])] for shard in range(256)
    }
    assert all(after[shard] == before[shard] for shard in before if before[shard] != [processes[-1]])


def test_a_process_that_knows_no_other_owns_all_shards() -> None:
    assert all(owned(shard, "me", ()) for shard in range(MAX_SHARDS))


@slow
async def test_a_worker_looks_ever_more_seldom_and_soon_again_after_a_job(store: FreshStore) -> None:
    await join(store, "w1")
    member = store.table.local_workers.members["w1"]
    pauses = []
    for _ in range(9):
        pauses.append(member.pause)
        assert await claim(store) == []
        assert member.timer is not None
    assert pauses[0] == SHORTEST_POLL
    assert pauses == sorted(pauses)
    assert member.pause == LONGEST_POLL
    await put(store)
    assert await claim(store)
    assert (member.pause, member.timer) == (SHORTEST_POLL, None)


@slow
async def test_the_longest_pause_between_two_looks_can_be_set() -> None:
    store = FreshStore(poll=0.05)
    await store.open()
    await join(store, "w1")
    for _ in range(4):
        assert await claim(store) == []
    assert store.table.local_workers.members["w1"].pause == store.poll == 0.05
    await store.close()


@slow
async def test_a_worker_polls_as_rarely_as_is_set_and_then_finds_jobs_of_other_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pauses between polls are recorded, and passed over."""
    store, pauses = FreshStore(poll=30), list[float]()
    app = Mainspring(store)
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def skip(delay: float, call: Any, *args: Any, **options: Any) -> Any:
        if args == (Wake.JOBS,):
            pauses.append(delay)
            delay = 0.001
        return later(delay, call, *args, **options)

    @app.task()
    async def work() -> int:
        return 7

    monkeypatch.setattr(loop, "call_later", skip)
    async with app, working(app):
        await eventually(lambda: pauses[-3:] == [30.0] * 3)
        assert pauses == sorted(pauses)
        other = Mainspring(DynamoStore(store.table.name, client=client(), shards=store.table.shards))
        job = await other.task(name="work")(work.function).enqueue()
        (found,) = await ended(app, job.id)
        assert found.result == 7
        await other.close()


@slow
async def test_a_claim_from_its_own_shards_asks_only_those(programs: Programs) -> None:
    stores = [await programs.another() for _ in range(2)]
    for number, store in enumerate(stores):
        await join(store, f"w{number}")
        await store.reap()
    store = stores[1]
    await stores[0].reap()
    ours = [shard for shard in range(store.table.shards) if owned(shard, store.table.process, store._watch.processes)]
    assert len(store._watch.processes) == 2
    await put_many(store, 40)
    asked: list[str] = []
    whole = client_of(store).call

    async def call(operation: str, request: Any) -> dict[str, Any]:
        if operation == "Query" and request.get("IndexName") == "places":
            asked.extend(
                value["S"] for value in request["ExpressionAttributeValues"].values() if value["S"].startswith("wait#")
            )
        return await whole(operation, request)

    store.client.call = call  # type: ignore[method-assign]
    store._turn = 0
    taken = await claim(store, 3, worker="w1")
    assert len(taken) == 3
    if 0 < len(ours) < store.table.shards:
        assert {int(place[-3:]) for place in asked} == set(ours)


@slow
async def test_one_item_twice_in_a_list_of_changes_is_sent_in_several_calls(store: FreshStore) -> None:
    """The service refuses such a batch request: see dynamodb_rules.py."""
    await store.table.put(values.put({"PK": "a", "SK": "1", "n": 0}))
    await store.table.put(values.put({"PK": "a", "SK": "2", "n": 0}))
    whole, sizes = store.client.call, []

    async def watched(operation: str, request: Any) -> dict[str, Any]:
        if operation == "BatchExecuteStatement":
            sizes.append(len(request["Statements"]))
        return await whole(operation, request)

    store.client.call = watched  # type: ignore[method-assign]
    changes = [
        values.ItemUpdate(key("a", name), {"n": n}, [values.equals("n", 0)])
        for name, n in (("1", 1), ("2", 1), ("1", 2))
    ]
    first, other, again = await store.table.update_many(changes)
    assert sizes == [2]
    assert other == {"PK": "a", "SK": "2", "n": 0}
    assert sorted(isinstance(answer, Refused) for answer in (first, again)) == [False, True]


A, B = ({"PK": {"S": "a"}, "SK": {"S": name}} for name in ("1", "2"))


def batch_write(table: str, *items: Item) -> tuple[str, Any]:
    return "BatchWriteItem", {"RequestItems": {table: [{"PutRequest": {"Item": item}} for item in items]}}


def batch_get(table: str, *items: Item) -> tuple[str, Any]:
    return "BatchGetItem", {"RequestItems": {table: {"Keys": list(items)}}}


def transaction(table: str, *items: Item) -> tuple[str, Any]:
    first, *others = items
    puts: list[Any] = [{"Put": {"TableName": table, "Item": first}}]
    return "TransactWriteItems", {"TransactItems": puts + [{"Delete": {"TableName": table, "Key": o}} for o in others]}


def inserts(table: str, *items: Item) -> tuple[str, Any]:
    return "BatchExecuteStatement", {"Statements": [values.insert_in_batch(table, item) for item in items]}


def updates(table: str, *items: Item) -> tuple[str, Any]:
    changes = [values.ItemUpdate(item, {"n": 7}, [values.equals("n", 0)], {"m": 1}) for item in items]
    return "BatchExecuteStatement", {"Statements": [change.in_batch(table) for change in changes]}


@slow
@pytest.mark.parametrize("call", [batch_write, batch_get, transaction, inserts, updates])
async def test_the_tests_refuse_one_item_twice_in_one_call(store: FreshStore, call: Any) -> None:
    await store.client.call(*call(store.table.name, A, B))
    with pytest.raises(StoreError, match=r"ValidationException: .* names an item more than once"):
        await store.client.call(*call(store.table.name, A, B, A))


# -- many calls at once -----------------------------------------------------------------------------------


async def test_a_cancelled_caller_leaves_no_call_behind() -> None:
    begun: list[int] = []
    ended: list[int] = []
    no_room = asyncio.Event()

    async def call(number: int) -> None:
        begun.append(number)
        if len(begun) == MAX_PARALLEL:
            no_room.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    calls = asyncio.create_task(together([call(number) for number in range(MAX_PARALLEL + 5)]))
    await no_room.wait()
    calls.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls
    assert ended == begun == list(range(MAX_PARALLEL))  # and a call that is never awaited fails the test
