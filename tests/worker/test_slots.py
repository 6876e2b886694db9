from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mainspring.worker import slots as slots_module
from mainspring.worker.run import Run, run_in_new_context
from mainspring.worker.slots import SlotPool, uncancel
from tests.worker.working import eventually

name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


def fill(buffer: deque[Run], number: int) -> None:
    buffer.extend([cast_run(n) for n in range(number)])


class Work:
    """What the slots do with a run: calls this function."""

    def __init__(self, execute: Callable[[Any, asyncio.Task[None]], Coroutine[Any, Any, None]]) -> None:
        self.run = execute


def nothing() -> None: ...


def cast_run(number: int) -> Any:
    return number


async def test_they_take_from_the_buffer_in_its_order_and_never_more_than_the_limit() -> None:
    buffer: deque[Run] = deque()
    order: list[Any] = []
    most = now = 0

    async def execute(run: Run, slot: asyncio.Task[None]) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        order.append(run)
        await asyncio.sleep(0.001)
        now -= 1

    slots = SlotPool(3, buffer, Work(execute))
    for _ in range(3):  # also after they have rested
        order.clear()
        fill(buffer, 20)
        slots.feed()
        await eventually(lambda: len(order) == 20 and now == 0)
        assert order == list(range(20))
    assert most == 3
    await slots.close()


async def test_jobs_that_never_wait_leave_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MAX_TURN", -1.0)  # each job takes longer than a turn
    buffer: deque[Run] = deque()
    ticks = 0

    async def execute(run: Run, slot: asyncio.Task[None]) -> None: ...

    async def tick() -> None:
        nonlocal ticks
        while buffer:
            ticks += 1
            await asyncio.sleep(0)

    slots = SlotPool(1, buffer, Work(execute))
    fill(buffer, 400)
    slots.feed()
    await tick()
    assert ticks >= 400
    await slots.close()


async def test_one_slot_runs_jobs_that_never_wait_and_starts_others_when_a_job_waits() -> None:
    buffer: deque[Run] = deque()
    slots_used: set[asyncio.Task[None]] = set()
    going, release = 0, asyncio.Event()

    async def execute(run: Run, slot: asyncio.Task[None]) -> None:
        nonlocal going
        slots_used.add(slot)
        if waiting:
            going += 1
            await release.wait()

    waiting = False
    slots = SlotPool(50, buffer, Work(execute))
    fill(buffer, 200)
    slots.feed()
    await eventually(lambda: not buffer)
    assert len(slots_used) <= slots_module.SLOTS_PER_WAIT
    waiting = True
    fill(buffer, 50)
    slots.feed()
    await eventually(lambda: going == 50)
    release.set()
    await slots.close()


async def test_a_stray_cancellation_does_not_end_a_slot() -> None:
    buffer: deque[Run] = deque()
    done: list[Any] = []

    async def execute(run: Run, slot: asyncio.Task[None]) -> None:
        done.append(run)

    slots = SlotPool(1, buffer, Work(execute))
    fill(buffer, 1)
    slots.feed()
    await eventually(lambda: slots._resting)
    slots._slots[0].cancel()
    await eventually(lambda: not slots._slots[0].cancelling())
    fill(buffer, 2)
    slots.feed()
    await eventually(lambda: len(done) == 3)
    await slots.close()


async def test_closing_cancels_what_runs_and_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "CANCEL_TIMEOUT", 0.05)
    buffer: deque[Run] = deque()
    release, ends = asyncio.Event(), []

    async def execute(run: Run, slot: asyncio.Task[None]) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                ends.append(run)

    slots = SlotPool(2, buffer, Work(execute))
    fill(buffer, 2)
    slots.feed()
    await asyncio.sleep(0)
    await asyncio.wait_for(slots.close(), 5)
    assert len(ends) == 2
    release.set()


async def test_apart_keeps_context_variables_apart() -> None:
    async def work() -> str:
        before = name.get()
        name.set("worker")
        await asyncio.sleep(0)
        assert name.get() == "worker"
        return before

    name.set("caller")
    assert await run_in_new_context(work(), nothing) == "caller"
    assert name.get() == "caller"


async def test_apart_passes_on_errors_cancellations_and_what_is_thrown() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError

    with pytest.raises(LookupError):
        await run_in_new_context(fails(), nothing)

    cleaned: list[bool] = []

    async def waits() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cleaned.append(True)
            return "swallowed"
        return "never"

    async def outer() -> str:
        return await run_in_new_context(waits(), nothing)

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "swallowed"
    assert cleaned == [True]


async def test_uncancel_takes_back_all_of_it() -> None:
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
