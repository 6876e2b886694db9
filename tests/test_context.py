from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Cancel, Context, Mainspring, Retry, Status, StepPlan
from mainspring.errors import ClaimLost, ConfigurationError
from mainspring.events import JobProgressed
from mainspring.job import Move, Outcome
from mainspring.testing import Kit, Ran, assert_enqueued, manual, refute_enqueued

# -- what a run knows -----------------------------------------------------------------------------


async def test_a_run_knows_its_job() -> None:
    app = Mainspring("memory://")
    told: list[dict[str, Any]] = []

    @app.task(retry=Retry.fixed(60, max_attempts=2))
    async def look(ctx: Context, room: int) -> None:
        public = (name for name in vars(Context) if not name.startswith("_"))
        names = [name for name in public if isinstance(vars(Context)[name], property)]
        told.append({name: getattr(ctx, name) for name in [*names, "worker"]})
        raise LookupError

    with manual(app) as kit:
        start = kit.time.now()
        handle = await look.using(queue="rooms", delay=5, dedupe_key="a", target=("room", "7"), tags=["vip"]).enqueue(
            room=7
        )
        await kit.time.advance(minutes=2)
        (job,) = kit.jobs()
    first, second = told
    assert first == {
        "job_id": handle.id,
        "idempotency_key": handle.id,
        "task": "look",
        "headers": {},
        "trace": {},
        "queue": "rooms",
        "occurrence": None,
        "plan": StepPlan(),
        "batch": None,
        "attempt": 1,
        "max_attempts": 2,
        "last_attempt": False,
        "target": ("room", "7"),
        "tags": ("vip",),
        "dedupe_key": "a",
        "run_at": start + timedelta(seconds=5),
        "created_at": start,
        "cancelled": False,
        "worker": job.worker,
    }
    changes = {"attempt": 2, "last_attempt": True, "run_at": start + timedelta(seconds=65)}
    assert second == first | changes


async def test_a_detached_context_takes_all_and_does_nothing() -> None:
    app = Mainspring("memory://")

    @app.task()
    def other() -> None: ...

    with pytest.raises(TypeError, match="tag"):
        Context.detached(tag="a")  # type: ignore[call-arg]
    ctx = Context.detached(task="look", tags=("a",))
    ctx.progress(0.5, "half")
    ctx.follow_up(other.prepare())
    ctx.set_result(5)
    ctx.raise_if_cancelled()
    assert not ctx.wait_cancelled(0)
    assert (ctx.task, ctx.tags, ctx.attempt, ctx.last_attempt) == ("look", ("a",), 1, True)
    with pytest.raises(ConfigurationError, match="needs a worker and a store with transactions"):
        ctx.transaction()
    assert await app.jobs.count() == 0


# -- what a run can say ---------------------------------------------------------------------------


async def test_progress_can_be_seen_while_the_job_runs() -> None:
    app, written = Mainspring("memory://"), asyncio.Event()

    @app.task()
    async def work(ctx: Context) -> list[float | str]:
        ctx.progress(0.1)
        ctx.progress(0.25, "a quarter")
        await written.wait()
        progress = (await app.jobs.get(ctx.job_id)).progress
        assert progress is not None
        return [progress.fraction, progress.note]

    @app.on(JobProgressed)
    async def note(event: JobProgressed) -> None:
        written.set()

    with manual(app) as kit:
        handle = await work.enqueue()
        await kit.drain(raise_errors=True)
        assert await handle.result() == [0.25, "a quarter"]
    await app.close()


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_progress_is_a_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match="progress must be a fraction between 0 and 1"):
        Context.detached().progress(fraction)


async def test_follow_ups_are_enqueued_with_success_and_only_then() -> None:
    app = Mainspring("memory://")

    @app.task()
    async def invoice(order: int) -> None: ...

    @app.task(retry=Retry.fixed(60))
    async def ship(ctx: Context, order: int) -> None:
        ctx.follow_up(invoice.prepare(order=order))
        if ctx.attempt == 1:
            raise ConnectionError
        ctx.follow_up(invoice.using(delay=60).prepare(order=order))

    with manual(app) as kit:
        await ship.enqueue(order=7)
        await kit.drain()
        refute_enqueued(kit, invoice)
        await kit.time.advance(minutes=1)
        assert_enqueued(kit, invoice, args={"order": 7}, count=2)


async def test_a_result_can_be_set_before_the_end() -> None:
    app = Mainspring("memory://")

    @app.task()
    async def work(ctx: Context) -> int:
        ctx.set_result(5)
        return 7

    with manual(app) as kit:
        handle = await work.enqueue()
        await kit.drain()
        assert await handle.result() == 5


# -- being stopped --------------------------------------------------------------------------------


@pytest.mark.parametrize("returns", [True, False])
async def test_a_thread_sees_that_it_is_cancelled(returns: bool) -> None:
    app, running = Mainspring("memory://"), threading.Event()

    @app.task()
    def work(ctx: Context) -> None:
        running.set()
        assert ctx.wait_cancelled(60)
        assert ctx.cancelled
        if not returns:
            ctx.raise_if_cancelled()

    with manual(app) as kit:
        handle = await work.enqueue()
        draining = asyncio.create_task(kit.drain())
        await asyncio.to_thread(running.wait)
        await app.jobs.cancel(handle.id, reason="changed my mind")
        (ran,) = await draining
        assert ran.status is (Status.COMPLETED if returns else Status.CANCELLED)
        assert ran.job.reason == ("" if returns else "changed my mind")


def test_the_reason_travels_with_the_signal() -> None:
    ctx = Context.detached()
    ctx.stop("shutting down")
    with pytest.raises(Cancel, match="shutting down"):
        ctx.raise_if_cancelled()


# -- completing the job in the handler's own transaction ------------------------------------------


class Hotel:
    """An application that keeps its rooms beside its jobs."""

    def __init__(self, kit: Kit, path: Path) -> None:
        self.kit, self.app, self.path = kit, kit.app, path

    def rooms(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as connection:
            return [number for (number,) in connection.execute("SELECT number FROM rooms")]

    async def run(self, work: Callable[[Context], Any]) -> Ran:
        """Have it done by a job."""
        task = self.app.task(retry=Retry.fixed(60))(work)
        await task.enqueue()
        (ran,) = await self.kit.drain()
        return ran


@pytest.fixture
async def hotel(tmp_path: Path) -> AsyncIterator[Hotel]:
    path = tmp_path / "hotel.db"
    app = Mainspring("memory://")

    @app.task()
    async def clean(room: int) -> None: ...

    async with manual(app, store=f"sqlite:///{path}") as kit:
        await app.store.open()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE rooms (number INTEGER)")
        yield Hotel(kit, path)


INSERT = "INSERT INTO rooms VALUES (7)"


async def test_rows_and_completion_are_committed_together(hotel: Hotel) -> None:
    clean = hotel.app.tasks["clean"]

    async def book(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            connection.execute(INSERT)
            await clean.using(connection=connection, delay=60).enqueue(room=7)
            ctx.follow_up(clean.using(delay=60).prepare(room=8))
            ctx.set_result("booked")
            assert hotel.rooms() == []
            assert (await hotel.app.jobs.get(ctx.job_id)).status is Status.RUNNING
        assert hotel.rooms() == [7]
        assert (await hotel.app.jobs.get(ctx.job_id)).status is Status.COMPLETED
        return "too late"

    ran = await hotel.run(book)
    assert (ran.status, ran.job.result, ran.error) == (Status.COMPLETED, "booked", None)
    assert_enqueued(hotel.app, clean, args={"room": 7})
    assert_enqueued(hotel.app, clean, args={"room": 8})


async def test_a_thread_commits_rows_and_completion_together(hotel: Hotel) -> None:
    clean = hotel.app.tasks["clean"]

    def book(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(INSERT)
            clean.using(connection=connection, delay=60).enqueue_sync(room=7)
            assert hotel.rooms() == []
        assert hotel.rooms() == [7]

    ran = await hotel.run(book)
    assert (ran.status, ran.error) == (Status.COMPLETED, None)
    assert_enqueued(hotel.app, clean)


async def test_rows_and_completion_are_rolled_back_together(hotel: Hotel) -> None:
    clean = hotel.app.tasks["clean"]

    async def book(ctx: Context) -> None:
        ctx.follow_up(clean.prepare(room=8))
        async with ctx.transaction() as connection:
            connection.execute(INSERT)
            await clean.using(connection=connection).enqueue(room=7)
            raise LookupError

    def book_in_thread(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(INSERT)
            clean.using(connection=connection).enqueue_sync(room=7)
            raise LookupError

    for work in (book, book_in_thread):
        ran = await hotel.run(work)
        assert ran.status is Status.RETRYING
        assert isinstance(ran.error, LookupError)
    assert hotel.rooms() == []
    refute_enqueued(hotel.app, clean)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_run_that_lost_its_claim_writes_nothing(hotel: Hotel, kind: str) -> None:
    """As after a pause in which another worker took the job over."""

    async def lose(ctx: Context) -> None:
        await hotel.app.store.ack([Outcome(ctx.job_id, ctx._claim.token, Move.RELEASE, delay=60_000)])

    async def book(ctx: Context) -> None:
        await lose(ctx)
        with pytest.raises(ClaimLost) as lost:
            async with ctx.transaction() as connection:
                connection.execute(INSERT)
        raise lost.value

    def book_in_thread(ctx: Context) -> None:
        hotel.app.run(lose(ctx))
        with pytest.raises(ClaimLost) as lost, ctx.transaction() as connection:
            connection.execute(INSERT)
        raise lost.value

    ran = await hotel.run(book if kind == "coroutine" else book_in_thread)
    assert hotel.rooms() == []
    assert (ran.status, ran.job.attempts) == (Status.PENDING, 0)


async def test_errors_after_the_commit_do_not_undo_it(hotel: Hotel) -> None:
    async def book(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            connection.execute(INSERT)
        with pytest.raises(ClaimLost):
            async with ctx.transaction() as connection:
                connection.execute(INSERT)
        raise LookupError

    ran = await hotel.run(book)
    assert (ran.status, ran.job.attempts) == (Status.COMPLETED, 1)
    assert hotel.rooms() == [7]


async def test_inside_the_block_only_its_connection_can_write(hotel: Hotel) -> None:
    """Whatever else writes would wait for the block, and the block for it."""
    clean = hotel.app.tasks["clean"]

    async def book(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            for work in (clean.enqueue(room=7), hotel.app.jobs.cancel(ctx.job_id)):
                with pytest.raises(ConfigurationError, match=r"using\(connection=tx\)"):
                    await work
            with pytest.raises(ConfigurationError, match=r"using\(connection=tx\)"):
                clean.enqueue_sync(room=7)
            with pytest.raises(ConfigurationError, match=r"using\(connection=tx\)"):
                async with ctx.transaction():
                    pass
            connection.execute(INSERT)

    def book_in_thread(ctx: Context) -> None:
        with ctx.transaction(), pytest.raises(ConfigurationError, match=r"using\(connection=tx\)"):
            clean.enqueue_sync(room=7)

    for work in (book, book_in_thread):
        ran = await hotel.run(work)
        assert (ran.status, ran.error) == (Status.COMPLETED, None)
    await clean.enqueue(room=8)
    assert_enqueued(hotel.app, clean, count=1)
    assert hotel.rooms() == [7]


async def test_a_result_that_cannot_be_stored_rolls_the_rows_back(hotel: Hotel) -> None:
    async def book(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            connection.execute(INSERT)
            ctx.set_result(object())
        return 7

    ran = await hotel.run(book)
    assert ran.status is not Status.COMPLETED
    assert hotel.rooms() == []


async def test_jobs_in_memory_have_no_transactions() -> None:
    app = Mainspring("memory://")

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        ctx.transaction()

    await work.enqueue()
    await app.worker().drain()
    (job,) = (await app.jobs.find()).jobs
    assert job.failure is not None
    assert "memory:// has no transactions to complete a job in" in job.failure.message
