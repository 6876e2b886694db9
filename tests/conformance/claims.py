"""Which jobs a claim takes, in which order, and what it says when there are none."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter

import pytest

from mainspring.clock import Millis
from mainspring.job import CLAIMABLE, Claim, Move, Priority, Status
from mainspring.stores.protocol import Store, Want
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    StoreScenario,
    a_halt,
    at,
    claim,
    claim_one,
    crashed,
    end,
    look,
    put,
    put_many,
    running,
    status_of,
)

LONG = 3600.0


async def next_due(store: Store, *queues: str) -> Millis | None:
    claims = await store.claim("w1", [Want(queue, 10) for queue in queues or ("default",)])
    assert claims.jobs == []
    return claims.next_due


async def suspects(store: Store, *queues: str) -> bool:
    return (await store.claim("w1", [Want(queue, 10) for queue in queues or ("default",)])).suspects


def levels(claims: list[Claim]) -> Counter[int]:
    return Counter(taken.priority for taken in claims)


class ClaimTests(StoreScenario):
    async def test_a_claim_carries_the_job(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(
            store, task="welcome", payload='{"a": 1}', queue="mail", priority=Priority.LOW, max_attempts=5,
            timeout=1500, dedupe_key="k", target=("guest", "7"), tags=("vip",), options='{"isolation": "process"}',
        )  # fmt: skip
        taken = await claim_one(store, queue="mail")
        assert (taken.id, taken.task, taken.payload, taken.queue) == (job_id, "welcome", '{"a": 1}', "mail")
        assert (taken.priority, taken.attempts, taken.max_attempts, taken.crashes) == (Priority.LOW, 0, 5, 0)
        assert (taken.timeout, taken.dedupe_key, taken.target, taken.tags) == (1500, "k", ("guest", "7"), ("vip",))
        assert (taken.run_at, taken.created_at) == (clock.now(), clock.now())
        assert taken.options == '{"isolation": "process"}'
        assert taken.attempt == 1

    async def test_headers_stay_with_a_job_until_it_has_finished(self, store: Store) -> None:
        headers = {"tenant": "7", "größe": "ß 🎉", "quote": 'it\'s "here"', "": ""}
        job_id = await put(store, options=json.dumps({"headers": headers}))
        for move in (Move.RETRY, Move.RELEASE, Move.SUSPEND, Move.DONE):
            held = await claim_one(store)
            assert json.loads(held.options or "{}") == {"headers": headers}
            await end(store, held, move)
            assert (await look(store, job_id)).headers == headers

    async def test_a_claimed_job_runs_in_its_workers_name(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store)
        clock.advance(5)
        await claim_one(store, worker="w2")
        job = await look(store, job_id)
        assert (job.status, job.worker, job.started_at) == (Status.RUNNING, "w2", at(clock))

    async def test_each_claim_of_a_job_has_a_greater_token(self, store: Store) -> None:
        held = await running(store)
        for _ in range(3):
            await end(store, held, Move.RELEASE)
            held, before = await claim_one(store), held
            assert held.token > before.token
            assert (await look(store, held.id)).token == held.token

    async def test_a_claimed_job_is_not_claimed_again(self, store: Store) -> None:
        await running(store)
        assert await claim(store, worker="w2") == []

    async def test_no_job_is_claimed_twice_in_a_race(self, store: Store) -> None:
        ids = await put_many(store, 30)
        races = await asyncio.gather(*(claim(store, 3, worker=f"w{n % 2 + 1}") for n in range(20)))
        assert sorted(taken.id for claims in races for taken in claims) == sorted(ids)

    async def test_no_job_is_claimed_twice_from_several_threads(self, store: Store) -> None:
        ids = await put_many(store, 40)
        taken: list[str] = []

        async def take_all() -> None:
            while claims := await claim(store, 3):
                taken.extend(held.id for held in claims)

        threads = [threading.Thread(target=asyncio.run, args=(take_all(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert sorted(taken) == sorted(ids)

    # -- due ----------------------------------------------------------------------------------

    async def test_a_job_is_not_claimed_before_its_time(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store, delay=60_000)
        clock.advance(59.999)
        assert await claim(store) == []
        clock.advance(0.001)
        assert (await claim_one(store)).id == job_id

    async def test_an_urgent_job_for_later_does_not_hold_up_a_low_one_for_now(self, store: Store) -> None:
        await put_many(store, 3, priority=Priority.URGENT, delay=60_000)
        job_id = await put(store, priority=Priority.LOW)
        assert (await claim_one(store)).id == job_id

    async def test_a_failed_job_is_claimed_when_its_retry_is_due(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await end(store, held, Move.RETRY, delay=60_000)
        assert await claim(store) == []
        clock.advance(60)
        again = await claim_one(store)
        assert (again.id, again.attempt) == (held.id, 2)

    # -- order --------------------------------------------------------------------------------

    async def test_jobs_are_claimed_by_priority(self, store: Store) -> None:
        ids = {priority: await put(store, priority=priority) for priority in reversed(Priority)}
        taken = [await claim_one(store) for _ in Priority]
        assert [held.id for held in taken] == [ids[priority] for priority in Priority]

    async def test_one_claim_is_ordered_by_priority_too(self, store: Store) -> None:
        for priority in (Priority.LOW, Priority.URGENT, Priority.NORMAL, Priority.HIGH):
            await put(store, priority=priority)
        assert [held.priority for held in await claim(store)] == list(Priority)

    async def test_jobs_of_one_priority_are_claimed_by_due_time(self, store: Store, clock: ManualClock) -> None:
        late, early, middle = [await put(store, run_at=clock.now() - age) for age in (1000, 3000, 2000)]
        assert [held.id for held in await claim(store)] == [early, middle, late]

    async def test_jobs_due_before_1970_are_claimed_first(self, store: Store, clock: ManualClock) -> None:
        late, zero, early = [await put(store, run_at=moment) for moment in (clock.now(), 0, -2_208_000_000_000)]
        assert [held.id for held in await claim(store)] == [early, zero, late]

    async def test_jobs_due_at_the_same_time_are_claimed_in_the_order_they_came(self, store: Store) -> None:
        ids = [await put(store) for _ in range(5)]
        assert [held.id for held in await claim(store)] == ids

    async def test_a_claim_takes_no_more_than_it_wants(self, store: Store) -> None:
        await put_many(store, 5)
        assert [len(await claim(store, limit)) for limit in (0, 2, 10)] == [0, 2, 3]

    # -- queues -------------------------------------------------------------------------------

    async def test_a_claim_takes_only_from_the_queues_it_names(self, store: Store) -> None:
        await put(store, queue="mail")
        assert await claim(store, queue="sms") == []

    async def test_each_queue_has_its_own_limit(self, store: Store) -> None:
        await put_many(store, 5, queue="mail")
        await put_many(store, 5, queue="sms")
        claims = await store.claim("w1", [Want("mail", 1), Want("sms", 3)])
        assert Counter(held.queue for held in claims.jobs) == {"mail": 1, "sms": 3}

    async def test_a_claim_can_have_a_limit_for_all_queues_together(self, store: Store) -> None:
        await put_many(store, 5, queue="mail")
        await put_many(store, 5, queue="sms")
        for limit, taken in ((3, {"mail": 3}), (4, {"mail": 2, "sms": 2}), (0, {}), (None, {"sms": 3})):
            claims = await store.claim("w1", [Want("mail", 5), Want("sms", 5)], limit=limit)
            assert Counter(held.queue for held in claims.jobs) == taken

    async def test_wants_are_served_in_the_order_given(self, store: Store) -> None:
        await put(store, queue="mail", priority=Priority.URGENT)
        await put(store, queue="sms", priority=Priority.LOW)
        claims = await store.claim("w1", [Want("sms", 1), Want("mail", 1)])
        assert [held.queue for held in claims.jobs] == ["sms", "mail"]

    async def test_a_star_wants_any_queue(self, store: Store) -> None:
        ids = [await put(store, queue=queue) for queue in ("mail", "sms", "default")]
        assert sorted(held.id for held in await claim(store, queue="*")) == sorted(ids)

    async def test_a_star_takes_by_priority_across_queues(self, store: Store) -> None:
        low = await put(store, queue="a", priority=Priority.LOW)
        urgent = await put(store, queue="b", priority=Priority.URGENT)
        assert [held.id for held in await claim(store, queue="*")] == [urgent, low]

    async def test_a_star_serves_the_queue_that_waited_longest_first(self, store: Store, clock: ManualClock) -> None:
        """It takes all that it has room for from there, also jobs that came after those of other queues."""
        jobs: dict[str, str] = {}
        for name in ("b1", "a1", "b2", "a2", "b3"):
            jobs[await put(store, queue=name[0])] = name
            clock.advance(1)
        claims = [await claim(store, limit, queue="*") for limit in (2, 2, 2)]
        assert [[jobs[held.id] for held in taken] for taken in claims] == [["b1", "b2"], ["a1", "a2"], ["b3"]]

    async def test_a_star_has_one_limit_for_all_queues(self, store: Store) -> None:
        for queue in ("a", "b", "c"):
            await put_many(store, 2, queue=queue)
        assert len(await claim(store, 3, queue="*")) == 3

    async def test_a_star_after_a_named_queue_takes_each_job_once(self, store: Store) -> None:
        mail, sms = await put(store, queue="mail"), await put(store, queue="sms")
        claims = await store.claim("w1", [Want("mail", 5), Want("*", 5)])
        assert [held.id for held in claims.jobs] == [mail, sms]

    # -- no starvation ------------------------------------------------------------------------

    @pytest.mark.parametrize(("limit", "share"), [(4, 1), (8, 2), (20, 5)])
    async def test_a_low_priority_that_waited_too_long_gets_a_quarter_of_each_claim(
        self, store: Store, clock: ManualClock, limit: int, share: int
    ) -> None:
        await put_many(store, 20, priority=Priority.LOW)
        clock.advance(LONG)
        await put_many(store, 40, priority=Priority.URGENT)
        assert levels(await claim(store, limit)) == {Priority.URGENT: limit - share, Priority.LOW: share}

    @pytest.mark.parametrize("limit", [1, 2, 3])
    async def test_a_low_priority_that_waited_too_long_gets_every_fourth_of_small_claims(
        self, store: Store, clock: ManualClock, limit: int
    ) -> None:
        await put_many(store, 20, priority=Priority.LOW)
        clock.advance(LONG)
        await put_many(store, 40, priority=Priority.URGENT)
        taken = [held for _ in range(8) for held in await claim(store, limit)]
        assert levels(taken) == {Priority.URGENT: 6 * limit, Priority.LOW: 2 * limit}

    async def test_a_limit_for_all_queues_does_not_enlarge_the_share(self, store: Store, clock: ManualClock) -> None:
        await put_many(store, 20, priority=Priority.LOW)
        clock.advance(LONG)
        await put_many(store, 40, priority=Priority.URGENT)
        claims = await store.claim("w1", [Want("default", 20)], limit=8)
        assert levels(claims.jobs) == {Priority.URGENT: 6, Priority.LOW: 2}

    async def test_a_low_priority_within_its_patience_waits(self, store: Store, clock: ManualClock) -> None:
        await put_many(store, 20, priority=Priority.LOW)
        clock.advance(59)
        await put_many(store, 20, priority=Priority.URGENT)
        assert levels(await claim(store, 8)) == {Priority.URGENT: 8}

    async def test_an_old_backlog_leaves_what_it_cannot_use(self, store: Store, clock: ManualClock) -> None:
        await put(store, priority=Priority.LOW)
        clock.advance(LONG)
        await put_many(store, 20, priority=Priority.URGENT)
        assert levels(await claim(store, 16)) == {Priority.URGENT: 15, Priority.LOW: 1}

    async def test_a_low_priority_takes_all_that_urgent_ones_leave(self, store: Store, clock: ManualClock) -> None:
        await put_many(store, 10, priority=Priority.LOW)
        clock.advance(LONG)
        await put_many(store, 2, priority=Priority.URGENT)
        assert levels(await claim(store, 8)) == {Priority.URGENT: 2, Priority.LOW: 6}

    async def test_no_low_priority_starves_behind_an_endless_stream(self, store: Store, clock: ManualClock) -> None:
        old = {priority: await put(store, priority=priority) for priority in (Priority.NORMAL, Priority.LOW)}
        clock.advance(LONG)
        taken = set()
        for _ in range(20):
            await put_many(store, 2, priority=Priority.URGENT)
            taken |= {held.id for held in await claim(store, 2)}
        assert taken >= set(old.values())

    @pytest.mark.parametrize("limit", [1, 4])
    async def test_a_low_priority_does_not_starve_behind_the_backlog_of_another(
        self, store: Store, clock: ManualClock, limit: int
    ) -> None:
        oldest = await put(store, priority=Priority.LOW)
        clock.advance(LONG)
        await put_many(store, 50, priority=Priority.NORMAL)
        clock.advance(LONG)
        await put_many(store, 50, priority=Priority.URGENT)
        taken = [held.id for _ in range(8) for held in await claim(store, limit)]
        assert oldest in taken

    # -- suspects -----------------------------------------------------------------------------

    async def test_a_suspect_is_not_claimed_beside_others(self, store: Store) -> None:
        suspect = await crashed(store)
        innocent = await put(store)
        assert [held.id for held in await claim(store)] == [innocent]
        assert await status_of(store, suspect) is Status.PENDING

    async def test_a_claim_says_that_a_suspect_is_due(self, store: Store) -> None:
        assert not await suspects(store)
        await crashed(store)
        assert await suspects(store)
        await put(store)
        assert await suspects(store)

    async def test_a_suspect_of_another_queue_is_not_mentioned(self, store: Store) -> None:
        await crashed(store, queue="mail")
        assert not await suspects(store, "sms")
        assert await suspects(store, "sms", "mail")
        assert await suspects(store, "*")

    async def test_a_suspect_for_later_is_not_mentioned_before_its_time(self, store: Store, clock: ManualClock) -> None:
        await crashed(store)
        await end(store, await claim_one(store, solo=True), Move.SNOOZE, delay=60_000)
        assert not await suspects(store)
        assert await claim(store, solo=True) == []
        clock.advance(60)
        assert await suspects(store)

    async def test_a_solo_claim_takes_one_suspect_and_nothing_beside_it(self, store: Store) -> None:
        held = [await running(store), await running(store)]
        for suspect in held:
            await end(store, suspect, Move.CRASH)
        await put_many(store, 3)
        (first,) = await claim(store, 10, solo=True)
        (second,) = await claim(store, 10, solo=True)
        assert {first.id, second.id} == {suspect.id for suspect in held}
        assert first.crashes == 1

    async def test_a_solo_claim_takes_no_innocent_job(self, store: Store) -> None:
        await put_many(store, 3)
        assert await claim(store, solo=True) == []

    async def test_a_solo_claim_keeps_to_its_queues(self, store: Store) -> None:
        await crashed(store, queue="mail")
        assert await claim(store, queue="sms", solo=True) == []
        assert len(await claim(store, queue="*", solo=True)) == 1

    async def test_a_solo_claim_of_every_queue_takes_the_longest_waiting_suspect(
        self, store: Store, clock: ManualClock
    ) -> None:
        suspects = []
        for queue in ("sms", "mail", "print"):
            suspects.append(await crashed(store, queue=queue))
            clock.advance(1)
        assert [(await claim_one(store, queue="*", solo=True)).id for _ in suspects] == suspects

    async def test_a_solo_claim_keeps_to_its_limits(self, store: Store) -> None:
        await crashed(store, queue="mail")
        assert await claim(store, 0, queue="mail", solo=True) == []
        wants = [Want("mail", 0), Want("sms", 1)]
        assert (await store.claim("w1", wants, solo=True)).jobs == []
        assert (await store.claim("w1", [Want("mail", 1)], limit=0, solo=True)).jobs == []

    async def test_a_suspect_that_is_handed_back_stays_one(self, store: Store) -> None:
        suspect = await crashed(store)
        await end(store, await claim_one(store, solo=True), Move.RELEASE)
        assert await claim(store) == []
        await end(store, await claim_one(store, solo=True), Move.RETRY)
        assert await claim(store) == []
        assert (await claim_one(store, solo=True)).id == suspect

    # -- when to ask again --------------------------------------------------------------------

    async def test_an_empty_store_has_no_next_due(self, store: Store) -> None:
        assert await next_due(store) is None

    async def test_a_fruitless_claim_says_when_the_next_job_is_due(self, store: Store, clock: ManualClock) -> None:
        await put(store, delay=60_000)
        await put(store, delay=30_000, priority=Priority.LOW)
        assert await next_due(store) == clock.now() + 30_000
        assert await next_due(store, "*") == clock.now() + 30_000

    async def test_a_job_that_is_due_in_a_moment_is_not_put_off(self, store: Store, clock: ManualClock) -> None:
        await put(store, delay=1)
        assert await next_due(store) == clock.now() + 1

    async def test_next_due_knows_only_the_wanted_queues(self, store: Store, clock: ManualClock) -> None:
        await put(store, queue="mail", delay=60_000)
        await put(store, queue="sms", delay=30_000)
        assert await next_due(store, "mail") == clock.now() + 60_000
        assert await next_due(store, "other") is None

    async def test_next_due_counts_retries(self, store: Store, clock: ManualClock) -> None:
        await end(store, await running(store), Move.RETRY, delay=45_000)
        assert await next_due(store) == clock.now() + 45_000

    async def test_a_due_suspect_does_not_set_next_due(self, store: Store) -> None:
        await crashed(store)
        assert await next_due(store) is None

    async def test_next_due_counts_suspects(self, store: Store, clock: ManualClock) -> None:
        await crashed(store)
        await end(store, await claim_one(store, solo=True), Move.SNOOZE, delay=45_000)
        assert await next_due(store) == clock.now() + 45_000

    @pytest.mark.parametrize("status", sorted(set(Status) - CLAIMABLE))
    async def test_next_due_does_not_count_jobs_that_no_longer_wait(self, store: Store, status: Status) -> None:
        held = await running(store)
        moves = {
            Status.COMPLETED: Move.DONE,
            Status.CANCELLED: Move.CANCEL,
            Status.DEAD_LETTER: Move.DEAD,
        }
        if status in moves:
            await end(store, held, moves[status])
        assert await next_due(store) is None

    async def test_next_due_is_the_end_of_a_halt(self, store: Store, clock: ManualClock) -> None:
        await put(store)
        await store.halt(a_halt(clock, seconds=120))
        assert await next_due(store) == clock.now() + 120_000

    async def test_next_due_is_the_end_of_a_pause(self, store: Store, clock: ManualClock) -> None:
        await put(store)
        await store.halt(a_halt(clock, seconds=120, queue="default"))
        assert await next_due(store) == clock.now() + 120_000

    async def test_next_due_knows_only_the_pauses_of_wanted_queues(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, seconds=120, queue="sms"))
        await put(store, queue="mail", delay=300_000)
        assert await next_due(store, "mail") == clock.now() + 300_000
        assert await next_due(store, "other") is None
        assert await next_due(store, "mail", "sms") == clock.now() + 120_000
        assert await next_due(store, "*") == clock.now() + 120_000

    async def test_while_all_is_halted_the_end_of_a_pause_does_not_count(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.halt(a_halt(clock, seconds=60, queue="default"))
        await store.halt(a_halt(clock, seconds=120))
        assert await next_due(store) == clock.now() + 120_000

    async def test_a_halt_without_an_end_has_no_next_due(self, store: Store, clock: ManualClock) -> None:
        await put(store, delay=60_000)
        await store.halt(a_halt(clock))
        assert await next_due(store) is None
