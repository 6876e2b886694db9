"""A job that ends in a transaction on the handler's own connection: its rows and the job's end come together."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from mainspring import Context, Mainspring
from mainspring.errors import ClaimLost, ConfigurationError
from mainspring.job import Claim, Move, Status
from mainspring.stores.protocol import Completion, Store
from mainspring.stores.sqlite import SqliteStore
from tests.conformance.scenario import claim_one, end, look, outcome, put, running, status_of
from tests.django_setup import set_up_django
from tests.stores.sqlite.lenders import (
    ASYNC_LENDERS,
    INSERT,
    LENDERS,
    Lent,
    aiosqlite_connection,
    connect_django,
    django_connection,
    sqlite3_connection,
)


@pytest.fixture
def path(path: Path) -> Path:
    """The jobs' file, in which the application has a table too."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rooms (number INTEGER PRIMARY KEY)")
    return path


@pytest.fixture
def app(path: Path) -> Iterator[Mainspring]:
    app = Mainspring(SqliteStore(path))
    yield app
    app.run(app.close())


def rooms(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM rooms")]


def done(store: Store, held: Claim, connection: Any) -> Completion:
    return store.completion(lambda: outcome(held, Move.DONE, result='"booked"'), connection)


# -- in threads -----------------------------------------------------------------------------------


@contextmanager
def django_that_commits_each_statement(path: Path) -> Iterator[Lent]:
    connection = connect_django(path)
    try:
        yield connection, lambda statement: connection.cursor().execute(statement)
    finally:
        connection.close()


@contextmanager
def sqlite3_that_commits_each_statement(path: Path) -> Iterator[Lent]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection, connection.execute


ALL = [
    *(lend for lend in LENDERS if lend is not django_connection),
    django_that_commits_each_statement,
    sqlite3_that_commits_each_statement,
]


@pytest.mark.parametrize("lend", ALL)
def test_rows_and_the_jobs_end_are_committed_together(app: Mainspring, path: Path, lend: Any) -> None:
    held = app.run(running(app.store))
    with lend(path) as (lent, execute):
        with done(app.store, held, lent) as given:
            assert given is lent
            execute(INSERT)
            assert rooms(path) == []
            assert app.run(status_of(app.store, held.id)) is Status.RUNNING
        assert rooms(path) == [7]
        job = app.run(look(app.store, held.id))
        assert (job.status, job.result) == (Status.COMPLETED, "booked")
        execute("DELETE FROM rooms")  # the connection is the caller's again
        lent.commit()
    assert rooms(path) == []


@pytest.mark.parametrize("lend", ALL)
def test_an_error_takes_both_back(app: Mainspring, path: Path, lend: Any) -> None:
    held = app.run(running(app.store))
    with lend(path) as (lent, execute):
        with suppress(ZeroDivisionError), done(app.store, held, lent):
            execute(INSERT)
            raise ZeroDivisionError
        assert rooms(path) == []
        assert app.run(end(app.store, held, Move.RETRY)) is Status.RETRYING  # the file is not locked any more
        execute(INSERT)
        lent.commit()
    assert rooms(path) == [7]


@pytest.mark.parametrize("lend", ALL)
def test_a_lost_claim_takes_the_rows_back(app: Mainspring, path: Path, lend: Any) -> None:
    held = app.run(running(app.store))
    app.run(end(app.store, held, Move.RELEASE))
    successor = app.run(claim_one(app.store, worker="w2"))
    with lend(path) as (lent, execute), pytest.raises(ClaimLost), done(app.store, held, lent):
        execute(INSERT)
    assert rooms(path) == []
    assert app.run(end(app.store, successor, Move.DONE)) is Status.COMPLETED


@pytest.mark.parametrize("lend", [lend for lend in ALL if lend is not django_that_commits_each_statement])
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_the_block_cannot_end_the_transaction(app: Mainspring, path: Path, lend: Any, how: str) -> None:
    held = app.run(running(app.store))

    def book(lent: Any, execute: Any) -> None:
        with done(app.store, held, lent):
            execute(INSERT)
            getattr(lent, how)()

    with lend(path) as lent, pytest.raises(ConfigurationError, match="do not commit or roll back inside it"):
        book(*lent)
    assert rooms(path) == []
    assert app.run(status_of(app.store, held.id)) is Status.RUNNING


@pytest.mark.parametrize("lend", LENDERS)
def test_a_transaction_that_has_begun_before_is_refused_and_left_alone(app: Mainspring, path: Path, lend: Any) -> None:
    """It may hold the write lock, for which another process that holds our lock waits in vain."""
    held = app.run(running(app.store))
    with lend(path) as (lent, execute):
        execute(INSERT)
        with pytest.raises(ConfigurationError, match="is in a transaction already"), done(app.store, held, lent):
            pytest.fail("it must not begin")
        lent.commit()
    assert rooms(path) == [7]
    assert app.run(end(app.store, held, Move.DONE)) is Status.COMPLETED


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3.connect has no autocommit before Python 3.12")
@pytest.mark.parametrize("autocommit", [False, True])
def test_connections_with_either_autocommit_setting_can_be_used(app: Mainspring, path: Path, autocommit: bool) -> None:
    options: dict[str, Any] = {"autocommit": autocommit}
    lost, held = app.run(running(app.store)), app.run(running(app.store))
    with closing(sqlite3.connect(path, **options)) as lent:
        with suppress(ZeroDivisionError), done(app.store, lost, lent):
            lent.execute(INSERT)
            raise ZeroDivisionError
        assert rooms(path) == []
        with done(app.store, held, lent):
            lent.execute(INSERT)
            assert rooms(path) == []
    assert rooms(path) == [7]
    assert app.run(status_of(app.store, held.id)) is Status.COMPLETED


def test_within_djangos_atomic_block_it_is_refused(app: Mainspring, path: Path) -> None:
    held = app.run(running(app.store))
    with (
        django_that_commits_each_statement(path) as (lent, _),
        set_up_django().db.transaction.atomic(using="hotel"),
        pytest.raises(ConfigurationError, match="is in a transaction already"),
        done(app.store, held, lent),
    ):
        pytest.fail("it must not begin")


def test_djangos_atomic_blocks_within_it_are_savepoints(app: Mainspring, path: Path) -> None:
    held = app.run(running(app.store))
    atomic = set_up_django().db.transaction.atomic
    with django_that_commits_each_statement(path) as (lent, execute), done(app.store, held, lent):
        execute("INSERT INTO rooms VALUES (8)")
        with suppress(ZeroDivisionError), atomic(using="hotel"):
            execute(INSERT)
            raise ZeroDivisionError
    assert rooms(path) == [8]
    assert app.run(status_of(app.store, held.id)) is Status.COMPLETED


@pytest.mark.parametrize("lend", ALL)
def test_a_connection_to_another_file_is_refused(app: Mainspring, tmp_path: Path, lend: Any) -> None:
    held = app.run(running(app.store))
    with (
        lend(tmp_path / "other.db") as (lent, _),
        pytest.raises(ConfigurationError, match=r"is to .*other\.db, but the jobs are in"),
        done(app.store, held, lent),
    ):
        pytest.fail("it must not begin")
    assert app.run(end(app.store, held, Move.DONE)) is Status.COMPLETED


def test_anything_else_is_refused(app: Mainspring) -> None:
    held = app.run(running(app.store))
    with (
        pytest.raises(ConfigurationError, match=r"must be an sqlite3 or aiosqlite connection.* not object"),
        done(app.store, held, object()),
    ):
        pytest.fail("it must not begin")
    assert app.run(end(app.store, held, Move.DONE)) is Status.COMPLETED


def test_a_failed_flush_takes_everything_back(app: Mainspring, path: Path) -> None:
    held = app.run(running(app.store))
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)

    def book() -> None:
        with Session(engine) as session, done(app.store, held, session):
            session.connection().exec_driver_sql(INSERT)
            session.add(Room(number=7))

    with pytest.raises(IntegrityError, match="UNIQUE"):
        book()
    engine.dispose()
    assert rooms(path) == []
    assert app.run(end(app.store, held, Move.DONE)) is Status.COMPLETED


# -- in coroutines --------------------------------------------------------------------------------


@pytest.mark.parametrize("lend", ASYNC_LENDERS)
async def test_rows_and_the_jobs_end_are_committed_together_in_a_coroutine(
    store: SqliteStore, path: Path, lend: Any
) -> None:
    held = await running(store)
    async with lend(path) as (lent, execute):
        async with done(store, held, lent) as given:
            assert given is lent
            await execute(INSERT)
            assert rooms(path) == []
        assert rooms(path) == [7]
        assert await status_of(store, held.id) is Status.COMPLETED


async def test_a_plain_connection_can_be_used_in_a_coroutine(store: SqliteStore, path: Path) -> None:
    held = await running(store)
    with sqlite3_connection(path) as (lent, execute):
        async with done(store, held, lent):
            execute(INSERT)
    assert (rooms(path), await status_of(store, held.id)) == ([7], Status.COMPLETED)


@pytest.mark.parametrize("lend", ASYNC_LENDERS)
@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_an_error_in_a_coroutine_takes_both_back(
    store: SqliteStore, path: Path, lend: Any, error: type[BaseException]
) -> None:
    held = await running(store)
    async with lend(path) as (lent, execute):
        with suppress(error):
            async with done(store, held, lent):
                await execute(INSERT)
                raise error
        assert rooms(path) == []
        assert await end(store, held, Move.RETRY) is Status.RETRYING


@pytest.mark.parametrize("lend", ASYNC_LENDERS)
async def test_a_coroutine_that_lost_its_claim_writes_nothing(store: SqliteStore, path: Path, lend: Any) -> None:
    held = await running(store)
    await end(store, held, Move.RELEASE)
    async with lend(path) as (lent, execute):
        with pytest.raises(ClaimLost):
            async with done(store, held, lent):
                await execute(INSERT)
    assert rooms(path) == []


@pytest.mark.parametrize("lend", ASYNC_LENDERS)
async def test_a_coroutine_cannot_commit_inside_the_block(store: SqliteStore, path: Path, lend: Any) -> None:
    held = await running(store)

    async def book(lent: Any, execute: Any) -> None:
        async with done(store, held, lent):
            await execute(INSERT)
            await lent.commit()

    async with lend(path) as lent:
        with pytest.raises(ConfigurationError, match="do not commit or roll back inside it"):
            await book(*lent)
    assert rooms(path) == []


@pytest.mark.parametrize("lend", ASYNC_LENDERS)
async def test_an_asynchronous_connection_needs_async_with(store: SqliteStore, path: Path, lend: Any) -> None:
    held = await running(store)
    async with lend(path) as (lent, _):
        with pytest.raises(TypeError, match="needs a coroutine and `async with"), done(store, held, lent):
            pytest.fail("it must not begin")
    assert await end(store, held, Move.DONE) is Status.COMPLETED


async def test_blocks_of_one_event_loop_take_turns(path: Path) -> None:
    """The second waits for the first without keeping the event loop from it."""
    store = SqliteStore(path)
    first, second = await running(store), await running(store)
    order: list[str] = []

    async def book(held: Claim, name: str) -> None:
        async with aiosqlite_connection(path) as (lent, _), done(store, held, lent):
            order.append(name)
            await asyncio.sleep(0.01)
            order.append(name)

    await asyncio.gather(book(first, "a"), book(second, "b"))
    assert sorted(order[:2]) in (["a", "a"], ["b", "b"])
    assert [await status_of(store, held.id) for held in (first, second)] == [Status.COMPLETED] * 2
    await store.close()


async def test_a_block_that_is_cancelled_while_it_waits_leaves_the_way_free(path: Path) -> None:
    store = SqliteStore(path)
    first, second = await running(store), await running(store)

    async def enter(lent: Any) -> None:
        async with done(store, second, lent):
            pytest.fail("it must not begin")

    async with aiosqlite.connect(path) as one, aiosqlite.connect(path) as other, done(store, first, one):
        waiting = asyncio.create_task(enter(other), context=contextvars.Context())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await put(store)
    assert await end(store, second, Move.DONE) is Status.COMPLETED
    await store.close()


# -- in handlers ----------------------------------------------------------------------------------


class Base(DeclarativeBase): ...


class Room(Base):
    __tablename__ = "rooms"
    number: Mapped[int] = mapped_column(primary_key=True)


async def test_handlers_can_use_an_orm(path: Path) -> None:
    app = Mainspring(f"sqlite:///{path}")
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)

    @app.task()
    async def clean(room: int) -> None: ...

    @app.task()
    def book(ctx: Context, room: int) -> str:
        with Session(engine) as session, ctx.transaction(session):
            session.add(Room(number=room))
            clean.using(connection=session, delay=60).enqueue_sync(room=room)
            with pytest.raises(ConfigurationError, match=r"using\(connection=tx\)"):
                clean.enqueue_sync(room=room)
            ctx.set_result("booked")
        return "ignored"

    @app.task()
    async def book_async(ctx: Context, room: int) -> str:
        async with AsyncSession(async_engine) as session, ctx.transaction(session):
            session.add(Room(number=room))
            await clean.using(connection=session, delay=60).enqueue(room=room)
            ctx.follow_up(clean.using(delay=60).prepare(room=room + 1))
            ctx.set_result("booked")
        return "ignored"

    first, second = await book.enqueue(room=1), await book_async.enqueue(room=2)
    await app.worker().drain()
    assert [await handle.result(timeout=1) for handle in (first, second)] == ["booked", "booked"]
    assert sorted(rooms(path)) == [1, 2]
    waiting = [job.payload["room"] async for job in app.jobs.all() if job.task == "clean"]
    assert sorted(waiting) == [1, 2, 3]
    engine.dispose()
    await async_engine.dispose()
    await app.close()
