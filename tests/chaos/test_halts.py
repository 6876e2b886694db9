"""After `halt()` or `pause()` has returned, no worker starts a job: of that queue, or of any.

The judge is a file into which handlers write when they start, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from mainspring import HaltResult, Mainspring
from tests.chaos.conftest import Chaos, each_store
from tests.chaos.nursery import Nursery, Process
from tests.chaos.programs.halts import BATCH_WAIT, define, starts
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

SECOND = 1_000_000_000
WATCHED = 0.15  # seconds after the halt: before, jobs started up to 0.1 s later


class Scene:
    """Two workers, and an application that halts them."""

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self.halted: list[tuple[int, int]] = []  # from when to when nothing may start

    def start(self, number: int = 2) -> list[Process]:
        workers = [self.nursery.start("halts:work") for _ in range(number)]
        for worker in workers:
            worker.wait_for("worker_started")
        return workers

    def run(self, work: Callable[[Mainspring], Coroutine[Any, Any, None]]) -> None:
        async def within() -> None:
            async with Mainspring(self.nursery.database.url) as app:
                define(app, str(self.nursery.folder))
                await work(app)

        asyncio.run(within())

    async def wait_for_starts(self, number: int) -> None:
        """So many more."""
        wanted = len(starts(self.nursery.folder)) + number
        await asyncio.to_thread(
            wait_until, lambda: len(starts(self.nursery.folder)) >= wanted, lambda: f"{number} starts"
        )

    async def watch(self, halting: Awaitable[HaltResult], seconds: float = WATCHED) -> HaltResult:
        result = await halting
        since = time.monotonic_ns()
        await asyncio.sleep(seconds)  # in which nothing may happen
        self.halted.append((since, time.monotonic_ns()))
        return result

    def late(self) -> list[float]:
        """Starts while halted: how many seconds after the halt had returned."""
        found = starts(self.nursery.folder)
        return [(at - since) / SECOND for since, until in self.halted for at in found if since < at < until]


@pytest.fixture
def scene(nursery: Nursery) -> Scene:
    return Scene(nursery)


@each_store
@pytest.mark.parametrize("task", ["quick", "threaded"])
def test_nothing_starts_after_a_halt_has_returned(scene: Scene, chaos: Chaos, task: str) -> None:
    rounds = chaos.size(5, 100)

    async def halt_again_and_again(app: Mainspring) -> None:
        scene.start()
        for number in range(rounds):
            await app.tasks[task].enqueue_many([{}] * (4000 if task == "quick" else 1500))
            await scene.wait_for_starts(300)
            pausing = number % 2
            result = await scene.watch(app.pause("default") if pausing else app.halt())
            assert result.confirmed, result
            assert await app.resume("default" if pausing else None)

    scene.run(halt_again_and_again)
    assert scene.late() == []


@each_store
def test_a_batch_that_is_being_gathered_does_not_start_after_a_halt(scene: Scene) -> None:
    async def halt(app: Mainspring) -> None:
        scene.start()
        together: Any = app.tasks["together"]
        await together.enqueue_many(range(30))
        await asyncio.to_thread(wait_until, lambda: running(scene.nursery) == 30)
        assert (await scene.watch(app.halt(), seconds=2 * BATCH_WAIT)).confirmed
        assert running(scene.nursery) == 0  # handed back before the halt was confirmed
        await app.resume()
        await scene.wait_for_starts(1)

    scene.run(halt)
    assert scene.late() == []


@each_store
def test_a_stopped_worker_is_named_and_starts_nothing_when_it_goes_on(scene: Scene) -> None:
    async def halt(app: Mainspring) -> None:
        stopped, other = scene.start()
        await app.tasks["quick"].enqueue_many([{}] * 20_000)
        await scene.wait_for_starts(300)
        stopped.send(signal.SIGSTOP)
        result = await app.halt()
        stopped.send(signal.SIGCONT)
        await scene.watch(as_it_is(result))
        assert [late.worker.id for late in result.unconfirmed] == [stopped.who]
        assert "no sign of life" in result.unconfirmed[0].why
        assert (await app.halt(wait=None)).confirmed  # now that it goes on
        assert stopped.code is other.code is None

    scene.run(halt)
    assert scene.late() == []


async def as_it_is(result: HaltResult) -> HaltResult:
    return result


def running(nursery: Nursery) -> int:
    ((number,),) = nursery.ask("SELECT count(*) FROM jobs WHERE status = 3")
    return int(number)
