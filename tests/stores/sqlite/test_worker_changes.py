"""Workers in the change feed: what it has of them when a process dies, or the file is locked, at any moment."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mainspring.errors import StoreBusy
from mainspring.job import Move, Status
from mainspring.stores.feed import ChangeKind
from mainspring.stores.protocol import WorkerInfo
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.clock import ManualClock
from tests.conformance.feed import Reader, from_now
from tests.conformance.scenario import end, ignore, join, present, running
from tests.stores.sqlite.processes import start

pytestmark = pytest.mark.slow

PATIENCE = 20.0  # seconds; only a failing test ever waits this long
ABOUT_WORKERS = {ChangeKind.WORKER_JOINED, ChangeKind.WORKER_LEFT, ChangeKind.WORKER_DIED}


@pytest.fixture
async def reader(store: SqliteStore) -> Reader:
    return await from_now(store)


@pytest.fixture
async def other(path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    """As another process has it. It waits long for a lock."""
    other = SqliteStore(path, clock=clock, busy_timeout=PATIENCE)
    await other.open()
    yield other
    await other.close()


class Lock:
    """Another program, which keeps the file locked."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.take()

    def take(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        self._connection.execute("ROLLBACK")


@pytest.fixture
def locked(path: Path) -> Iterator[Callable[[], Lock]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield lambda: Lock(connection)


async def workers_in(reader: Reader) -> list[str]:
    """What the feed says of workers since the last call."""
    return [f"{change.kind} {change.data['worker']}" for change in await reader.read() if change.kind in ABOUT_WORKERS]


def remote(worker: str) -> WorkerInfo:
    return WorkerInfo(worker, "elsewhere", 0, ("*",), remote=True)


def kill(store: SqliteStore, worker: str) -> None:
    """Do what the kernel does when the worker's process ends."""
    os.close(store.liveness._own.pop(worker))


def files_of(store: SqliteStore, worker: str) -> list[str]:
    return sorted(path.name for path in store.liveness.directory.glob(f"{worker}.lo*")) + sorted(
        path.name for path in store.liveness.directory.glob(f"{worker}.lease")
    )


async def until(condition: Callable[[], bool]) -> None:
    end_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end_at
        await asyncio.sleep(0.005)


def end_process(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


# -- deaths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [0, 1])
@pytest.mark.parametrize("is_remote", [True, False])
async def test_a_death_is_recorded_though_the_process_that_found_it_died(
    path: Path, store: SqliteStore, locked: Callable[[], Lock], is_remote: bool, held: int
) -> None:
    """The process is killed when it has removed the files of the dead worker, and before its commit."""
    if is_remote:
        await store.join(remote("gone"), None)
    else:
        await join(store, "gone")
    if held:
        await running(store, worker="gone")
    reader = await from_now(store)
    if not is_remote:
        kill(store, "gone")
    lock = locked()
    with start("reap", path) as reaper:
        try:
            await until(lambda: files_of(store, "gone") == [])
            await asyncio.sleep(0.05)
        finally:
            end_process(reaper)
            lock.release()
    assert await reader.read() == []
    reaped = await store.reap()
    assert len(reaped.takeovers) == held
    assert reaped.dead == {"gone"}
    assert await workers_in(reader) == ["worker_died gone"]
    await store.reap()
    assert await workers_in(reader) == []


async def test_a_death_is_committed_with_the_takeover(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    await join(store, "gone")
    await running(store, worker="gone")
    kill(store, "gone")
    commits: list[list[str]] = []
    with closing(sqlite3.connect(path)) as connection:
        (last,) = connection.execute("SELECT max(number) FROM mainspring_changes").fetchone()

    def look() -> None:
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT kind FROM mainspring_changes WHERE number > ?", (last,))
            commits.append(sorted(kind for (kind,) in rows))

    monkeypatch.setattr(store.liveness, "wake_readers", look)
    await store.reap()
    assert commits == [["released", "stalled", "worker_died"]]


async def test_two_processes_that_find_a_death_at_once_record_it_once(
    store: SqliteStore, other: SqliteStore, path: Path, clock: ManualClock, locked: Callable[[], Lock]
) -> None:
    third = SqliteStore(path, clock=clock, busy_timeout=PATIENCE)
    await join(store, "gone")
    await running(store, worker="gone")
    reader = await from_now(store)
    kill(store, "gone")
    lock, waiting = locked(), count_writes(other, third)
    both = asyncio.gather(other.reap(), third.reap())
    await until(lambda: len(waiting) == 2)  # both have found it dead
    lock.release()
    assert [reaped.dead for reaped in await both] == [{"gone"}] * 2
    assert await workers_in(reader) == ["worker_died gone"]
    await third.close()


def count_writes(*stores: SqliteStore) -> list[str]:
    """Return a list that gets the name of each write from now on."""
    names: list[str] = []
    for store in stores:
        write: Any = store._write

        def counted(operation: Any, items: list[Any], write: Any = write, **options: Any) -> Any:
            names.append(operation.__name__)
            return write(operation, items, **options)

        store._write = counted  # type: ignore[method-assign]
    return names


async def test_a_death_that_could_not_be_written_is_reported_and_recorded_later(
    store: SqliteStore, other: SqliteStore, reader: Reader, clock: ManualClock, locked: Callable[[], Lock]
) -> None:
    for worker in ("gone", "stopped"):
        await join(other, worker)
    await store.reap()
    clock.advance(store.lease + 1)
    kill(other, "gone")
    lock = locked()
    with pytest.raises(StoreBusy):
        await store.reap()
    lock.release()
    assert (await store.reap()).dead == {"gone", "stopped"}
    assert await workers_in(reader) == ["worker_joined gone", "worker_joined stopped", "worker_died gone"]
    assert (await store.reap()).dead == frozenset()


async def test_each_death_of_a_worker_with_the_same_id_is_recorded(store: SqliteStore, reader: Reader) -> None:
    for _ in range(3):
        await join(store, "again")
        kill(store, "again")
        assert (await store.reap()).dead == {"again"}
        assert await workers_in(reader) == ["worker_joined again", "worker_died again"]


async def test_a_worker_that_is_back_before_its_death_was_noticed_has_not_died(
    store: SqliteStore, other: SqliteStore, reader: Reader
) -> None:
    await join(store, "back")
    kill(store, "back")
    await join(other, "back")
    assert (await store.reap()).dead == frozenset()
    assert await workers_in(reader) == ["worker_joined back"]
    kill(other, "back")
    await store.reap()
    assert await workers_in(reader) == ["worker_died back"]


@pytest.mark.parametrize("joins", [True, False])
async def test_a_remote_worker_that_is_back_before_its_death_is_written(
    store: SqliteStore, other: SqliteStore, clock: ManualClock, locked: Callable[[], Lock], joins: bool
) -> None:
    """Its file is removed by then. If it joins again, it keeps its job; a mere heartbeat tells it to join again."""
    await store.join(remote("far"), None)
    held = await running(store, worker="far")
    await other.reap()
    clock.advance(other.lease + 1)
    reader, lock = await from_now(store), locked()
    reaping = asyncio.ensure_future(other.reap())
    await until(lambda: files_of(store, "far") == [])
    if joins:
        store.liveness.join(remote("far"), listen=False)
    assert store.liveness.beat("far") is joins
    lock.release()
    assert len((await reaping).takeovers) == (not joins)
    await store.join(remote("far"), None)
    assert await workers_in(reader) == ([] if joins else ["worker_died far", "worker_joined far"])
    assert await end(store, held, Move.DONE) is (Status.COMPLETED if joins else None)


async def test_a_stopped_worker_is_not_written_again_and_again(
    store: SqliteStore, other: SqliteStore, reader: Reader, clock: ManualClock
) -> None:
    """It holds its lock. It goes on without joining again when it is continued."""
    await join(store, "stopped")
    await running(store, worker="stopped")
    await other.reap()
    clock.advance(other.lease + 1)
    assert len((await other.reap()).takeovers) == 1
    writes = count_writes(other)
    await other.reap()
    assert writes == []
    assert await workers_in(reader) == ["worker_joined stopped"]
    kill(store, "stopped")
    await other.reap()
    assert await workers_in(reader) == ["worker_died stopped"]


async def test_a_store_that_is_closed_without_leaving_was_a_death(
    store: SqliteStore, path: Path, reader: Reader
) -> None:
    closed = SqliteStore(path)
    await join(closed, "gone")
    await closed.close()
    await store.reap()
    assert await workers_in(reader) == ["worker_joined gone", "worker_died gone"]


# -- joining --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_remote", [True, False])
async def test_a_worker_that_cannot_be_recorded_has_not_joined(
    store: SqliteStore, reader: Reader, locked: Callable[[], Lock], is_remote: bool
) -> None:
    info = remote("w3") if is_remote else WorkerInfo("w3", "host", 1, ("*",))
    lock = locked()
    with pytest.raises(StoreBusy):
        await store.join(info, ignore)
    assert list(store.liveness.directory.iterdir()) == []
    lock.release()
    assert (await store.reap()).dead == frozenset()
    assert await workers_in(reader) == []
    await store.join(info, ignore)
    assert await workers_in(reader) == ["worker_joined w3"]


async def test_a_worker_that_cannot_join_again_goes_on_as_before(
    store: SqliteStore, other: SqliteStore, reader: Reader, locked: Callable[[], Lock]
) -> None:
    await join(store, "w3")
    held, lock = await running(store, worker="w3"), locked()
    with pytest.raises(StoreBusy):
        await join(store, "w3")
    lock.release()
    assert (await other.reap()).takeovers == []
    assert await end(store, held, Move.DONE) is Status.COMPLETED
    assert await workers_in(reader) == ["worker_joined w3"]


async def test_a_cancelled_join_leaves_no_worker(
    other: SqliteStore, store: SqliteStore, reader: Reader, locked: Callable[[], Lock]
) -> None:
    lock, writes = locked(), count_writes(other)
    joining = asyncio.ensure_future(join(other, "w3"))
    await until(lambda: bool(writes))
    await asyncio.sleep(0.05)  # the writer waits for the lock
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    lock.release()
    await other.wait_to_write()
    assert await present(store) == set()
    await store.reap()
    assert await workers_in(reader) == ["worker_joined w3", "worker_died w3"]


async def test_a_worker_that_died_while_it_joined_is_not_recorded(
    path: Path, store: SqliteStore, reader: Reader, locked: Callable[[], Lock]
) -> None:
    lock = locked()
    with start("join_and_wait", path) as worker:
        try:
            await until(lambda: bool(files_of(store, "joining")))
            await asyncio.sleep(0.05)
        finally:
            end_process(worker)
            lock.release()
    assert (await store.reap()).dead == {"joining"}
    assert files_of(store, "joining") == []
    assert await workers_in(reader) == []


async def test_joining_again_commits_nothing(store: SqliteStore, path: Path) -> None:
    await store.join(remote("far"), None)
    with closing(sqlite3.connect(path)) as connection:
        (before,) = connection.execute("PRAGMA data_version").fetchone()
        await store.join(remote("far"), None)
        assert connection.execute("PRAGMA data_version").fetchone() == (before,)


# -- leaving --------------------------------------------------------------------------------------


async def test_a_worker_that_could_not_be_recorded_as_left_has_died(
    store: SqliteStore, other: SqliteStore, reader: Reader, locked: Callable[[], Lock]
) -> None:
    await join(store, "w3")
    lock = locked()
    with pytest.raises(StoreBusy):
        await store.leave("w3")
    lock.release()
    for _ in range(2):
        await other.reap()
    assert await workers_in(reader) == ["worker_joined w3", "worker_died w3"]


@pytest.mark.parametrize("is_remote", [True, False])
async def test_a_worker_that_died_after_it_was_recorded_as_left_has_not_died(
    store: SqliteStore, reader: Reader, clock: ManualClock, is_remote: bool
) -> None:
    """It was killed before it had removed its files."""
    await store.join(remote("w3") if is_remote else WorkerInfo("w3", "host", 1, ("*",)), ignore)
    (file,) = (store.liveness.directory / name for name in files_of(store, "w3"))
    content = file.read_bytes()
    await store.leave("w3")
    file.write_bytes(content)
    await store.reap()
    clock.advance(store.lease + 1)
    await store.reap()
    assert files_of(store, "w3") == []
    assert await workers_in(reader) == ["worker_joined w3", "worker_left w3"]
