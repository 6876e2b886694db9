"""An idle worker's claim: at once if nobody is in the way, else by the writer; the same jobs either way."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mainspring.errors import StoreVanished
from mainspring.stores.sqlite import SqliteStore, express
from mainspring.stores.sqlite.gate import Gate
from mainspring.testing.clock import ManualClock
from mainspring.testing.conformance.scene import claim, put, put_many
from tests.stores.sqlite.template import fresh_database
from tests.worker.working import eventually


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
    """By a program that knows nothing of our gate."""
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
    assert [one.id for one in held] == ids[:25]
    assert by_writer == [25 - express.MOST]


async def test_a_gate_that_is_held_is_waited_for_by_the_writer(store: SqliteStore, by_writer: list[int]) -> None:
    job_id = await put(store)
    gate = Gate(store.file.path)
    with gate:
        claiming = asyncio.create_task(claim(store))
        await eventually(lambda: by_writer)
        assert not claiming.done()
    assert [held.id for held in await claiming] == [job_id]
    gate.close()


async def test_a_foreign_lock_is_waited_for_by_the_writer(store: SqliteStore, by_writer: list[int]) -> None:
    job_id = await put(store)
    with locked(store.file.path):
        claiming = asyncio.create_task(claim(store))
        await eventually(lambda: by_writer)
        assert not claiming.done()
    assert [held.id for held in await claiming] == [job_id]


async def test_what_is_wrong_is_told_by_the_writer(store: SqliteStore, by_writer: list[int]) -> None:
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
    with store._threads.express._link.use_at_once() as connection:
        assert connection is not None
        settings = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "busy_timeout")]
        assert settings == [1, 0]
        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone()[0] == 0
