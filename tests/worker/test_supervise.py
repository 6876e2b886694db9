from __future__ import annotations

import asyncio
import time

import pytest

from mainspring.worker.outage import Backoff, Outage, supervised


async def test_backoff_doubles_up_to_its_most_and_begins_anew() -> None:
    backoff, waits = Backoff(first=0.001, most=0.004), []
    for _ in range(4):
        waits.append(backoff.next)
        await backoff.wait()
    assert waits == [0.001, 0.002, 0.004, 0.004]
    backoff.reset()
    assert backoff.next == 0.001


async def test_backoff_ends_early_for_an_event() -> None:
    told, began = asyncio.Event(), time.monotonic()
    told.set()
    await Backoff(first=30).wait(unless=told)
    assert time.monotonic() - began < 5


@pytest.mark.slow
async def test_a_loop_survives_whatever_its_step_raises() -> None:
    errors: list[BaseException] = [ValueError(), OSError(), asyncio.CancelledError(), RuntimeError()]
    seen = asyncio.Event()

    async def step() -> None:
        if errors:
            raise errors.pop()
        seen.set()
        await asyncio.sleep(0)

    loop = asyncio.create_task(supervised("test", step, Outage("w")))
    async with asyncio.timeout(10):
        await seen.wait()
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
