"""The change feed and callers' transactions; numbers that are never used again."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mainspring.job import Move
from mainspring.stores.feed import ChangeKind
from mainspring.stores.sqlite import SqliteStore, changes
from tests.conformance.feed import Reader, from_now, heard, shape
from tests.conformance.scenario import claim_one, join, new_job, outcome, put, running


@pytest.fixture
def lent(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of the application."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


@pytest.fixture
async def reader(store: SqliteStore) -> Reader:
    await join(store, "w1")
    return await from_now(store)


async def test_jobs_are_recorded_with_the_callers_commit(
    store: SqliteStore, reader: Reader, lent: sqlite3.Connection
) -> None:
    job = new_job()
    lent.execute("BEGIN IMMEDIATE")
    await store.insert([job], lent)
    assert await reader.read() == []
    lent.execute("COMMIT")
    assert shape(await reader.read()) == [("created", job.id)]


@pytest.mark.parametrize("asked", [True, False])
async def test_readers_are_woken_for_claims_only_if_one_asks_for_starts(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    await join(store, "w1")
    await from_now(store, starts=asked)
    await put(store)
    calls: list[None] = []
    monkeypatch.setattr(store.liveness, "wake_readers", lambda: calls.append(None))
    await claim_one(store)
    assert len(calls) == asked


async def test_what_the_caller_rolls_back_is_not_in_the_feed(
    store: SqliteStore, reader: Reader, lent: sqlite3.Connection
) -> None:
    kept, after = new_job(), new_job()
    lent.execute("BEGIN IMMEDIATE")
    await store.insert([new_job()], lent)
    lent.execute("ROLLBACK")
    lent.execute("BEGIN IMMEDIATE")
    await store.insert([kept], lent)
    lent.execute("SAVEPOINT s")
    await store.insert([new_job(), new_job()], lent)
    lent.execute("ROLLBACK TO s")
    await store.insert([after], lent)
    lent.execute("COMMIT")
    assert shape(await reader.read()) == [("created", kept.id), ("created", after.id)]


async def test_a_completion_is_recorded_with_its_commit(store: SqliteStore, reader: Reader) -> None:
    held, failed = await running(store), await running(store)
    await reader.read()
    async with store.completion(lambda: outcome(held, Move.DONE, follow_ups=(new_job(),))):
        assert await reader.read() == []
    assert {change.kind for change in await reader.read()} == {ChangeKind.COMPLETED, ChangeKind.CREATED}
    with pytest.raises(ZeroDivisionError):
        async with store.completion(lambda: outcome(failed, Move.DONE)):
            raise ZeroDivisionError
    assert await reader.read() == []


async def test_a_reader_notices_a_commit_of_the_callers(
    store: SqliteStore, reader: Reader, lent: sqlite3.Connection
) -> None:
    """Nothing is sent then: the reader notices that the file has changed."""
    news = asyncio.Event()
    async with store.watching(news.set):
        await reader.read()
        lent.execute("BEGIN IMMEDIATE")
        await store.insert([new_job()], lent)
        lent.execute("COMMIT")
        await heard(news, reader)


async def test_a_full_feed_loses_its_oldest_entries_and_says_so(
    store: SqliteStore, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await put(store) for _ in range(6)]
    cursors = [change.cursor for change in await reader.read()]
    monkeypatch.setattr(changes, "MAX_ENTRIES", 3)
    await store.prune()
    assert [(await store.changes(cursor)).reset for cursor in cursors] == [True, True, False, False, False, False]
    assert shape(await Reader(store, cursors[2]).read()) == [("created", job_id) for job_id in jobs[3:]]


async def test_without_the_last_entry_numbers_are_used_again_and_a_reader_loses_changes(
    store: SqliteStore, reader: Reader, lent: sqlite3.Connection
) -> None:
    """This is why retention keeps the last entry. The clock stands still here, or the mark would show it."""
    await put(store)
    await reader.read()
    lent.execute("DELETE FROM mainspring_changes WHERE number = (SELECT max(number) FROM mainspring_changes)")
    await put(store)
    assert await reader.read() == []  # it has lost a change


async def test_a_restored_backup_resets_readers(store: SqliteStore, reader: Reader, path: Path, tmp_path: Path) -> None:
    """The numbers after the backup exist again, with other changes."""
    await put(store)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
        source.backup(backup)
    await put(store)
    await reader.read()
    await store.close()
    restored = SqliteStore(Path(shutil.copyfile(tmp_path / "backup.db", tmp_path / "restored.db")), clock=store.clock)
    try:
        assert (await restored.changes(reader.cursor)).reset
        store.clock.advance(1)  # type: ignore[attr-defined]
        await put(restored)
        assert (await restored.changes(reader.cursor)).reset
    finally:
        await restored.close()
