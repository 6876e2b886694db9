from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainspring.worker import slots as slots_module
from mainspring.worker.chunks import PendingChunk
from mainspring.worker.run import Run
from mainspring.worker.slots import SlotPool, uncancel
from tests.worker.working import eventually


def fill(ready: deque[Run], number: int) -> None:
    ready.extend([cast("Run", n) for n in range(number)])


class Slots(SlotPool):
    """Slots that call a function of the test for each run."""

    def __init__(
        self, limit: int, ready: deque[Run], execute: Callable[[Any, asyncio.Task[None]], Awaitable[None]]
    ) -> None:
        nothing: Any = None
        runs: Any = SimpleNamespace(ready=ready)
        super().__init__(limit, runs, nothing, nothing)
        self._execute = execute

    async def run(self, run: Run | PendingChunk, slot: asyncio.Task[None]) -> None:
        await self._execute(run, slot)


async def test_ready_runs_start_in_order_and_never_more_than_the_limit_at_once() -> None:
    ready: deque[Run] = deque()
    order: list[Any] = []
    most = now = 0

    async def execute(run: Run, slot: asyncio.Task[None]) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        order.append(run)
        await asyncio.sleep(0.001)
        now -= 1

    slots = Slots(3, ready, execute)
    for _ in range(3):  # also after they have rested
        order.clear()
        fill(ready, 20)
        slots.feed()
        await eventually(lambda: len(order) == 20 and now == 0)
        assert order == list(range(20))
    assert most == 3
    await slots.close()


async def test_jobs_that_never_wait_give_the_event_loop_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MAX_TURN", -1.0)  # each job takes longer than a turn
    ready: deque[Run] = deque()
    ticks = 0

    async def execute(run: Run, slot: asyncio.Task[None]) -> None: ...

    async def tick() -> None:
        nonlocal ticks
        while ready:
            ticks += 1
            await asyncio.sleep(0)

    slots = Slots(1, ready, execute)
    fill(ready, 400)
    slots.feed()
    await tick()
    assert ticks >= 400
    await slots.close()


async def test_one_slot_runs_jobs_that_never_wait_and_starts_others_when_a_job_waits() -> None:
    ready: deque[Run] = deque()
    slots_used: set[asyncio.Task[None]] = set()
    going, release = 0, asyncio.Event()

    async def execute(run: Run, slot: asyncio.Task[None]) -> None:
        nonlocal going
        slots_used.add(slot)
        if waiting:
            going += 1
            await release.wait()

    waiting = False
    slots = Slots(50, ready, execute)
    fill(ready, 200)
    slots.feed()
    await eventually(lambda: not ready)
    assert len(slots_used) <= slots_module.SLOTS_PER_WAIT
    waiting = True
    fill(ready, 50)
    slots.feed()
    await eventually(lambda: going == 50)
    release.set()
    await slots.close()


async def test_a_stray_cancellation_does_not_end_a_slot() -> None:
    ready: deque[Run] = deque()
    done: list[Any] = []

    async def execute(run: Run, slot: asyncio.Task[None]) -> None:
        done.append(run)

    slots = Slots(1, ready, execute)
    fill(ready, 1)
    slots.feed()
    await eventually(lambda: slots._resting)
    slots._slots[0].cancel()
    await eventually(lambda: not slots._slots[0].cancelling())
    fill(ready, 2)
    slots.feed()
    await eventually(lambda: len(done) == 3)
    await slots.close()


async def test_close_cancels_running_jobs_and_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "CANCEL_TIMEOUT", 0.05)
    ready: deque[Run] = deque()
    release, ends = asyncio.Event(), []

    async def execute(run: Run, slot: asyncio.Task[None]) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                ends.append(run)

    slots = Slots(2, ready, execute)
    fill(ready, 2)
    slots.feed()
    await asyncio.sleep(0)
    await asyncio.wait_for(slots.close(), 5)
    assert len(ends) == 2
    release.set()


async def test_uncancel_clears_several_cancellations() -> None:
    async def work() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            uncancel(task)
        return task.cancelling()

    assert await asyncio.create_task(work()) == 0
