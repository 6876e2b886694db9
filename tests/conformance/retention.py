"""What is deleted when its time is over, and nothing else."""

from __future__ import annotations

import pytest

from mainspring.job import KEEP_FOREVER, LIVE, Move, NewJob, Status
from mainspring.stores.protocol import Action, AuditFilter, Filter, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    StoreScenario,
    by_hand,
    claim_one,
    end,
    found,
    job_in,
    look,
    new_job,
    put,
    running,
)

DAY = 86_400
KEEP = {"keep": DAY * 1000, "keep_dead": 3 * DAY * 1000}
DAYS_KEPT = {Status.COMPLETED: 1, Status.CANCELLED: 1, Status.DEAD_LETTER: 3}


class RetentionTests(StoreScenario):
    @pytest.mark.parametrize("status", DAYS_KEPT)
    async def test_a_finished_job_is_kept_for_its_time(self, store: Store, clock: ManualClock, status: Status) -> None:
        job_id = await job_in(store, status, **KEEP)
        clock.advance(DAYS_KEPT[status] * DAY - 1)
        assert await store.prune() == 0
        assert await found(store) == [job_id]
        clock.advance(DAY + 2)  # it may stay up to a day longer
        assert await store.prune() == 1
        assert await found(store) == []

    async def test_the_history_goes_with_the_job(self, store: Store, clock: ManualClock) -> None:
        job_id = await job_in(store, Status.COMPLETED, **KEEP)
        clock.advance(2 * DAY + 1)
        await store.prune()
        assert await store.attempts(job_id) == []
        assert await store.timeline(job_id) == []

    async def test_the_audit_log_does_not_name_a_job_whose_retention_is_over(
        self, store: Store, clock: ManualClock
    ) -> None:
        job_id = await put(store, **KEEP)
        await by_hand(store, Action.CANCEL, job_id)
        clock.advance(2 * DAY + 1)
        await store.prune()
        assert await store.audit(AuditFilter(job=job_id)) == []
        assert [entry.action for entry in await store.audit()] == ["cancel"]

    @pytest.mark.parametrize("status", sorted(LIVE))
    async def test_a_live_job_is_never_pruned(self, store: Store, clock: ManualClock, status: Status) -> None:
        job_id = await job_in(store, status, keep=0, keep_dead=0)
        clock.advance(365 * DAY)
        assert await store.prune() == 0
        assert await found(store) == [job_id]

    async def test_a_job_retried_by_hand_is_not_pruned_on_its_old_date(self, store: Store, clock: ManualClock) -> None:
        job_id = await job_in(store, Status.DEAD_LETTER, **KEEP)
        await by_hand(store, Action.RETRY, job_id)
        clock.advance(10 * DAY)
        assert await store.prune() == 0
        await end(store, await claim_one(store), Move.DONE)
        assert await store.prune() == 0
        assert await found(store) == [job_id]

    async def test_a_job_cancelled_by_hand_is_pruned_too(self, store: Store, clock: ManualClock) -> None:
        await by_hand(store, Action.CANCEL, await put(store, **KEEP))
        clock.advance(2 * DAY + 1)
        assert await store.prune() == 1

    async def test_pruning_goes_in_portions(self, store: Store, clock: ManualClock) -> None:
        """Those of less than a day; of others a store may drop a whole day at once."""
        for _ in range(5):
            await job_in(store, Status.COMPLETED, keep=1000)
        clock.advance(2)
        assert [await store.prune(2) for _ in range(4)] == [2, 2, 1, 0]
        assert await store.count(Filter()) == 0

    @pytest.mark.parametrize("status", DAYS_KEPT)
    async def test_a_job_that_is_kept_for_ever_stays(self, store: Store, clock: ManualClock, status: Status) -> None:
        job_id = await job_in(store, status, keep=KEEP_FOREVER, keep_dead=KEEP_FOREVER)
        clock.advance(10_000 * DAY)
        assert await store.prune() == 0
        assert await found(store) == [job_id]
        assert (await look(store, job_id)).expires_at is None

    async def test_a_pruned_job_is_unknown_to_its_old_worker(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, keep=0)
        await end(store, held, Move.DONE)
        clock.advance(1)
        await store.prune()
        assert await end(store, held, Move.DONE) is None
        assert (await store.heartbeat("w1", {held.id: held.token})).lost == {held.id}

    async def test_expired_dedupe_records_are_pruned(self, store: Store, clock: ManualClock) -> None:
        await job_in(store, Status.COMPLETED, dedupe_key="k", dedupe_for=4 * DAY * 1000, **KEEP)
        clock.advance(2 * DAY + 1)
        assert await store.prune() >= 1
        (inserted,) = await store.insert([_duplicate()])
        assert not inserted.created
        clock.advance(2 * DAY)
        while await store.prune():
            pass
        (inserted,) = await store.insert([_duplicate()])
        assert inserted.created


def _duplicate() -> NewJob:
    return new_job(dedupe_key="k")
