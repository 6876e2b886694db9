"""Workers: which are listed, what a heartbeat brings back, and what wakes them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mainspring.job import Move, Status
from mainspring.stores.documents import By
from mainspring.stores.protocol import Action, Store, Wake, WorkerInfo
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    Bell,
    StoreScenario,
    a_halt,
    at,
    by_hand,
    by_silence,
    claim_one,
    end,
    ignore,
    job_in,
    join,
    new_job,
    present,
    put,
    running,
)
from tests.conformance.takeover import OVERDUE, TIMEOUT, after


class WorkerTests(StoreScenario):
    # -- coming and going ---------------------------------------------------------------------

    async def test_a_worker_that_joined_is_listed(self, store: Store, clock: ManualClock) -> None:
        info = WorkerInfo("w3", "host", 7, ("mail", "sms"), 5, ("greet", "remind"), "1.2", at(clock, -1))
        await store.join(info, ignore)
        (listed,) = [worker for worker in (await store.stats()).workers if worker.id == "w3"]
        assert (listed.host, listed.pid, listed.queues, listed.concurrency) == ("host", 7, ("mail", "sms"), 5)
        assert (listed.tasks, listed.version, listed.started_at) == (("greet", "remind"), "1.2", at(clock, -1))
        assert listed.seen_at is not None
        assert listed.alive

    async def test_a_worker_that_left_is_not_listed(self, store: Store) -> None:
        await store.leave("w2")
        assert await present(store) == {"w1"}

    async def test_leaving_twice_is_fine(self, store: Store) -> None:
        await store.leave("w2")
        await store.leave("w2")
        assert await present(store) == {"w1"}

    async def test_joining_twice_is_one_worker(self, store: Store) -> None:
        await join(store, "w1")
        assert await present(store) == {"w1", "w2"}

    async def test_a_worker_that_joins_again_with_other_tasks_keeps_its_jobs(self, store: Store) -> None:
        held, bell = await running(store), Bell()
        await store.join(WorkerInfo("w1", "host", 7, ("*",), tasks=("greet", "remind")), bell)
        (listed,) = [worker for worker in (await store.stats()).workers if worker.id == "w1"]
        assert listed.tasks == ("greet", "remind")
        assert not (await store.reap()).takeovers
        assert not (await store.heartbeat("w1", {held.id: held.token})).lost
        await put(store)
        assert await bell.hears(Wake.JOBS)

    async def test_a_dead_worker_is_not_listed(self, store: Store, clock: ManualClock) -> None:
        await by_silence(store, clock, "w1")
        assert await present(store) == {"w2"}

    # -- the pulse ----------------------------------------------------------------------------

    async def test_a_heartbeat_finds_held_claims_in_order(self, store: Store) -> None:
        held = await running(store)
        pulse = await store.heartbeat("w1", {held.id: held.token})
        assert (pulse.lost, dict(pulse.cancelled)) == (frozenset(), {})

    async def test_the_listing_shows_the_stuck_slots_of_the_last_heartbeat(self, store: Store) -> None:
        for number in (3, 3, 12, 100_000, 0):
            await store.heartbeat("w1", {}, stuck=number)
            assert {worker.id: worker.stuck for worker in (await store.stats()).workers} == {"w1": number, "w2": 0}
            assert (await store.stats()).stuck == number

    async def test_a_worker_that_joins_again_has_no_stuck_slots(self, store: Store) -> None:
        await store.heartbeat("w1", {}, stuck=2)
        await store.leave("w1")
        await join(store, "w1")
        assert {worker.id: worker.stuck for worker in (await store.stats()).workers} == {"w1": 0, "w2": 0}

    async def test_a_heartbeat_without_claims_is_fine(self, store: Store) -> None:
        pulse = await store.heartbeat("w1", {})
        assert (pulse.lost, dict(pulse.cancelled)) == (frozenset(), {})

    @pytest.mark.parametrize("move", [Move.DONE, Move.RETRY, Move.RELEASE, Move.SUSPEND, Move.CANCEL])
    async def test_a_heartbeat_tells_of_claims_that_ended(self, store: Store, move: Move) -> None:
        held = await running(store)
        await end(store, held, move)
        assert (await store.heartbeat("w1", {held.id: held.token})).lost == {held.id}

    async def test_a_heartbeat_tells_of_claims_that_another_has(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.RELEASE)
        successor = await claim_one(store, worker="w2")
        assert (await store.heartbeat("w1", {held.id: held.token})).lost == {held.id}
        assert (await store.heartbeat("w2", {held.id: successor.token})).lost == frozenset()

    async def test_a_heartbeat_tells_of_jobs_that_do_not_exist(self, store: Store) -> None:
        unknown = new_job().id
        assert (await store.heartbeat("w1", {unknown: 1})).lost == {unknown}

    async def test_a_heartbeat_tells_of_requested_cancels(self, store: Store) -> None:
        held, other = await running(store), await running(store)
        await by_hand(store, Action.CANCEL, held.id)
        pulse = await store.heartbeat("w1", {held.id: held.token, other.id: other.token})
        assert (pulse.lost, dict(pulse.cancelled)) == (frozenset(), {held.id: "by hand"})

    # -- wake-ups -----------------------------------------------------------------------------

    @pytest.fixture
    async def bell(self, store: Store) -> Bell:
        """The ear of w3, which serves the queues default and mail."""
        bell = Bell()
        await join(store, "w3", bell, ("default", "mail"))
        return bell

    @pytest.mark.parametrize("queue", ["default", "mail"])
    async def test_a_new_job_wakes_a_worker(self, store: Store, bell: Bell, queue: str) -> None:
        await put(store, queue=queue)
        assert await bell.hears(Wake.JOBS)

    async def test_a_job_for_later_wakes_a_worker_so_that_it_plans_anew(self, store: Store, bell: Bell) -> None:
        await put(store, delay=60_000)
        assert await bell.hears(Wake.JOBS)

    async def test_a_star_hears_of_all_queues(self, store: Store) -> None:
        bell = Bell()
        await join(store, "w3", bell, ("*",))
        await put(store, queue="anything")
        assert await bell.hears(Wake.JOBS)

    async def test_a_worker_is_woken_on_the_loop_it_joined_on(self, store: Store, bell: Bell) -> None:
        await asyncio.to_thread(asyncio.run, put(store))
        assert await bell.hears(Wake.JOBS)
        assert bell.threads == {threading.get_ident()}

    async def test_a_manual_retry_wakes_a_worker(self, store: Store) -> None:
        job_id = await job_in(store, Status.DEAD_LETTER)
        bell = Bell()
        await join(store, "w3", bell)
        await by_hand(store, Action.RETRY, job_id)
        assert await bell.hears(Wake.JOBS)

    async def test_an_edit_that_makes_a_job_due_wakes_a_worker(self, store: Store) -> None:
        job_id = await put(store, delay=60_000)
        bell = Bell()
        await join(store, "w3", bell)
        await by_hand(store, Action.EDIT, job_id, delay=0)
        assert await bell.hears(Wake.JOBS)

    async def test_an_edit_wakes_the_workers_of_the_new_queue(self, store: Store, bell: Bell) -> None:
        job_id = await put(store, queue="sms")
        await by_hand(store, Action.EDIT, job_id, queue="mail")
        assert await bell.hears(Wake.JOBS)

    async def test_a_follow_up_wakes_a_worker(self, store: Store, bell: Bell) -> None:
        held = await running(store, queue="sms")
        await end(store, held, Move.DONE, follow_ups=(new_job(queue="mail"),))
        assert await bell.hears(Wake.JOBS)

    async def test_a_released_job_wakes_a_worker(self, store: Store) -> None:
        held = await running(store)
        bell = Bell()
        await join(store, "w3", bell)
        await end(store, held, Move.RELEASE)
        assert await bell.hears(Wake.JOBS)

    @pytest.mark.parametrize("queue", [None, "mail"])
    async def test_the_end_of_a_halt_wakes_a_worker(
        self, store: Store, clock: ManualClock, bell: Bell, queue: str | None
    ) -> None:
        await store.halt(a_halt(clock, queue=queue))
        await store.resume(By("ana"), queue)
        assert await bell.hears(Wake.JOBS)

    async def test_a_requested_cancel_wakes_its_worker(self, store: Store, bell: Bell) -> None:
        held = await running(store, worker="w3")
        await by_hand(store, Action.CANCEL, held.id)
        assert await bell.hears(Wake.CANCELLATIONS)

    async def test_a_stalled_job_wakes_its_worker(self, store: Store, clock: ManualClock, bell: Bell) -> None:
        await running(store, worker="w3", timeout=TIMEOUT)
        assert await after(store, clock, OVERDUE)
        assert await bell.hears(Wake.CANCELLATIONS)

    async def test_a_suspect_wakes_the_others(self, store: Store, clock: ManualClock) -> None:
        await running(store)
        bell = Bell()
        await join(store, "w3", bell)
        await by_silence(store, clock, "w1")
        assert await bell.hears(Wake.JOBS)
