"""Which workers are alive, and which are woken."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mainspring.job import Move, Status
from mainspring.stores.protocol import Filter, TakeoverCause, Wake, WorkerInfo
from mainspring.stores.sqlite import SqliteStore, listener, liveness
from mainspring.stores.sqlite.listener import read_wakes
from mainspring.stores.sqlite.liveness import LONGEST_SOCKET_PATH, Liveness
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import Bell, end, ignore, join, new_job, put, running
from tests.stores.sqlite.processes import start
from tests.stores.sqlite.template import fresh_database

pytestmark = pytest.mark.slow

JOBS, CANCELLATIONS = Wake.JOBS, Wake.CANCELLATIONS


def a_worker(name: str = "w1", *queues: str) -> WorkerInfo:
    return WorkerInfo(id=name, host="host", pid=1, queues=queues or ("*",))


@pytest.fixture
def here(path: Path) -> Iterator[Liveness]:
    made = Liveness(path)
    yield made
    made.close()


@pytest.fixture
def elsewhere(path: Path) -> Iterator[Liveness]:
    """As another process has it."""
    made = Liveness(path)
    yield made
    made.close()


@pytest.fixture
def ear(elsewhere: Liveness) -> Iterator[socket.socket]:
    """The socket of w1, which works elsewhere."""
    listener = elsewhere.join(a_worker())
    assert listener
    yield listener
    listener.close()


@pytest.mark.usefixtures("ear")
def test_a_file_of_a_worker_that_died_before_it_had_written_it_is_removed(here: Liveness) -> None:
    ghost = here.directory / "ghost.lock"
    ghost.touch()
    here.sweep()
    assert not ghost.exists()
    assert [worker.id for worker in here.workers()] == ["w1"]


# -- alive and dead -------------------------------------------------------------------------------


def test_a_worker_lives_as_long_as_its_lock_is_held(here: Liveness, elsewhere: Liveness, ear: socket.socket) -> None:
    assert not here.dead("w1")
    assert not elsewhere.dead("w1")
    os.close(elsewhere._own.pop("w1"))  # what the kernel does when a process ends
    assert here.dead("w1")
    assert elsewhere.dead("w1")


def test_an_unknown_worker_is_dead(here: Liveness) -> None:
    assert here.dead("nobody")
    assert here.heartbeat_of("nobody") == 0


def test_to_ask_whether_it_lives_does_not_kill_it(here: Liveness, elsewhere: Liveness) -> None:
    (here.directory).mkdir()
    (here.directory / "w1.lock").touch()
    assert here.dead("w1")
    listener = elsewhere.join(a_worker())
    assert listener
    listener.close()
    assert not here.dead("w1")


def test_each_heartbeat_is_another(here: Liveness, elsewhere: Liveness, ear: socket.socket) -> None:
    """However quickly they follow each other: file systems by themselves stamp with a clock of some milliseconds."""
    beats = [here.heartbeat_of("w1")]
    for _ in range(50):
        elsewhere.beat("w1")
        beats.append(here.heartbeat_of("w1"))
    assert len(set(beats)) == len(beats)
    assert beats == sorted(beats)


def test_only_ones_own_worker_beats(here: Liveness, ear: socket.socket) -> None:
    before = here.heartbeat_of("w1")
    here.beat("w1")
    here.beat("nobody")
    assert here.heartbeat_of("w1") == before


def test_a_workers_description_can_be_read_by_other_processes(here: Liveness, ear: socket.socket) -> None:
    (info,) = here.workers()
    assert (info.id, info.host, info.queues, info.alive) == ("w1", "host", ("*",), True)
    assert info.seen_at
    assert info.started_at


@pytest.mark.parametrize("content", ["", "{", "[]", '{"id": "w2"}', "null"])
def test_a_file_that_is_not_written_yet_is_passed_over(here: Liveness, ear: socket.socket, content: str) -> None:
    (here.directory / "w2.lock").write_text(content)
    assert [info.id for info in here.workers()] == ["w1"]


def test_a_sweep_removes_what_the_dead_left_and_nothing_else(
    here: Liveness, elsewhere: Liveness, ear: socket.socket
) -> None:
    other = elsewhere.join(a_worker("w2"))
    assert other
    other.close()
    os.close(elsewhere._own.pop("w2"))
    here.sweep()
    assert sorted(entry.name for entry in here.directory.iterdir()) == ["w1.lock", "w1.sock"]
    assert [info.id for info in here.workers()] == ["w1"]


def test_leaving_removes_ones_files(here: Liveness, elsewhere: Liveness, ear: socket.socket) -> None:
    elsewhere.leave("w1")
    elsewhere.leave("w1")
    assert list(here.directory.iterdir()) == []
    assert here.dead("w1")


def test_joining_again_replaces_what_was_there(here: Liveness, elsewhere: Liveness, ear: socket.socket) -> None:
    again = elsewhere.join(a_worker("w1", "mail"))
    assert again
    again.close()
    assert [info.queues for info in here.workers()] == [("mail",)]
    assert not here.dead("w1")


@pytest.mark.slow
async def test_a_worker_that_is_killed_is_dead_at_once_whatever_its_children_do(store: SqliteStore, path: Path) -> None:
    """The child has inherited all descriptors of its parent; a lock among them would live on in it."""
    with start("join_and_fork", path) as worker:
        assert worker.stdout
        child = int(worker.stdout.readline())
        try:
            held = await running(store, worker="forked")
            assert (await store.reap()).takeovers == []
            worker.kill()
            worker.wait()
            os.kill(child, 0)  # is there
            (takeover,) = (await store.reap()).takeovers
        finally:
            os.kill(child, signal.SIGKILL)
    assert (takeover.job_id, takeover.worker, takeover.cause) == (held.id, "forked", TakeoverCause.CRASHED)


# -- wake-ups -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "about", "heard"),
    [
        (("mail",), ("mail",), JOBS),
        (("mail",), ("sms", "mail"), JOBS),
        (("mail",), ("sms",), Wake(0)),
        (("mail",), (), JOBS),
        (("*",), ("sms",), JOBS),
        (("mail", "ü\u2028"), ("ü\u2028",), JOBS),
    ],
)
def test_only_workers_that_serve_the_queue_hear_of_its_jobs(
    here: Liveness, ear: socket.socket, queues: tuple[str, ...], about: tuple[str, ...], heard: Wake
) -> None:
    here.wake(JOBS, about)
    assert read_wakes(ear, queues) == heard


def test_every_worker_hears_of_cancellations(here: Liveness, ear: socket.socket) -> None:
    here.wake(JOBS | CANCELLATIONS, ("sms",))
    assert read_wakes(ear, ("mail",)) == CANCELLATIONS


def test_many_wake_ups_are_heard_as_one(here: Liveness, ear: socket.socket) -> None:
    here.wake(JOBS, ("sms",))
    here.wake(JOBS, ("mail",))
    here.wake(CANCELLATIONS)
    assert read_wakes(ear, ("mail",)) == JOBS | CANCELLATIONS
    assert read_wakes(ear, ("mail",)) == Wake(0)


def test_an_unread_socket_does_not_block_other_workers(here: Liveness, elsewhere: Liveness, ear: socket.socket) -> None:
    reader = elsewhere.join(a_worker("w2"))
    assert reader
    for _ in range(1000):
        here.wake(JOBS)
        assert read_wakes(reader, ("*",)) == JOBS
    reader.close()
    assert read_wakes(ear, ("*",)) == JOBS


def test_a_socket_whose_worker_died_is_passed_over(here: Liveness, elsewhere: Liveness, ear: socket.socket) -> None:
    dead = elsewhere.join(a_worker("w0"))
    assert dead
    dead.close()
    here.wake(JOBS)
    assert read_wakes(ear, ("*",)) == JOBS


def test_a_worker_that_joins_later_is_woken(here: Liveness, elsewhere: Liveness, ear: socket.socket) -> None:
    here.wake(JOBS)
    late = elsewhere.join(a_worker("w2"))
    assert late
    here.wake(JOBS)
    assert read_wakes(late, ("*",)) == JOBS
    late.close()


def test_a_store_without_workers_sends_no_wake_ups(here: Liveness) -> None:
    here.wake(JOBS)
    assert here._sender is None


@pytest.mark.parametrize("depth", [1, 3])
async def test_a_long_path_has_room_for_a_socket(tmp_path: Path, depth: int) -> None:
    """The system has 108 bytes for a socket's address."""
    deep = tmp_path.joinpath(*["a directory with a rather long name, as people have them"] * depth)
    deep.mkdir(parents=True)
    assert len(os.fsencode(deep)) > LONGEST_SOCKET_PATH - 40
    path = fresh_database(deep)
    here, elsewhere = Liveness(path), Liveness(path)
    listener = elsewhere.join(a_worker())
    assert listener
    here.wake(JOBS)
    assert read_wakes(listener, ("*",)) == JOBS
    listener.close()
    here.close()
    elsewhere.close()


async def test_polling_replaces_a_missing_socket(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Liveness, "_listen", lambda *_: None)
    bell = Bell()
    await join(store, "w1", bell)
    assert await bell.hears(Wake.JOBS)
    await put(store)
    assert await bell.hears(Wake.JOBS)


async def test_a_commit_of_a_connection_that_is_not_ours_is_noticed(store: SqliteStore, path: Path) -> None:
    bell = Bell()
    await join(store, "w1", bell)
    assert await bell.hears(Wake.JOBS)
    with closing(sqlite3.connect(path)) as connection, connection:
        await store.insert([new_job()], connection)
    assert await bell.hears(Wake.JOBS)
    assert await store.count(Filter()) == 1


async def test_an_idle_store_wakes_no_worker(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "POLL_INTERVAL", 0.001)
    monkeypatch.setattr(listener, "LONGEST_SLEEP", 0.001)
    await put(store, delay=60_000)
    bell = Bell()
    await join(store, "w1", bell)
    await asyncio.sleep(0.05)
    assert await bell.hears(Wake.JOBS)
    for _ in range(20):
        await store.claim("w1", [])
        await store.heartbeat("w1", {})
        await store.reap()
        await asyncio.sleep(0.002)
    assert bell._heard == Wake(0)


async def test_a_stopped_worker_is_dead_after_the_lease_though_it_holds_its_lock(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    """Seen from another process: it knows the file's times only, and measures by its own clock."""
    observer = SqliteStore(path, clock=clock)
    await store.join(a_worker(), ignore)
    held = await running(store)
    assert (await observer.reap()).takeovers == []
    clock.advance(observer.lease - 1)
    assert (await observer.reap()).takeovers == []
    await store.heartbeat("w1", {held.id: held.token})
    clock.advance(observer.lease - 1)
    assert (await observer.reap()).takeovers == []
    clock.advance(observer.lease)
    (takeover,) = (await observer.reap()).takeovers
    assert takeover.job_id == held.id
    assert not observer.liveness.dead("w1")
    await observer.close()


def test_the_coarse_clock_of_the_file_system_is_waited_out(here: Liveness, ear: socket.socket) -> None:
    """A list of listeners is kept only when a later change of the directory must show in its time."""
    os.utime(here.directory)
    here.wake(JOBS)
    assert here._listed[0] == -1
    old = here.directory.stat().st_mtime_ns - 2 * liveness.COARSE_CLOCK
    os.utime(here.directory, ns=(old, old))
    here.wake(JOBS)
    assert here._listed == (old, ("w1.sock",))


async def test_a_worker_that_beats_again_before_its_takeover_is_written_keeps_its_jobs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a stop in the middle of a write: the takeover waits for the write lock until the worker goes on."""
    clock = ManualClock()
    stopped, watching = SqliteStore(path, clock=clock), SqliteStore(path, clock=clock)
    try:
        await join(stopped, "w1")
        held = await running(stopped)
        await join(watching, "watching")
        await watching.reap()
        clock.advance(watching.lease + 1)
        write = watching._write

        def after_a_heartbeat(operation: Any, items: list[Any]) -> Any:
            stopped.liveness.beat("w1")
            return write(operation, items)

        monkeypatch.setattr(watching, "_write", after_a_heartbeat)
        assert (await watching.reap()).takeovers == []
        assert await end(stopped, held, Move.DONE) is Status.COMPLETED
    finally:
        await stopped.close()
        await watching.close()
