"""A server that is away for longer than a lease takes no job from the workers that waited for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mainspring.errors import StoreUnavailable
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import TakeoverCause
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import claim_one, join, put
from tests.stores.postgres.several import Stores

pytestmark = pytest.mark.slow  # a real server

LEASE = 30.0
Read = Callable[[Any], Awaitable[Any]]


async def two_of_them(stores: Stores, clock: ManualClock) -> tuple[PostgresStore, PostgresStore]:
    """One runs a job, the other has seen it alive."""
    working, watching = [await stores.another(clock=clock, lease=LEASE) for _ in range(2)]
    await join(working, "w1")
    await put(working)
    await claim_one(working, worker="w1")
    assert (await watching.reap()).takeovers == []
    return working, watching


def away(clock: ManualClock, seconds: float) -> Read:
    async def read(_: Any) -> Any:
        clock.advance(seconds)
        raise StoreUnavailable

    return read


def slow(clock: ManualClock, seconds: float, read: Read) -> Read:
    async def read_slowly(operation: Any) -> Any:
        clock.advance(seconds)
        return await read(operation)

    return read_slowly


async def test_a_store_that_could_not_be_read_declares_no_worker_dead(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    working, watching = await two_of_them(stores, clock)
    with monkeypatch.context() as patch:
        patch.setattr(watching, "_read", away(clock, 2 * LEASE))
        with pytest.raises(StoreUnavailable):
            await watching.reap()
    assert (await watching.reap()).takeovers == []
    await working.heartbeat("w1", {})
    clock.advance(LEASE - 1)
    assert (await watching.reap()).takeovers == []
    clock.advance(LEASE)
    assert [takeover.cause for takeover in (await watching.reap()).takeovers] == [TakeoverCause.CRASHED]


async def test_a_slow_answer_declares_no_worker_dead(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    working, watching = await two_of_them(stores, clock)
    with monkeypatch.context() as patch:
        patch.setattr(watching, "_read", slow(clock, 2 * LEASE, watching._read))
        assert (await watching.reap()).takeovers == []
    await working.heartbeat("w1", {})
    assert (await watching.reap()).takeovers == []
