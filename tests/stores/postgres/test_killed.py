"""A killed worker is noticed by its session lock; one that only lost its connection is not taken for dead."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.job import Move, Status
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import Reaped, TakeoverCause
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import claim_one, end, join, put
from tests.stores.postgres.several import Stores
from tests.worker.working import eventually

pytestmark = pytest.mark.slow


async def is_locked(store: PostgresStore, worker: str) -> bool:
    """Its listener holds its lock, and a heartbeat has told the others of it."""
    locked = store._listeners[worker].lock is not None
    await store.heartbeat(worker, {})
    return locked


async def hang_up(store: PostgresStore, watching: PostgresStore) -> None:
    """End the sessions of a worker without a word, as the server does when its process died."""
    for worker in list(store._listeners):
        await store._stop_listening(worker)
    await store._pool.close()
    await eventually(lambda: is_disconnected(watching))


async def test_the_jobs_of_a_killed_worker_are_taken_over_long_before_its_lease_ends(stores: Stores) -> None:
    watching, killed = await stores.another(), await stores.another()
    await join(watching, "watching")
    await join(killed, "killed")
    await eventually(lambda: is_locked(killed, "killed"))
    job = await put(killed)
    await claim_one(killed, worker="killed")
    assert (await watching.reap()).dead == frozenset()
    await hang_up(killed, watching)
    reaped = await watching.reap()
    assert reaped.dead == {"killed"}
    assert [(takeover.job_id, takeover.cause) for takeover in reaped.takeovers] == [(job, TakeoverCause.CRASHED)]


async def test_a_worker_that_joins_later_notices_it_too(stores: Stores) -> None:
    watching, killed = await stores.another(), await stores.another()
    await join(killed, "killed")
    await eventually(lambda: is_locked(killed, "killed"))
    await hang_up(killed, watching)
    assert (await (await stores.another()).reap()).dead == {"killed"}


async def test_a_worker_that_lost_only_its_listening_connection_keeps_its_jobs(stores: Stores) -> None:
    clock = ManualClock()
    watching, working = await stores.another(clock=clock), await stores.another(clock=clock)
    await join(working, "working")
    await eventually(lambda: is_locked(working, "working"))
    await put(working)
    held = await claim_one(working, worker="working")
    await hang_up(working, watching)
    clock.advance(1)  # its next heartbeat is due now
    look = watching._look

    async def look_and_beat() -> object:
        sight = await look()
        await working.heartbeat("working", {})
        return sight

    watching._look = look_and_beat  # type: ignore[method-assign,assignment]
    assert (await watching.reap()).dead == frozenset()
    assert await end(working, held, Move.DONE) is not None


async def test_a_worker_that_has_any_connection_left_is_not_disconnected(stores: Stores) -> None:
    watching, working = await stores.another(), await stores.another()
    await join(working, "working")
    await eventually(lambda: is_locked(working, "working"))
    await working._pool.close()  # they were opened before the lock was
    await working.stats()
    await working._stop_listening("working")
    assert (await watching._look()).disconnected == []
    await working._pool.close()
    await eventually(lambda: is_disconnected(watching))


async def is_disconnected(watching: PostgresStore) -> bool:
    return bool((await watching._look()).disconnected)


async def test_after_a_restart_of_the_server_locks_say_nothing(stores: Stores) -> None:
    watching, working = await stores.another(), await stores.another()
    await join(working, "working")
    await eventually(lambda: is_locked(working, "working"))
    await hang_up(working, watching)
    stores.ask(f"UPDATE {stores.schema}.workers SET lock_server = lock_server - 1")
    assert (await watching.reap()).dead == frozenset()


async def test_a_worker_that_beats_again_before_its_takeover_is_written_keeps_its_jobs(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    watching, working = await stores.another(clock=clock), await stores.another(clock=clock)
    await join(working, "working")
    await put(working)
    held = await claim_one(working, worker="working")
    await watching.reap()
    clock.advance(watching.lease + 1)
    run = watching._run

    async def after_a_heartbeat(*arguments: Any, **options: Any) -> Any:
        await working.heartbeat("working", {})
        return await run(*arguments, **options)

    monkeypatch.setattr(watching, "_run", after_a_heartbeat)
    assert await watching.reap() == Reaped()
    assert await end(working, held, Move.DONE) is Status.COMPLETED
