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

from mainspring import Filter, HaltResult, Mainspring, Status
from mainspring.stores.tables import RUNNING, SUSPENDED
from tests.chaos.conftest import LONG, STORES, Chaos, each_store
from tests.chaos.processes import Nursery, Process
from tests.chaos.programs.halts import CALL, CHUNK_WAIT, FAILING, OPENED, define, define_failing, starts
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

SECOND = 1_000_000_000
WATCHED = 0.15  # seconds after the halt: before, jobs started up to 0.1 s later


class Scene:
    """Two workers, and an application that halts them."""

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self.halted: list[tuple[int, int]] = []  # from when to when nothing may start

    def start(self, **settings: Any) -> list[Process]:
        workers = [self.nursery.start("halts:work", **settings) for _ in range(2)]
        for worker in workers:
            worker.wait_for("worker_started")
        return workers

    def run(self, work: Callable[[Mainspring], Coroutine[Any, Any, None]]) -> None:
        async def within() -> None:
            async with Mainspring(self.nursery.database.url) as app:
                define(app, str(self.nursery.folder))
                await work(app)

        asyncio.run(within())

    async def wait_for_starts(self, number: int, *, after: Awaitable[Any]) -> None:
        """Wait for so many more starts than there were before `after`, which may take longer than they do."""
        wanted = len(starts(self.nursery.folder)) + number
        await after
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


def tasks(*chosen: str) -> pytest.MarkDecorator:
    """`store-task`; in the long form all of them."""
    every = [f"{store}-{task}" for store in STORES for task in ("quick", "threaded")]
    names = every if LONG else list(chosen)
    return pytest.mark.parametrize(
        ("nursery", "task"), [tuple(name.split("-")) for name in names], indirect=["nursery"], ids=names
    )


@pytest.fixture
def scene(nursery: Nursery) -> Scene:
    return Scene(nursery)


@tasks("sqlite-quick", "sqlite-threaded", "postgres-quick")
def test_nothing_starts_after_a_halt_has_returned(scene: Scene, chaos: Chaos, task: str) -> None:
    rounds = chaos.size(4, 100)

    async def halt_again_and_again(app: Mainspring) -> None:
        scene.start()
        for number in range(rounds):
            jobs = 4000 if task == "quick" else 1500
            await scene.wait_for_starts(300, after=app.tasks[task].enqueue_many([{}] * jobs))
            pausing = number % 2
            result = await scene.watch(app.pause("default") if pausing else app.halt())
            assert result.confirmed, result
            assert await app.resume("default" if pausing else None)

    scene.run(halt_again_and_again)
    assert scene.late() == []


@each_store
def test_a_chunk_that_is_being_gathered_does_not_start_after_a_halt(scene: Scene) -> None:
    async def halt(app: Mainspring) -> None:
        scene.start()
        together: Any = app.tasks["together"]
        await together.enqueue_many(range(30))
        await asyncio.to_thread(wait_until, lambda: running(scene.nursery) == 30)
        assert (await scene.watch(app.halt(), seconds=2 * CHUNK_WAIT)).confirmed
        assert running(scene.nursery) == 0  # handed back before the halt was confirmed
        await scene.wait_for_starts(1, after=app.resume())

    scene.run(halt)
    assert scene.late() == []


@each_store
def test_a_stopped_worker_is_named_and_starts_nothing_when_it_goes_on(scene: Scene) -> None:
    """It is stopped while it gathers a chunk: in the middle of a write it would keep SQLite's lock."""

    async def halt(app: Mainspring) -> None:
        workers = {worker.who: worker for worker in scene.start()}
        together: Any = app.tasks["together"]
        await together.enqueue_many(range(30))
        await asyncio.to_thread(wait_until, lambda: running(scene.nursery) == 30)
        stopped = workers[holders(scene.nursery)[0]]
        await asyncio.to_thread(stopped.stop, between_writes=True)
        result = await app.halt()
        stopped.send(signal.SIGCONT)
        await scene.watch(as_it_is(result), seconds=2 * CHUNK_WAIT)
        assert [late.worker.id for late in result.unconfirmed] == [stopped.who]
        assert "no heartbeat" in result.unconfirmed[0].why
        assert (await app.halt(wait=None)).confirmed  # now that it goes on
        assert running(scene.nursery) == 0

    scene.run(halt)
    assert scene.late() == []


@each_store
def test_other_processes_are_told_that_a_breaker_opened(scene: Scene) -> None:
    """Workers that would not look at it again by themselves for a minute."""

    async def open_breaker(app: Mainspring) -> None:
        scene.start(fresh=60_000)
        await scene.wait_for_starts(100, after=app.tasks["call"].enqueue_many([{}] * 5000))
        await app.breakers.open("service")
        await asyncio.to_thread(wait_until, lambda: not unsuspended(scene.nursery), lambda: "the end of the starts")
        assert await app.jobs.count(Filter(statuses=(Status.SUSPENDED,))) > 0
        await scene.wait_for_starts(1, after=app.breakers.close("service"))

    scene.run(open_breaker)


@each_store
def test_no_call_starts_in_a_process_that_has_said_that_its_breaker_opened(nursery: Nursery) -> None:
    """Opened by the calls themselves, which all fail, with hundreds of jobs claimed ahead and in middleware."""
    workers = [nursery.start("halts:work_for_broken_service") for _ in range(2)]
    for worker in workers:
        worker.wait_for("worker_started")
    asyncio.run(enqueue_failing(nursery))
    wait_until(lambda: nursery.ask("SELECT 1 FROM jobs") and not unsuspended(nursery), workers[0].said)
    books = [(nursery.folder / f"calls-{worker.who}").read_text().split() for worker in workers]
    (opener,) = [book for book in books if OPENED in book]
    assert opener.count(CALL) >= 1
    assert opener[opener.index(OPENED) :] == [OPENED]


async def enqueue_failing(nursery: Nursery) -> None:
    async with Mainspring(nursery.database.url) as app:
        define_failing(app, lambda: None)
        await app.enqueue_all([app.tasks[name].prepare() for _ in range(1500) for name in FAILING])


def unsuspended(nursery: Nursery) -> int:
    ((number,),) = nursery.ask(f"SELECT count(*) FROM jobs WHERE status <> {SUSPENDED}")
    return int(number)


async def as_it_is(result: HaltResult) -> HaltResult:
    return result


def running(nursery: Nursery) -> int:
    ((number,),) = nursery.ask(f"SELECT count(*) FROM jobs WHERE status = {RUNNING}")
    return int(number)


def holders(nursery: Nursery) -> list[str]:
    return [who for (who,) in nursery.ask(f"SELECT DISTINCT worker FROM jobs WHERE status = {RUNNING}")]
