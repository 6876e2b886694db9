"""A job that ends in a transaction on the handler's own connection: its rows and the job's end come together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from mainspring.errors import ClaimLost, ConfigurationError
from mainspring.job import Claim, Move, Status
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import Completion, Wake
from tests.conformance.scenario import end, look, new_job, outcome, running, status_of
from tests.postgres import dsn
from tests.stores.postgres.django_project import set_up_django
from tests.stores.postgres.several import Stores, listening

Rooms = Callable[[], list[int]]
Lent = tuple[Any, Callable[[str], Any]]
"""What is given as `connection`, and a function that runs a statement with it."""


@pytest.fixture
def rooms(stores: Stores, store: PostgresStore) -> Rooms:
    stores.ask("CREATE TABLE {s}.rooms (number integer PRIMARY KEY)")
    return lambda: stores.ask("SELECT number FROM {s}.rooms")


@pytest.fixture
def insert(schema: str, rooms: Rooms) -> str:
    return f"INSERT INTO {schema}.rooms VALUES (7)"


def done(store: PostgresStore, held: Claim, connection: Any) -> Completion:
    return store.completion(lambda: outcome(held, Move.DONE, result='"booked"'), connection)


# -- in threads -----------------------------------------------------------------------------------


@contextmanager
def psycopg_connection() -> Iterator[Lent]:
    with psycopg.connect(dsn()) as connection:
        yield connection, lambda statement: connection.execute(statement.encode())


@contextmanager
def psycopg_that_commits_each_statement() -> Iterator[Lent]:
    with psycopg.connect(dsn(), autocommit=True) as connection:
        yield connection, lambda statement: connection.execute(statement.encode())


@contextmanager
def sqlalchemy_session() -> Iterator[Lent]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn()), poolclass=NullPool)
    with Session(engine) as session:  # without a pool there is nothing to dispose of
        yield session, lambda statement: session.execute(text(statement))


@contextmanager
def django_connection() -> Iterator[Lent]:
    if "host=/" not in dsn():
        pytest.skip("for Django we only know the address of our own server")
    connection = set_up_django().db.connection
    try:
        yield connection, lambda statement: connection.cursor().execute(statement)
    finally:
        connection.close()


LENDERS = [psycopg_connection, psycopg_that_commits_each_statement, sqlalchemy_session, django_connection]


@pytest.mark.parametrize("lend", LENDERS)
async def test_rows_and_the_jobs_end_are_committed_together(
    store: PostgresStore, rooms: Rooms, insert: str, lend: Any
) -> None:
    held = await running(store)

    def book() -> None:
        with lend() as (lent, execute):
            with done(store, held, lent) as given:
                assert given is lent
                execute(insert)
                assert rooms() == []
            assert rooms() == [7]

    await asyncio.to_thread(book)
    job = await look(store, held.id)
    assert (job.status, job.result) == (Status.COMPLETED, "booked")


@pytest.mark.parametrize("lend", LENDERS)
async def test_an_error_takes_both_back(store: PostgresStore, rooms: Rooms, insert: str, lend: Any) -> None:
    held = await running(store)

    def fail() -> None:
        with lend() as (lent, execute), suppress(ZeroDivisionError), done(store, held, lent):
            execute(insert)
            raise ZeroDivisionError

    await asyncio.to_thread(fail)
    assert rooms() == []
    assert await end(store, held, Move.RETRY) is Status.RETRYING


@pytest.mark.parametrize("lend", LENDERS)
async def test_a_lost_claim_takes_the_rows_back(store: PostgresStore, rooms: Rooms, insert: str, lend: Any) -> None:
    held = await running(store)
    await end(store, held, Move.RELEASE)

    def book() -> None:
        with lend() as (lent, execute), done(store, held, lent):
            execute(insert)

    with pytest.raises(ClaimLost):
        await asyncio.to_thread(book)
    assert rooms() == []


@pytest.mark.parametrize("lend", [psycopg_connection, django_connection])
async def test_a_transaction_that_has_begun_before_is_refused(
    store: PostgresStore, rooms: Rooms, insert: str, lend: Any
) -> None:
    held = await running(store)

    def book() -> None:
        with lend() as (lent, execute):
            if lend is django_connection:
                lent.set_autocommit(False)
            execute(insert)
            try:
                with done(store, held, lent):
                    pytest.fail("it must not begin")
            finally:
                lent.rollback()

    with pytest.raises(ConfigurationError, match="is in a transaction already"):
        await asyncio.to_thread(book)
    assert await end(store, held, Move.DONE) is Status.COMPLETED


@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_a_session_that_ends_the_transaction_itself_is_an_error(
    store: PostgresStore, rooms: Rooms, insert: str, how: str
) -> None:
    held = await running(store)

    def book() -> None:
        with sqlalchemy_session() as (lent, execute), done(store, held, lent):
            getattr(lent, how)()
            execute(insert)

    with pytest.raises(ConfigurationError, match="do not commit or roll back inside it"):
        await asyncio.to_thread(book)
    assert rooms() == []
    assert await status_of(store, held.id) is Status.RUNNING


# -- in coroutines --------------------------------------------------------------------------------


@asynccontextmanager
async def async_psycopg_connection() -> AsyncIterator[Lent]:
    async with await psycopg.AsyncConnection.connect(dsn()) as connection:
        yield connection, lambda statement: connection.execute(statement.encode())


@asynccontextmanager
async def async_sqlalchemy_session() -> AsyncIterator[Lent]:
    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect(dsn())

    engine = create_async_engine("postgresql+psycopg://", async_creator=connect, poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield session, lambda statement: session.execute(text(statement))


ASYNC_LENDERS = [async_psycopg_connection, async_sqlalchemy_session]


@pytest.mark.parametrize("lend", ASYNC_LENDERS)
async def test_rows_and_the_jobs_end_are_committed_together_in_a_coroutine(
    store: PostgresStore, rooms: Rooms, insert: str, lend: Any
) -> None:
    held = await running(store)
    async with lend() as (lent, execute):
        async with done(store, held, lent) as given:
            assert given is lent
            await execute(insert)
            assert rooms() == []
        assert rooms() == [7]
    assert await status_of(store, held.id) is Status.COMPLETED


@pytest.mark.parametrize("lend", ASYNC_LENDERS)
@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_an_error_in_a_coroutine_takes_both_back(
    store: PostgresStore, rooms: Rooms, insert: str, lend: Any, error: type[BaseException]
) -> None:
    held = await running(store)
    async with lend() as (lent, execute):
        with suppress(error):
            async with done(store, held, lent):
                await execute(insert)
                raise error
        assert rooms() == []
    assert await end(store, held, Move.RETRY) is Status.RETRYING


@pytest.mark.parametrize("lend", ASYNC_LENDERS)
async def test_an_asynchronous_connection_needs_async_with(store: PostgresStore, lend: Any) -> None:
    held = await running(store)
    async with lend() as (lent, _):
        with pytest.raises(TypeError, match="needs a coroutine and `async with"), done(store, held, lent):
            pytest.fail("it must not begin")


async def test_anything_else_is_refused(store: PostgresStore) -> None:
    held = await running(store)
    with pytest.raises(ConfigurationError, match=r"must be a psycopg connection, .* not object"):
        async with done(store, held, object()):
            pytest.fail("it must not begin")


async def test_follow_ups_wake_workers_with_the_commit(store: PostgresStore, stores: Stores) -> None:
    held = await running(store)
    ear = await listening(stores, store)
    async with async_psycopg_connection() as (lent, _):
        async with store.completion(lambda: outcome(held, Move.DONE, follow_ups=(new_job(),)), lent):
            assert await ear.so_far() == []
        assert await ear.so_far() == [Wake.JOBS]
