"""Halting the whole system, pausing one queue: nothing starts, everything else goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainspring.errors import SystemHalted
from mainspring.job import Move, ProgressReport, Status
from mainspring.stores.documents import By
from mainspring.stores.protocol import COPIER, Action, Filter, Halt, Store, Wake
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    BY,
    Bell,
    StoreScenario,
    a_halt,
    at,
    by_hand,
    by_silence,
    claim,
    claim_one,
    crashed,
    end,
    join,
    look,
    new_job,
    put,
    running,
    status_of,
)
from tests.conformance.takeover import OVERDUE, TIMEOUT, after


class HaltTests(StoreScenario):
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

    async def test_a_second_halt_keeps_the_first_reason(self, store: Store, clock: ManualClock) -> None:
        """And the longer and stricter of both holds."""
        first = a_halt(clock, accept=False)
        await store.halt(first)
        clock.advance(10)
        second = replace(a_halt(clock, seconds=60), actor="ben", reason="migration")
        written = await store.halt(second)
        both = replace(first, actor="ana, ben", reason="fire drill; migration")
        assert await store.halts() == [both] == [written]
        assert await store.resume(BY)
        assert await store.halts() == []

    async def test_the_later_end_of_two_halts_counts(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, seconds=120))
        await store.halt(a_halt(clock, seconds=60))
        (halt,) = await store.halts()
        assert (halt.until, halt.reason, halt.actor) == (at(clock, 120), "fire drill", "ana")

    async def test_a_halt_after_one_that_is_over_stands_alone(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, seconds=60))
        clock.advance(61)
        second = replace(a_halt(clock), reason="migration")
        await store.halt(second)
        assert await store.halts() == [second]

    async def test_the_halts_of_a_copy_replace_others(self, store: Store, clock: ManualClock) -> None:
        theirs = a_halt(clock, seconds=60)
        await store.halt(theirs)
        for reason in ("copying to x", "copied to x"):
            ours = Halt(COPIER, reason, at(clock), accept=False)
            await store.halt(ours)
            assert await store.halts() == [ours]
        await store.halt(theirs)
        assert await store.halts() == [theirs]

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
        for action in (Action.CANCEL, Action.RETRY, Action.DELETE):
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

    async def test_a_refusal_names_the_halt_of_the_system_first(self, store: Store, clock: ManualClock) -> None:
        """Then the first queue by name, in whichever order they were paused."""
        for queue in ("sms", "mail", None):
            await store.halt(a_halt(clock, queue=queue, accept=False))
        both = [new_job(queue="sms"), new_job(queue="mail")]
        with pytest.raises(SystemHalted, match="the system is halted"):
            await store.insert(both)
        await store.resume(BY)
        with pytest.raises(SystemHalted, match="queue 'mail' is paused"):
            await store.insert(both)

    async def test_a_halt_and_pauses_are_independent(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock))
        await store.halt(a_halt(clock, queue="mail"))
        await store.halt(a_halt(clock, queue="sms"))
        assert len(await store.halts()) == 3
        assert await store.resume(BY)
        assert {halt.queue for halt in await store.halts()} == {"mail", "sms"}
        assert await store.resume(BY, "mail")
        assert {halt.queue for halt in await store.halts()} == {"sms"}

    # -- confirmations ------------------------------------------------------------------------

    async def test_each_halt_has_a_higher_number(self, store: Store, clock: ManualClock) -> None:
        first = await store.halt(a_halt(clock))
        second = await store.halt(a_halt(clock, queue="mail"))
        await store.resume(BY)
        await store.resume(BY, "mail")
        third = await store.halt(a_halt(clock))
        assert 0 < first.number < second.number < third.number
        assert [halt.number for halt in await store.halts()] == [third.number]

    async def test_workers_have_not_confirmed_a_new_halt(self, store: Store, clock: ManualClock) -> None:
        halt = await store.halt(a_halt(clock))
        assert await unconfirmed(store, halt) == {"w1", "w2"}

    async def test_a_worker_that_confirmed_is_not_waited_for(self, store: Store, clock: ManualClock) -> None:
        halt = await store.halt(a_halt(clock))
        await store.confirm("w1", halt.number)
        await store.confirm("w1", halt.number)
        assert await unconfirmed(store, halt) == {"w2"}
        (waited_for,) = await store.unconfirmed(halt)
        assert (waited_for.host, waited_for.pid, waited_for.alive) == ("host", 1, True)
        assert waited_for.seen_at is not None

    async def test_a_confirmation_covers_earlier_halts_only(self, store: Store, clock: ManualClock) -> None:
        first = await store.halt(a_halt(clock, queue="mail"))
        await store.confirm("w1", first.number)
        second = await store.halt(a_halt(clock))
        assert await unconfirmed(store, second) == {"w1", "w2"}
        await store.confirm("w1", second.number)
        assert await unconfirmed(store, first) == {"w2"}
        assert await unconfirmed(store, second) == {"w2"}

    async def test_a_late_confirmation_of_an_earlier_halt_changes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        first = await store.halt(a_halt(clock))
        await store.resume(BY)
        second = await store.halt(a_halt(clock))
        await store.confirm("w1", first.number)
        assert await unconfirmed(store, second) == {"w1", "w2"}
        await store.confirm("w1", second.number)
        await store.confirm("w1", first.number)
        assert await unconfirmed(store, second) == {"w2"}

    async def test_a_pause_waits_for_workers_of_its_queue(self, store: Store, clock: ManualClock) -> None:
        await join(store, "mailer", queues=("mail", "sms"))
        await join(store, "printer", queues=("print",))
        halt = await store.halt(a_halt(clock, queue="mail"))
        assert await unconfirmed(store, halt) == {"w1", "w2", "mailer"}
        assert "printer" in await unconfirmed(store, await store.halt(a_halt(clock)))

    async def test_a_worker_that_left_is_not_waited_for(self, store: Store, clock: ManualClock) -> None:
        halt = await store.halt(a_halt(clock))
        await store.leave("w2")
        assert await unconfirmed(store, halt) == {"w1"}

    async def test_a_dead_worker_is_not_waited_for(self, store: Store, clock: ManualClock) -> None:
        halt = await store.halt(a_halt(clock))
        await by_silence(store, clock, "w1")
        assert await unconfirmed(store, halt) == {"w2"}

    async def test_a_worker_that_joins_under_a_halt_is_waited_for(self, store: Store, clock: ManualClock) -> None:
        halt = await store.halt(a_halt(clock))
        await join(store, "w3")
        assert "w3" in await unconfirmed(store, halt)

    async def test_a_halt_that_is_over_waits_for_nothing(self, store: Store, clock: ManualClock) -> None:
        resumed = await store.halt(a_halt(clock))
        await store.resume(BY)
        assert await unconfirmed(store, resumed) == set()
        ended = await store.halt(a_halt(clock, seconds=10))
        clock.advance(10)
        assert await unconfirmed(store, ended) == set()

    async def test_a_halt_that_was_replaced_still_waits(self, store: Store, clock: ManualClock) -> None:
        first = await store.halt(a_halt(clock))
        second = await store.halt(a_halt(clock, accept=False))
        assert await unconfirmed(store, first) == {"w1", "w2"}
        await store.confirm("w1", second.number)
        assert await unconfirmed(store, first) == {"w2"}

    async def test_halting_and_resuming_wake_workers(self, store: Store, clock: ManualClock) -> None:
        bell = Bell()
        await join(store, "w3", bell, queues=("sms",))
        await store.halt(a_halt(clock))
        assert await bell.hears(Wake.HALTS)
        await store.resume(BY)
        assert await bell.hears(Wake.HALTS)

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
        until = at(clock, 60)
        clock.advance(1)
        await store.resume(BY, "mail")
        resumed, paused = await store.audit()
        assert (paused.action, resumed.action) == ("pause", "resume")
        assert paused.detail == {"queue": "mail", "until": until.isoformat(), "accept": True}
        assert resumed.detail == {"queue": "mail"}


async def unconfirmed(store: Store, halt: Halt) -> set[str]:
    return {worker.id for worker in await store.unconfirmed(halt)}
