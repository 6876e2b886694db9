"""Durable functions and the senders of their signals, each with a store of its own over the same jobs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mainspring import Context, Mainspring, Status
from mainspring.features.durable import suspension
from tests.features.conftest import NewApp, stores
from tests.worker.working import ended, reached, working

pytestmark = pytest.mark.slow

JOBS = 6
ROUNDS = 3
PATIENCE = 100.0  # seconds, for a machine that has other things to do


@pytest.fixture(params=["memory", "sqlite", "postgres", "dynamodb"])
async def new_app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NewApp]:
    """Another process's own application over the same jobs."""
    async with AsyncExitStack() as stack:
        make = await stores(request.param, tmp_path, stack)

        def another() -> Mainspring:
            app = Mainspring(make())
            define(app)
            stack.push_async_callback(app.close)
            return app

        yield another


def define(app: Mainspring) -> None:
    @app.task(name="listen")
    async def listen(ctx: Context, number: int) -> list[int]:
        """Waits for what belongs to it alone, and for what all hear."""
        heard: list[int] = []
        for _ in range(ROUNDS):
            mine = await ctx.wait_for(f"mine:{number}")
            all_ours = await ctx.wait_for("ours")
            assert mine
            assert all_ours
            heard += [mine.payload, all_ours.payload]
        return heard

    @app.task(name="add")
    async def add(number: int) -> int:
        return number + 1

    @app.task(name="count")
    async def count(ctx: Context, number: int) -> int:
        for _ in range(ROUNDS):
            (number,) = await ctx.gather(add.prepare(number=number))
        return number


async def test_no_signal_and_no_end_of_a_child_is_missed(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers, and a third process that signals at random moments. No job looks by itself: lost wake-ups show."""
    monkeypatch.setattr(suspension, "RECHECK_DELAYS", (3_600_000,))
    one, other, sender = new_app(), new_app(), new_app()
    rng = random.Random(7)
    async with working(one, concurrency=4), working(other, concurrency=4):
        handles = [await sender.tasks["listen"].enqueue(number=number) for number in range(JOBS)]
        counts = [await sender.tasks["count"].enqueue(number=number) for number in range(JOBS)]
        signals = [(f"mine:{number}", turn) for turn in range(ROUNDS) for number in range(JOBS)]
        signals += [("ours", turn) for turn in range(ROUNDS)]
        for key, payload in sorted(signals, key=lambda signal: (signal[1], rng.random())):
            await asyncio.sleep(rng.choice([0, 0, 0.01]))
            await rng.choice([one, other, sender]).signal(key, payload)
        listened = [await handle.result(PATIENCE) for handle in handles]
        counted = [await handle.result(PATIENCE) for handle in counts]
    heard = [payload for turn in range(ROUNDS) for payload in (turn, turn)]
    assert listened == [heard] * JOBS
    assert counted == [number + ROUNDS for number in range(JOBS)]


async def test_a_worker_that_stops_leaves_the_rest_to_another(new_app: NewApp) -> None:
    one, other = new_app(), new_app()
    async with working(one):
        job = await one.tasks["listen"].enqueue(number=1)
        await reached(one, job.id, statuses=(Status.SUSPENDED,))
    async with working(other):
        for turn in range(ROUNDS):
            await other.signal("mine:1", turn)
            await other.signal("ours", turn)
        (found,) = await ended(other, job.id)
    assert found.status is Status.COMPLETED, found
