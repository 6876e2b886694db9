"""Jobs that are enqueued in the caller's own transaction: they come with its commit, or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from mainspring import Mainspring, Window
from mainspring.errors import ConfigurationError, SystemHalted
from mainspring.job import Status
from mainspring.stores.documents import By
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import Filter, Wake
from mainspring.task import Task
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import a_halt, claim, new_job, put
from tests.postgres import dsn, fresh_schema
from tests.stores.postgres.django_project import set_up_django
from tests.stores.postgres.several import Stores, listening

Greet = Task[..., Any, Any]


@pytest.fixture
def greet(store: PostgresStore) -> Greet:
    app = Mainspring(store)

    @app.task()
    async def greet(name: str) -> None: ...

    return greet


async def names(store: PostgresStore) -> list[str]:
    """Who waits to be greeted, as far as others can see."""
    page = await store.find(Filter())
    return sorted(job.payload["name"] for job in page.jobs)


# -- a connection with an event loop --------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"row_factory": dict_row}, {"row_factory": namedtuple_row}])
async def test_jobs_appear_with_the_callers_commit(store: PostgresStore, greet: Greet, options: dict[str, Any]) -> None:
    async with await psycopg.AsyncConnection.connect(dsn(), **options) as connection:
        handle = await greet.using(connection=connection).enqueue(name="Ana")
        await greet.using(connection=connection, dedupe_key="b").enqueue(name="Ben")
        again = await greet.using(connection=connection, dedupe_key="b").enqueue(name="Ben again")
        assert (handle.created, again.created) == (True, False)
        assert await names(store) == []
        assert await claim(store) == []
        await connection.commit()
        assert await names(store) == ["Ana", "Ben"]
        assert len(await claim(store)) == 2


async def test_the_very_first_job_of_a_database_may_be_one() -> None:
    store = PostgresStore(dsn(), schema_name=fresh_schema())
    try:
        async with await psycopg.AsyncConnection.connect(dsn()) as connection:
            await store.insert([new_job()], connection)
            assert await store.count(Filter()) == 0
        assert await store.count(Filter()) == 1
    finally:
        await store.close()


async def test_a_rollback_removes_the_jobs(store: PostgresStore, greet: Greet) -> None:
    async with await psycopg.AsyncConnection.connect(dsn()) as connection:
        await greet.using(connection=connection, dedupe_key="a").enqueue(name="Ana")
        await connection.rollback()
        await greet.using(connection=connection, dedupe_key="a").enqueue(name="Zoë")
        async with connection.transaction(force_rollback=True):  # a savepoint
            await greet.using(connection=connection).enqueue(name="Ben")
    assert await names(store) == ["Zoë"]
    assert (await store.stats()).queues[0].by_status == {Status.PENDING: 1}


async def test_a_connection_that_commits_each_statement_is_fine(store: PostgresStore, greet: Greet) -> None:
    async with await psycopg.AsyncConnection.connect(dsn(), autocommit=True) as connection:
        await greet.using(connection=connection).enqueue(name="Ana")
        assert await names(store) == ["Ana"]
        assert connection.row_factory is psycopg.rows.tuple_row


# -- one without ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"row_factory": dict_row}])
async def test_plain_code_can_enqueue_in_its_transaction(
    store: PostgresStore, greet: Greet, options: dict[str, Any]
) -> None:
    def work() -> None:
        with psycopg.connect(dsn(), **options) as connection:
            greet.using(connection=connection).enqueue_sync(name="Ana")
            connection.rollback()
            greet.using(connection=connection).enqueue_sync(name="Ben")
            greet.using(connection=connection).enqueue_many_sync([{"name": "Cem"}, {"name": "Dag"}])

    await asyncio.to_thread(work)
    assert await names(store) == ["Ben", "Cem", "Dag"]


def test_a_program_can_begin_with_an_enqueue_in_its_transaction() -> None:
    schema = fresh_schema()
    app = Mainspring(PostgresStore(dsn(), schema_name=schema))

    @app.task()
    def greet(name: str) -> None: ...

    @app.task(deliver=Window.of_person(lambda p: p.name))  # the person is looked up in the store
    def remind(name: str) -> None: ...

    with psycopg.connect(dsn()) as connection:
        greet.using(connection=connection).enqueue_sync(name="Ana")
        remind.using(connection=connection).enqueue_many_sync([{"name": "Ben"}])
        assert app.run(app.jobs.count()) == 0
    assert app.run(app.jobs.count()) == 2
    app.run(app.close())
    with psycopg.connect(dsn()) as connection:  # an application that was closed opens itself again
        greet.using(connection=connection).enqueue_sync(name="Cem")
    assert app.run(app.jobs.count()) == 3
    app.run(app.close())
    with psycopg.connect(dsn()) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


async def test_a_coroutine_can_enqueue_on_a_synchronous_connection(
    store: PostgresStore, greet: Greet, stores: Stores
) -> None:
    with stores.connect() as connection:
        await greet.using(connection=connection).enqueue(name="Ana")
        assert await names(store) == []
    assert await names(store) == ["Ana"]


# -- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [object(), "postgresql://", 7])
async def test_anything_else_is_refused(greet: Greet, other: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a psycopg connection, an SQLAlchemy session"):
        await greet.using(connection=other).enqueue(name="Ana")
    with pytest.raises(ConfigurationError, match=f"not {type(other).__name__}"):
        greet.using(connection=other).enqueue_sync(name="Ana")


class OtherWrapper:
    """As Django has it over another driver than psycopg 3."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")

    def ensure_connection(self) -> None: ...


async def test_django_with_another_driver_is_refused(greet: Greet) -> None:
    other = OtherWrapper()
    with pytest.raises(ConfigurationError, match="not OtherWrapper over sqlite3: have it use psycopg 3"):
        await greet.using(connection=other).enqueue(name="Ana")
    other.connection.close()


async def test_a_database_without_our_tables_says_what_to_do(stores: Stores) -> None:
    app = Mainspring(PostgresStore(stores.dsn, schema_name="test_nothing_here", migrate=False))

    @app.task()
    async def greet() -> None: ...

    with stores.connect() as connection, pytest.raises(ConfigurationError, match="`mainspring migrate`"):
        await greet.using(connection=connection).enqueue()
    await app.close()


async def test_a_halt_that_refuses_does_so_here_too(store: PostgresStore, greet: Greet, stores: Stores) -> None:
    await store.halt(a_halt(ManualClock(), accept=False))
    with stores.connect() as connection:
        with pytest.raises(SystemHalted, match="fire drill"):
            await greet.using(connection=connection).enqueue(name="Ana")
        await store.resume(By("ana"))
        await greet.using(connection=connection).enqueue(name="Ben")
    assert await names(store) == ["Ben"]


async def test_a_callers_long_transaction_does_not_block_a_halt_or_other_enqueues(
    store: PostgresStore, greet: Greet, stores: Stores
) -> None:
    """Neither the halt waits for it, nor do enqueues after the halt."""
    with stores.connect() as connection:
        await greet.using(connection=connection).enqueue(name="Ana")
        async with asyncio.timeout(60):
            await store.halt(a_halt(ManualClock()))
            await put(store, payload='{"name": "Ben"}')
            await store.resume(By("ana"))
            assert len(await claim(store)) == 1
    assert await names(store) == ["Ana", "Ben"]


# -- wake-ups -------------------------------------------------------------------------------------


async def test_workers_are_woken_by_the_commit_and_not_before(
    store: PostgresStore, greet: Greet, stores: Stores
) -> None:
    ear = await listening(stores, store)
    async with await psycopg.AsyncConnection.connect(dsn()) as connection:
        await greet.using(connection=connection).enqueue(name="Ana")
        assert await ear.so_far() == []
        await connection.rollback()
        assert await ear.so_far() == []
        await greet.using(connection=connection).enqueue(name="Ana")
        await connection.commit()
        assert await ear.so_far() == [Wake.JOBS]


# -- what wraps a connection ----------------------------------------------------------------------


@contextmanager
def sqlalchemy_session() -> Iterator[tuple[Any, Callable[[], None]]]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn()), poolclass=NullPool)
    with Session(engine) as session:
        yield session, session.commit
    engine.dispose()


@contextmanager
def sqlalchemy_connection() -> Iterator[tuple[Any, Callable[[], None]]]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn()), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection, connection.commit
    engine.dispose()


@contextmanager
def django_connection() -> Iterator[tuple[Any, Callable[[], None]]]:
    connection = set_up_django().db.connection
    connection.set_autocommit(False)
    yield connection, connection.commit
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("opened", [sqlalchemy_session, sqlalchemy_connection, django_connection])
def test_connections_of_sqlalchemy_and_django_can_be_used(schema: str, opened: Any) -> None:
    if opened is django_connection and "host=/" not in dsn():
        pytest.skip("for Django we only know the address of our own server")
    app = Mainspring(PostgresStore(dsn(), schema_name=schema))

    @app.task()
    async def greet(name: str) -> None: ...

    greet.enqueue_sync(name="Ana")
    with opened() as (lent, commit):
        greet.using(connection=lent, tags=("a", "b")).enqueue_sync(name="Ben")
        lent.rollback()
        greet.using(connection=lent, target=("guest", "7")).enqueue_sync(name="Cem")
        assert app.run(names(app.store)) == ["Ana"]  # type: ignore[arg-type]
        commit()
        assert app.run(names(app.store)) == ["Ana", "Cem"]  # type: ignore[arg-type]
    app.run(app.close())


@asynccontextmanager
async def async_engine() -> AsyncIterator[AsyncEngine]:
    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect(dsn())

    engine = create_async_engine("postgresql+psycopg://", async_creator=connect, poolclass=NullPool)
    yield engine
    await engine.dispose()


async def test_an_asynchronous_connection_of_sqlalchemy_can_be_used(store: PostgresStore, greet: Greet) -> None:
    async with async_engine() as engine, engine.connect() as connection:
        await greet.using(connection=connection).enqueue(name="Ana")
        assert await names(store) == []
        await connection.commit()
        await greet.using(connection=connection).enqueue(name="Ben")
    assert await names(store) == ["Ana"]


async def test_an_asynchronous_session_of_sqlalchemy_can_be_used(
    store: PostgresStore, greet: Greet, schema: str
) -> None:
    async with async_engine() as engine, AsyncSession(engine) as session:
        await greet.using(connection=session).enqueue(name="Ana")
        await session.rollback()
        await session.execute(text(f"CREATE TABLE {schema}.rooms (number integer)"))
        await greet.using(connection=session).enqueue(name="Ben")
        await greet.using(connection=await session.connection()).enqueue(name="Cem")
        assert await names(store) == []
        await session.commit()
    assert await names(store) == ["Ben", "Cem"]
