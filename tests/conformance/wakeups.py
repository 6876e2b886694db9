"""Durable functions: steps that are behind them, sleep, and waiting for what others do."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import ConfigurationError
from mainspring.job import UNTIL_WOKEN, Claim, Inserted, Move, NewJob, Save, Status, Step, end_of
from mainspring.stores.documents import Bundle, Key, Write
from mainspring.stores.protocol import Action, Store, Wake, Want
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    Bell,
    StoreScenario,
    a_halt,
    at,
    by_hand,
    claim,
    claim_one,
    end,
    job_in,
    join,
    look,
    new_job,
    outcome,
    put,
    running,
    status_of,
)

FETCH = Step("fetch", 1, "step", '{"rows": 7}', 1_000, 2_000)
RENDER = Step("render", 2, "step", '"a.mp4"', 2_000, 5_000)


async def suspended(store: Store, waits_for: str | None, delay: int = UNTIL_WOKEN, **overrides: Any) -> str:
    """A job of its own that waits for a key."""
    held = await running(store, **overrides)
    assert await end(store, held, Move.SUSPEND, waits_for=waits_for, delay=delay) is Status.SUSPENDED
    return held.id


async def save(store: Store, held: Claim, *steps: Step, jobs: tuple[NewJob, ...] = ()) -> list[Inserted] | None:
    (answer,) = await store.save([Save(held.id, held.token, steps, jobs, held.ref)])
    return answer


class WakeupTests(StoreScenario):
    # -- sleep ----------------------------------------------------------------------------------

    async def test_a_suspended_job_sleeps_until_its_time(self, store: Store, clock: ManualClock) -> None:
        job_id = await suspended(store, None, delay=60_000)
        job = await look(store, job_id)
        assert (job.status, job.run_at, job.waits_for) == (Status.SUSPENDED, at(clock, 60), None)
        clock.advance(59)
        assert await claim(store, queue="*") == []
        clock.advance(1)
        assert (await claim_one(store)).id == job_id
        assert await status_of(store, job_id) is Status.RUNNING

    async def test_the_time_of_a_sleeping_job_sets_next_due(self, store: Store, clock: ManualClock) -> None:
        await suspended(store, None, delay=60_000)
        await suspended(store, "bell")
        assert (await store.claim("w1", [])).next_due is None
        claims = await _nothing_claimed(store)
        assert claims == clock.now() + 60_000

    async def test_a_job_that_waits_for_a_key_has_no_next_time(self, store: Store, clock: ManualClock) -> None:
        job_id = await suspended(store, "bell")
        clock.advance(365 * 86_400)
        assert await _nothing_claimed(store) is None
        job = await look(store, job_id)
        assert (job.waits_for, job.run_at.year) == ("bell", 9999)

    async def test_each_stretch_between_suspensions_has_all_attempts(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, max_attempts=2)
        await end(store, held, Move.RETRY)
        held = await claim_one(store)
        await end(store, held, Move.CRASH)
        held = await claim_one(store, solo=True)
        assert (held.attempts, held.crashes) == (1, 1)
        await end(store, held, Move.SUSPEND, delay=1000)
        clock.advance(1)
        held = await claim_one(store)  # not as a suspect
        assert (held.attempts, held.crashes) == (0, 0)

    async def test_a_blocked_job_keeps_its_attempts_and_crashes(self, store: Store) -> None:
        held = await running(store, max_attempts=3)
        await end(store, held, Move.RETRY)
        held = await claim_one(store)
        await end(store, held, Move.CRASH)
        held = await claim_one(store, solo=True)
        await end(store, held, Move.SUSPEND, delay=UNTIL_WOKEN, waits_for="bell", blocked=True, reason="full")
        job = await look(store, held.id)
        assert (job.status, job.attempts, job.crashes, job.waits_for, job.reason) == (
            Status.SUSPENDED, 1, 1, "bell", "full",
        )  # fmt: skip
        assert await store.wake({"bell": 1}) == {"bell": 1}
        assert await claim(store) == []  # still a suspect
        assert (await claim_one(store, solo=True)).attempt == 2

    async def test_history_goes_on_across_suspensions(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.RETRY)
        await end(store, await claim_one(store), Move.SUSPEND)
        await end(store, await claim_one(store), Move.RETRY)
        assert [(run.number, run.move) for run in await store.attempts(held.id)] == [(1, Move.RETRY), (2, Move.RETRY)]

    async def test_a_sleeping_job_can_be_cancelled(self, store: Store, clock: ManualClock) -> None:
        job_id = await suspended(store, "bell", delay=60_000)
        assert (await by_hand(store, Action.CANCEL, job_id)).ids == (job_id,)
        clock.advance(60)
        assert await claim(store) == []
        assert await store.wake({"bell": 1}) == {"bell": 0}
        assert (await look(store, job_id)).waits_for is None

    async def test_a_cancel_that_came_meanwhile_is_not_slept_over(self, store: Store) -> None:
        held = await running(store)
        await by_hand(store, Action.CANCEL, held.id)
        assert await end(store, held, Move.SUSPEND, waits_for="bell", delay=UNTIL_WOKEN) is Status.CANCELLED
        assert await store.wake({"bell": 1}) == {"bell": 0}

    async def test_a_sleeping_job_holds_its_dedupe_key(self, store: Store) -> None:
        job_id = await suspended(store, None, delay=60_000, dedupe_key="k")
        (other,) = await store.insert([new_job(dedupe_key="k")])
        assert (other.id, other.created) == (job_id, False)

    async def test_a_halt_does_not_wake_a_sleeping_job(self, store: Store, clock: ManualClock) -> None:
        await suspended(store, None, delay=60_000)
        await store.halt(a_halt(clock))
        clock.advance(61)
        assert await claim(store) == []

    async def test_counts_follow_suspensions_and_wake_ups(self, store: Store, clock: ManualClock) -> None:
        await suspended(store, "bell", delay=60_000)
        await suspended(store, "bell", delay=60_000)
        assert await _counted(store) == {Status.SUSPENDED: 2}
        await store.wake({"bell": 1})
        assert await _counted(store) == {Status.SUSPENDED: 1, Status.PENDING: 1}
        clock.advance(60)
        await claim(store)
        assert await _counted(store) == {Status.RUNNING: 2}

    async def test_statistics_count_a_sleeping_job_that_is_due(self, store: Store, clock: ManualClock) -> None:
        await suspended(store, None, delay=60_000)
        assert dict((await store.stats()).due).get("default", 0) == 0
        clock.advance(61)
        assert (await store.stats()).due["default"] == 1

    async def test_a_sleeping_job_can_be_deleted(self, store: Store) -> None:
        job_id = await suspended(store, "bell")
        assert (await by_hand(store, Action.DELETE, job_id)).ids == (job_id,)
        assert await store.get([job_id]) == []
        assert await store.wake({"bell": 1}) == {"bell": 0}

    # -- being woken ------------------------------------------------------------------------------

    async def test_a_wake_makes_the_waiting_job_due(self, store: Store, clock: ManualClock) -> None:
        job_id = await suspended(store, "bell")
        clock.advance(5)
        assert await store.wake({"bell": 1}) == {"bell": 1}
        job = await look(store, job_id)
        assert (job.status, job.run_at, job.waits_for) == (Status.PENDING, at(clock), None)
        assert (await claim_one(store)).id == job_id

    async def test_a_wake_wakes_a_worker(self, store: Store) -> None:
        await suspended(store, "bell")
        ear = Bell()
        await join(store, "w3", ear)
        await store.wake({"bell": 1})
        assert await ear.hears(Wake.JOBS)

    async def test_waking_a_key_without_waiting_jobs_does_nothing(self, store: Store) -> None:
        job_id = await suspended(store, "bell")
        assert await store.wake({"door": 5}) == {"door": 0}
        assert await status_of(store, job_id) is Status.SUSPENDED

    async def test_no_job_is_woken_twice(self, store: Store) -> None:
        await suspended(store, "bell")
        assert await store.wake({"bell": 5}) == {"bell": 1}
        assert await store.wake({"bell": 5}) == {"bell": 0}

    async def test_urgent_and_old_jobs_are_woken_first_up_to_the_number(self, store: Store) -> None:
        late = await suspended(store, "bell", priority=3)
        first, second, third = [await suspended(store, "bell", priority=1) for _ in range(3)]
        assert await store.wake({"bell": 2}) == {"bell": 2}
        assert {held.id for held in await claim(store)} == {first, second}
        assert await store.wake({"bell": 1}) == {"bell": 1}
        assert {held.id for held in await claim(store)} == {third}
        assert await store.wake({"bell": 9}) == {"bell": 1}
        assert {held.id for held in await claim(store)} == {late}

    async def test_several_keys_can_be_woken_in_one_call(self, store: Store) -> None:
        a, _ = await suspended(store, "a"), await suspended(store, "b")
        b = [await suspended(store, "c") for _ in range(2)]
        assert await store.wake({"a": 1, "b": 0, "c": 7, "d": 1}) == {"a": 1, "b": 0, "c": 2, "d": 0}
        assert {held.id for held in await claim(store)} == {a, *b}

    async def test_a_negative_number_is_refused_and_wakes_no_job(self, store: Store) -> None:
        waiting = await suspended(store, "bell")
        with pytest.raises(ConfigurationError, match="cannot wake -1 jobs for 'bell'"):
            await store.wake({"door": 1, "bell": -1})
        assert await status_of(store, waiting) is Status.SUSPENDED

    async def test_a_running_job_is_not_woken(self, store: Store, clock: ManualClock) -> None:
        await suspended(store, "bell", delay=1000)
        clock.advance(1)
        held = await claim_one(store)
        assert await store.wake({"bell": 1}) == {"bell": 0}
        assert (await look(store, held.id)).waits_for is None
        assert await end(store, held, Move.SUSPEND, delay=60_000) is Status.SUSPENDED
        assert await store.wake({"bell": 1}) == {"bell": 0}  # it waits for nothing now but its time

    async def test_a_woken_job_has_no_timeout_left(self, store: Store, clock: ManualClock) -> None:
        await suspended(store, "bell", delay=60_000)
        await store.wake({"bell": 1})
        held = await claim_one(store)
        clock.advance(60)
        assert await claim(store) == []
        assert await end(store, held, Move.DONE) is Status.COMPLETED

    # -- inserted as suspended ----------------------------------------------------------------------

    async def test_a_job_may_begin_as_suspended(self, store: Store) -> None:
        job_id = await put(store, waits_for="bell")
        job = await look(store, job_id)
        assert (job.status, job.waits_for, job.run_at.year) == (Status.SUSPENDED, "bell", 9999)
        assert await claim(store) == []
        assert await _counted(store) == {Status.SUSPENDED: 1}
        assert await store.wake({"bell": 1}) == {"bell": 1}
        assert (await claim_one(store)).id == job_id
        assert await _counted(store) == {Status.RUNNING: 1}

    async def test_a_job_may_begin_as_suspended_until_a_time(self, store: Store, clock: ManualClock) -> None:
        by_delay = await put(store, waits_for="bell", delay=60_000)
        by_time = await put(store, waits_for="bell", run_at=clock.now() + 60_000)
        assert {(await look(store, job_id)).run_at for job_id in (by_delay, by_time)} == {at(clock, 60)}
        clock.advance(60)
        assert {held.id for held in await claim(store)} == {by_delay, by_time}

    async def test_many_suspended_jobs_can_be_inserted_with_others(self, store: Store) -> None:
        jobs = [new_job(waits_for="bell" if number % 2 else None) for number in range(500)]
        assert all(inserted.created for inserted in await store.insert(jobs))
        assert {held.id for held in await claim(store, 1000)} == {job.id for job in jobs if job.waits_for is None}
        assert await store.wake({"bell": 1000}) == {"bell": 250}
        assert {held.id for held in await claim(store, 1000)} == {job.id for job in jobs if job.waits_for}

    # -- waiting for another job's end -----------------------------------------------------------------

    @pytest.mark.parametrize("move", [Move.DONE, Move.DEAD, Move.CANCEL])
    async def test_the_end_of_a_job_wakes_the_jobs_that_wait_for_it(
        self, store: Store, clock: ManualClock, move: Move
    ) -> None:
        child = await running(store)
        parent = await suspended(store, end_of(child.id))
        other = await suspended(store, end_of(await put(store, queue="others")))
        clock.advance(3)
        await end(store, child, move)
        job = await look(store, parent)
        assert (job.status, job.run_at) == (Status.PENDING, at(clock))
        assert await status_of(store, other) is Status.SUSPENDED

    @pytest.mark.parametrize("status", [Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED])
    async def test_a_wait_for_a_job_that_has_ended_is_over_at_once(
        self, store: Store, clock: ManualClock, status: Status
    ) -> None:
        """The store checks it in the commit: a worker that dies right after that loses no wake-up."""
        child = await job_in(store, status)
        parent = await suspended(store, end_of(child))
        job = await look(store, parent)
        assert (job.status, job.run_at, job.waits_for) == (Status.PENDING, at(clock), None)
        assert await _counted(store) == {status: 1, Status.PENDING: 1}

    async def test_a_wait_for_a_deleted_job_is_over_at_once(self, store: Store) -> None:
        parent = await suspended(store, end_of(new_job().id))
        assert (await claim_one(store)).id == parent

    async def test_a_wait_for_a_job_that_ends_in_the_same_ack_is_over_at_once(self, store: Store) -> None:
        child, parent = await running(store), await running(store)
        waits = outcome(parent, Move.SUSPEND, waits_for=end_of(child.id), delay=UNTIL_WOKEN)
        await store.ack([waits, outcome(child, Move.DONE)])
        assert (await claim_one(store)).id == parent.id

    async def test_a_job_inserted_to_wait_for_one_that_has_ended_is_due(self, store: Store) -> None:
        ended, live = await job_in(store, Status.COMPLETED), await put(store, queue="others")
        jobs = [new_job(waits_for=end_of(ended)), new_job(waits_for=end_of(live))]
        await store.insert(jobs)
        assert [held.id for held in await claim(store)] == [jobs[0].id]

    @pytest.mark.parametrize("way", ["ack", "save", "write"])
    async def test_a_job_inserted_by_another_call_to_wait_for_one_that_has_ended_is_due(
        self, store: Store, way: str
    ) -> None:
        ended = await job_in(store, Status.COMPLETED)
        parent, job = await running(store, queue="others"), new_job(waits_for=end_of(ended))
        if way == "ack":
            await end(store, parent, Move.DONE, follow_ups=(job,))
        elif way == "save":
            await save(store, parent, jobs=(job,))
        else:
            await store.write([Bundle((Write(Key("things", "", "a"), "{}"),), (job,))])
        assert [held.id for held in await claim(store)] == [job.id]

    async def test_a_job_inserted_to_wait_for_one_inserted_with_it_waits(self, store: Store) -> None:
        first = new_job(queue="others")
        await store.insert([new_job(waits_for=end_of(first.id)), first])
        assert await claim(store) == []

    @pytest.mark.parametrize("move", [Move.RETRY, Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.CRASH])
    async def test_a_run_that_does_not_end_the_job_wakes_nothing(self, store: Store, move: Move) -> None:
        child = await running(store)
        parent = await suspended(store, end_of(child.id))
        await end(store, child, move)
        assert await status_of(store, parent) is Status.SUSPENDED

    async def test_the_end_of_a_job_wakes_a_worker(self, store: Store) -> None:
        child = await running(store)
        await suspended(store, end_of(child.id), queue="parents")
        ear = Bell()
        await join(store, "w3", ear, queues=("parents",))
        await end(store, child, Move.DONE)
        assert await ear.hears(Wake.JOBS)

    async def test_a_last_crash_is_an_end(self, store: Store) -> None:
        child = await running(store)
        parent = await suspended(store, end_of(child.id))
        await end(store, child, Move.CRASH)
        await end(store, await claim_one(store, solo=True), Move.CRASH)
        assert await end(store, await claim_one(store, solo=True), Move.CRASH) is Status.DEAD_LETTER
        assert await status_of(store, parent) is Status.PENDING

    @pytest.mark.parametrize("action", [Action.CANCEL, Action.DELETE])
    async def test_a_cancel_or_delete_by_hand_is_an_end(self, store: Store, action: Action) -> None:
        parent_of: dict[str, str] = {}
        for status in (Status.SUSPENDED, Status.RETRYING, Status.PENDING):
            child = await job_in(store, status, queue=status)
            parent_of[child] = await suspended(store, end_of(child), queue="parents")
        await by_hand(store, action, *parent_of)
        assert [await status_of(store, parent) for parent in parent_of.values()] == [Status.PENDING] * 3

    async def test_a_stalled_child_that_is_given_up_is_an_end(self, store: Store, clock: ManualClock) -> None:
        child = await running(store, timeout=1000, max_attempts=1)
        parent = await suspended(store, end_of(child.id))
        await store.reap()
        clock.advance(1 + store.stall_grace / 1000)
        await store.heartbeat("w1", {child.id: child.token})
        await store.heartbeat("w2", {})
        assert [takeover.job_id for takeover in (await store.reap()).takeovers] == [child.id]
        assert await status_of(store, parent) is Status.PENDING

    async def test_many_ends_in_one_call_wake_their_waiting_jobs(self, store: Store) -> None:
        await store.insert([new_job(queue="children") for _ in range(40)])
        children = await claim(store, 40, queue="children")
        parents = [await suspended(store, end_of(child.id), queue="parents") for child in children[:5]]
        await store.ack([outcome(child, Move.DONE, result="1") for child in children])
        assert {held.id for held in await claim(store, queue="parents")} == set(parents)

    async def test_several_jobs_may_wait_for_one(self, store: Store) -> None:
        child = await running(store)
        parents = {await suspended(store, end_of(child.id)) for _ in range(3)}
        await end(store, child, Move.DONE)
        assert {held.id for held in await claim(store)} == parents

    async def test_a_lost_claim_ends_nothing(self, store: Store) -> None:
        child = await running(store)
        parent = await suspended(store, end_of(child.id))
        await end(store, child, Move.RELEASE)
        await claim_one(store, worker="w2")
        assert await end(store, child, Move.DONE) is None
        assert await status_of(store, parent) is Status.SUSPENDED

    # -- steps --------------------------------------------------------------------------------------

    async def test_saved_steps_can_be_read_in_order(self, store: Store) -> None:
        held = await running(store)
        assert await save(store, held, RENDER) == []
        assert await save(store, held, FETCH) == []
        assert await store.steps(held.id) == [FETCH, RENDER]
        assert await store.steps(new_job().id) == []

    async def test_a_step_of_the_same_name_is_replaced(self, store: Store) -> None:
        held = await running(store)
        await save(store, held, FETCH, RENDER)
        newer = Step("fetch", 1, "step", "null", 7_000, 8_000)
        assert await save(store, held, newer) == []
        assert await store.steps(held.id) == [newer, RENDER]

    async def test_a_zombie_saves_nothing(self, store: Store) -> None:
        zombie = await running(store)
        await end(store, zombie, Move.RELEASE)
        successor = await claim_one(store, worker="w2")
        job = new_job()
        assert await save(store, zombie, FETCH, jobs=(job,)) is None
        assert await store.steps(zombie.id) == []
        assert await store.get([job.id]) == []
        assert await save(store, successor, FETCH) == []

    async def test_among_several_only_the_zombie_is_refused(self, store: Store) -> None:
        zombie, held = await running(store), await running(store)
        await end(store, zombie, Move.DONE)
        saves = [
            Save(claimed.id, claimed.token, (FETCH,), (new_job(queue="children"),), claimed.ref)
            for claimed in (zombie, held)
        ]
        refused, taken = await store.save(saves)
        assert refused is None
        assert taken is not None
        assert [inserted.created for inserted in taken] == [True]
        assert len(await claim(store, queue="children")) == 1

    async def test_steps_and_jobs_of_a_save_are_written_together(self, store: Store) -> None:
        held = await running(store)
        child = new_job(queue="children")
        assert await save(store, held, FETCH, jobs=(child,)) == [Inserted(child.id, created=True)]
        assert (await claim_one(store, queue="children")).id == child.id

    async def test_a_save_may_be_repeated(self, store: Store) -> None:
        held = await running(store)
        child = new_job(queue="children")
        for _ in range(2):
            assert await save(store, held, FETCH, jobs=(child,)) == [Inserted(child.id, created=True)]
        assert len(await claim(store, queue="children")) == 1

    async def test_a_child_may_be_the_job_that_holds_its_key(self, store: Store) -> None:
        known = await put(store, queue="children", dedupe_key="k")
        held = await running(store)
        child = new_job(queue="children", dedupe_key="k")
        assert await save(store, held, FETCH, jobs=(child,)) == [Inserted(known, created=False)]

    async def test_a_halt_does_not_refuse_children(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await store.halt(a_halt(clock, accept=False))
        assert await save(store, held, FETCH, jobs=(new_job(),)) is not None

    async def test_steps_can_be_saved_with_an_outcome(self, store: Store) -> None:
        held = await running(store)
        nap = Step("nap", 2, "sleep", "61000", 5, 6)
        await end(store, held, Move.SUSPEND, delay=0, steps=(FETCH, nap))
        assert await store.steps(held.id) == [FETCH, nap]
        held = await claim_one(store)
        await end(store, held, Move.DONE, steps=(Step("last", 3),))
        assert [step.name for step in await store.steps(held.id)] == ["fetch", "nap", "last"]

    async def test_steps_of_an_outcome_that_lost_its_claim_are_not_saved(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.RELEASE)
        await end(store, held, Move.SUSPEND, steps=(FETCH,))
        assert await store.steps(held.id) == []

    @pytest.mark.parametrize("move", [Move.RETRY, Move.RELEASE, Move.CRASH, Move.SUSPEND, Move.DEAD, Move.DONE])
    async def test_steps_outlast_the_run(self, store: Store, move: Move) -> None:
        held = await running(store)
        await save(store, held, FETCH)
        await end(store, held, move)
        assert await store.steps(held.id) == [FETCH]

    async def test_a_large_output_is_kept(self, store: Store) -> None:
        held = await running(store)
        large = Step("large", 1, output='"' + "ü" * 100_000 + '"')
        await save(store, held, large)
        assert await store.steps(held.id) == [large]

    async def test_a_manual_retry_keeps_steps(self, store: Store) -> None:
        held = await running(store)
        await save(store, held, FETCH, RENDER)
        await end(store, held, Move.DEAD)
        await by_hand(store, Action.RETRY, held.id)
        assert await store.steps(held.id) == [FETCH, RENDER]
        assert (await claim_one(store)).token > held.token

    @pytest.mark.parametrize("move", [Move.DEAD, Move.RETRY])
    async def test_a_manual_retry_may_begin_at_a_step(self, store: Store, move: Move) -> None:
        held, other = await running(store), await running(store)
        for claimed in (held, other):
            await save(store, claimed, FETCH, RENDER, Step("upload", 3))
            await end(store, claimed, move)
        await by_hand(store, Action.RETRY, held.id, from_step="render")
        assert await store.steps(held.id) == [FETCH]
        assert len(await store.steps(other.id)) == 3

    async def test_a_manual_retry_from_an_unknown_step_keeps_all(self, store: Store) -> None:
        held = await running(store)
        await save(store, held, FETCH)
        await end(store, held, Move.DEAD)
        await by_hand(store, Action.RETRY, held.id, from_step="nonsense")
        assert await store.steps(held.id) == [FETCH]

    async def test_steps_go_with_their_job(self, store: Store, clock: ManualClock) -> None:
        deleted, pruned = await running(store), await running(store, keep=60_000)
        for held in (deleted, pruned):
            await save(store, held, FETCH)
            await end(store, held, Move.DONE)
        await by_hand(store, Action.DELETE, deleted.id)
        assert await store.steps(deleted.id) == []
        clock.advance(61)
        while await store.prune():
            pass
        assert await store.get([pruned.id]) == []
        assert await store.steps(pruned.id) == []

    async def test_the_timeline_tells_of_steps(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        step = Step("fetch", 1, "step", None, clock.now(), clock.now() + 5)
        await save(store, held, step)
        assert ("step", "fetch") in {(entry.what, entry.detail) for entry in await store.timeline(held.id)}


async def _nothing_claimed(store: Store) -> int | None:
    claims = await store.claim("w1", [Want("*", 10)])
    assert claims.jobs == []
    return claims.next_due


async def _counted(store: Store) -> dict[Status, int]:
    (counts,) = (await store.stats()).queues
    return {status: counts[status] for status in Status if counts[status]}
