"""What a process remembers of the workers that it watches."""

from __future__ import annotations

from mainspring.stores.postgres import PostgresStore
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import join
from tests.stores.postgres.several import Stores

LEASE = 30.0


async def alive(store: PostgresStore) -> dict[str, bool]:
    return {worker.id: worker.alive for worker in (await store.stats()).workers}


async def test_workers_that_are_gone_are_forgotten(stores: Stores) -> None:
    clock = ManualClock()
    watching, working = [await stores.another(clock=clock, lease=LEASE) for _ in range(2)]
    await join(watching, "w0")
    for number in range(1, 6):
        await join(working, f"w{number}")
    await watching.reap()
    assert len(watching._watch._heartbeats) == 6
    await working.leave("w1")
    clock.advance(LEASE)
    await watching.heartbeat("w0", {})
    await watching.reap()  # the others are dead
    await watching.reap()
    assert watching._watch._heartbeats.keys() == {"w0"}


async def test_a_store_without_workers_goes_by_the_last_sign_of_life(stores: Stores) -> None:
    clock = ManualClock()
    mine, theirs = [await stores.another(clock=clock, lease=LEASE) for _ in range(2)]
    await join(mine, "mine")
    await join(theirs, "theirs")
    await mine.reap()
    assert await alive(mine) == {"mine": True, "theirs": True}
    await mine.leave("mine")
    assert await alive(mine) == {"theirs": True}
    clock.advance(LEASE)
    assert await alive(mine) == {"theirs": False}
