"""What a worker does beside its jobs: here, removing what has expired."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, Retention
from mainspring.errors import StoreBusy
from mainspring.stores.sqlite import MemoryStore
from mainspring.worker import maintenance
from tests.worker.working import DEADLINE, FaultyStore, eventually, working

ONCE = 3600.0  # seconds between rounds: there is one


@pytest.fixture
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PRUNE_EVERY", ONCE)
    monkeypatch.setattr(maintenance, "PRUNE_LIMIT", 10)


@pytest.mark.usefixtures("one_round")
async def test_one_round_removes_all_that_has_expired(tmp_path: Path) -> None:
    """Also if jobs, dedupe keys and documents expire side by side: one round then deletes more than was asked for."""
    async with Mainspring(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task(retention=Retention(completed=0))
        async def work(n: int) -> None: ...

        for n in range(55):
            await work.using(dedupe_key=f"key {n}", dedupe_for=0.001).enqueue(n=n)
        await app.worker().drain()
        async with working(app) as worker:
            worker.parts.maintenance._pruned_at = float("-inf")
            await eventually(lambda: worker.parts.maintenance._pruned_at > float("-inf"))
        assert await app.store.prune() == 0
        assert [job async for job in app.jobs.all()] == []


@pytest.mark.usefixtures("one_round")
async def test_a_mountain_of_what_has_expired_does_not_keep_from_looking_for_the_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Endless(MemoryStore):
        done: list[str]

        async def prune(self, limit: int = 1000) -> int:
            self.done.append("prune")
            await asyncio.sleep(0)
            return limit

        async def reap(self, *args: Any) -> Any:
            self.done.append("reap")
            return await super().reap(*args)

    monkeypatch.setattr(maintenance, "PRUNE_FOR", 0.0)
    store = Endless()
    store.done = []
    app = Mainspring(store)
    async with working(app) as worker:
        worker.parts.maintenance._pruned_at = float("-inf")
        await eventually(lambda: store.done.count("prune") > 2)
        first = store.done.index("prune")
        assert "reap" in store.done[first:]


# -- after a long pause ---------------------------------------------------------------------------


async def test_after_a_long_pause_the_others_have_time_for_a_heartbeat_and_so_have_we() -> None:
    """When a machine has slept, the worker that looks first must not take jobs from the others, or from itself."""
    store = FaultyStore(lease=0.4)
    async with working(Mainspring(store), maintenance_interval=3600) as worker:
        tending, time = worker.parts.maintenance, asyncio.get_running_loop().time
        await eventually(lambda: worker.parts.heartbeat.beaten_at > 0)

        async def look(pause: float) -> float:
            """How long the look took after such a pause."""
            began = time()
            tending._looked_at = began - pause
            await tending.look_after_others(every=1.0)
            return time() - began

        assert await look(pause=60) >= store.lease / 2
        store.fail("heartbeat", fault=StoreBusy())
        await eventually(lambda: store.failed["heartbeat"])
        assert await look(pause=60) >= store.lease
        store.lease = 3600.0
        async with asyncio.timeout(DEADLINE):  # it was no pause, and nothing is waited for
            await look(pause=1)
