"""Group commit without a timer: requests that arrive during a write go together into the next write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

MAX_ITEMS = 5000  # in one transaction


@dataclass(slots=True, eq=False)
class WriteRequest:
    items: list[Any]
    future: asyncio.Future[list[Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class GroupCommit:
    """Group the requests of one operation. Each event loop has its own queue of requests."""

    def __init__(self, write: Callable[[list[Any]], Awaitable[list[Any]]]) -> None:
        self._write = write
        self._lines: dict[asyncio.AbstractEventLoop, list[WriteRequest]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, items: list[Any]) -> list[Any]:
        request = WriteRequest(items)
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is not None:
            line.append(request)
        else:
            self._lines[loop] = [request]
            task = loop.create_task(self._serve(loop), name="mainspring-group-commit")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await request.future

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        line = self._lines[loop]
        try:
            while line:
                await self._write_together(take_some(line))
        finally:
            del self._lines[loop]
            for request in line:  # there are some only if this task was cancelled
                request.future.cancel()

    async def _write_together(self, group: list[WriteRequest]) -> None:
        """Write a group. If it fails, write each request separately, so that only the bad request fails."""
        try:
            results = await self._write([item for request in group for item in request.items])
        except BaseException as error:  # noqa: BLE001 - the callers that wait for these requests get the error
            if len(group) == 1:
                fail(group[0], error)
            else:
                for request in group:
                    await self._write_together([request])
        else:
            for request in group:
                answer(request, results[: len(request.items)])
                del results[: len(request.items)]


def take_some(line: list[WriteRequest]) -> list[WriteRequest]:
    group, items = [line.pop(0)], 0
    while line and items < MAX_ITEMS:
        items += len(line[0].items)
        group.append(line.pop(0))
    return group


def answer(request: WriteRequest, results: list[Any]) -> None:
    if not request.future.done():  # it is done if the caller stopped waiting
        request.future.set_result(results)


def fail(request: WriteRequest, error: BaseException) -> None:
    if request.future.done():
        return
    if isinstance(error, asyncio.CancelledError):
        request.future.cancel()
    else:
        request.future.set_exception(error)
