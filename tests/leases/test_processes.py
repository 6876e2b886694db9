"""Lessees outlive the processes that serve them; a lessee that falls silent loses its jobs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mainspring import JobHandle, Mainspring, Status
from mainspring.leases import Complete, Progress, Reply
from mainspring.stores.protocol import Store, Takeover
from tests.leases import served
from tests.postgres import dsn, fresh_schema

pytestmark = pytest.mark.slow  # `make test` runs it; it takes a server or several processes

LEASE = 2.0  # seconds, in all these stores


@dataclass
class Place:
    """A store that several processes use."""

    kind: str
    where: str
    name: str

    def store(self) -> Store:
        return served.store_of(self.kind, self.where, self.name)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place("sqlite", str(tmp_path / "jobs.db"), "-")
    return Place("postgres", dsn(), fresh_schema())


@pytest.fixture
async def app(place: Place) -> AsyncIterator[Mainspring]:
    app = Mainspring(place.store())

    @app.task(name="add")
    async def add(a: int) -> int:
        return a

    yield app
    await app.close()


async def served_and_killed(place: Place) -> tuple[str, int]:
    """Have another process claim for the lessee, kill it with SIGKILL, and return the job and its token."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.leases.served", place.kind, place.where, place.name, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            job_id, token = (await process.stdout.readline()).decode().split()
    finally:
        process.kill()
        await process.wait()
    return job_id, int(token)


async def enqueue(app: Mainspring) -> JobHandle[int]:
    return await app.tasks["add"].enqueue(a=1)


async def reap_for(app: Mainspring, seconds: float, *, beating: bool) -> list[Takeover]:
    """Look for dead workers, as a worker does; the lessee sends heartbeats meanwhile, or does not."""
    taken: list[Takeover] = []
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        taken += (await app.store.reap()).takeovers
        if beating:
            await app.leases.heartbeat("far")
        await asyncio.sleep(0.1)
    return taken


async def test_a_lessee_outlives_the_process_that_served_it(app: Mainspring, place: Place) -> None:
    handle = await enqueue(app)
    job_id, token = await served_and_killed(place)
    assert job_id == handle.id
    assert await reap_for(app, 2 * LEASE, beating=True) == []
    report = await app.leases.report("far", [Progress(job_id, token, 0.5), Complete(job_id, token, 2)])
    assert [answer.reply for answer in report.answers] == [Reply.OK, Reply.OK]
    assert report.pulse.known
    assert await handle.result() == 2


async def test_a_silent_lessee_loses_its_job_and_its_late_report_changes_nothing(app: Mainspring, place: Place) -> None:
    handle = await enqueue(app)
    job_id, token = await served_and_killed(place)
    (takeover,) = await reap_for(app, 2 * LEASE, beating=False)
    assert (takeover.job_id, takeover.worker) == (job_id, "far")
    before = await handle.get()
    report = await app.leases.report("far", [Complete(job_id, token, 2)])
    assert (report.answers[0].reply, report.pulse.known) == (Reply.STALE, False)
    assert await handle.get() == before
    (lease,) = (await app.leases.claim("other", wait=LEASE)).leases  # it holds nothing: it may take the suspect
    assert (lease.id, lease.suspect) == (job_id, True)
    late = await app.leases.report("far", [Complete(job_id, token, 2), Progress(job_id, lease.token, 1)])
    assert [answer.reply for answer in late.answers] == [Reply.STALE, Reply.STALE]
    assert (await lease.complete(3)).status is Status.COMPLETED
    assert await handle.result() == 3


async def test_a_worker_runs_what_a_silent_lessee_left(app: Mainspring, place: Place) -> None:
    handle = await enqueue(app)
    await served_and_killed(place)
    async with app.worker(maintenance_interval=0.1):
        assert await handle.result(timeout=20) == 1
    assert (await handle.get()).crashes == 1
