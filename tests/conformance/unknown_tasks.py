"""A claim takes only jobs of the tasks that its worker knows, and leaves all others as they are."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.job import Claim, Move, Priority, Status
from mainspring.stores.protocol import Action, Claims, Store, Want
from mainspring.testing.clock import ManualClock
from tests.conformance.read import tally_of_find, tally_of_stats
from tests.conformance.scenario import (
    A_NAP,
    BELL,
    StoreScenario,
    a_halt,
    at,
    by_hand,
    claim,
    crashed,
    end,
    look,
    put,
    put_many,
    running,
    status_of,
)

OLD, NEW, OTHERS = frozenset({"greet"}), frozenset({"greet", "thank"}), frozenset({"thank", "wave"})
SOON = 100  # milliseconds for which a store may ask a worker to wait before it looks again
MANY = 40  # claims in a row; more mean that a store does not get past jobs of unknown tasks


async def ask(store: Store, tasks: frozenset[str], limit: int = 100, *, queue: str = "default") -> Claims:
    """Claim once and, as a worker does, again while the store says that it is worth it now."""
    for _ in range(MANY):
        claims = await store.claim("w1", [Want(queue, limit)], tasks=tasks)
        if claims.jobs or claims.next_due is None or claims.next_due > store.clock.now() + SOON:
            return claims
    raise AssertionError


def ids(claims: list[Claim]) -> list[str]:
    return [taken.id for taken in claims]


class UnknownTaskTests(StoreScenario):
    async def test_a_claim_takes_only_tasks_that_it_asks_for(self, store: Store) -> None:
        unknown, known = await put(store, task="thank"), await put(store)
        assert ids((await ask(store, OLD)).jobs) == [known]
        assert await status_of(store, unknown) is Status.PENDING

    async def test_a_claim_for_no_task_takes_nothing(self, store: Store) -> None:
        await put(store)
        assert (await ask(store, frozenset())).jobs == []

    async def test_a_job_of_an_unknown_task_stays_as_it_is(self, store: Store) -> None:
        job_id = await put(store, task="thank")
        before = await look(store, job_id)
        for _ in range(3):
            assert (await ask(store, OLD)).jobs == []
        assert await look(store, job_id) == before

    async def test_a_worker_that_knows_the_task_takes_it_without_delay(self, store: Store) -> None:
        job_id = await put(store, task="thank")
        assert (await ask(store, OLD)).jobs == []
        [taken] = await claim(store, worker="w2", tasks=NEW)
        assert (taken.id, taken.token) == (job_id, 1)

    async def test_a_claim_for_any_task_takes_what_others_passed_over(self, store: Store) -> None:
        job_id = await put(store, task="thank")
        await ask(store, OLD)
        assert ids(await claim(store)) == [job_id]

    async def test_a_job_that_was_passed_over_can_end_and_run_again(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store, task="thank")
        await ask(store, OLD)
        [held] = await claim(store, tasks=NEW)
        assert await end(store, held, Move.RETRY, delay=1000) is Status.RETRYING
        assert (await ask(store, NEW)).next_due == clock.now() + 1000
        clock.advance(1)
        [held] = await claim(store, tasks=NEW)
        assert held.id == job_id
        assert await end(store, held, Move.DONE) is Status.COMPLETED
        assert await tally_of_stats(store) == await tally_of_find(store)

    # -- order --------------------------------------------------------------------------------

    async def test_jobs_that_were_passed_over_keep_their_order(self, store: Store, clock: ManualClock) -> None:
        order = []
        for task in ("thank", "wave", "thank", "wave"):
            order.append(await put(store, task=task))
            clock.advance(1)
        await ask(store, OLD)
        for task in ("wave", "thank"):
            order.append(await put(store, task=task))
            clock.advance(1)
        assert ids(await claim(store, 3, tasks=OTHERS)) == order[:3]
        assert ids(await claim(store, 1, tasks=OTHERS)) == order[3:4]
        assert ids(await claim(store, tasks=OTHERS)) == order[4:]

    async def test_priority_comes_first_among_jobs_that_were_passed_over(self, store: Store) -> None:
        low = await put(store, task="thank", priority=Priority.LOW)
        await put(store, task="thank", priority=Priority.NORMAL)
        await ask(store, OLD)
        await put(store, task="thank", priority=Priority.HIGH)
        await put(store, task="wave", priority=Priority.URGENT)
        taken = await claim(store, tasks=OTHERS)
        assert [held.priority for held in taken] == sorted(Priority)
        assert taken[-1].id == low

    async def test_a_low_priority_that_was_passed_over_gets_its_share(self, store: Store, clock: ManualClock) -> None:
        old = await put_many(store, 4, task="thank", priority=Priority.LOW)
        await ask(store, OLD)
        clock.advance(3600)
        await put_many(store, 20, task="thank", priority=Priority.URGENT)
        taken = await claim(store, 16, tasks=NEW)
        assert {held.id for held in taken if held.priority == Priority.LOW} == set(old)

    async def test_each_queue_passes_over_its_own_jobs(self, store: Store) -> None:
        mail, sms = await put(store, task="thank", queue="mail"), await put(store, task="thank", queue="sms")
        assert (await ask(store, OLD, queue="*")).jobs == []
        assert ids(await claim(store, queue="sms", tasks=NEW)) == [sms]
        assert ids(await claim(store, queue="*", tasks=NEW)) == [mail]

    async def test_a_claim_without_room_takes_nothing(self, store: Store) -> None:
        await put(store, task="thank")
        await ask(store, OLD)
        assert (await store.claim("w1", [Want("default", 5)], limit=0, tasks=NEW)).jobs == []

    async def test_wants_keep_their_limits(self, store: Store) -> None:
        await put_many(store, 3, task="thank", queue="mail")
        await ask(store, OLD, queue="mail")
        await put_many(store, 3, task="thank", queue="mail")
        await put_many(store, 3, task="thank", queue="sms")
        claims = await store.claim("w1", [Want("mail", 4), Want("sms", 2)], limit=5, tasks=NEW)
        assert [held.queue for held in claims.jobs] == ["mail"] * 4 + ["sms"]

    # -- many ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("limit", [1, 10])
    async def test_a_job_behind_many_of_an_unknown_task_is_found(self, store: Store, limit: int) -> None:
        for priority in Priority:
            await put_many(store, 60, task="thank", priority=priority)
        known = await put(store, priority=Priority.LOW)
        assert ids((await ask(store, OLD, limit)).jobs) == [known]
        assert (await store.stats()).due["default"] == 240

    async def test_workers_that_know_different_tasks_share_a_queue(self, store: Store) -> None:
        wanted = {"greet": set[str](), "thank": set[str]()}
        for number in range(60):
            task = ("greet", "thank")[number % 3 == 0]
            wanted[task].add(await put(store, task=task))
        taken = {"greet": list[str](), "thank": list[str]()}

        async def work(worker: str, task: str) -> None:
            while len(taken[task]) < len(wanted[task]):
                claims = await store.claim(worker, [Want("*", 7)], tasks=frozenset({task}))
                assert {held.task for held in claims.jobs} <= {task}
                taken[task] += ids(claims.jobs)

        async with asyncio.timeout(60):
            await asyncio.gather(work("w1", "greet"), work("w2", "thank"))
        assert {task: set(jobs) for task, jobs in taken.items()} == wanted
        assert sum(len(jobs) for jobs in taken.values()) == 60

    # -- what a claim says --------------------------------------------------------------------

    async def test_a_claim_names_the_unknown_tasks_that_are_due(self, store: Store) -> None:
        await put(store, task="thank")
        await put(store, task="wave", priority=Priority.LOW)
        await put(store, task="later", delay=60_000)
        await put(store, task="elsewhere", queue="sms")
        await put(store)
        assert (await ask(store, OLD)).unknown == {"thank", "wave"}
        assert (await ask(store, OLD)).unknown == {"thank", "wave"}
        assert (await ask(store, OTHERS)).unknown == frozenset()

    async def test_due_jobs_of_unknown_tasks_do_not_set_next_due(self, store: Store, clock: ManualClock) -> None:
        await put(store, task="thank")
        assert (await ask(store, OLD)).next_due is None
        await put(store, delay=60_000)
        assert (await ask(store, OLD)).next_due == clock.now() + 60_000

    async def test_jobs_that_were_passed_over_and_put_off_are_asked_for_in_time(
        self, store: Store, clock: ManualClock
    ) -> None:
        job_id = await put(store, task="thank")
        await ask(store, OLD)
        await by_hand(store, Action.EDIT, job_id, run_at=clock.now() + 5000)
        assert (await ask(store, NEW)).next_due == clock.now() + 5000
        clock.advance(5)
        assert ids(await claim(store, tasks=NEW)) == [job_id]

    # -- suspects -----------------------------------------------------------------------------

    async def test_a_suspect_of_an_unknown_task_is_neither_mentioned_nor_taken(self, store: Store) -> None:
        job_id = await crashed(store, task="thank")
        assert not (await ask(store, OLD)).suspects
        assert await claim(store, solo=True, tasks=OLD) == []
        assert (await ask(store, NEW)).suspects
        assert ids(await claim(store, solo=True, tasks=NEW)) == [job_id]

    async def test_a_suspect_behind_those_of_unknown_tasks_is_taken(self, store: Store, clock: ManualClock) -> None:
        for task in ("thank", "wave", "thank"):
            await crashed(store, task=task)
            clock.advance(1)
        known = await crashed(store)
        assert (await ask(store, OLD)).suspects
        assert ids(await claim(store, solo=True, tasks=OLD)) == [known]
        assert not (await ask(store, OLD)).suspects

    async def test_a_claim_names_the_unknown_tasks_of_suspects(self, store: Store) -> None:
        await crashed(store, task="thank")
        assert (await ask(store, OLD)).unknown == {"thank"}

    # -- whatever else happens to them --------------------------------------------------------

    @pytest.mark.parametrize("action", [Action.CANCEL, Action.DELETE])
    async def test_a_job_that_was_passed_over_can_be_ended_by_hand(self, store: Store, action: Action) -> None:
        job_id = await put(store, task="thank")
        await ask(store, OLD)
        assert (await by_hand(store, action, job_id)).ids == (job_id,)
        assert await claim(store, tasks=NEW) == []
        assert await tally_of_stats(store) == await tally_of_find(store)

    async def test_a_job_that_was_passed_over_can_move_to_another_queue(self, store: Store) -> None:
        job_id = await put(store, task="thank")
        await ask(store, OLD)
        await by_hand(store, Action.EDIT, job_id, queue="sms", priority=Priority.URGENT)
        assert await claim(store, tasks=NEW) == []
        [held] = await claim(store, queue="sms", tasks=NEW)
        assert (held.id, held.priority) == (job_id, Priority.URGENT)

    async def test_a_suspended_job_whose_time_has_come_is_passed_over_too(
        self, store: Store, clock: ManualClock
    ) -> None:
        held = await running(store, task="thank")
        await end(store, held, Move.SUSPEND, delay=A_NAP, waits_for=BELL)
        clock.advance(A_NAP / 1000)
        assert (await ask(store, OLD)).jobs == []
        assert await status_of(store, held.id) is Status.SUSPENDED
        assert await store.wake({BELL: 1}) == {BELL: 1}
        assert (await ask(store, OLD)).jobs == []
        assert ids(await claim(store, tasks=NEW)) == [held.id]
        assert await tally_of_stats(store) == await tally_of_find(store)

    async def test_a_job_that_was_passed_over_does_not_run_while_its_queue_is_paused(
        self, store: Store, clock: ManualClock
    ) -> None:
        await put(store, task="thank")
        await ask(store, OLD)
        await store.halt(a_halt(clock, queue="default"))
        assert await claim(store, tasks=NEW) == []

    # -- statistics ---------------------------------------------------------------------------

    async def test_jobs_that_were_passed_over_count_as_due(self, store: Store, clock: ManualClock) -> None:
        await put(store, task="thank")
        clock.advance(5)
        await put_many(store, 2, task="thank")
        await ask(store, OLD)
        stats = await store.stats()
        assert stats.due["default"] == 3
        assert stats.oldest_due["default"] == at(clock, -5)

    async def test_statistics_name_the_tasks_that_are_due(self, store: Store, clock: ManualClock) -> None:
        await put(store, task="thank")
        await ask(store, OLD)
        clock.advance(5)
        await crashed(store, task="fall", queue="sms")
        await put_many(store, 2, task="thank")
        await put(store, task="wave", queue="sms")
        await put(store, task="later", delay=60_000)
        found = {(task.queue, task.task): (task.due, task.oldest_due) for task in (await store.stats()).due_tasks}
        assert found == {
            ("default", "thank"): (3, at(clock, -5)),
            ("sms", "wave"): (1, at(clock)),
            ("sms", "fall"): (1, at(clock)),
        }
