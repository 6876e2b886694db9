"""Jobs that follow a job's end, whichever part of the worker writes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Context, Discard, Mainspring, NewJob
from mainspring.leases import Complete
from mainspring.stored_options import with_options
from mainspring.stores.engine.on_end import following
from mainspring.worker import Worker


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Mainspring]:
    async with Mainspring(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


class Bodies:
    """A task that hears of ends."""

    def __init__(self, app: Mainspring) -> None:
        self.heard: list[Any] = []

        @app.task
        async def hear(body: dict[str, Any]) -> None:
            self.heard.append(body)

        self.task = hear

    def followed(self, job: NewJob) -> NewJob:
        told = following(self.task.prepare(body={}))
        return with_options(job, on_end={"completed": told, "failed": told})


async def run(app: Mainspring) -> None:
    await Worker(app).drain()


async def test_a_run_in_a_worker_is_followed(app: Mainspring) -> None:
    bodies = Bodies(app)

    @app.task
    async def add(a: int) -> int:
        if not a:
            msg = "no"
            raise Discard(msg)
        return a + 1

    await app.enqueue_all([bodies.followed(add.prepare(a=a)) for a in (0, 1, 2)])
    await run(app)
    ends = sorted((body["job"]["status"], body.get("result")) for body in bodies.heard)
    assert ends == [("completed", 2), ("completed", 3), ("dead_letter", None)]


async def test_a_run_that_writes_its_own_end_is_followed(app: Mainspring) -> None:
    bodies = Bodies(app)

    @app.task
    async def add(ctx: Context, a: int) -> None:
        async with ctx.transaction():
            ctx.set_result(a + 1)

    await app.enqueue_all([bodies.followed(add.prepare(a=1))])
    await run(app)
    assert [body["result"] for body in bodies.heard] == [2]


async def test_a_leased_job_is_followed(app: Mainspring) -> None:
    bodies = Bodies(app)

    @app.task(queue="far")
    async def add(a: int) -> int:
        return a

    await app.enqueue_all([bodies.followed(add.prepare(a=1))])
    (lease,) = (await app.leases.claim("w", queues=["far"])).leases
    await app.leases.report("w", [Complete(lease.id, lease.token, 7)])
    await run(app)
    assert [body["result"] for body in bodies.heard] == [7]
