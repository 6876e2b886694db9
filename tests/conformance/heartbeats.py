"""For stores that learn of a worker's death from its silence."""

from __future__ import annotations

from mainspring.job import Move, Status
from mainspring.stores.protocol import Store, TakeoverCause
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import StoreScenario, by_silence, claim_one, end, join, present, running, status_of


class HeartbeatTests(StoreScenario):
    async def test_a_worker_silent_for_the_lease_is_dead(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        assert (await store.reap()).takeovers == []
        clock.advance(store.lease)
        (takeover,) = (await store.reap()).takeovers
        assert (takeover.job_id, takeover.cause) == (held.id, TakeoverCause.CRASHED)
        assert "w1" not in await present(store)

    async def test_a_worker_silent_for_less_is_alive(self, store: Store, clock: ManualClock) -> None:
        await running(store)
        await store.reap()
        clock.advance(store.lease - 1)
        assert (await store.reap()).takeovers == []

    async def test_only_silence_that_was_watched_counts(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        clock.advance(10 * store.lease)
        assert (await store.reap()).takeovers == []
        assert await end(store, held, Move.DONE) is Status.COMPLETED

    async def test_each_heartbeat_extends_the_lease(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        for _ in range(10):
            await store.reap()
            clock.advance(store.lease / 2)
            await store.heartbeat("w1", {held.id: held.token})
            clock.advance(store.lease / 2)
            assert (await store.reap()).takeovers == []

    async def test_joining_is_a_sign_of_life(self, store: Store, clock: ManualClock) -> None:
        await store.reap()
        await store.leave("w1")
        clock.advance(store.lease)
        await join(store, "w1")
        await running(store)
        assert (await store.reap()).takeovers == []

    async def test_setting_the_clock_makes_no_worker_dead(self, store: Store, clock: ManualClock) -> None:
        await running(store)
        for jump in (86_400, -172_800):
            await store.reap()
            clock.shift(jump)
            assert (await store.reap()).takeovers == []

    async def test_a_worker_that_comes_back_is_listed_and_has_lost_its_claims(
        self, store: Store, clock: ManualClock
    ) -> None:
        held = await running(store)
        await by_silence(store, clock, "w1")
        assert (await store.heartbeat("w1", {held.id: held.token})).lost == {held.id}
        assert "w1" in await present(store)
        assert await end(store, held, Move.DONE) is None
        assert (await claim_one(store, solo=True)).id == held.id

    async def test_a_worker_that_came_back_can_die_again(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await by_silence(store, clock, "w1")
        await store.heartbeat("w1", {})
        await claim_one(store, solo=True)
        assert len(await by_silence(store, clock, "w1")) == 1
        assert await status_of(store, held.id) is Status.PENDING
