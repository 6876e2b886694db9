"""Jobs that are enqueued in the caller's own transaction: they come with its commit, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import create_engine

from mainspring import Mainspring
from mainspring.errors import ConfigurationError, StoreBusy, StoreTooNew
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite.connection import DatabaseFile
from mainspring.task import Task
from tests.django_setup import set_up_django
from tests.stores.sqlite.lenders import ASYNC_LENDERS, INSERT, LENDERS, connect_django

Greet = Task[..., Any, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of the application's own, without tables of ours."""
    path = tmp_path / "hotel.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rooms (number INTEGER)")
        connection.execute("PRAGMA user_version = 7")
    return path


@pytest.fixture
def app(path: Path) -> Iterator[Mainspring]:
    """With next to no patience: what would wait for the caller's transaction fails at once."""
    app = Mainspring(SqliteStore(path, busy_timeout=0.05))
    yield app
    app.run(app.close())


@pytest.fixture
def greet(app: Mainspring) -> Greet:
    @app.task()
    async def greet(name: str) -> None: ...

    return greet


def ask(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return [value for (value,) in connection.execute(statement)]


def names(path: Path) -> list[str]:
    """Who waits to be greeted, as far as others can see."""
    return ask(path, "SELECT payload ->> 'name' FROM mainspring_jobs ORDER BY seq")


def tables(path: Path) -> list[str]:
    return ask(path, "SELECT name FROM sqlite_master WHERE type = 'table'")


# -- the first job of a file ----------------------------------------------------------------------


def begun_by_a_write(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute(INSERT)
    return connection


def begun_immediately(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(INSERT)
    return connection


def begun_and_not_used(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    return connection


def begun_by_a_read(path: Path) -> sqlite3.Connection:
    connection = begun_and_not_used(path)
    connection.execute("SELECT * FROM rooms").fetchall()
    return connection


def not_begun(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path)


def always_begun(path: Path) -> sqlite3.Connection:
    return connect_with_autocommit(path, value=False)


def connect_with_autocommit(path: Path, *, value: bool) -> sqlite3.Connection:
    if sys.version_info < (3, 12):
        pytest.skip("sqlite3.connect has no autocommit before Python 3.12")
    options: dict[str, Any] = {"autocommit": value}
    return sqlite3.connect(path, **options)


BEGUN = [begun_by_a_write, begun_immediately, begun_and_not_used, begun_by_a_read, not_begun, always_begun]


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("begin", BEGUN)
def test_the_first_job_of_a_file_joins_the_transaction(greet: Greet, path: Path, begin: Any, journal: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
    with closing(begin(path)) as connection:
        greet.using(connection=connection).enqueue_sync(name="Ana")
        connection.rollback()
    assert tables(path) == ["rooms"]
    assert ask(path, "PRAGMA journal_mode") == [journal]
    with closing(begin(path)) as connection:
        greet.using(connection=connection).enqueue_sync(name="Ben")
        greet.using(connection=connection).enqueue_many_sync([{"name": "Cem"}, {"name": "Dag"}])
        assert "mainspring_jobs" not in tables(path)
        connection.commit()
    assert names(path) == ["Ben", "Cem", "Dag"]
    assert ask(path, "PRAGMA user_version") == [7]


async def test_the_first_job_of_a_file_joins_the_transaction_of_a_coroutine(greet: Greet, path: Path) -> None:
    with closing(begun_by_a_write(path)) as connection:
        await greet.using(connection=connection).enqueue(name="Ana")
        connection.commit()
    assert (names(path), ask(path, "SELECT number FROM rooms")) == (["Ana"], [7])


async def test_a_worker_takes_over_the_file_from_there(app: Mainspring, greet: Greet, path: Path) -> None:
    with closing(begun_by_a_write(path)) as connection:
        await greet.using(connection=connection).enqueue(name="Ana")
        connection.commit()
    await app.worker().drain()
    assert await app.jobs.count() == 1
    assert names(path) == []
    assert ask(path, "PRAGMA journal_mode") == ["wal"]


@pytest.mark.parametrize("options", [{}, {"isolation_level": None}], ids=["begins", "commits by itself"])
def test_the_caller_may_create_the_file_too(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "new.db"
    app = Mainspring(f"sqlite:///{path}")

    @app.task()
    def greet(name: str) -> None: ...

    with closing(sqlite3.connect(path, **options)) as connection:
        greet.using(connection=connection).enqueue_sync(name="Ana")
        assert connection.in_transaction == (not options)
        connection.commit()
    assert names(path) == ["Ana"]
    assert app.run(app.jobs.count()) == 1
    app.run(app.close())


def test_a_connection_that_commits_by_itself_gets_all_or_nothing(greet: Greet, path: Path) -> None:
    with closing(connect_with_autocommit(path, value=True)) as connection:
        greet.using(connection=connection).enqueue_sync(name="Ana")
        assert not connection.in_transaction
    assert names(path) == ["Ana"]


@pytest.mark.parametrize("created", [False, True], ids=["without our tables", "with our tables"])
def test_a_transaction_that_has_not_read_waits_for_a_writer(greet: Greet, path: Path, created: bool) -> None:
    """SQLite does not wait if a transaction begins with a read: our first statement must be a write."""
    if created:
        DatabaseFile(path).prepare()
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.1, writer.execute, ["COMMIT"])
    with closing(writer), closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as connection:
        connection.execute("BEGIN")
        done.start()
        greet.using(connection=connection).enqueue_sync(name="Ana")
        connection.commit()
        done.join()
    assert names(path) == ["Ana"]


def test_a_transaction_that_has_read_too_early_is_an_error_with_advice(greet: Greet, path: Path) -> None:
    DatabaseFile(path).prepare()
    with closing(begun_by_a_read(path)) as connection, closing(sqlite3.connect(path)) as other:
        other.execute(INSERT)
        other.commit()
        with pytest.raises(StoreBusy, match=r"another program has written to it since.* BEGIN IMMEDIATE"):
            greet.using(connection=connection).enqueue_sync(name="Ana")


def test_a_store_that_opens_meanwhile_waits_for_the_commit(greet: Greet, path: Path) -> None:
    opening = threading.Thread(target=DatabaseFile(path, busy_timeout=60).prepare)
    with closing(begun_by_a_write(path)) as connection:
        greet.using(connection=connection).enqueue_sync(name="Ana")
        opening.start()
        opening.join(0.05)
        connection.commit()
        opening.join()
    assert names(path) == ["Ana"]
    assert ask(path, "SELECT version FROM mainspring_migrations") == [1]


def test_two_that_enqueue_their_first_job_together_create_the_tables_once(path: Path) -> None:
    together = threading.Barrier(2)
    failures: list[BaseException] = []

    def enqueue() -> None:
        try:
            app = Mainspring(f"sqlite:///{path}")

            @app.task()
            def greet(name: str) -> None: ...

            with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as connection:
                connection.execute("BEGIN")
                together.wait()
                greet.using(connection=connection).enqueue_sync(name="Ana")
                connection.commit()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=enqueue) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert names(path) == ["Ana", "Ana"]


def test_newer_tables_and_tables_of_another_program_are_left_alone(greet: Greet, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mainspring_tags (theirs)")
        with pytest.raises(ConfigurationError, match=r"\(mainspring_tags\); rename them, or use another file"):
            greet.using(connection=connection).enqueue_sync(name="Ana")
    assert tables(path) == ["rooms", "mainspring_tags"]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE mainspring_tags")
        greet.using(connection=connection).enqueue_sync(name="Ana")
        connection.execute("INSERT INTO mainspring_migrations (version, name) VALUES (99, 'from the future')")
        with pytest.raises(StoreTooNew, match="upgrade Mainspring"):
            greet.using(connection=connection).enqueue_sync(name="Ben")
        connection.commit()
    assert names(path) == ["Ana"]


def test_how_the_callers_connection_gives_rows_and_texts_does_not_matter(greet: Greet, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory, connection.text_factory = dict_row, bytes
        first = greet.using(connection=connection, dedupe_key="a").enqueue_sync(name="Ana")
        again = greet.using(connection=connection, dedupe_key="a").enqueue_sync(name="Ben")
        assert (again.created, again.id) == (False, first.id)
        assert connection.execute("SELECT 'x' AS y").fetchone() == {"y": b"x"}
        connection.commit()
    assert names(path) == ["Ana"]


def dict_row(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


# -- in plain code --------------------------------------------------------------------------------


@pytest.mark.parametrize("lend", LENDERS)
def test_jobs_and_rows_come_with_the_commit_or_not_at_all(greet: Greet, path: Path, lend: Any) -> None:
    with lend(path) as (lent, execute):
        execute(INSERT)
        greet.using(connection=lent).enqueue_sync(name="Ana")  # the first job of the file
        lent.rollback()
        assert (tables(path), ask(path, "SELECT number FROM rooms")) == (["rooms"], [])
        greet.using(connection=lent, tags=("a", "b")).enqueue_sync(name="Ben")
        execute(INSERT)
        greet.using(connection=lent, target=("guest", "7")).enqueue_sync(name="Cem")
        assert "mainspring_jobs" not in tables(path)
        lent.commit()
        assert (names(path), ask(path, "SELECT number FROM rooms")) == (["Ben", "Cem"], [7])


@pytest.mark.parametrize("lend", LENDERS)
def test_a_connection_to_another_file_is_refused(greet: Greet, tmp_path: Path, lend: Any) -> None:
    other = tmp_path / "other.db"
    with (
        lend(other) as (lent, _),
        pytest.raises(ConfigurationError, match=r"is to .*other\.db, but the jobs are in .*hotel\.db"),
    ):
        greet.using(connection=lent).enqueue_sync(name="Ana")
    with closing(sqlite3.connect(other)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_djangos_atomic_blocks_decide_about_jobs(greet: Greet, path: Path) -> None:
    connection = connect_django(path)
    transaction = set_up_django().db.transaction
    enqueue = greet.using(connection=connection).enqueue_sync
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(using="hotel"):
        enqueue(name="Ana")
        raise ZeroDivisionError
    assert tables(path) == ["rooms"]
    with transaction.atomic(using="hotel"):
        connection.cursor().execute(INSERT)
        enqueue(name="Ben")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using="hotel"):  # a savepoint
            enqueue(name="Cem")
            raise ZeroDivisionError
        assert "mainspring_jobs" not in tables(path)
    assert (names(path), ask(path, "SELECT number FROM rooms")) == (["Ben"], [7])
    enqueue(name="Dag")  # outside of a block, Django commits each statement
    assert names(path) == ["Ben", "Dag"]
    connection.close()


# -- in coroutines --------------------------------------------------------------------------------


@pytest.mark.parametrize("lend", ASYNC_LENDERS)
async def test_jobs_and_rows_of_a_coroutine_are_committed_together(greet: Greet, path: Path, lend: Any) -> None:
    async with lend(path) as (lent, execute):
        await execute(INSERT)
        await greet.using(connection=lent).enqueue(name="Ana")  # the first job of the file
        await lent.rollback()
        assert (tables(path), ask(path, "SELECT number FROM rooms")) == (["rooms"], [])
        await greet.using(connection=lent).enqueue(name="Ben")
        await execute(INSERT)
        await greet.using(connection=lent).enqueue_many([{"name": "Cem"}, {"name": "Dag"}])
        assert "mainspring_jobs" not in tables(path)
        await lent.commit()
        assert (names(path), ask(path, "SELECT number FROM rooms")) == (["Ben", "Cem", "Dag"], [7])


@pytest.mark.parametrize("lend", ASYNC_LENDERS)
async def test_an_asynchronous_connection_to_another_file_is_refused(greet: Greet, tmp_path: Path, lend: Any) -> None:
    async with lend(tmp_path / "other.db") as (lent, _):
        with pytest.raises(ConfigurationError, match=r"is to .*other\.db, but the jobs are in .*hotel\.db"):
            await greet.using(connection=lent).enqueue(name="Ana")


@pytest.mark.parametrize("lend", ASYNC_LENDERS)
async def test_an_asynchronous_connection_needs_await(greet: Greet, path: Path, lend: Any) -> None:
    """From the event loop's thread and from another; nothing is done in the background."""
    async with lend(path) as (lent, _):
        for call in (asyncio.to_thread, at_once):
            with pytest.raises(TypeError, match=r"needs `await task.using\(connection=…\).enqueue\(…\)`"):
                await call(greet.using(connection=lent).enqueue_sync, name="Ana")
        await lent.commit()
    assert tables(path) == ["rooms"]


async def at_once(work: Callable[..., Any], **arguments: Any) -> Any:
    return work(**arguments)


async def test_a_worker_notices_what_was_committed_through_aiosqlite(path: Path) -> None:
    """It sends no wake-up: the worker looks for commits that are not ours four times a second."""
    app = Mainspring(f"sqlite:///{path}")

    @app.task()
    async def greet(name: str) -> None: ...

    worker = app.worker()
    serving = asyncio.create_task(worker.serve())
    async with aiosqlite.connect(path, timeout=60) as connection:
        handle = await greet.using(connection=connection).enqueue(name="Ana")
        await connection.commit()
    await handle.result(timeout=60)
    worker.stop()
    await serving
    await app.close()


# -- what cannot be -------------------------------------------------------------------------------


async def test_an_aiosqlite_connection_that_is_not_open_is_refused(greet: Greet, path: Path) -> None:
    async with aiosqlite.connect(path) as connection:
        pass
    with pytest.raises(ConfigurationError, match=r"is not open; use it inside `async with aiosqlite.connect"):
        await greet.using(connection=connection).enqueue(name="Ana")


@pytest.mark.parametrize("other", [object(), "sqlite://", 7, create_engine("sqlite://")])
async def test_anything_else_is_refused(greet: Greet, other: Any) -> None:
    said = f"must be an sqlite3 or aiosqlite connection, an SQLAlchemy .*, not {type(other).__name__}$"
    with pytest.raises(ConfigurationError, match=said):
        await greet.using(connection=other).enqueue(name="Ana")
    with pytest.raises(ConfigurationError, match=said):
        greet.using(connection=other).enqueue_sync(name="Ana")


class OtherWrapper:
    """As Django has it over another database."""

    connection = threading.Thread()

    def ensure_connection(self) -> None: ...


async def test_another_driver_is_named(greet: Greet) -> None:
    with pytest.raises(ConfigurationError, match="not OtherWrapper over threading: have it use sqlite3 or aiosqlite"):
        await greet.using(connection=OtherWrapper()).enqueue(name="Ana")


@pytest.mark.parametrize("mode", ["NONE", "FULL", "INCREMENTAL"])
def test_the_callers_file_keeps_its_way_to_shrink(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA auto_vacuum = {mode}")
        connection.execute("CREATE TABLE rooms (number INTEGER)")
    DatabaseFile(path).prepare()
    assert ask(path, "PRAGMA auto_vacuum") == [["NONE", "FULL", "INCREMENTAL"].index(mode)]
