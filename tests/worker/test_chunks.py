"""Chunk handlers: many jobs by one call, each with an end of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from mainspring import Cancel, Chunk, Discard, Item, Job, Mainspring, Retry, Snooze, Status
from mainspring.events import JobCompleted, JobStarted
from mainspring.job import Move, Outcome
from mainspring.stores.protocol import Want
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing import Kit, manual
from tests.worker.test_admission import Doorman
from tests.worker.working import DEADLINE, ended, eventually, member, new_app, reached, record, working


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    with manual(Mainspring("memory://")) as kit:
        yield kit


def by_payload(kit: Kit) -> dict[Any, Job]:
    return {job.payload: job for job in kit.jobs()}


async def test_jobs_fill_chunks_and_the_rest_is_one_smaller_chunk(kit: Kit) -> None:
    chunks: list[list[int]] = []

    @kit.app.task(chunk=Chunk(4))
    async def work(numbers: list[int]) -> None:
        chunks.append(numbers)

    await work.enqueue_many(range(10))
    ran = await kit.drain()
    assert chunks == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(ran) == 10
    assert {run.status for run in ran} == {Status.COMPLETED}


async def test_chunk_handlers_cannot_use_durable_calls(kit: Kit) -> None:
    @kit.app.task(chunk=Chunk(2), max_attempts=5)
    async def work(items: list[Item[int]]) -> None:
        for item in items:
            await item.ctx.step("one", asyncio.sleep, 0)

    await work.enqueue_many(range(2))
    await kit.drain()
    for job in kit.jobs():
        assert job.failure is not None
        assert (job.status, job.attempts, job.failure.type) == (Status.DEAD_LETTER, 1, "UnsupportedCall")
        assert "cannot run in chunks or in its own process" in job.failure.message


async def test_jobs_of_other_tasks_do_not_split_a_chunk(kit: Kit) -> None:
    log: list[Any] = []

    @kit.app.task(chunk=Chunk(3))
    def together(numbers: list[int]) -> None:
        log.append(numbers)

    @kit.app.task()
    async def single(number: int) -> None:
        log.append(number)

    for number in range(4):
        await together.enqueue(number)
        await single.enqueue(number)
    await kit.drain()
    assert [entry for entry in log if isinstance(entry, list)] == [[0, 1, 2], [3]]
    assert [entry for entry in log if isinstance(entry, int)] == [0, 1, 2, 3]


async def test_failed_items_are_retried_alone(kit: Kit) -> None:
    chunks: list[list[tuple[int, int]]] = []

    @kit.app.task(chunk=Chunk(10), retry=Retry(max_attempts=2, base=60))
    async def work(items: list[Item[int]]) -> None:
        chunks.append([(item.payload, item.attempt) for item in items])
        for item in items:
            if item.payload == 2:
                item.fail(ValueError("not two"))

    await work.enqueue_many([1, 2, 3])
    await kit.drain()
    jobs = by_payload(kit)
    assert [jobs[n].status for n in (1, 2, 3)] == [Status.COMPLETED, Status.RETRYING, Status.COMPLETED]
    assert jobs[2].failure is not None
    assert (jobs[2].failure.type, jobs[2].failure.message) == ("ValueError", "not two")
    await kit.time.advance(hours=1)
    assert chunks == [[(1, 1), (2, 1), (3, 1)], [(2, 2)]]
    assert by_payload(kit)[2].status is Status.DEAD_LETTER


async def test_exceptions_in_the_returned_list_are_failures(kit: Kit) -> None:
    @kit.app.task(chunk=Chunk(10), max_attempts=1)
    async def work(numbers: list[int]) -> list[int | BaseException]:
        async def divide(number: int) -> int:
            return 12 // number

        return await asyncio.gather(*map(divide, numbers), return_exceptions=True)

    await work.enqueue_many([3, 0, 4])
    await kit.drain()
    jobs = by_payload(kit)
    assert [jobs[n].result for n in (3, 4)] == [4, 3]
    assert jobs[0].status is Status.DEAD_LETTER
    failure = (await kit.app.jobs.get(jobs[0].id)).failure
    assert failure is not None
    assert "12 // number" in failure.traceback


async def test_an_exception_fails_all_items_but_those_that_are_settled(kit: Kit) -> None:
    @kit.app.task(chunk=Chunk(10), retry=Retry(max_attempts=3, base=60))
    def work(items: list[Item[int]]) -> None:
        items[0].done("saved")
        items[1].fail(Discard("never"))
        raise OSError

    await work.enqueue_many([1, 2, 3, 4])
    await kit.drain()
    jobs = by_payload(kit)
    assert [jobs[n].status for n in (1, 2, 3, 4)] == [
        Status.COMPLETED, Status.DEAD_LETTER, Status.RETRYING, Status.RETRYING,
    ]  # fmt: skip
    assert jobs[1].result == "saved"
    assert [jobs[n].failure.type for n in (3, 4) if jobs[n].failure] == ["OSError", "OSError"]  # type: ignore[union-attr]


async def test_snooze_cancel_and_discard_work_for_single_items(kit: Kit) -> None:
    signals: list[Any] = [Snooze(60, "later"), Cancel("no more"), Discard("bad"), None]

    @kit.app.task(chunk=Chunk(10))
    async def work(numbers: list[int]) -> list[Any]:
        return [signals[number] for number in numbers]

    await work.enqueue_many(range(4))
    await kit.drain()
    jobs = by_payload(kit)
    assert [jobs[n].status for n in range(4)] == [
        Status.PENDING, Status.CANCELLED, Status.DEAD_LETTER, Status.COMPLETED,
    ]  # fmt: skip
    assert [jobs[n].reason for n in range(3)] == ["later", "no more", "bad"]
    assert jobs[0].attempts == 0


async def test_a_raised_snooze_cancel_or_discard_counts_for_all_items(kit: Kit) -> None:
    @kit.app.task(chunk=Chunk(10))
    async def work(numbers: list[int]) -> None:
        raise Snooze(60)

    await work.enqueue_many([1, 2])
    await kit.drain()
    assert [(job.status, job.attempts) for job in kit.jobs()] == [(Status.PENDING, 0)] * 2


@pytest.mark.parametrize("value", [[1], [1, 2, 3], "ab", 7])
async def test_a_result_list_of_another_length_fails_all_items(kit: Kit, value: Any) -> None:
    @kit.app.task(chunk=Chunk(10))
    async def work(numbers: list[int]) -> list[Any]:
        return value  # type: ignore[no-any-return]

    await work.enqueue_many([1, 2])
    await kit.drain()
    assert {job.status for job in kit.jobs()} == {Status.DEAD_LETTER}
    assert all("for 2 jobs" in job.failure.message for job in kit.jobs() if job.failure)


async def test_a_result_of_the_wrong_type_fails_only_its_job(kit: Kit) -> None:
    @kit.app.task(chunk=Chunk(10))
    async def work(numbers: list[int]) -> list[int]:
        return [1, "two"]  # type: ignore[list-item]

    await work.enqueue_many([1, 2])
    await kit.drain()
    assert [job.status for job in kit.jobs()] == [Status.COMPLETED, Status.DEAD_LETTER]


async def test_a_payload_of_the_wrong_type_fails_only_its_job(kit: Kit) -> None:
    seen: list[int] = []

    @kit.app.task(chunk=Chunk(10))
    async def work(numbers: list[int]) -> list[int]:
        seen.extend(numbers)
        return numbers

    jobs = [work.prepare(number) for number in (1, 2, 3)]
    jobs[1].payload = '"two"'
    await kit.app.enqueue_all(jobs)
    await kit.drain()
    assert seen == [1, 3]
    assert [(job.status, job.result) for job in kit.jobs()] == [
        (Status.COMPLETED, 1), (Status.DEAD_LETTER, None), (Status.COMPLETED, 3),
    ]  # fmt: skip


async def test_a_payload_type_that_raises_fails_only_its_job(kit: Kit) -> None:
    class Odd(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def check(cls, value: int) -> int:
            if value == 2 and running_now:
                raise KeyError(value)
            return value

    running_now: list[int] = []

    @kit.app.task(chunk=Chunk(10), max_attempts=1)
    async def work(odds: list[Odd]) -> None: ...

    await work.enqueue_many([Odd(number=1), Odd(number=2)])
    running_now.append(1)
    await kit.drain()
    assert [job.status for job in kit.jobs()] == [Status.COMPLETED, Status.DEAD_LETTER]


async def test_a_handler_may_empty_its_list(kit: Kit) -> None:
    @kit.app.task(chunk=Chunk(10))
    async def work(items: list[Item[int]]) -> None:
        while items:
            items.pop().done("popped")

    await work.enqueue_many([1, 2])
    await kit.drain(raise_errors=True)
    assert [job.result for job in kit.jobs()] == ["popped"] * 2


async def test_an_item_has_the_context_of_its_job(kit: Kit) -> None:
    @kit.app.task()
    async def after(number: int) -> None: ...

    @kit.app.task(chunk=Chunk(10))
    async def work(items: list[Item[int]]) -> None:
        for item in items:
            assert item.job_id == item.ctx.job_id
            item.ctx.follow_up(after.prepare(item.payload * int(item.ctx.tags[0])))

    await work.using(tags=["10"]).enqueue(1)
    await work.using(tags=["100"]).enqueue(2)
    await kit.drain(raise_errors=True)
    assert sorted(job.payload["number"] for job in kit.jobs(after)) == [10, 200]


async def test_features_decide_for_each_job_of_a_chunk(kit: Kit) -> None:
    chunks: list[list[int]] = []
    kit.app.runtime.features.add(Doorman())

    @kit.app.task(chunk=Chunk(10))
    async def work(numbers: list[int]) -> None:
        chunks.append(numbers)

    jobs = [work.prepare(number) for number in range(4)]
    for job, option in zip(jobs, ["in", "later", "in", None], strict=True):
        job.options = f'{{"door": "{option}"}}' if option else None
    await kit.app.enqueue_all(jobs)
    await kit.drain()
    assert [sorted(chunk) for chunk in chunks] == [[0, 2, 3]]
    assert by_payload(kit)[1].status is Status.PENDING


# -- beside a real worker -----------------------------------------------------------------------


async def test_a_full_chunk_runs_at_once() -> None:
    app, sizes = new_app(), list[int]()

    @app.task(chunk=Chunk(50, wait=20))
    async def work(numbers: list[int]) -> None:
        sizes.append(len(numbers))

    async with working(app, concurrency=2):
        handles = await work.enqueue_many(range(150))
        await ended(app, *(handle.id for handle in handles))
    assert sizes == [50, 50, 50]


async def test_an_incomplete_chunk_runs_after_its_wait() -> None:
    app, sizes = new_app(), list[int]()

    @app.task(chunk=Chunk(50, wait=0.05))
    def work(numbers: list[int]) -> None:
        sizes.append(len(numbers))

    async with working(app):
        handles = await work.enqueue_many([1, 2, 3])
        await ended(app, *(handle.id for handle in handles))
    assert sizes == [3]


async def test_a_chunk_uses_one_slot() -> None:
    app, most, now = new_app(), 0, 0
    go = asyncio.Event()

    @app.task(chunk=Chunk(10, wait=0))
    async def work(numbers: list[int]) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await go.wait()
        now -= 1

    async with working(app, concurrency=2, prefetch=0):
        handles = await work.enqueue_many(range(40))
        await eventually(lambda: now == 2)
        go.set()
        await ended(app, *(handle.id for handle in handles))
    assert most == 2


async def test_no_more_jobs_are_claimed_than_chunks_can_use_soon() -> None:
    app, go = new_app(), asyncio.Event()

    @app.task(chunk=Chunk(10, wait=20))
    async def work(numbers: list[int]) -> None:
        await go.wait()

    @app.task()
    async def single() -> None:
        await go.wait()

    async with working(app, concurrency=2, prefetch=0) as worker:
        await work.enqueue_many(range(100))
        await eventually(lambda: running(app, 20))
        await single.enqueue_many([{}] * 50)
        await eventually(lambda: worker.parts.intake.free() == 0)  # both chunks have begun
        assert await running(app, 20)
        go.set()
        await eventually(lambda: running(app, 0))


async def running(app: Mainspring, number: int) -> bool:
    jobs = [job async for job in app.jobs.all()]
    return sum(job.status is Status.RUNNING for job in jobs) == number


async def test_a_job_cancelled_while_it_waits_leaves_the_chunk() -> None:
    app, seen = new_app(), list[int]()

    @app.task(chunk=Chunk(3, wait=20))
    async def work(numbers: list[int]) -> None:
        seen.extend(numbers)

    async with working(app):
        handles = await work.enqueue_many([1, 2])
        await reached(app, *(handle.id for handle in handles), statuses=(Status.RUNNING,))
        await app.jobs.cancel(handles[0].id, reason="changed my mind")
        [job] = await ended(app, handles[0].id)
        assert (job.status, job.reason) == (Status.CANCELLED, "changed my mind")
        more = await work.enqueue_many([3, 4])
        await ended(app, handles[1].id, *(handle.id for handle in more))
    assert seen == [2, 3, 4]


async def test_one_job_of_a_running_chunk_can_be_cancelled() -> None:
    app, started = new_app(), asyncio.Event()

    @app.task(chunk=Chunk(2, wait=20))
    async def work(items: list[Item[int]]) -> None:
        started.set()
        await eventually(lambda: items[0].cancelled)
        items[0].fail(RuntimeError("told to stop"))
        assert not items[1].cancelled

    async with working(app):
        handles = await work.enqueue_many([1, 2])
        await started.wait()
        await app.jobs.cancel(handles[0].id, reason="enough")
        first, second = await ended(app, *(handle.id for handle in handles))
    assert (first.status, first.reason) == (Status.CANCELLED, "enough")
    assert second.status is Status.COMPLETED


async def test_the_handler_is_cancelled_when_all_its_jobs_are() -> None:
    app, started, stopped = new_app(), asyncio.Event(), asyncio.Event()

    @app.task(chunk=Chunk(2, wait=20))
    async def work(numbers: list[int]) -> None:
        started.set()
        try:
            await asyncio.sleep(DEADLINE)
        finally:
            stopped.set()

    async with working(app):
        handles = await work.enqueue_many([1, 2])
        await started.wait()
        for handle in handles:
            await app.jobs.cancel(handle.id)
        jobs = await ended(app, *(handle.id for handle in handles))
        assert stopped.is_set()
    assert {job.status for job in jobs} == {Status.CANCELLED}


async def test_a_timeout_applies_to_the_whole_chunk() -> None:
    app = new_app()

    @app.task(chunk=Chunk(2, wait=20), timeout=0.05, max_attempts=1)
    async def work(numbers: list[int]) -> None:
        await asyncio.sleep(DEADLINE)

    async with working(app):
        handles = await work.enqueue_many([1, 2])
        jobs = await ended(app, *(handle.id for handle in handles))
    assert {job.status for job in jobs} == {Status.DEAD_LETTER}
    assert all(job.failure and job.failure.message == "ran longer than its timeout of 0.05 s" for job in jobs)


async def test_jobs_with_different_timeouts_are_in_different_chunks() -> None:
    app, chunks = new_app(), list[list[int]]()

    @app.task(chunk=Chunk(10, wait=0))
    async def work(numbers: list[int]) -> None:
        chunks.append(numbers)

    await work.enqueue_many([1, 2])
    await work.using(timeout=5).enqueue_many([3, 4])
    assert await app.worker().drain() == 4
    assert sorted(chunks) == [[1, 2], [3, 4]]


async def test_a_chunk_handler_in_a_thread_sees_its_timeout() -> None:
    app, told = new_app(), threading.Event()

    @app.task(chunk=Chunk(2, wait=20), timeout=0.05, max_attempts=1)
    def work(items: list[Item[int]]) -> None:
        if items[1].ctx.wait_cancelled(DEADLINE) and items[0].cancelled:
            told.set()

    async with working(app):
        handles = await work.enqueue_many([1, 2])
        await ended(app, *(handle.id for handle in handles))
    assert told.is_set()


async def test_a_stopping_worker_hands_back_waiting_jobs_and_finishes_the_running_chunk() -> None:
    app, started, go = new_app(), asyncio.Event(), asyncio.Event()

    @app.task(chunk=Chunk(2, wait=20))
    async def work(numbers: list[int]) -> list[int]:
        started.set()
        await go.wait()
        return numbers

    async with working(app) as worker:
        runs = await work.enqueue_many([1, 2])
        await started.wait()
        waits = await work.enqueue(3)
        await reached(app, waits.id, statuses=(Status.RUNNING,))
        worker.stop()
        [job] = await reached(app, waits.id, statuses=(Status.PENDING,))
        assert (job.attempts, job.crashes) == (0, 0)
        go.set()
    done = [await app.jobs.get(handle.id) for handle in runs]
    assert [(job.status, job.result) for job in done] == [(Status.COMPLETED, 1), (Status.COMPLETED, 2)]


async def test_after_the_grace_a_running_chunk_is_handed_back() -> None:
    app, started = new_app(), asyncio.Event()

    @app.task(chunk=Chunk(2, wait=20))
    async def work(numbers: list[int]) -> None:
        started.set()
        await asyncio.sleep(DEADLINE)

    async with working(app, grace=0.01):
        handles = await work.enqueue_many([1, 2])
        await started.wait()
    jobs = [await app.jobs.get(handle.id) for handle in handles]
    assert [(job.status, job.attempts) for job in jobs] == [(Status.PENDING, 0)] * 2


async def test_a_suspect_runs_at_once_in_a_chunk_of_its_own() -> None:
    app, chunks = new_app(), list[list[int]]()

    @app.task(chunk=Chunk(10, wait=20))
    async def work(numbers: list[int]) -> None:
        chunks.append(numbers)

    handles = await work.enqueue_many([1, 2])
    store = app.store
    assert isinstance(store, MemoryStore)
    await crash(store, [handle.id for handle in handles])
    async with working(app):
        await ended(app, *(handle.id for handle in handles))
    assert chunks == [[1], [2]]


async def crash(store: MemoryStore, ids: list[str]) -> None:
    await store.join(member(), lambda _wake: None)
    claims = await store.claim("other", [Want("*", 10)])
    assert sorted(claim.id for claim in claims.jobs) == sorted(ids)
    await store.ack([Outcome(claim.id, claim.token, Move.CRASH) for claim in claims.jobs])
    await store.leave("other")


async def test_events_and_acks_are_per_job() -> None:
    app = new_app()
    started, completed = record(app, JobStarted), record(app, JobCompleted)

    @app.task(chunk=Chunk(3, wait=20), ack="sync")
    async def work(numbers: list[int]) -> None: ...

    async with working(app):
        handles = await work.enqueue_many([1, 2, 3])
        await ended(app, *(handle.id for handle in handles))
        ids = [handle.id for handle in handles]
        await eventually(lambda: len(completed) == 3)
    assert [event.job_id for event in started] == ids
    assert [event.job_id for event in completed] == ids


@pytest.mark.slow
async def test_a_chunk_that_finds_no_slot_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.worker.intake.MAX_BUFFER_WAIT", 0.05)
    app, go, started = new_app(), asyncio.Event(), asyncio.Event()

    @app.task()
    async def busy() -> None:
        started.set()
        await go.wait()

    sizes: list[int] = []

    @app.task(chunk=Chunk(2, wait=0))
    async def work(numbers: list[int]) -> None:
        sizes.append(len(numbers))

    async with working(app, concurrency=1) as worker:
        await busy.enqueue()
        await started.wait()
        worker.parts.intake.prefetch.ahead = 10  # as if all had been quick until now
        worker.parts.runs.room.set()
        handles = await work.enqueue_many([1, 2])
        ids = [handle.id for handle in handles]
        await reached(app, *ids, statuses=(Status.RUNNING,))
        jobs = await reached(app, *ids, statuses=(Status.PENDING,))
        assert {job.reason for job in jobs} == {"its worker had no room for it"}
        go.set()
        await ended(app, *ids)
    assert sum(sizes) == 2
