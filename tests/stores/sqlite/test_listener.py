"""Commits that send no message wake workers and readers nevertheless: the kernel tells of writes to the database."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mainspring.stores.protocol import Wake
from mainspring.stores.sqlite import SqliteStore, file_watch, listener
from mainspring.stores.sqlite.connection import FileConnection
from mainspring.stores.sqlite.listener import Listener
from tests.conformance.scenario import Bell, new_job
from tests.stores.sqlite.template import fresh_database
from tests.worker.working import eventually

NEVER = 3600.0  # seconds
BRIEF = 0.001

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of writes to files by inotify")


@contextmanager
def listening(store: SqliteStore, bell: Callable[[Wake], None]) -> Iterator[None]:
    """Without a socket: so it hears of commits only by the file."""
    listening = Listener(None, store.file, (), bell)
    try:
        yield
    finally:
        listening.stop()


@pytest.fixture
async def bell(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bell]:
    """Of a listener that never looks at the database without a reason, and has settled."""
    monkeypatch.setattr(listener, "LONGEST_SLEEP", NEVER)
    bell = Bell()
    with listening(store, bell):
        await watched(store, bell)
        yield bell


async def watched(store: SqliteStore, bell: Bell) -> None:
    """Wait until commits are noticed. A listener begins to watch a moment after its first look."""
    assert await bell.hears(Wake.JOBS)
    commit(store.file.path)
    assert await bell.hears(Wake.JOBS)


def commit(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS application (text TEXT)")
        connection.execute("INSERT INTO application VALUES ('')")


async def test_a_commit_of_the_applications_own_connection_is_noticed_without_polling(
    store: SqliteStore, bell: Bell, path: Path
) -> None:
    for _ in range(3):
        with closing(sqlite3.connect(path)) as connection, connection:
            await store.insert([new_job()], connection)
        assert await bell.hears(Wake.JOBS)


async def test_a_commit_long_after_the_first_write_of_its_transaction_is_noticed(
    bell: Bell, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LOOKS_AFTER_WRITE", ())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA cache_size = 1")  # so that it writes before it commits
        connection.executemany("INSERT INTO application VALUES (?)", [("x" * 3000,)] * 100)
        size = Path(f"{path}-wal").stat().st_size
        assert size > 100_000
        await asyncio.sleep(0.05)
        connection.commit()
    assert await bell.hears(Wake.JOBS)


async def test_a_commit_that_becomes_visible_after_its_write_is_noticed(
    store: SqliteStore, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be slow: the log is written, then synced, and only then other connections see the commit."""
    hidden = [True, True, True]
    seen = Listener._wake_after_commit

    def look(self: Listener, connection: FileConnection, last: listener.Version | None) -> listener.Version | None:
        return last if hidden and hidden.pop() else seen(self, connection, last)

    monkeypatch.setattr(Listener, "_wake_after_commit", look)
    commit(store.file.path)
    assert await bell.hears(Wake.JOBS)
    assert hidden == []


async def test_a_file_that_takes_the_place_of_the_database_is_watched_too(
    store: SqliteStore, bell: Bell, path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = fresh_database(folder)
    for name in (f"{path}-wal", f"{path}-shm"):
        Path(name).unlink(missing_ok=True)
    other.replace(path)
    assert await bell.hears(Wake.JOBS)
    await eventually(lambda: heard_after_commit(path, bell))


async def heard_after_commit(path: Path, bell: Bell) -> bool:
    commit(path)
    return await bell.hears(Wake.JOBS)


async def test_an_idle_listener_does_not_look_at_the_database(
    store: SqliteStore, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "POLL_INTERVAL", BRIEF)
    monkeypatch.setattr(listener, "LOOKS_AFTER_WRITE", (BRIEF,))
    commit(store.file.path)
    assert await bell.hears(Wake.JOBS)
    looks: list[listener.Version | None] = []

    def look(self: Listener, connection: FileConnection, last: listener.Version | None) -> listener.Version | None:
        looks.append(last)
        return last

    monkeypatch.setattr(Listener, "_wake_after_commit", look)
    await asyncio.sleep(0.1)  # what is left of the looks after the commit
    looks.clear()
    await asyncio.sleep(0.1)
    assert looks == []


@pytest.mark.parametrize("missing", ["no inotify", "no room for one more"])
async def test_without_word_from_the_kernel_commits_are_noticed_by_polling(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    class Full:
        def inotify_init1(self, flags: int) -> int:
            return -1

    monkeypatch.setattr(file_watch, "libc", lambda: None if missing == "no inotify" else Full())
    monkeypatch.setattr(listener, "LONGEST_SLEEP", NEVER)
    monkeypatch.setattr(listener, "POLL_INTERVAL", BRIEF)
    bell = Bell()
    with listening(store, bell):
        await watched(store, bell)


async def test_many_commits_do_not_wake_more_often_than_the_pace_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    pace = listener.WakePace()
    for _ in range(listener.MAX_WAKES - 1):
        await pace.rest()
    assert rests == []  # a few commits wake at once
    await pace.rest()
    assert 0 < rests[0] <= 1
