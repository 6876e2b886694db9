"""The service is killed again and again, and comes back: a client loses nothing and does nothing twice."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from mainspring.client import AsyncClient, Event
from tests.service.test_program import PATIENCE, program

PART = 20  # jobs between two kills
KILLS = 2


class Crowd:
    """Enqueues jobs, and follows what becomes of them."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.made, self.created, self.asked = list[str](), list[str](), 0
        self.halfway, self.following = asyncio.Event(), asyncio.Event()

    async def ask(self, queue: str = "default") -> str:
        self.asked += 1
        return (await self.client.enqueue("welcome", {"guest": "Ada"}, queue=queue)).id

    async def enqueue(self) -> None:
        for number in range(PART * (KILLS + 1)):
            self.made.append(await self.ask())
            if number % PART == PART // 2:
                self.halfway.set()
        await self.ask("last")

    async def follow(self) -> None:
        async with aclosing(self.client.events(kind="created")) as events:
            async for event in events:
                assert isinstance(event, Event), event
                if event.queue == "last":
                    return
                self.created.append(str(event.job_id))
                self.following.set()

    async def follow_from_now_on(self) -> asyncio.Task[None]:
        """Return when events come: then all later ones do."""
        task = asyncio.create_task(self.follow())
        while not self.following.is_set():
            await self.ask()
            await asyncio.wait({task}, timeout=0.05)
        return task


@pytest.mark.slow
async def test_killing_the_service_loses_and_repeats_nothing(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/jobs.db"
    async with AsyncExitStack() as stack, asyncio.timeout(3 * PATIENCE):
        service = await stack.enter_async_context(program(tmp_path, store))
        url = service.client.url
        crowd = Crowd(await stack.enter_async_context(AsyncClient(url, retry_for=PATIENCE)))
        followed = await crowd.follow_from_now_on()
        enqueued = asyncio.create_task(crowd.enqueue())
        for _ in range(KILLS):
            await crowd.halfway.wait()
            crowd.halfway.clear()
            await service.end(signal.SIGKILL)
            service = await stack.enter_async_context(program(tmp_path, store, "--port", url.rpartition(":")[2]))
        await asyncio.gather(enqueued, followed)
        job = await crowd.client.jobs.wait(crowd.made[-1], timeout=PATIENCE)
        found = [job.id async for job in crowd.client.jobs.list(page_size=7)]
    assert job.status == "completed"
    assert [job_id for job_id in crowd.created if job_id in set(crowd.made)] == crowd.made
    assert len(found) == len(set(found)) == crowd.asked
