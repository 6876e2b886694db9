"""`GET /health/scheduler` and `GET /queue/stats`."""

from __future__ import annotations

import pytest

from mainspring import Mainspring
from mainspring.encryption import Keys, new_key
from mainspring.metrics.cluster import read_cluster
from mainspring.service import probes
from mainspring.testing.clock import ManualClock
from tests.service.resources.client import Client
from tests.service.resources.conftest import fail


async def test_a_system_without_jobs_is_healthy(client: Client) -> None:
    assert await client.get("/health/scheduler") == {
        "healthy": True,
        "stats": {"queueDepth": 0, "dlqSize": 0, "jobsLast24h": 0, "failureRate": 0, "oldestPendingMinutes": 0},
        "problems": [],
    }


async def test_the_scheduler_counts_due_jobs_and_attempts(app: Mainspring, client: Client, clock: ManualClock) -> None:
    await app.tasks["greet"].enqueue(name="Ada")
    await fail(app, 1)
    await app.tasks["greet"].using(delay=86_400).enqueue(name="later")
    await app.tasks["greet"].enqueue(name="now")
    clock.advance(90)
    stats = (await client.get("/health/scheduler"))["stats"]
    assert stats == {
        "queueDepth": 1, "dlqSize": 1, "jobsLast24h": 1, "failureRate": 0.5, "oldestPendingMinutes": 1.5,
    }  # fmt: skip


async def test_a_due_job_that_waits_for_an_hour_is_unhealthy(
    app: Mainspring, client: Client, clock: ManualClock
) -> None:
    await app.tasks["greet"].enqueue(name="Ada")
    clock.advance(3599)
    assert (await client.send("GET", "/health/scheduler")).status == 200
    clock.advance(1)
    late = await client.send("GET", "/health/scheduler")
    assert (late.status, late.data["healthy"], late.data["stats"]["oldestPendingMinutes"]) == (503, False, 60)


async def test_jobs_that_workers_cannot_decrypt_are_unhealthy(app: Mainspring, client: Client) -> None:
    """They are never due for long: each look of a worker puts them off."""
    pytest.importorskip("cryptography")
    sealing = Mainspring(app.store, encryption=Keys({"2027": new_key()}))
    async with app.worker(id="vm-1").draining() as run_due:
        await sealing.store.open()
        await sealing.store.insert([app.tasks["greet"].prepare(name="Ada")])
        await run_due()
        found = await client.send("GET", "/health/scheduler")
        families = await read_cluster(app)
    assert (found.status, found.data["healthy"]) == (503, False)
    assert found.data["problems"][0].startswith("jobs of queue default cannot be decrypted without key 2027, which")
    (gauge,) = [family for family in families if family.name == "mainspring_unreadable_queue_workers"]
    assert [(sample.labels, sample.value) for sample in gauge.samples] == [({"queue": "default"}, 1)]


async def test_many_due_jobs_or_dead_letters_are_unhealthy(app: Mainspring, client: Client) -> None:
    await app.tasks["greet"].enqueue_many([{"name": "Nobody"}] * (probes.MAX_DEAD - 1))
    await app.worker().drain()
    assert (await client.send("GET", "/health/scheduler")).status == 200
    await fail(app, 1)
    assert (await client.send("GET", "/health/scheduler")).status == 503
    await app.jobs.purge_dead(0)


@pytest.mark.parametrize(("jobs", "status"), [(999, 200), (1000, 503)])
async def test_the_depth_of_the_queue_has_a_threshold(app: Mainspring, client: Client, jobs: int, status: int) -> None:
    await app.tasks["greet"].using(delay=60).enqueue_many([{"name": "later"}] * 10)
    await app.tasks["greet"].enqueue_many([{"name": "Ada"}] * jobs)
    assert (await client.send("GET", "/health/scheduler")).status == status


async def test_queue_stats_have_the_fields_of_the_document(app: Mainspring, client: Client) -> None:
    await app.tasks["greet"].enqueue(name="Ada")
    (dead,) = await fail(app, 1)
    await app.tasks["greet"].using(queue="renders").enqueue(name="Ben")
    stats = await client.get("/queue/stats")
    assert stats["queues"] == {
        "default": {"pending": 0, "processing": 0, "completed": 1, "failed": 0, "deadLetter": 1},
        "renders": {"pending": 1, "processing": 0, "completed": 0, "failed": 0, "deadLetter": 0},
    }
    (listed,) = stats["deadLetter"]
    assert (listed["id"], listed["type"], listed["attempts"]) == (dead, "greet", 1)
    assert listed["finalError"] == "LookupError: nobody is here"
    assert stats["timestamp"].endswith("Z")
    assert (await client.get("/queue/stats?limit=0"))["deadLetter"] == []
