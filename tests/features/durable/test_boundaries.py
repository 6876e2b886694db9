"""A process that dies at any commit of a function of twenty, before or after it: only the step in flight is repeated.

Here the process is a way to a store, in memory and on DynamoDB, that no longer answers; tests/chaos/test_durable.py
kills real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, Status
from mainspring.errors import StoreUnavailable
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from mainspring.worker import Worker
from tests.conformance.scenario import by_silence, join
from tests.dynamodb import FreshStore
from tests.features.durable.twenty import A_FEW, BOUNDARIES, RESULT, Boundary, Ledger, define, problems, put, watch

NAP = 60.0  # seconds of virtual time


class Mortal:
    """A process's own way to a store that others use too. Once it is dead, nothing comes through."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.dead = asyncio.Event()

    async def die(self) -> None:
        self.dead.set()
        await asyncio.Event().wait()  # for ever

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead.is_set():
                raise StoreUnavailable
            return await found(*args, **kwargs)

        return call


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "dynamodb"])
async def store(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore(clock=clock)
        return
    fresh = FreshStore(clock=clock)
    await fresh.open()
    yield fresh
    await fresh.close()


async def work(app: Mainspring, queue: str, who: str, clock: ManualClock) -> None:
    """All that is due in this queue, on virtual time, until nothing is left."""
    async with Worker(app, queues=[queue], id=who, concurrency=1, prefetch=0).draining() as run_due:
        while True:
            claims = await run_due()
            if not claims.jobs:
                if claims.next_due is None or claims.next_due > clock.now() + 2 * NAP * 1000:
                    return
                clock.advance(max(0, claims.next_due - clock.now()) / 1000)


async def die_at(at: Boundary, store: Store, queue: str, clock: ManualClock, ledger: Ledger) -> str:
    """Work as a process that dies there; the job's id."""
    mortal = Mortal(store)
    app = Mainspring(mortal)
    define(app, ledger)
    job_id = await put(app, queue, NAP)
    watch(mortal, job_id, at, mortal.die)
    working = asyncio.create_task(work(app, queue, f"victim of {queue}", clock))
    dying = asyncio.create_task(mortal.dead.wait())
    await asyncio.wait([working, dying], return_when=asyncio.FIRST_COMPLETED)
    assert not working.done(), f"{at} was never reached"
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    return job_id


@pytest.mark.slow
async def test_only_the_step_in_flight_is_repeated(store: Store, clock: ManualClock, tmp_path: Path) -> None:
    """All of them; on DynamoDB, where that takes a minute, only in the long form of the chaos tests."""
    all_of_them = isinstance(store, MemoryStore) or os.environ.get("MAINSPRING_CHAOS") == "long"
    ledger = Ledger(tmp_path / "ledger")
    app = Mainspring(store)
    define(app, ledger)
    await join(store, "survivor")
    found: list[str] = []
    for number, at in enumerate(BOUNDARIES if all_of_them else A_FEW):
        queue = f"q{number}"
        job_id = await die_at(at, store, queue, clock, ledger)
        await by_silence(store, clock, f"victim of {queue}")
        await work(app, queue, f"heir of {queue}", clock)
        job = await app.jobs.get(job_id)
        found += problems(ledger, job_id, at)
        found += [] if (job.status, job.result) == (Status.COMPLETED, RESULT) else [f"{at}: {job}"]
    assert found == []


async def test_without_trouble_there_are_as_many_commits_as_counted(clock: ManualClock, tmp_path: Path) -> None:
    """Else the boundaries would not be all of them."""
    store, ledger = MemoryStore(clock=clock), Ledger(tmp_path / "ledger")
    app = Mainspring(store)
    define(app, ledger)
    for method in ("save", "ack", "claim"):
        beyond = Boundary(
            method, 1 + max(boundary.number for boundary in BOUNDARIES if boundary.method == method), "after"
        )

        async def reached(beyond: Boundary = beyond) -> None:
            raise AssertionError(f"there is {beyond}")

        job_id = await put(app, method, NAP)
        watch(store, job_id, beyond, reached)
        await work(app, method, method, clock)
        assert (await app.jobs.get(job_id)).result == RESULT
        assert problems(ledger, job_id, beyond) == []
