"""Many callers at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from mainspring.client import AsyncClient, Client
from tests.client.serving import SOON, Service


def test_threads_share_a_client(service: Service) -> None:
    queue = uuid4().hex
    with Client(service.url) as client, ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda n: client.enqueue("welcome", {"guest": str(n)}, queue=queue).id, range(40)))
        assert {job.id for job in client.jobs.list(queue=queue)} == set(made)


def test_tasks_share_a_client(service: Service) -> None:
    async def main() -> None:
        queue = uuid4().hex
        async with AsyncClient(service.url) as client, asyncio.timeout(SOON):
            made = await asyncio.gather(*(client.enqueue("welcome", {"guest": str(n)}, queue=queue) for n in range(40)))
            assert {job.id async for job in client.jobs.list(queue=queue)} == {each.id for each in made}

    asyncio.run(main())


def test_a_cancelled_wait_leaves_no_connection(service: Service) -> None:
    async def main() -> None:
        async with AsyncClient(service.url) as client:
            job = await client.enqueue("welcome", {"guest": "Ada"})
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.jobs.wait(job.id)
            assert client.runner.streams._transport._pool.connections == []  # type: ignore[attr-defined]
            assert (await client.jobs.get(job.id)).status == "pending"

    asyncio.run(main())


@pytest.mark.slow
def test_more_waits_than_a_token_may_have_streams(service: Service) -> None:
    async def main() -> None:
        async with AsyncClient(service.url) as client, asyncio.timeout(3 * SOON):
            made = await client.enqueue_many({"task": "welcome", "payload": {"guest": str(n)}} for n in range(130))
            ids = [result.id or "" for result in made.results]
            waits = [asyncio.create_task(client.jobs.wait(job_id)) for job_id in ids]
            await asyncio.gather(*(client.jobs.cancel(job_id) for job_id in ids))
            assert {job.status for job in await asyncio.gather(*waits)} == {"cancelled"}

    asyncio.run(main())
