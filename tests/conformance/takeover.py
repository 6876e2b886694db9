"""What becomes of the jobs of workers that died, and of jobs that overran their timeout."""

from __future__ import annotations

import pytest

from mainspring.job import MAX_CRASHES, Move, ProgressReport, Status
from mainspring.stores.protocol import (
    Action,
    AfterStall,
    Filter,
    StalledRun,
    Store,
    Takeover,
    TakeoverCause,
    retry_at_once,
)
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    StoreScenario,
    at,
    by_hand,
    by_silence,
    claim,
    claim_one,
    end,
    join,
    look,
    new_job,
    present,
    running,
    status_of,
)

TIMEOUT = 10_000
OVERDUE = 41.0  # seconds: the timeout, 30 s of grace, and one more


async def after(
    store: Store, clock: ManualClock, seconds: float, after_stall: AfterStall = retry_at_once
) -> list[Takeover]:
    """Let time pass for workers that are alive, and see whose jobs are taken over: what was watched counts."""
    workers, before = await present(store), (await store.reap()).takeovers
    clock.advance(seconds)
    for worker in workers:
        await store.heartbeat(worker, {})
    return before + (await store.reap(after_stall)).takeovers


class TakeoverTests(StoreScenario):
    # -- dead workers -------------------------------------------------------------------------

    async def test_nothing_is_taken_from_living_workers(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        for _ in range(5):
            assert await after(store, clock, store.lease - 1) == []
        assert await end(store, held, Move.DONE) is Status.COMPLETED

    async def test_the_jobs_of_a_dead_worker_are_taken_over(self, store: Store, clock: ManualClock) -> None:
        mine, others = await running(store), await running(store)
        await end(store, others, Move.RELEASE)
        others = await claim_one(store, worker="w2")
        (takeover,) = await by_silence(store, clock, "w1")
        assert (takeover.job_id, takeover.task, takeover.queue) == (mine.id, "greet", "default")
        assert (takeover.worker, takeover.cause, takeover.status) == ("w1", TakeoverCause.CRASHED, Status.PENDING)
        assert (takeover.attempts, takeover.crashes) == (0, 1)
        assert takeover.failure is not None
        assert takeover.failure.type == "WorkerCrashed"
        assert await end(store, others, Move.DONE) is Status.COMPLETED

    async def test_a_job_whose_worker_died_is_a_suspect_and_due_at_once(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await by_silence(store, clock, "w1")
        job = await look(store, held.id)
        assert (job.status, job.crashes, job.attempts) == (Status.PENDING, 1, 0)
        assert job.failure is not None
        assert job.failure.type == "WorkerCrashed"
        assert await claim(store, worker="w2") == []
        assert (await claim_one(store, worker="w2", solo=True)).token > held.token

    async def test_a_crash_is_in_the_history(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await by_silence(store, clock, "w1")
        (run,) = await store.attempts(held.id)
        assert (run.number, run.worker, run.move) == (1, "w1", Move.CRASH)
        assert run.failure is not None
        assert run.failure.type == "WorkerCrashed"

    async def test_a_job_that_kills_three_workers_is_a_dead_letter(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await join(store, "w3")
        statuses = []
        for worker, successor in (("w1", "w2"), ("w2", "w3"), ("w3", "w4")):
            (takeover,) = await by_silence(store, clock, worker)
            statuses.append(takeover.status)
            await claim(store, worker=successor, solo=True)
        assert statuses == [Status.PENDING, Status.PENDING, Status.DEAD_LETTER]
        job = await look(store, held.id)
        assert (job.status, job.crashes, job.attempts) == (Status.DEAD_LETTER, MAX_CRASHES, 0)
        assert (job.finished_at, len(await store.attempts(held.id))) == (at(clock), MAX_CRASHES)

    async def test_a_crash_completes_a_requested_cancel(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await by_hand(store, Action.CANCEL, held.id)
        (takeover,) = await by_silence(store, clock, "w1")
        assert takeover.status is Status.CANCELLED
        job = await look(store, held.id)
        assert (job.status, job.crashes, job.reason) == (Status.CANCELLED, 0, "by hand")

    async def test_a_dead_workers_job_is_taken_over_once(self, store: Store, clock: ManualClock) -> None:
        await running(store)
        assert len(await by_silence(store, clock, "w1")) == 1
        assert (await store.reap()).takeovers == []
        assert await after(store, clock, store.lease + 1) == []

    async def test_a_dead_worker_is_reported_once_although_it_held_no_job(
        self, store: Store, clock: ManualClock
    ) -> None:
        assert (await store.reap()).dead == frozenset()
        clock.advance(store.lease + 1)
        await store.heartbeat("w2", {})
        assert (await store.reap()).dead == {"w1"}
        assert (await store.reap()).dead == frozenset()

    async def test_a_zombie_writes_nothing_after_its_job_was_taken_over(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await by_silence(store, clock, "w1")
        before = await look(store, held.id)
        assert await end(store, held, Move.DONE, follow_ups=(new_job(),)) is None
        assert await store.report([ProgressReport(held.id, held.token, 0.9, "")]) == set()
        assert await look(store, held.id) == before
        assert await store.count(Filter()) == 1

    async def test_a_zombie_writes_nothing_while_another_runs_its_job(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await by_silence(store, clock, "w1")
        successor = await claim_one(store, worker="w2", solo=True)
        before = await look(store, held.id)
        assert await end(store, held, Move.DONE, follow_ups=(new_job(),)) is None
        assert await store.report([ProgressReport(held.id, held.token, 0.9, "")]) == set()
        assert await look(store, held.id) == before
        assert await end(store, successor, Move.DONE) is Status.COMPLETED
        assert await store.count(Filter()) == 1

    async def test_a_worker_that_leaves_hands_back_its_jobs(self, store: Store) -> None:
        held = await running(store)
        await store.leave("w1")
        job = await look(store, held.id)
        assert (job.status, job.attempts, job.crashes) == (Status.PENDING, 0, 0)
        assert (await claim_one(store, worker="w2")).id == held.id
        assert await end(store, held, Move.DONE) is None

    async def test_jobs_that_are_handed_back_are_due_though_the_clock_was_set_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        held = await running(store)
        clock.shift(-3600)
        await store.leave("w1")
        assert (await claim_one(store, worker="w2")).id == held.id

    async def test_a_dead_workers_job_is_due_though_the_clock_was_set_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        held = await running(store)
        clock.shift(-3600)
        await by_silence(store, clock, "w1")
        assert (await claim_one(store, worker="w2", solo=True)).id == held.id

    # -- stalled jobs -------------------------------------------------------------------------

    async def test_a_stalled_job_is_taken_from_a_living_worker(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, timeout=TIMEOUT)
        (takeover,) = await after(store, clock, OVERDUE)
        assert (takeover.job_id, takeover.worker, takeover.cause) == (held.id, "w1", TakeoverCause.STALLED)
        assert (takeover.status, takeover.attempts, takeover.crashes) == (Status.RETRYING, 1, 0)
        assert takeover.failure is not None
        assert takeover.failure.type == "TimeoutError"
        job = await look(store, held.id)
        assert (job.status, job.attempts, job.crashes, job.run_at) == (Status.RETRYING, 1, 0, at(clock))
        assert (await claim_one(store, worker="w2")).id == held.id

    async def test_a_stalled_job_waits_as_long_as_its_policy_says(self, store: Store, clock: ManualClock) -> None:
        asked: list[StalledRun] = []

        def in_a_minute(run: StalledRun) -> int:
            asked.append(run)
            return 60_000

        held = await running(store, timeout=TIMEOUT, options='{"retry": null}')
        (takeover,) = await after(store, clock, OVERDUE, in_a_minute)
        assert asked == [StalledRun(held.id, held.task, held.queue, 1, '{"retry": null}')]
        assert (takeover.status, takeover.delay) == (Status.RETRYING, 60_000)
        clock.advance(59)
        assert await claim(store, worker="w2") == []
        clock.advance(1)
        assert (await claim_one(store, worker="w2")).id == held.id

    async def test_a_stalled_job_whose_policy_gives_up_is_a_dead_letter(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, timeout=TIMEOUT)
        (takeover,) = await after(store, clock, OVERDUE, lambda _run: None)
        assert (takeover.status, takeover.attempts) == (Status.DEAD_LETTER, 1)
        assert await status_of(store, held.id) is Status.DEAD_LETTER

    async def test_a_job_within_its_timeout_and_grace_is_left_alone(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, timeout=TIMEOUT)
        assert await after(store, clock, OVERDUE - 2) == []
        assert await end(store, held, Move.DONE) is Status.COMPLETED

    async def test_a_job_without_a_timeout_never_stalls(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, timeout=0)
        assert await after(store, clock, 30 * 86_400) == []
        assert await end(store, held, Move.DONE) is Status.COMPLETED

    @pytest.mark.parametrize("jump", [86_400, -86_400])
    async def test_a_clock_that_is_set_stalls_no_job_and_hides_no_stall(
        self, store: Store, clock: ManualClock, jump: int
    ) -> None:
        held = await running(store, timeout=TIMEOUT)
        await store.reap()
        clock.shift(jump)
        assert await after(store, clock, OVERDUE - 2) == []
        (takeover,) = await after(store, clock, 2)
        assert (takeover.job_id, takeover.cause) == (held.id, TakeoverCause.STALLED)

    async def test_the_timeout_counts_from_the_last_claim(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, timeout=TIMEOUT)
        clock.advance(20)
        await end(store, held, Move.RELEASE)
        held = await claim_one(store)
        assert await after(store, clock, OVERDUE - 2) == []
        assert await end(store, held, Move.DONE) is Status.COMPLETED

    async def test_a_stall_is_in_the_history(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, timeout=TIMEOUT)
        await after(store, clock, OVERDUE)
        (run,) = await store.attempts(held.id)
        assert (run.number, run.worker, run.move) == (1, "w1", Move.RETRY)
        assert run.failure is not None
        assert run.failure.type == "TimeoutError"

    async def test_a_job_that_stalls_at_its_last_attempt_is_a_dead_letter(
        self, store: Store, clock: ManualClock
    ) -> None:
        held = await running(store, timeout=TIMEOUT, max_attempts=1)
        (takeover,) = await after(store, clock, OVERDUE)
        assert (takeover.status, takeover.attempts) == (Status.DEAD_LETTER, 1)
        job = await look(store, held.id)
        assert (job.status, job.attempts, job.finished_at) == (Status.DEAD_LETTER, 1, at(clock))

    async def test_a_stall_completes_a_requested_cancel(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, timeout=TIMEOUT)
        await by_hand(store, Action.CANCEL, held.id)
        (takeover,) = await after(store, clock, OVERDUE)
        assert takeover.status is Status.CANCELLED
        assert await status_of(store, held.id) is Status.CANCELLED

    async def test_a_run_that_stalled_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, timeout=TIMEOUT)
        await after(store, clock, OVERDUE)
        before = await look(store, held.id)
        assert await end(store, held, Move.DONE, follow_ups=(new_job(),)) is None
        assert (await store.heartbeat("w1", {held.id: held.token})).lost == {held.id}
        assert await look(store, held.id) == before
        assert await store.count(Filter()) == 1
