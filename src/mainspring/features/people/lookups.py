"""Combines the reads of many jobs that run at once: each job reads its person when it runs.

In a burst thousands of jobs run at once. A separate read for each of them would take most of their time.
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
    """While one read is in progress, requests are collected for the next. Each thread has its own loop and reads.

    A read begins after all of its requests, so it sees everything that was written before a request.
    """

    def __init__(self, read: Read[T]) -> None:
        self._read = read
        self._waiting: Waiting[T] = []
        self._reader: asyncio.Task[None] | None = None

    async def get(self, id: str) -> T:
        loop = asyncio.get_running_loop()
        if self._reader is None or self._reader.get_loop() is not loop:
            self._waiting = []
            # in a new context, not in that of the first job
            self._reader = loop.create_task(self._read_all(), context=contextvars.Context())
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append((id, future))
        return await future

    async def _read_all(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                await self._answer(group)
        finally:
            self._reader = None

    async def _answer(self, group: Waiting[T]) -> None:
        try:
            found = await self._read(list({person_id for person_id, _ in group}))
        except Exception as error:  # noqa: BLE001 - each request gets the error
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
        else:
            given: set[str] = set()
            for person_id, future in group:
                if not future.done():  # else its job was cancelled
                    future.set_result(_copy(found[person_id]) if person_id in given else found[person_id])
                given.add(person_id)


def _copy(value: T) -> T:
    """Return a copy, so that handlers do not see each other's changes to attributes."""
    return value.model_copy(deep=True) if isinstance(value, BaseModel) else value
