from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import settings

from mainspring.errors import ConfigurationError
from mainspring.job import Move, Outcome, Priority
from mainspring.stores.memory import MemoryStore
from mainspring.stores.memory.lines import Lines
from mainspring.stores.protocol import Severity, Store, Wake
from mainspring.testing.clock import ManualClock
from mainspring.testing.conformance import HeartbeatConformance, StoreConformance
from mainspring.testing.conformance.scene import claim, join, look, new_job, put, put_many
from mainspring.testing.machine import store_machine


class TestMemoryStore(StoreConformance, HeartbeatConformance):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> MemoryStore:
        return MemoryStore(clock=clock)


TestMemoryHistories = store_machine(lambda clock: MemoryStore(clock=clock)).TestCase
TestMemoryHistories.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=ManualClock())


async def test_it_runs_on_the_machines_clock_unless_told_otherwise() -> None:
    store: Store = MemoryStore()
    await put(store)
    assert len(await claim(store)) == 1


async def test_it_says_which_stores_have_transactions(store: MemoryStore) -> None:
    with pytest.raises(ConfigurationError, match="sqlite"):
        await store.insert([new_job()], connection=object())
    with pytest.raises(ConfigurationError, match="sqlite"):
        store.completion(lambda: Outcome("x", 1, Move.DONE))


async def test_it_warns_that_nothing_is_durable(store: MemoryStore) -> None:
    (finding,) = await store.diagnose()
    assert finding.severity is Severity.WARNING
    assert "memory" in finding.message


async def test_what_a_caller_does_to_a_job_after_its_insert_changes_nothing(store: MemoryStore) -> None:
    job = new_job(queue="mail")
    await store.insert([job])
    job.queue = "sms"
    assert (await look(store, job.id)).queue == "mail"


async def test_a_job_wakes_nobody_who_does_not_serve_its_queue(store: MemoryStore) -> None:
    woken: list[Wake] = []
    await join(store, "w1", woken.append, ("mail",))
    await put(store, queue="sms")
    await asyncio.sleep(0)
    assert woken == []


async def test_a_batch_of_jobs_wakes_a_worker_once(store: MemoryStore) -> None:
    woken: list[Wake] = []
    await join(store, "w1", woken.append)
    await put_many(store, 100)
    await asyncio.sleep(0)
    assert woken == [Wake.JOBS]


async def test_a_worker_whose_loop_is_closed_does_not_disturb_others(store: MemoryStore) -> None:
    thread = threading.Thread(target=asyncio.run, args=(join(store, "w1"),))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert await put(store)


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["default", "*"])
async def test_a_claim_looks_at_as_many_jobs_however_many_wait(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    async def looks() -> int:
        looked = 0
        head = Lines._head

        def count(lines: Lines, name: str, level: tuple[int, bool, str]) -> object:
            nonlocal looked
            looked += 1
            return head(lines, name, level)

        with monkeypatch.context() as patch:
            patch.setattr(Lines, "_head", count)
            await claim(store, 4, queue=queue)
        return looked

    for priority in Priority:
        await put_many(store, 10, priority=priority)
    few = await looks()
    for priority in Priority:
        await put_many(store, 1000, priority=priority)
        await put_many(store, 1000, priority=priority, delay=60_000)
    assert await looks() == few


async def test_an_empty_line_takes_no_room(store: MemoryStore) -> None:
    for number in range(10):
        await put(store, queue=f"queue {number}")
    await claim(store, queue="*")
    await claim(store, queue="*")
    assert store._lines.queues() == []
