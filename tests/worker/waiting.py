"""A task whose middleware waits, so that things can happen between the start of a run and the call of its handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from mainspring import Chunk, Mainspring, RunCall

ONE_BY_ONE = Chunk(size=1)


class Waiting:
    """A task with asynchronous middleware that waits. The handler notes its calls."""

    def __init__(self, app: Mainspring, kind: str, *, chunk: Chunk = ONE_BY_ONE, **options: Any) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.calls: list[int] = []
        app.around_run(self.around)

        async def handle(number: int) -> None:
            self.calls.append(number)

        async def handle_several(numbers: list[int]) -> None:
            self.calls.extend(numbers)

        def handle_in_thread(number: int) -> None:
            self.calls.append(number)

        self.work: Any
        if kind == "chunk":
            self.work = app.task(chunk=chunk, **options)(handle_several)
        else:
            self.work = app.task(**options)(handle if kind == "coroutine" else handle_in_thread)

    async def around(self, _call: RunCall) -> AsyncIterator[None]:
        self.begun.set()
        await self.go.wait()
        yield

    async def enqueue(self, jobs: int) -> list[str]:
        """Return the ids when the middleware waits."""
        handles = await self.work.enqueue_many([self.work.prepare(number) for number in range(jobs)])
        await self.begun.wait()
        return [handle.id for handle in handles]
