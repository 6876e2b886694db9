"""Small writes happen at once if the database is free, else in the writer, with the same result."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mainspring import Mainspring
from mainspring.errors import StoreVanished, SystemHalted
from mainspring.events import JobCreated
from mainspring.handle import JobHandle
from mainspring.job import Inserted, NewJob, Status
from mainspring.stores.protocol import Filter, Wake
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite.connection import WriteLock
from mainspring.stores.sqlite.store import MAX_INLINE_CLAIM
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import a_halt, claim, join, new_job, put, put_many
from tests.stores.sqlite.template import fresh_database
from tests.worker.working import eventually

T = TypeVar("T")


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(fresh_database(), clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
def by_writer(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each claim that the writer was asked for: its limit."""
    limits: list[int] = []
    original = SqliteStore._write

    def write(self: SqliteStore, operation: object, items: list[object], *, durable: bool = True) -> object:
        limits.extend(item.limit for item in items if hasattr(item, "limit"))
        return original(self, operation, items, durable=durable)  # type: ignore[arg-type]

    monkeypatch.setattr(SqliteStore, "_write", write)
    return limits


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """By a program that knows nothing of our lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


async def test_the_first_claim_is_at_once_and_the_next_ones_by_the_writer(
    store: SqliteStore, by_writer: list[int]
) -> None:
    first = await put(store)
    assert [held.id for held in await claim(store, 2)] == [first]
    assert by_writer == []
    second = await put(store)
    assert [held.id for held in await claim(store, 3)] == [second]
    assert by_writer == [3]


async def test_many_jobs_are_claimed_to_the_limit(store: SqliteStore, by_writer: list[int]) -> None:
    ids = await put_many(store, 30)
    held = await claim(store, 25)
    assert [job.id for job in held] == ids[:25]
    assert by_writer == [25 - MAX_INLINE_CLAIM]


async def test_a_gate_that_is_held_is_waited_for_by_the_writer(store: SqliteStore, by_writer: list[int]) -> None:
    job_id = await put(store)
    write_lock = WriteLock(store.file.path)
    with write_lock:
        claiming = asyncio.create_task(claim(store))
        await eventually(lambda: by_writer)
        assert not claiming.done()
    assert [held.id for held in await claiming] == [job_id]
    write_lock.close()


async def test_a_foreign_lock_is_waited_for_by_the_writer(store: SqliteStore, by_writer: list[int]) -> None:
    job_id = await put(store)
    with locked(store.file.path):
        claiming = asyncio.create_task(claim(store))
        await eventually(lambda: by_writer)
        assert not claiming.done()
    assert [held.id for held in await claiming] == [job_id]


async def test_the_writer_raises_what_a_claim_meets(store: SqliteStore, by_writer: list[int]) -> None:
    await put(store)
    assert store._threads
    store.file.path.unlink()
    with pytest.raises(StoreVanished, match="gone or was replaced"):
        await claim(store)
    assert len(by_writer) == 1


async def test_a_claim_that_finds_nothing_writes_nothing(store: SqliteStore) -> None:
    await put(store, delay=1000)
    before = store.file.path.with_name(f"{store.file.path.name}-wal").stat().st_size
    assert await claim(store) == []
    assert store.file.path.with_name(f"{store.file.path.name}-wal").stat().st_size == before


async def test_its_connection_leaves_checkpoints_and_the_disk_to_the_writer(store: SqliteStore) -> None:
    await put(store)
    await claim(store)
    assert store._threads
    with store._threads.writer._not_durable.use_at_once() as connection:
        assert connection is not None
        settings = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "busy_timeout")]
        assert settings == [1, 0]
        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone()[0] == 0


# -- enqueuing without an event loop ----------------------------------------------------------------------


@pytest.fixture
def shop(store: SqliteStore) -> Iterator[Mainspring]:
    app = Mainspring(store)

    @app.task(name="greet")
    async def greet(name: str) -> None: ...

    yield app
    app.runtime.services.portal.close()


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def calm(store: SqliteStore) -> None:
    """The writer has had nothing to do for a while."""
    threads = store._threads
    assert threads is not None
    await eventually(lambda: not threads.writer.busy)


def enqueue(app: Mainspring, name: str = "Ada", **options: Any) -> JobHandle[Any]:
    return app.tasks["greet"].using(**options).enqueue_sync(name=name)


@pytest.fixture
def inserts_by_writer(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each request that the writer was asked to insert: how many jobs."""
    numbers: list[int] = []
    original = SqliteStore.insert

    async def insert(self: SqliteStore, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        numbers.append(len(jobs))
        return await original(self, jobs, connection)

    monkeypatch.setattr(SqliteStore, "insert", insert)
    return numbers


async def test_a_caller_without_an_event_loop_inserts_in_its_own_thread(
    shop: Mainspring, store: SqliteStore, inserts_by_writer: list[int]
) -> None:
    first = await in_thread(lambda: enqueue(shop, dedupe_key="a"))
    second = await in_thread(lambda: enqueue(shop, dedupe_key="a"))
    assert (first.created, second.created, second.id) == (True, False, first.id)
    many = await in_thread(lambda: shop.tasks["greet"].enqueue_many_sync([{"name": "Ben"}] * 3))
    assert inserts_by_writer == []
    (counts,) = (await store.stats()).queues
    assert counts[Status.PENDING] == 4
    assert [held.id for held in await claim(store, 9)] == [first.id, *(job.id for job in many)]


async def test_a_worker_that_waits_is_woken_by_it(shop: Mainspring, store: SqliteStore) -> None:
    woken = asyncio.Event()
    await join(store, "w9", lambda wake: woken.set() if Wake.JOBS in wake else None)
    await woken.wait()  # a worker that joins is woken
    woken.clear()
    await in_thread(lambda: enqueue(shop))
    await woken.wait()
    await store.leave("w9")


async def test_the_writer_inserts_while_the_database_is_locked(
    shop: Mainspring, store: SqliteStore, inserts_by_writer: list[int]
) -> None:
    await in_thread(lambda: enqueue(shop))
    write_lock = WriteLock(store.file.path)
    with write_lock:
        waiting = asyncio.create_task(in_thread(lambda: enqueue(shop)))
        await eventually(lambda: inserts_by_writer == [1])
    assert (await waiting).created
    write_lock.close()
    await calm(store)
    with locked(store.file.path):
        assert await in_thread(lambda: store.insert_now([new_job()])) is None
    assert await store.count(Filter()) == 2


async def test_while_the_writer_is_busy_it_is_asked(
    shop: Mainspring, store: SqliteStore, inserts_by_writer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.stores.sqlite.writer.IDLE_AFTER", 3600.0)
    await put(store)
    inserts_by_writer.clear()
    await in_thread(lambda: enqueue(shop))
    assert inserts_by_writer == [1]


async def test_a_halted_system_refuses_it_at_once(
    shop: Mainspring, store: SqliteStore, clock: ManualClock, inserts_by_writer: list[int]
) -> None:
    await store.halt(a_halt(clock, accept=False))
    await calm(store)
    with pytest.raises(SystemHalted):
        await in_thread(lambda: enqueue(shop))
    assert inserts_by_writer == []


async def test_threads_that_enqueue_at_once_lose_nothing(shop: Mainspring, store: SqliteStore) -> None:
    handles = await asyncio.gather(*(in_thread(lambda: enqueue(shop)) for _ in range(60)))
    assert len({handle.id for handle in handles}) == 60
    assert await store.count(Filter()) == 60
    (counts,) = (await store.stats()).queues
    assert counts[Status.PENDING] == 60


async def test_a_vanished_file_raises_store_vanished(shop: Mainspring, store: SqliteStore) -> None:
    await in_thread(lambda: enqueue(shop))
    store.file.path.unlink()
    with pytest.raises(StoreVanished):
        await in_thread(lambda: enqueue(shop))


async def test_a_subscriber_gets_job_created(shop: Mainspring, inserts_by_writer: list[int]) -> None:
    heard: list[str] = []

    @shop.on(JobCreated)
    def note(event: JobCreated) -> None:
        heard.append(event.job_id)

    handle = await in_thread(lambda: enqueue(shop))
    assert heard == [handle.id]
    assert inserts_by_writer == [1]
