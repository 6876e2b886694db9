"""Halting the whole system, pausing one queue: nothing starts, everything else goes on."""

from __future__ import annotations

import json

import pytest

from mainspring.errors import SystemHalted
from mainspring.job import Move, ProgressReport, Status
from mainspring.stores.protocol import Action, By, Filter, Store
from mainspring.testing.clock import ManualClock
from mainspring.testing.conformance.scene import (
    BY,
    Scene,
    a_halt,
    at,
    by_hand,
    claim,
    claim_one,
    crashed,
    end,
    look,
    new_job,
    put,
    running,
    status_of,
)
from mainspring.testing.conformance.takeover import OVERDUE, TIMEOUT, after


class Halting(Scene):
    async def test_nothing_is_claimed_while_halted(self, store: Store, clock: ManualClock) -> None:
        await crashed(store)
        await put(store)
        await store.halt(a_halt(clock))
        assert await claim(store) == []
        assert await claim(store, queue="*") == []
        assert await claim(store, queue="*", solo=True) == []

    async def test_after_the_resume_jobs_are_claimed_again(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store)
        await store.halt(a_halt(clock))
        assert await store.resume(BY)
        assert (await claim_one(store)).id == job_id

    async def test_resuming_what_is_not_halted_says_so(self, store: Store, clock: ManualClock) -> None:
        assert not await store.resume(BY)
        assert not await store.resume(BY, "mail")
        await store.halt(a_halt(clock))
        assert await store.resume(BY)
        assert not await store.resume(BY)

    async def test_a_halt_can_be_read(self, store: Store, clock: ManualClock) -> None:
        halt = a_halt(clock, seconds=60, accept=False)
        await store.halt(halt)
        assert await store.halts() == [halt]

    async def test_a_second_halt_replaces_the_first(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, accept=False))
        second = a_halt(clock, seconds=60)
        await store.halt(second)
        assert await store.halts() == [second]
        await put(store)

    # -- an end of its own --------------------------------------------------------------------

    async def test_a_halt_ends_by_itself(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store)
        await store.halt(a_halt(clock, seconds=60))
        clock.advance(59)
        assert await claim(store) == []
        clock.advance(1)
        assert await store.halts() == []
        assert (await store.stats()).halts == []
        assert (await claim_one(store)).id == job_id

    async def test_a_halt_that_ended_cannot_be_resumed(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, seconds=60))
        clock.advance(61)
        assert not await store.resume(BY)

    async def test_a_halt_that_ended_refuses_nothing(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, seconds=60, accept=False))
        clock.advance(61)
        await put(store)

    # -- new jobs -----------------------------------------------------------------------------

    async def test_a_halted_system_accepts_jobs_for_later(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock))
        assert await status_of(store, await put(store)) is Status.PENDING

    async def test_a_halted_system_can_refuse_jobs(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, accept=False))
        with pytest.raises(SystemHalted):
            await store.insert([new_job(), new_job(queue="mail")])
        assert await store.count(Filter()) == 0

    async def test_follow_ups_of_running_jobs_are_accepted_all_the_same(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await store.halt(a_halt(clock, accept=False))
        follow_up = new_job()
        assert await end(store, held, Move.DONE, follow_ups=(follow_up,)) is Status.COMPLETED
        assert await status_of(store, follow_up.id) is Status.PENDING

    # -- what goes on -------------------------------------------------------------------------

    async def test_running_jobs_finish_while_halted(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await store.halt(a_halt(clock))
        assert await store.report([ProgressReport(held.id, held.token, 0.5, "")]) == {held.id}
        assert await end(store, held, Move.DONE) is Status.COMPLETED

    async def test_heartbeats_work_while_halted(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await store.halt(a_halt(clock, accept=False))
        for _ in range(3):
            assert await after(store, clock, store.lease - 1) == []
        assert (await store.heartbeat("w1", {held.id: held.token})).lost == frozenset()

    async def test_reading_works_while_halted(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store)
        await store.halt(a_halt(clock, accept=False))
        assert (await look(store, job_id)).id == job_id
        assert await store.count(Filter()) == 1
        assert len((await store.find(Filter())).jobs) == 1
        assert (await store.stats()).due["default"] == 1

    async def test_changes_by_hand_work_while_halted(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store)
        await store.halt(a_halt(clock, accept=False))
        for action in (Action.CANCEL, Action.REPLAY, Action.DELETE):
            assert (await by_hand(store, action, job_id)).ids == (job_id,)

    async def test_takeovers_happen_while_halted(self, store: Store, clock: ManualClock) -> None:
        await running(store, timeout=TIMEOUT)
        await store.halt(a_halt(clock))
        assert len(await after(store, clock, OVERDUE)) == 1

    # -- pauses -------------------------------------------------------------------------------

    async def test_a_paused_queue_gives_out_nothing(self, store: Store, clock: ManualClock) -> None:
        await crashed(store, queue="mail")
        await put(store, queue="mail")
        sms = await put(store, queue="sms")
        await store.halt(a_halt(clock, queue="mail"))
        assert await claim(store, queue="mail") == []
        assert await claim(store, queue="mail", solo=True) == []
        assert await claim(store, queue="*", solo=True) == []
        assert [held.id for held in await claim(store, queue="*")] == [sms]

    async def test_a_resumed_queue_gives_out_jobs_again(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store, queue="mail")
        await store.halt(a_halt(clock, queue="mail"))
        assert await store.resume(BY, "mail")
        assert (await claim_one(store, queue="mail")).id == job_id

    async def test_a_pause_ends_by_itself(self, store: Store, clock: ManualClock) -> None:
        await put(store, queue="mail")
        await store.halt(a_halt(clock, seconds=60, queue="mail"))
        clock.advance(60)
        assert await store.halts() == []
        assert len(await claim(store, queue="mail")) == 1

    async def test_a_paused_queue_can_refuse_jobs(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, queue="mail", accept=False))
        with pytest.raises(SystemHalted):
            await store.insert([new_job(queue="sms"), new_job(queue="mail")])
        assert await store.count(Filter()) == 0
        await put(store, queue="sms")

    async def test_halt_and_pauses_are_apart(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock))
        await store.halt(a_halt(clock, queue="mail"))
        await store.halt(a_halt(clock, queue="sms"))
        assert len(await store.halts()) == 3
        assert await store.resume(BY)
        assert {halt.queue for halt in await store.halts()} == {"mail", "sms"}
        assert await store.resume(BY, "mail")
        assert {halt.queue for halt in await store.halts()} == {"sms"}

    # -- audit --------------------------------------------------------------------------------

    async def test_halting_and_resuming_are_in_the_audit_log(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock))
        clock.advance(1)
        await store.resume(By("ben", "all clear"))
        resumed, halted = await store.audit()
        assert (halted.at, halted.actor, halted.action, halted.reason) == (at(clock, -1), "ana", "halt", "fire drill")
        assert (resumed.at, resumed.actor, resumed.action, resumed.reason) == (at(clock), "ben", "resume", "all clear")

    async def test_a_pause_in_the_audit_log_names_its_queue(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, seconds=60, queue="mail"))
        await store.resume(BY, "mail")
        assert ["mail" in json.dumps(entry.detail) for entry in await store.audit()] == [True, True]
