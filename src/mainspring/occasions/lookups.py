"""Reads the people that jobs are about: all that are asked for at the same time in one read.

Each job reads its person when it runs. In a burst thousands of jobs run at once, and a read for each of them would take
most of their time.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from pydantic import BaseModel

T = TypeVar("T")
Read = Callable[[Sequence[str]], Awaitable[Mapping[str, T]]]
Waiting = list[tuple[str, "asyncio.Future[T]"]]


class Lookups(threading.local, Generic[T]):
    """While one read is under way, requests gather for the next. Each thread has its own event loop, and its own reads.

    A read begins after all of its requests: whatever was written before a request is seen.
    """

    def __init__(self, read: Read[T]) -> None:
        self._read = read
        self._waiting: Waiting[T] = []
        self._reader: asyncio.Task[None] | None = None

    async def get(self, id: str) -> T:
        loop = asyncio.get_running_loop()
        if self._reader is None or self._reader.get_loop() is not loop:
            self._waiting = []
            # in a context of its own, not in that of the first job
            self._reader = loop.create_task(self._read_all(), context=contextvars.Context())
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append((id, future))
        return await future

    async def _read_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._answer(batch)
        finally:
            self._reader = None

    async def _answer(self, batch: Waiting[T]) -> None:
        try:
            found = await self._read(list({who for who, _ in batch}))
        except Exception as error:  # noqa: BLE001 - it is told to those who asked
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        else:
            given: set[str] = set()
            for who, future in batch:
                if not future.done():  # else its job was cancelled
                    future.set_result(_copy(found[who]) if who in given else found[who])
                given.add(who)


def _copy(value: T) -> T:
    """So that no handler sees what another one does to its attributes."""
    return value.model_copy(deep=True) if isinstance(value, BaseModel) else value
