"""The callers: a steady stream of enqueues over HTTP, live clients, and one client that checks every event."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.soak.application import TASKS
from mainspring.client import AsyncClient, Reset

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, LAST = "created", "completed"


@dataclass
class Enqueues:
    """What the service has acknowledged."""

    ids: set[str] = field(default_factory=set)
    late: int = 0  # seconds whose enqueues took longer than a second

    async def run(self, client: AsyncClient, rate: int, stop: asyncio.Event) -> None:
        """Enqueue `rate` jobs a second, of all tasks in turn, until `stop` is set."""
        tasks, numbers = itertools.cycle(TASKS), itertools.count()
        loop = asyncio.get_running_loop()
        while not stop.is_set():
            end = loop.time() + 1
            for _ in range(rate):
                job = await client.enqueue(next(tasks), {"n": next(numbers)})
                self.ids.add(job.id)
            self.late += loop.time() > end
            await asyncio.sleep(max(end - loop.time(), 0))


@dataclass
class Events:
    """What one client has seen of each job, in the order in which it came."""

    seen: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    resets: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, client: AsyncClient, begun: asyncio.Event) -> None:
        """Follow all jobs. `begun` is set with the first event: the schedule makes one every few seconds."""
        async with aclosing(client.events(kind=[FIRST, "retrying", LAST])) as events:
            async for event in events:
                begun.set()
                if isinstance(event, Reset):
                    self.resets += 1
                elif event.job_id is not None:
                    self.seen[event.job_id].append(event.kind)
                    self._news.set()

    async def wait_for(self, ids: set[str]) -> None:
        """Wait until every job has been seen to complete."""
        while any(self.problems(ids)):
            self._news.clear()
            await self._news.wait()

    def problems(self, ids: set[str]) -> Iterator[str]:
        """Each job must be seen to be created once, first, and to complete once, last."""
        if self.resets:
            yield f"the live client was reset {self.resets} times"
        for job_id in sorted(ids):
            kinds = self.seen.get(job_id, [])
            if kinds[:1] != [FIRST] or kinds[-1:] != [LAST] or kinds.count(FIRST) + kinds.count(LAST) != 2:
                yield f"the events of job {job_id} are {', '.join(kinds) or 'missing'}"
