"""A handler's own transaction: its rows and its job's outcome, or neither."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from contextvars import Context
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.errors import ClaimLost, ConfigurationError, StoreBusy, StoreVanished
from mainspring.job import Claim, Move, Status
from mainspring.stores.protocol import Completion, Filter, Wake
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    Bell,
    a_halt,
    claim,
    claim_one,
    end,
    join,
    look,
    new_job,
    outcome,
    put,
    put_many,
    running,
    status_of,
)

pytestmark = pytest.mark.slow

WAIT = 30.0  # seconds; only a failing test waits this long
MORE_THAN_THE_LOOP_HAS_THREADS = 40


@pytest.fixture
def stays(path: Path) -> Callable[[], list[str]]:
    """A table of the application in the jobs' file; call it to see who stays."""

    def read() -> list[str]:
        with closing(sqlite3.connect(path)) as connection:
            return [guest for (guest,) in connection.execute("SELECT guest FROM stays")]

    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE stays (guest TEXT)")
    return read


def check_in(connection: sqlite3.Connection, guest: str = "Zoë") -> None:
    connection.execute("INSERT INTO stays VALUES (?)", (guest,))


def done(store: SqliteStore, held: Claim) -> Completion:
    return store.completion(lambda: outcome(held, Move.DONE, result='"checked in"'))


Stays = Callable[[], list[str]]

# -- both or neither ------------------------------------------------------------------------------


async def test_rows_and_outcome_are_committed_together(store: SqliteStore, stays: Stays) -> None:
    held = await running(store)
    async with done(store, held) as connection:
        check_in(connection)
        assert stays() == []
        assert await status_of(store, held.id) is Status.RUNNING
    assert stays() == ["Zoë"]
    job = await look(store, held.id)
    assert (job.status, job.result) == (Status.COMPLETED, "checked in")
    assert (await store.stats()).queues[0].by_status == {Status.COMPLETED: 1}


async def test_a_thread_uses_a_plain_with(store: SqliteStore, stays: Stays) -> None:
    held = await running(store)

    def handle() -> None:
        with done(store, held) as connection:
            check_in(connection)

    await asyncio.to_thread(handle)
    assert stays() == ["Zoë"]
    assert await status_of(store, held.id) is Status.COMPLETED


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, KeyboardInterrupt])
async def test_an_error_takes_both_back(store: SqliteStore, stays: Stays, error: type[BaseException]) -> None:
    held = await running(store)

    async def fail() -> None:
        async with done(store, held) as connection:
            check_in(connection)
            raise error

    with pytest.raises(error):
        await fail()
    assert stays() == []
    assert await end(store, held, Move.RETRY) is Status.RETRYING


async def test_a_lost_claim_takes_the_rows_back(store: SqliteStore, stays: Stays) -> None:
    held = await running(store)
    await end(store, held, Move.RELEASE)
    successor = await claim_one(store, worker="w2")
    with pytest.raises(ClaimLost):
        async with done(store, held) as connection:
            check_in(connection)
    assert stays() == []
    assert await end(store, successor, Move.DONE) is Status.COMPLETED


@pytest.mark.parametrize("end_it", [sqlite3.Connection.commit, sqlite3.Connection.rollback])
async def test_the_block_cannot_end_the_transaction_by_itself(
    store: SqliteStore, stays: Stays, end_it: Callable[[sqlite3.Connection], None]
) -> None:
    held = await running(store)

    async def handle() -> None:
        async with done(store, held) as connection:
            check_in(connection)
            end_it(connection)

    with pytest.raises(ConfigurationError, match="do not commit or roll back inside it"):
        await handle()
    assert stays() == []
    assert await end(store, held, Move.DONE) is Status.COMPLETED


async def test_savepoints_may_be_used_inside_the_block(store: SqliteStore, stays: Stays) -> None:
    held = await running(store)
    async with done(store, held) as connection:
        check_in(connection, "Ana")
        connection.execute("SAVEPOINT perhaps")
        check_in(connection, "Ben")
        connection.execute("ROLLBACK TO perhaps")
    assert stays() == ["Ana"]


async def test_follow_ups_and_jobs_of_the_block_commit_with_it(store: SqliteStore) -> None:
    held = await running(store)
    follow_up, inside = new_job(), new_job()

    async def handle(*, well: bool) -> None:
        async with store.completion(lambda: outcome(held, Move.DONE, follow_ups=(follow_up,))) as connection:
            await store.insert([inside], connection)
            assert well

    with pytest.raises(AssertionError):
        await handle(well=False)
    assert await store.count(Filter()) == 1
    await handle(well=True)
    assert {job.id for job in await claim(store)} == {follow_up.id, inside.id}


async def test_it_wakes_workers_after_the_commit(store: SqliteStore) -> None:
    held = await running(store)
    bell = Bell()
    await join(store, "w1", bell)
    assert await bell.hears(Wake.JOBS)
    async with store.completion(lambda: outcome(held, Move.DONE, follow_ups=(new_job(),))):
        pass
    assert await bell.hears(Wake.JOBS)


async def test_the_outcome_is_asked_for_at_the_end(store: SqliteStore) -> None:
    held = await running(store)
    result = '"early"'
    async with store.completion(lambda: outcome(held, Move.DONE, result=result)):
        result = '"late"'
    assert (await look(store, held.id)).result == "late"


async def test_a_transaction_of_the_callers_own_connection_holds_its_jobs(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        await store.insert([new_job(dedupe_key="k")], connection)
        connection.rollback()
        assert await store.count(Filter()) == 0
        with connection:
            (inserted,) = await store.insert([new_job(dedupe_key="k")], connection)
    assert (await claim_one(store)).id == inserted.id
    assert (await store.stats()).queues[0].by_status == {Status.RUNNING: 1}


@pytest.mark.parametrize("other", [":memory:", "other.db"])
async def test_a_connection_to_another_database_is_refused(store: SqliteStore, tmp_path: Path, other: str) -> None:
    with (
        closing(sqlite3.connect(other if other == ":memory:" else tmp_path / other)) as connection,
        pytest.raises(ConfigurationError, match="but the jobs are in"),
    ):
        await store.insert([new_job()], connection)
    with pytest.raises(ConfigurationError, match="must be an sqlite3 or aiosqlite connection"):
        await store.insert([new_job()], object())


# -- one at a time --------------------------------------------------------------------------------


async def test_calls_that_would_wait_for_the_block_are_refused(
    store: SqliteStore, clock: ManualClock, stays: Stays
) -> None:
    held = await running(store)
    async with done(store, held) as connection:
        check_in(connection)
        with pytest.raises(ConfigurationError, match="inside ctx"):
            async with done(store, held):
                pass
        with pytest.raises(ConfigurationError, match="inside ctx"), done(store, held):
            pass
        with pytest.raises(ConfigurationError, match=r"using\(connection=tx\)"):
            await put(store)
        with pytest.raises(ConfigurationError, match="after the block"):
            await store.halt(a_halt(clock))
        assert await store.count(Filter()) == 1  # reading is fine
    assert stays() == ["Zoë"]
    await put(store)


@pytest.mark.parametrize("idle_after", [0.0, 3600.0])
async def test_a_thread_inside_the_block_is_refused_whether_the_writer_is_busy_or_not(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, idle_after: float
) -> None:
    monkeypatch.setattr("mainspring.stores.sqlite.writer.IDLE_AFTER", idle_after)
    app = Mainspring(store)

    @app.task
    async def greet() -> None: ...

    held = await running(store)

    def enqueue_inside() -> None:
        with done(store, held):
            greet.enqueue_sync()

    with pytest.raises(ConfigurationError, match="inside ctx"):
        await asyncio.to_thread(enqueue_inside)
    app.runtime.services.portal.close()


async def test_a_task_that_outlives_the_block_may_write(store: SqliteStore) -> None:
    held = await running(store)
    over = asyncio.Event()

    async def put_afterwards() -> str:
        await over.wait()
        return await put(store)

    async with done(store, held):
        task = asyncio.ensure_future(put_afterwards())
        await asyncio.sleep(0)
    over.set()
    assert await task


async def test_others_wait_for_the_end_of_the_block(store: SqliteStore) -> None:
    held = await running(store)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handle() -> None:
        async with done(store, held):
            entered.set()
            await leave.wait()

    handler = asyncio.ensure_future(handle())
    await entered.wait()
    other = asyncio.ensure_future(put(store))
    assert await store.count(Filter()) == 1
    assert not other.done()
    leave.set()
    await asyncio.gather(handler, other)
    assert await store.count(Filter()) == 2


async def test_many_at_once_do_not_lock_each_other_out(store: SqliteStore, stays: Stays) -> None:
    await put_many(store, MORE_THAN_THE_LOOP_HAS_THREADS)

    async def handle(held: Claim) -> None:
        async with done(store, held) as connection:
            await asyncio.sleep(0)
            check_in(connection)

    async with asyncio.timeout(WAIT):
        await asyncio.gather(*(handle(held) for held in await claim(store)))
    assert len(stays()) == MORE_THAN_THE_LOOP_HAS_THREADS


# -- the lock is released -------------------------------------------------------------------------


async def test_a_block_cancelled_while_waiting_for_the_gate_does_not_keep_it(store: SqliteStore) -> None:
    first, second = await running(store), await running(store)

    async def handle() -> None:
        async with done(store, second):
            pytest.fail("it was cancelled before")

    async with done(store, first):
        waiting = asyncio.create_task(handle(), context=Context())
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(WAIT):
        await put(store)
        assert await end(store, second, Move.DONE) is Status.COMPLETED


async def test_a_locked_database_is_busy_and_the_gate_opens_again(store: SqliteStore, path: Path) -> None:
    held = await running(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            async with done(store, held):
                pytest.fail("the database is locked")
        with pytest.raises(StoreBusy), done(store, held):
            pytest.fail("the database is locked")
    async with done(store, held):
        pass
    await put(store)


async def test_an_outcome_that_cannot_be_made_opens_the_gate_again(store: SqliteStore, stays: Stays) -> None:
    held = await running(store)

    def fail() -> None:
        raise ValueError("no such outcome")

    with pytest.raises(ValueError, match="no such outcome"):
        async with store.completion(fail) as connection:  # type: ignore[arg-type]
            check_in(connection)
    assert stays() == []
    assert await end(store, held, Move.DONE) is Status.COMPLETED


async def test_a_file_that_is_gone_is_missed_here_too(store: SqliteStore, path: Path) -> None:
    held = await running(store)
    away = path.rename(path.with_name("away.db"))
    with pytest.raises(StoreVanished):
        async with done(store, held):
            pytest.fail("there is no database")
    away.rename(path)
    async with done(store, held):
        pass
    assert await status_of(store, held.id) is Status.COMPLETED
