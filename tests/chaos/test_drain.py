"""SIGTERM and SIGINT: nothing new, what runs may finish, the rest is handed back and has lost nothing."""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import each_store_if_long
from tests.chaos.processes import Nursery, Process
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

A_MOMENT = 5.0  # seconds; far more than a process that ends has left to do
UNTOUCHED = [(0, 0, 0)]
LEFT = "SELECT DISTINCT status, attempts, crashes FROM jobs"
ENDED = "SELECT status, token, attempts, crashes, worker FROM archive WHERE task <> 'child'"
RUNNING = "SELECT id FROM jobs WHERE status = 3"


def start_held(nursery: Nursery, task: str, number: int = 1, **worker: Any) -> Process:
    """A worker whose slots are all taken."""
    process = nursery.start("work:work", "first", concurrency=number, **worker)
    nursery.run("enqueue:some", task=task, number=number)
    wait_until(lambda: len(nursery.ledger.of("start")) == number, process.said)
    return process


@each_store_if_long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_may_finish_and_nothing_new_is_claimed(nursery: Nursery, number: signal.Signals) -> None:
    worker = start_held(nursery, "held", 2)
    worker.send(number)
    worker.wait_for("worker_stopping")
    nursery.run("enqueue:some", number=3)
    (nursery.folder / "go-1").touch()
    assert worker.wait() == 0, worker.said()
    assert nursery.ask("SELECT status, token FROM archive") == [(4, 1), (4, 1)]
    assert nursery.ask("SELECT DISTINCT task FROM jobs ORDER BY 1") == [("child",), ("quick",)]
    assert nursery.ask(LEFT) == UNTOUCHED


@each_store_if_long
def test_what_was_claimed_ahead_is_handed_back_at_once(nursery: Nursery) -> None:
    worker = nursery.start("work:work", "first", concurrency=2, prefetch=20)
    nursery.run("enqueue:some", number=500)  # quick ones, from which it learns to claim ahead
    nursery.run("enqueue:some", task="held", number=40)
    wait_until(lambda: len(nursery.ledger.of("start")) == 500 + 2, worker.said)
    assert len(nursery.ask(RUNNING)) > 2
    worker.send(signal.SIGTERM)
    wait_until(lambda: len(nursery.ask(RUNNING)) == 2, worker.said)
    assert worker.code is None
    (nursery.folder / "go-1").touch()
    assert worker.wait() == 0, worker.said()
    assert nursery.ask(f"{LEFT} WHERE task = 'held'") == UNTOUCHED
    assert nursery.ask("SELECT count(*) FROM archive WHERE task = 'held'") == [(2,)]


@each_store_if_long
def test_what_does_not_finish_within_the_grace_is_handed_back(nursery: Nursery) -> None:
    worker = start_held(nursery, "held", 3, grace=0.2)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.said()
    assert nursery.ask(LEFT) == UNTOUCHED
    assert len(nursery.ask("SELECT id FROM jobs")) == 3


@each_store_if_long
def test_a_second_signal_stops_at_once(nursery: Nursery) -> None:
    worker = start_held(nursery, "held", 3, grace=3600)
    worker.send(signal.SIGTERM)
    worker.wait_for("worker_stopping")
    wait_until(lambda: worker.send(signal.SIGTERM) and worker.code is not None, worker.said, every=0.3)
    assert worker.wait() == 0, worker.said()
    assert nursery.ask(LEFT) == UNTOUCHED


@each_store_if_long
def test_a_thread_that_does_not_listen_is_left_behind(nursery: Nursery) -> None:
    """Its job is handed back. The thread ends with its process: milliseconds later, on a machine that is not busy."""
    worker = start_held(nursery, "ticking", grace=0.1, last_words=0.3)
    successor = nursery.start("work:work", "second")
    successor.wait_for("worker_started")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 1, worker.said()
    (nursery.folder / "go-2").touch()
    wait_until(lambda: nursery.ledger.done, successor.said)
    assert nursery.ask(ENDED) == [(4, 2, 1, 0, "second")]
    last = nursery.ledger.of("note", who="first")[-1].at
    began = nursery.ledger.of("start", who="second")[0].at
    print(f"both ran for {(last - began) / 1e6:.1f} ms")
    assert last - began < A_MOMENT * 1e9


def test_a_worker_stops_although_the_database_is_locked(nursery: Nursery) -> None:
    """It cannot hand back what it has; the next worker takes it over."""
    worker = start_held(nursery, "held", grace=0.1, last_writes=0.3, settings="busy_timeout=0.1")
    with nursery.sqlite.locked():
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.said()
    successor = nursery.start("work:work", "second")
    (nursery.folder / "go-2").touch()
    wait_until(lambda: nursery.ledger.done, successor.said)
    assert nursery.ask(ENDED) == [(4, 2, 1, 1, "second")]


def test_a_second_signal_stops_a_worker_whose_store_never_answers(nursery: Nursery) -> None:
    """Somebody was stopped in the middle of a write, and holds the write lock."""
    worker = start_held(nursery, "held", last_words=0.3)
    with closing_gate(nursery.sqlite.path):
        worker.send(signal.SIGTERM)
        worker.wait_for("worker_stopping")
        wait_until(lambda: worker.send(signal.SIGTERM) and worker.code is not None, worker.said, every=0.3)
    assert worker.wait() == 1, worker.said()


@contextmanager
def closing_gate(database: Path) -> Iterator[None]:
    with Path(f"{database}-lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
