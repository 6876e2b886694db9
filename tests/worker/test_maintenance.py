from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, Retention, Retry
from mainspring.errors import StoreBusy
from mainspring.stores.protocol import StalledRun
from mainspring.stores.sqlite import MemoryStore
from mainspring.worker import maintenance
from tests.worker.working import DEADLINE, FaultyStore, eventually, new_app, working

ONCE = 3600.0  # seconds between rounds: there is one


@pytest.fixture
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PRUNE_EVERY", ONCE)
    monkeypatch.setattr(maintenance, "PRUNE_LIMIT", 10)


@pytest.mark.usefixtures("one_round")
async def test_one_round_deletes_everything_that_has_expired(tmp_path: Path) -> None:
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
async def test_dead_workers_are_noticed_while_many_expired_jobs_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Endless(MemoryStore):
        done: list[str]

        async def prune(self, limit: int = 1000, **settings: Any) -> int:
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


async def test_after_a_long_pause_workers_have_time_for_a_heartbeat_before_takeovers() -> None:
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


# -- stalled runs ---------------------------------------------------------------------------------


def broken_policy(attempt: int, error: BaseException) -> float:
    raise ZeroDivisionError("in the policy")


@pytest.fixture
def app() -> Mainspring:
    app = new_app()

    @app.task(retry=Retry.by(lambda attempt, _: attempt * 10))
    async def computed() -> None: ...

    @app.task(retry=Retry.by(broken_policy))
    async def broken() -> None: ...

    return app


def stalled(options: str | None = None, attempt: int = 1) -> StalledRun:
    return StalledRun("id", "work", "default", attempt, options)


def test_a_stalled_job_is_retried_by_the_policy_of_its_task(app: Mainspring) -> None:
    assert maintenance.after_stall(app.tasks["computed"], stalled(attempt=3)) == 30_000


def test_a_stalled_job_s_own_policy_overrides_that_of_its_task(app: Mainspring) -> None:
    options = json.dumps({"retry": Retry.delays(1, 5).to_data()})
    assert maintenance.after_stall(app.tasks["computed"], stalled(options, attempt=2)) == 5000
    assert maintenance.after_stall(None, stalled(options)) == 1000


def test_a_stalled_job_of_an_unknown_task_is_retried_by_the_default_policy() -> None:
    assert 60_000 <= (maintenance.after_stall(None, stalled()) or 0) <= 72_000


def test_a_stalled_job_is_given_up_if_its_policy_does_not_retry_timeouts(app: Mainspring) -> None:
    @app.task(retry=Retry(never=(TimeoutError,)))
    async def impatient() -> None: ...

    assert maintenance.after_stall(impatient, stalled()) is None


def test_a_stalled_job_whose_policy_raises_is_retried_by_the_default_policy(app: Mainspring) -> None:
    assert 60_000 <= (maintenance.after_stall(app.tasks["broken"], stalled()) or 0) <= 72_000
