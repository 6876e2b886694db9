"""Remote workers: any process may speak for them, and only their silence shows that they are dead."""

from __future__ import annotations

from mainspring.job import Move, Status
from mainspring.stores.protocol import Action, Store, TakeoverCause, Wake, WorkerInfo
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    Bell,
    StoreScenario,
    a_halt,
    by_hand,
    by_silence,
    claim_one,
    end,
    ignore,
    look,
    present,
    put,
    running,
)


def remote(worker: str = "far", queues: tuple[str, ...] = ("*",)) -> WorkerInfo:
    return WorkerInfo(worker, "elsewhere", 0, queues, tasks=("greet",), remote=True)


class RemoteWorkerTests(StoreScenario):
    async def test_a_remote_worker_is_listed_as_one(self, store: Store) -> None:
        await store.join(remote(), None)
        (listed,) = [worker for worker in (await store.stats()).workers if worker.id == "far"]
        assert (listed.remote, listed.alive, listed.queues, listed.tasks) == (True, True, ("*",), ("greet",))
        assert not any(worker.remote for worker in (await store.stats()).workers if worker.id != "far")

    async def test_a_remote_worker_keeps_its_jobs_while_it_sends_heartbeats(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.join(remote(), None)
        held = await running(store, worker="far")
        for _ in range(5):
            assert not (await store.reap()).takeovers
            clock.advance(store.lease - 1)
            for worker in ("w1", "w2", "far"):
                await store.heartbeat(worker, {})
        assert await end(store, held, Move.DONE) is Status.COMPLETED

    async def test_joining_again_is_a_heartbeat_and_keeps_the_jobs(self, store: Store, clock: ManualClock) -> None:
        await store.join(remote(), None)
        held = await running(store, worker="far")
        for _ in range(3):
            assert not (await store.reap()).takeovers
            clock.advance(store.lease - 1)
            for worker in ("w1", "w2"):
                await store.heartbeat(worker, {})
            await store.join(remote(), ignore)
        assert not (await store.heartbeat("far", {held.id: held.token})).lost

    async def test_the_jobs_of_a_silent_remote_worker_are_taken_over(self, store: Store, clock: ManualClock) -> None:
        await store.join(remote(), None)
        held = await running(store, worker="far")
        (takeover,) = await by_silence(store, clock, "far")
        assert (takeover.worker, takeover.cause) == ("far", TakeoverCause.CRASHED)
        assert await present(store) == {"w1", "w2"}
        assert await end(store, held, Move.DONE) is None
        assert (await look(store, held.id)).status is Status.PENDING

    async def test_a_remote_worker_that_was_declared_dead_can_come_back(self, store: Store, clock: ManualClock) -> None:
        await store.join(remote(), None)
        held = await running(store, worker="far")
        await by_silence(store, clock, "far")
        assert (await store.heartbeat("far", {held.id: held.token})).lost == {held.id}
        await store.join(remote(), None)
        assert (await store.heartbeat("far", {})).known
        other = await running(store, worker="far")
        assert not (await store.reap()).takeovers
        assert await end(store, other, Move.DONE) is Status.COMPLETED
        assert (await claim_one(store, worker="far", solo=True)).token > held.token

    async def test_a_heartbeat_tells_a_remote_worker_that_it_is_not_known(self, store: Store) -> None:
        assert not (await store.heartbeat("far", {})).known
        await store.join(remote(), None)
        assert (await store.heartbeat("far", {})).known
        await store.leave("far")
        assert not (await store.heartbeat("far", {})).known

    async def test_a_remote_worker_that_leaves_releases_its_jobs(self, store: Store) -> None:
        await store.join(remote(), None)
        held = await running(store, worker="far")
        await store.leave("far")
        assert await present(store) == {"w1", "w2"}
        assert (await claim_one(store, worker="w1")).token > held.token

    async def test_a_remote_worker_learns_of_requested_cancels(self, store: Store) -> None:
        await store.join(remote(), None)
        held = await running(store, worker="far")
        await by_hand(store, Action.CANCEL, held.id)
        assert dict((await store.heartbeat("far", {held.id: held.token})).cancelled) == {held.id: "by hand"}

    async def test_a_remote_worker_is_woken_only_while_it_asks_for_that(self, store: Store) -> None:
        bell, other = Bell(), Bell()
        await store.join(remote(), bell)
        await store.join(remote("farther", ("mail",)), other)
        await store.claim("far", [])
        await put(store)
        assert await bell.hears(Wake.JOBS)
        await store.join(remote(), None)
        await store.join(remote("farther"), None)
        await store.leave("far")

    async def test_a_halt_does_not_wait_for_remote_workers(self, store: Store, clock: ManualClock) -> None:
        await store.join(remote(), None)
        halt = await store.halt(a_halt(clock))
        assert {worker.id for worker in await store.unconfirmed(halt)} == {"w1", "w2"}

    async def test_two_remote_workers_live_and_die_by_themselves(self, store: Store, clock: ManualClock) -> None:
        await store.join(remote("far"), None)
        await store.join(remote("far-2"), None)
        one, two = await running(store, worker="far"), await running(store, worker="far-2")
        (takeover,) = await by_silence(store, clock, "far")
        assert takeover.job_id == one.id
        assert await end(store, two, Move.DONE) is Status.COMPLETED
