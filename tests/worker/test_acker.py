from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainspring import Mainspring
from mainspring.errors import IllegalMove, StoreBusy, StoreCorrupt, StoreError, StoreReadOnly
from mainspring.feature import Features
from mainspring.job import Move, Outcome, Status
from mainspring.pipeline import Pipeline
from mainspring.services import Services
from mainspring.stores.protocol import Store
from mainspring.worker import acker as acker_module
from mainspring.worker.acker import FULL_GROUP, LARGE_RESULT, Acker, AfterAck, patience_with
from mainspring.worker.outage import Outage
from mainspring.worker.run import Run
from tests.worker.working import claim_of, ended, eventually, new_app, working


class FakeStore:
    """Remembers the groups of outcomes; raises what it is told to, first."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.tries = 0
        self.errors: list[BaseException] = []
        self.poison: dict[str, BaseException] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.large_gate = asyncio.Event()
        self.large_gate.set()

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        self.tries += 1
        if any(outcome.result for outcome in outcomes):
            await self.large_gate.wait()
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        for outcome in outcomes:
            if outcome.job_id in self.poison and outcome.move is not Move.DEAD:
                raise self.poison[outcome.job_id]
        self.groups.append([outcome.job_id for outcome in outcomes])
        return [Status.DEAD_LETTER if outcome.move is Move.DEAD else Status.COMPLETED for outcome in outcomes]


class StoreScenario:
    def __init__(self, acker: Acker, store: FakeStore, confirmed: list[tuple[str, Status | None]]) -> None:
        self.acker = acker
        self.store = store
        self.confirmed = confirmed

    def add(self, name: str, *, urgent: bool = False, result: str | None = None) -> None:
        app = new_app()

        @app.task()
        async def work() -> None: ...

        outcome = Outcome(name, 1, Move.DONE, result=result)
        self.acker.add(Run(claim_of(id=name), app.tasks["work"], 0), outcome, urgent=urgent)


def after_ack(confirmed: Any) -> AfterAck:
    return cast("AfterAck", SimpleNamespace(confirmed=confirmed))


@asynccontextmanager
async def scene(delay: float = 3600) -> AsyncIterator[StoreScenario]:
    store = FakeStore()
    confirmed: list[tuple[str, Status | None]] = []

    def hear(written: list[tuple[Run, Outcome]], statuses: Sequence[Status | None]) -> None:
        confirmed.extend((outcome.job_id, status) for (_, outcome), status in zip(written, statuses, strict=True))

    acker = Acker(Pipeline(Services(cast("Store", store)), Features()), after_ack(hear), Outage("w"), delay=delay)
    serving = asyncio.create_task(acker.serve())
    yield StoreScenario(acker, store, confirmed)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_outcomes_wait_for_each_other_but_not_for_long() -> None:
    async with scene(delay=0.5) as it:
        began = time.monotonic()
        it.add("a")
        it.add("b")
        await asyncio.sleep(0)
        assert it.store.groups == []
        it.add("c")
        await eventually(lambda: it.confirmed)
        assert it.store.groups == [["a", "b", "c"]]
        assert time.monotonic() - began > 0.4


async def test_an_urgent_outcome_is_written_at_once_with_those_that_wait() -> None:
    async with scene() as it:
        it.add("a")
        it.add("b", urgent=True)
        await eventually(lambda: it.confirmed)
        assert it.store.groups == [["a", "b"]]


async def test_a_full_group_is_written_without_waiting() -> None:
    async with scene() as it:
        for number in range(FULL_GROUP):
            it.add(str(number))
        await eventually(lambda: len(it.confirmed) == FULL_GROUP)


async def test_without_a_delay_outcomes_are_written_at_once() -> None:
    async with scene(delay=0) as it:
        it.add("a")
        await eventually(lambda: it.confirmed)


async def test_outcomes_added_during_a_write_are_written_by_the_next() -> None:
    async with scene() as it:
        it.store.gate.clear()
        it.add("a", urgent=True)
        await eventually(lambda: it.store.tries)
        it.add("b")
        it.add("c", urgent=True)
        it.store.gate.set()
        await it.acker.flush()
        assert it.store.groups == [["a"], ["b", "c"]]


async def test_large_results_do_not_delay_other_outcomes() -> None:
    async with scene() as it:
        it.store.large_gate.clear()
        it.add("small")
        it.add("large", result="x" * (LARGE_RESULT + 1))
        it.add("another", result="x" * (LARGE_RESULT + 1))
        await eventually(lambda: it.store.tries)
        it.add("next", urgent=True)
        await eventually(lambda: len(it.confirmed) == 2)
        assert it.store.groups == [["small", "next"]]
        assert it.acker.unwritten == 1
        it.store.large_gate.set()
        await it.acker.flush()
        assert it.store.groups == [["small", "next"], ["large"], ["another"]]


async def test_flush_waits_for_all_added_outcomes() -> None:
    async with scene() as it:
        await asyncio.wait_for(it.acker.flush(), 5)
        it.add("a")
        it.add("b")
        await it.acker.flush()
        assert it.confirmed == [("a", Status.COMPLETED), ("b", Status.COMPLETED)]


@pytest.mark.slow
async def test_writes_are_retried_while_the_store_is_away() -> None:
    async with scene() as it:
        it.store.errors = [StoreBusy(), StoreReadOnly(), StoreError("disk?"), asyncio.CancelledError()]
        it.add("a")
        it.add("b", urgent=True)
        await eventually(lambda: it.store.tries == 3)
        assert it.confirmed == []
        await it.acker.flush()
        assert it.confirmed == [("a", Status.COMPLETED), ("b", Status.COMPLETED)]
        assert it.store.groups == [["a", "b"]]


@pytest.mark.parametrize("error", [ValueError("x"), OverflowError("x"), TypeError("x"), IllegalMove("x")])
async def test_an_outcome_that_cannot_be_written_becomes_a_dead_letter_alone(error: Exception) -> None:
    async with scene() as it:
        it.store.poison["bad"] = error
        for name in ("a", "bad", "b"):
            it.add(name)
        await it.acker.flush()
        assert sorted(it.confirmed) == [
            ("a", Status.COMPLETED),
            ("b", Status.COMPLETED),
            ("bad", Status.DEAD_LETTER),
        ]


async def test_an_outcome_is_given_up_if_its_dead_letter_cannot_be_written_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scene() as it:
        it.store.errors = [ValueError(), ValueError()]
        it.add("bad", urgent=True)
        await it.acker.flush()
        assert it.confirmed == [("bad", None)]


def broken(written: list[tuple[Run, Outcome]], statuses: Sequence[Status | None]) -> None:
    raise ZeroDivisionError


async def test_writing_goes_on_if_the_follow_up_raises() -> None:
    store = FakeStore()
    acker = Acker(Pipeline(Services(cast("Store", store)), Features()), after_ack(broken), Outage("w"), delay=0)
    serving = asyncio.create_task(acker.serve())
    it = StoreScenario(acker, store, [])
    for name in ("a", "b"):
        it.add(name)
        await acker.flush()
    assert store.groups == [["a"], ["b"]]
    serving.cancel()


def test_patience_depends_on_the_kind_of_error() -> None:
    assert patience_with(ValueError()) == 1
    assert patience_with(StoreError("an error of the disk")) == patience_with(RuntimeError()) == 5
    assert patience_with(StoreCorrupt()) == patience_with(StoreBusy()) == float("inf")


# -- in a worker ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ack", ["grouped", "sync"])
async def test_the_outcome_of_the_only_running_job_is_written_at_once(ack: Any) -> None:
    app = new_app()

    @app.task(ack=ack)
    async def work() -> str:
        return "done"

    async with working(app, ack_delay=3600):
        assert await (await work.enqueue()).result(10) == "done"


async def test_sync_tasks_are_written_before_their_slot_is_free_again() -> None:
    app = new_app()
    unwritten: list[int] = []
    begun: list[str] = []

    @app.task(ack="sync")
    async def work(n: int) -> None:
        states = [(await app.jobs.get(job_id)).status for job_id in begun]
        unwritten.append(sum(status is Status.RUNNING for status in states))
        begun.append(ids[n])

    jobs = await work.enqueue_many([{"n": n} for n in range(10)])
    ids = [job.id for job in jobs]
    async with working(app, concurrency=1, ack_delay=3600):
        await ended(app, *ids)
    assert unwritten == [0] * 10


async def test_grouped_acks_are_written_together() -> None:
    app: Mainspring = new_app()
    groups: list[int] = []
    real = app.store.ack

    async def counting(outcomes: Sequence[Outcome]) -> list[Status | None]:
        groups.append(len(outcomes))
        return await real(outcomes)

    app.store.ack = counting  # type: ignore[method-assign]

    @app.task()
    async def work() -> None: ...

    jobs = await work.enqueue_many([{}] * 300)
    async with working(app, concurrency=50):
        await ended(app, *[job.id for job in jobs])
    assert sum(groups) == 300
    assert len(groups) < 30
    assert max(groups) <= acker_module.FULL_GROUP
