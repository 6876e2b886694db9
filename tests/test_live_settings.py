"""What a process does when it reads changed settings, and when its store is slow or away just then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import Limit, Mainspring, Rate
from mainspring.errors import StoreUnavailable
from mainspring.features.limits.options import AnyLimit
from mainspring.features.limits.timer import LimitTimer
from mainspring.stores.sqlite import MemoryStore
from tests.worker.working import claim_of


class Process:
    """An application with one task, and an operator who changes its settings from another program."""

    def __init__(self, **options: Any) -> None:
        self.app = Mainspring(MemoryStore())

        @self.app.task(**options)  # type: ignore[untyped-decorator] # mypy cannot choose an overload
        async def send() -> None: ...

        self._operator = Mainspring(self.app.store)
        self._operator.runtime.live_settings.listeners.clear()  # only this process wakes jobs
        self.renumbered: list[tuple[AnyLimit, ...]] = []

    async def change(self, **settings: Any) -> None:
        await self._operator.settings.set(task="send", **settings)

    async def clear(self) -> None:
        await self._operator.settings.clear(task="send")

    async def look(self) -> None:
        await self.app.runtime.live_settings.look()

    @property
    def is_held_back(self) -> bool:
        """Return whether a feature would have to admit a job of the task."""
        return bool(self.app.runtime.features.concern([claim_of(task="send")]))


class Wake:
    """Takes the place of `store.wake`: it waits, or fails."""

    def __init__(self, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called, self.may_end = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None
        self._wake = process.app.store.wake
        monkeypatch.setattr(process.app.store, "wake", self.wake)

    async def wake(self, numbers: Any) -> Any:
        self.called.set()
        if self.error is not None:
            raise self.error
        await self.may_end.wait()
        return await self._wake(numbers)


async def paused(process: Process) -> None:
    """Pause the task, and let the process hear of it."""
    await process.change(paused=True)
    await process.look()
    assert process.is_held_back


async def test_a_task_that_is_paused_again_while_its_jobs_are_woken_is_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process()
    async with process.app:
        await paused(process)
        wake = Wake(process, monkeypatch)
        await process.clear()
        slow = asyncio.create_task(process.look())
        await wake.called.wait()
        await process.change(paused=True)
        await process.look()
        assert process.is_held_back
        wake.may_end.set()
        await slow
        assert process.is_held_back


async def test_a_task_that_is_paused_again_before_its_jobs_could_be_woken_is_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process()
    async with process.app:
        await paused(process)
        wake = Wake(process, monkeypatch)
        wake.error = StoreUnavailable("away")
        await process.clear()
        with pytest.raises(StoreUnavailable):
            await process.look()
        await process.change(paused=True)
        await process.look()
        assert process.is_held_back


async def test_a_pause_that_ends_after_new_numbers_could_not_be_written_holds_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process()
    async with process.app:
        await paused(process)
        await process.clear()
        await process.look()
        renumbering(process, monkeypatch, failures=1)
        await process.change(paused=True, limit=3)
        with pytest.raises(StoreUnavailable):
            await process.look()
        await process.clear()
        await process.look()
        assert not process.is_held_back


async def test_a_number_that_could_not_be_written_everywhere_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may have it in some documents; the settings are again what they were before."""
    process = Process(limits=Limit(2))
    async with process.app:
        await process.look()
        renumbering(process, monkeypatch, failures=1)
        await process.change(limit=5)
        with pytest.raises(StoreUnavailable):
            await process.look()
        await process.clear()
        await process.look()
    assert process.renumbered == [(Limit(5, name="send"),), (Limit(2, name="send"),)]


async def test_a_number_is_taken_back_while_it_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old number is written again after the end of the slow write, which may have come later."""
    process, began, may_end = Process(limits=Limit(2)), asyncio.Event(), asyncio.Event()
    async with process.app:
        await process.look()
        renumbering(process, monkeypatch)
        quick = LimitTimer.renumber

        async def slow_at_first(timer: LimitTimer, name: str, limits: tuple[AnyLimit, ...]) -> None:
            if not began.is_set():
                began.set()
                await may_end.wait()
            await quick(timer, name, limits)

        monkeypatch.setattr(LimitTimer, "renumber", slow_at_first)
        await process.change(limit=5)
        slow = asyncio.create_task(process.look())
        await began.wait()
        await process.clear()
        await process.look()
        may_end.set()
        await slow
    assert [limit for (limit,) in process.renumbered] == [Limit(size, name="send") for size in (2, 5, 2)]


async def test_new_numbers_are_used_while_jobs_of_another_task_cannot_be_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process()
    async with process.app:
        await paused(process)
        wake = Wake(process, monkeypatch)
        wake.error = StoreUnavailable("away")
        renumbering(process, monkeypatch)
        await process.clear()
        await process.change(rate=Rate(1, per=60))
        with pytest.raises(StoreUnavailable):
            await process.look()
        assert process.renumbered == [(Rate(1, per=60.0, name="send"),)]


def renumbering(process: Process, monkeypatch: pytest.MonkeyPatch, failures: int = 0) -> None:
    """Record the numbers that are written to the store. The first ones fail."""
    failed: list[str] = []

    async def renumber(_: LimitTimer, name: str, limits: tuple[AnyLimit, ...]) -> None:
        process.renumbered.append(limits)
        if len(failed) < failures:
            failed.append(name)
            raise StoreUnavailable("away")

    monkeypatch.setattr(LimitTimer, "renumber", renumber)
