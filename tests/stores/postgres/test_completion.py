"""A handler's own transaction: its rows and its job's outcome, or neither."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from mainspring import Context, Mainspring
from mainspring.errors import ClaimLost, ConfigurationError, StoreError, StoreUnavailable
from mainspring.job import Claim, Move, Status
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.completion import PostgresCompletion
from mainspring.stores.postgres.partitions import DAY
from mainspring.stores.protocol import Filter, Wake
from tests.conformance.scenario import claim, claim_one, end, look, new_job, outcome, running, status_of
from tests.stores.postgres.several import Stores, listening
from tests.worker.working import ended, eventually, fields_of, working

Stays = Callable[[], list[str]]
MORE_THAN_THE_STORE_HAS_CONNECTIONS = 20


@pytest.fixture
def stays(stores: Stores, store: PostgresStore) -> Stays:
    """A table of the application beside the jobs; call it to see who stays."""
    stores.ask("CREATE TABLE {s}.stays (guest text)")
    return lambda: stores.ask("SELECT guest FROM {s}.stays ORDER BY guest")


@pytest.fixture
def check_in(schema: str) -> str:
    return f"INSERT INTO {schema}.stays VALUES ('Zoë')"


@pytest.fixture(autouse=True)
async def _no_connection_is_left_open(stores: Stores, store: PostgresStore) -> AsyncIterator[None]:
    yield
    await store.close()
    await eventually(lambda: not stores.backends())  # the server takes a moment to see them off


def done(store: PostgresStore, held: Claim) -> PostgresCompletion:
    completion = store.completion(lambda: outcome(held, Move.DONE, result='"checked in"'))
    assert isinstance(completion, PostgresCompletion)
    return completion


# -- both or neither ------------------------------------------------------------------------------


async def test_rows_and_outcome_are_committed_together(store: PostgresStore, stays: Stays, check_in: str) -> None:
    held = await running(store)
    async with done(store, held) as connection:
        await connection.execute(check_in)
        assert stays() == []
        assert await status_of(store, held.id) is Status.RUNNING
    assert stays() == ["Zoë"]
    job = await look(store, held.id)
    assert (job.status, job.result) == (Status.COMPLETED, "checked in")
    assert (await store.stats()).queues[0].by_status == {Status.COMPLETED: 1}
    assert connection.closed


async def test_a_thread_uses_a_plain_with(store: PostgresStore, stays: Stays, check_in: str) -> None:
    held = await running(store)

    def handle() -> psycopg.Connection[Any]:
        with done(store, held) as connection:
            connection.execute(check_in)
        return connection

    assert (await asyncio.to_thread(handle)).closed
    assert stays() == ["Zoë"]
    assert await status_of(store, held.id) is Status.COMPLETED
    assert (await store.stats()).queues[0].by_status == {Status.COMPLETED: 1}


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, KeyboardInterrupt])
async def test_an_error_takes_both_back(
    store: PostgresStore, stays: Stays, check_in: str, error: type[BaseException]
) -> None:
    held = await running(store)

    async def fail() -> None:
        async with done(store, held) as connection:
            await connection.execute(check_in)
            raise error

    def fail_in_thread() -> None:
        with done(store, held) as connection:
            connection.execute(check_in)
            raise error

    with pytest.raises(error):
        await fail()
    with pytest.raises(error):
        fail_in_thread()
    assert stays() == []
    assert await end(store, held, Move.RETRY) is Status.RETRYING


async def test_a_lost_claim_takes_the_rows_back(store: PostgresStore, stays: Stays, check_in: str) -> None:
    held = await running(store)
    await end(store, held, Move.RELEASE)
    successor = await claim_one(store, worker="w2")
    with pytest.raises(ClaimLost):
        async with done(store, held) as connection:
            await connection.execute(check_in)
    with pytest.raises(ClaimLost), done(store, held) as connection:
        connection.execute(check_in)
    assert stays() == []
    assert await end(store, successor, Move.DONE) is Status.COMPLETED


@pytest.mark.parametrize("way", ["commit", "rollback"])
async def test_the_block_cannot_end_the_transaction_by_itself(
    store: PostgresStore, stays: Stays, check_in: str, way: str
) -> None:
    held = await running(store)

    async def handle() -> None:
        async with done(store, held) as connection:
            await connection.execute(check_in)
            await getattr(connection, way)()

    with pytest.raises(psycopg.ProgrammingError, match=rf"Explicit {way}\(\) forbidden"):
        await handle()
    with pytest.raises(psycopg.ProgrammingError, match=rf"Explicit {way}\(\) forbidden"), done(store, held) as tx:
        getattr(tx, way)()
    assert stays() == []
    assert await end(store, held, Move.DONE) is Status.COMPLETED


async def test_a_statement_inside_the_block_cannot_end_the_transaction(store: PostgresStore) -> None:
    held = await running(store)
    with pytest.raises(ConfigurationError, match="do not commit or roll back inside it"):
        async with done(store, held) as connection:
            await connection.execute("ROLLBACK")
    with pytest.raises(ConfigurationError, match="do not commit or roll back inside it"), done(store, held) as tx:
        tx.execute("COMMIT")
    assert await end(store, held, Move.DONE) is Status.COMPLETED


async def test_a_statement_that_failed_and_was_passed_over_takes_all_back(
    store: PostgresStore, stays: Stays, check_in: str
) -> None:
    held = await running(store)

    async def handle() -> None:
        async with done(store, held) as connection:
            await connection.execute(check_in)
            with pytest.raises(psycopg.errors.DivisionByZero):
                await connection.execute("SELECT 1 / 0")

    with pytest.raises(StoreError, match="current transaction is aborted"):
        await handle()
    assert stays() == []
    assert await status_of(store, held.id) is Status.RUNNING


async def test_savepoints_may_be_used_inside_the_block(store: PostgresStore, stays: Stays, check_in: str) -> None:
    held = await running(store)
    async with done(store, held) as connection:
        await connection.execute(check_in)
        async with connection.transaction(force_rollback=True):
            await connection.execute(check_in)
    assert stays() == ["Zoë"]


@pytest.mark.parametrize("days", [1, 30])
async def test_it_makes_the_day_on_which_its_job_expires(store: PostgresStore, days: int) -> None:
    """As each first one of a day has to, even where the block has looked at the archive itself."""
    first, second = await running(store, keep=days * DAY), await running(store, keep=(days + 1) * DAY)
    async with done(store, first) as connection:
        await store.insert([new_job(delay=60_000)], connection)
    with done(store, second) as connection:
        await store.insert([new_job(delay=60_000)], connection)
    assert await status_of(store, first.id) is Status.COMPLETED
    assert (await store.stats()).queues[0].by_status == {Status.COMPLETED: 2, Status.PENDING: 2}
    async with done(store, await running(store, keep=days * DAY)):
        pass
    assert await store.count(Filter(statuses=(Status.COMPLETED,))) == 3


async def test_follow_ups_and_jobs_of_the_block_commit_with_it(store: PostgresStore) -> None:
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


async def test_it_wakes_idle_workers_after_the_commit(store: PostgresStore, stores: Stores) -> None:
    held = await running(store)
    ear = await listening(stores, store)
    assert await claim(store) == []
    async with store.completion(lambda: outcome(held, Move.DONE, follow_ups=(new_job(),))):
        assert await ear.so_far() == []
    assert await ear.so_far() == [Wake.JOBS]
    held = await claim_one(store)
    assert await claim(store) == []
    with store.completion(lambda: outcome(held, Move.DONE, follow_ups=(new_job(),))):
        pass
    assert await ear.so_far() == [Wake.JOBS]


async def test_the_outcome_is_asked_for_at_the_end(store: PostgresStore) -> None:
    held = await running(store)
    result = '"early"'
    async with store.completion(lambda: outcome(held, Move.DONE, result=result)):
        result = '"late"'
    assert (await look(store, held.id)).result == "late"


async def test_an_outcome_that_cannot_be_made_takes_all_back(store: PostgresStore, stays: Stays, check_in: str) -> None:
    held = await running(store)

    def fail() -> Any:
        raise ValueError("no such outcome")

    with pytest.raises(ValueError, match="no such outcome"):
        async with store.completion(fail) as connection:
            await connection.execute(check_in)
    assert stays() == []
    assert await end(store, held, Move.DONE) is Status.COMPLETED


async def test_many_at_once_do_not_lock_each_other_out(store: PostgresStore, stays: Stays, check_in: str) -> None:
    await store.insert([new_job(keep=DAY) for _ in range(MORE_THAN_THE_STORE_HAS_CONNECTIONS)])
    together = asyncio.Barrier(MORE_THAN_THE_STORE_HAS_CONNECTIONS)

    async def handle(held: Claim) -> None:
        async with done(store, held) as connection:
            await connection.execute(check_in)
            await together.wait()

    await asyncio.gather(*(handle(held) for held in await claim(store)))
    assert len(stays()) == MORE_THAN_THE_STORE_HAS_CONNECTIONS


async def test_a_connection_that_breaks_takes_all_back(
    store: PostgresStore, stores: Stores, stays: Stays, check_in: str
) -> None:
    held = await running(store)

    async def handle() -> None:
        async with done(store, held) as connection:
            await connection.execute(check_in)
            stores.terminate()

    with pytest.raises(StoreUnavailable):
        await handle()
    assert stays() == []
    async with done(store, held) as connection:
        await connection.execute(check_in)
    assert (stays(), await status_of(store, held.id)) == (["Zoë"], Status.COMPLETED)


# -- under a worker -------------------------------------------------------------------------------


async def test_a_value_returned_after_the_commit_is_logged_as_not_stored(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    app = Mainspring(store)

    @app.task()
    async def work(ctx: Context) -> str:
        async with ctx.transaction():
            pass
        return "too late"

    async with working(app):
        job = (await ended(app, (await work.enqueue()).id))[0]
        await eventually(lambda: fields_of(caplog, "result_not_stored"))
    assert (job.status, job.result) == (Status.COMPLETED, None)


async def test_handlers_of_a_worker_complete_in_their_transaction(
    store: PostgresStore, stays: Stays, check_in: str
) -> None:
    app = Mainspring(store)

    @app.task()
    async def clean(room: int) -> None: ...

    @app.task(queue="other")
    async def book(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            await connection.execute(check_in)
            await clean.using(connection=connection).enqueue(room=7)
            ctx.set_result("booked")
        return "too late"

    @app.task(queue="other")
    def book_in_thread(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(check_in)
            clean.using(connection=connection).enqueue_sync(room=7)

    @app.task(max_attempts=1, queue="other")
    async def fail(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(check_in)
            await clean.using(connection=connection).enqueue(room=7)
            raise LookupError

    async with working(app, queues={"other": 5}):
        handles = [await task.enqueue() for task in (book, book_in_thread, fail)]
        jobs = await ended(app, *(handle.id for handle in handles))
    assert [job.status for job in jobs] == [Status.COMPLETED, Status.COMPLETED, Status.DEAD_LETTER]
    assert jobs[0].result == "booked"
    assert stays() == ["Zoë", "Zoë"]
    assert await store.count(Filter(tasks=(clean.name,))) == 2


# -- what never began -----------------------------------------------------------------------------


async def test_a_handler_that_is_stopped_just_before_it_begins_leaves_no_connection(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped(_block: Any) -> None:
        raise asyncio.CancelledError

    completion = done(store, await running(store))
    monkeypatch.setattr(psycopg.AsyncTransaction, "__aenter__", stopped)
    with pytest.raises(asyncio.CancelledError):
        await completion.__aenter__()
    assert completion._connection.closed


async def test_a_thread_that_cannot_begin_leaves_no_connection(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_block: Any) -> None:
        raise psycopg.OperationalError("the server has gone")

    completion = done(store, await running(store))
    monkeypatch.setattr(psycopg.Transaction, "__enter__", broken)
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(completion.__enter__)
    assert completion._connection.closed
