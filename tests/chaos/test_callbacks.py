"""Callbacks while workers are killed: each job that has ended calls back, once as a job, and not before its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from mainspring import Job, Mainspring
from mainspring.job import Status
from mainspring.service import add_http_task
from mainspring.service.bodies import NewJobBody
from mainspring.service.callbacks import followed
from mainspring.service.secrets import Secrets
from mainspring.stores.protocol import Filter
from mainspring.testing.fakes import FakeEndpoint, Request
from mainspring.webhooks import verify
from tests.chaos.conftest import Chaos, each_store
from tests.chaos.processes import Nursery, Process
from tests.chaos.waiting import wait_until
from tests.chaos.workers import WORKER, replace

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

WORKERS = 2


@each_store
def test_each_end_calls_back_whatever_is_killed(nursery: Nursery, chaos: Chaos) -> None:
    rng = chaos.rng()
    with FakeEndpoint() as endpoint:
        endpoint.slow(0.1)  # so that some workers are killed while they wait for an answer
        ids = asyncio.run(enqueue(nursery, endpoint.url, chaos.size(100, 2000)))

        def worker() -> Process:
            return nursery.start("callbacks:work", settings=nursery.database.watchful, **WORKER)

        workers = [worker() for _ in range(WORKERS)]
        for enough in range(10, len(ids) - 10, 10):
            wait_until(lambda: len(endpoint.received) >= enough, workers[0].said)  # noqa: B023
            replace(workers, rng.randrange(WORKERS), worker)
        nursery.wait_until_all_is_finished()
        jobs, callbacks, secrets = asyncio.run(state(nursery))
        check(ids, jobs, callbacks, endpoint.received, secrets)


async def enqueue(nursery: Nursery, url: str, number: int) -> list[str]:
    """Enqueue jobs of which some complete, some fail, and some are cancelled before they start."""
    async with Mainspring(nursery.database.url) as app:
        add_http_task(app)
        secrets = Secrets(app.store)
        jobs = []
        for each in range(number):
            payload = {"number": each}
            body = NewJobBody(task="sell", payload=payload, callback=f"{url}/done", failure_callback=f"{url}/failed")
            delay = 3600 if each % 5 == 0 else None
            job = await app.prepare("sell", payload, allow_unknown=True, delay=delay)
            jobs.append(await followed(app, secrets, job, body))
        handles = await app.enqueue_all(jobs)
        for handle in handles[::5]:
            await app.jobs.cancel(handle.id, reason="no use")
        return [handle.id for handle in handles]


async def state(nursery: Nursery) -> tuple[Sequence[Job], Sequence[Job], Sequence[str]]:
    async with Mainspring(nursery.database.url) as app:
        jobs = [job async for job in app.jobs.all(Filter(tasks=("sell",)))]
        callbacks = [job async for job in app.jobs.all(Filter(tasks=("http",)))]
        return jobs, callbacks, await Secrets(app.store).texts("default")


def check(
    ids: Sequence[str],
    jobs: Sequence[Job],
    callbacks: Sequence[Job],
    received: Sequence[Request],
    secrets: Sequence[str],
) -> None:
    ended = {job.id: job.status for job in jobs}
    assert sorted(ended) == sorted(ids)
    assert Counter(job.payload["body"]["job"]["id"] for job in callbacks) == Counter(ids)
    assert {job.status for job in callbacks} == {Status.COMPLETED}
    senders = {job.payload["body"]["job"]["id"]: job.id for job in callbacks}
    told = set()
    for request in received:
        body = request.json()["job"]
        assert verify(request.body, request.headers, secrets, tolerance=3600) == senders[body["id"]]
        assert body["status"] == ended[body["id"]].value
        assert request.path == ("/done" if body["status"] == "completed" else "/failed")
        told.add(body["id"])
    assert told == set(ids)
    print(f"{len(ids)} jobs, {len(received)} requests, {Counter(ended.values())}")
