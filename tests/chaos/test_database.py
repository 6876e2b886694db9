"""The database is locked, gone or another one for a while: a worker survives it and goes on when it is back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.processes import Nursery, Process
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

WORKER: dict[str, Any] = {
    "heartbeat_interval": 0.1,
    "maintenance_interval": 0.1,
    "settings": "busy_timeout=0.2",
    "log_level": "debug",
}
LOCKED = "StoreBusy: {path} is locked by another program; end its transaction and try again"
GONE = "StoreVanished: {path} is gone or was replaced while in use; put it back, and it will be opened again"


@pytest.fixture
def worker(nursery: Nursery) -> Process:
    """One that runs a job and does not know yet what will have become of its database when the job ends."""
    worker = nursery.start("work:work", **WORKER)
    nursery.run("enqueue:some", task="held_thread")
    wait_until(lambda: nursery.ledger.of("start"), worker.said)
    return worker


def test_a_locked_database(nursery: Nursery, worker: Process) -> None:
    with enqueuing(nursery) as enqueuer:
        with nursery.sqlite.locked():
            end_the_run_meanwhile(nursery, worker, enqueuer)
        wait_for_more(nursery, enqueuer)
    assert set(enqueuer.lines()) == {LOCKED.format(path=nursery.sqlite.path)}
    check(nursery, worker)


def test_a_database_that_is_gone_for_a_while(nursery: Nursery, worker: Process) -> None:
    with enqueuing(nursery) as enqueuer:
        with moved_away(nursery.sqlite.path):
            end_the_run_meanwhile(nursery, worker, enqueuer)
        wait_for_more(nursery, enqueuer)
    assert set(enqueuer.lines()) == {GONE.format(path=nursery.sqlite.path)}
    check(nursery, worker)


def test_a_database_that_was_restored_from_a_copy(nursery: Nursery, worker: Process) -> None:
    let_go(nursery)
    wait_until(lambda: ended(nursery) and not nursery.database.unfinished(), worker.said)
    restore(nursery.sqlite.path, nursery.folder / "copy.db")
    nursery.run("enqueue:some", number=20)
    check(nursery, worker)


@contextmanager
def enqueuing(nursery: Nursery) -> Iterator[Process]:
    """A process that enqueues all the while."""
    enqueuer = nursery.start("enqueue:stubbornly", settings="busy_timeout=0.2")
    wait_for_more(nursery, enqueuer)
    yield enqueuer
    (nursery.folder / "enough").touch()
    assert enqueuer.wait() == 0, enqueuer.said()


def wait_for_more(nursery: Nursery, enqueuer: Process) -> None:
    before = nursery.ledger.count("ack")
    wait_until(lambda: nursery.ledger.count("ack") > before, enqueuer.said)


def end_the_run_meanwhile(nursery: Nursery, worker: Process, enqueuer: Process) -> None:
    """Until both processes have met the trouble."""
    enqueuer.wait_for("Store", times=3)
    let_go(nursery)
    worker.wait_for('"loop": "acks"', times=2)
    worker.wait_for('"loop": "claim"')


def let_go(nursery: Nursery) -> None:
    (nursery.folder / "go-1").touch()


def ended(nursery: Nursery) -> bool:
    return nursery.ledger.acknowledged <= nursery.ledger.done.keys()


def check(nursery: Nursery, worker: Process) -> None:
    """All is done, and nothing twice, by a worker that was never restarted."""
    wait_until(lambda: ended(nursery), worker.said)
    assert worker.code is None, worker.said()
    assert nursery.ledger.problems(nursery.database.statuses()) == []
    assert {len(runs) for runs in nursery.ledger.runs.values()} == {1}
    assert nursery.database.ailments() == []


# -- trouble --------------------------------------------------------------------------------------


@contextmanager
def moved_away(database: Path) -> Iterator[None]:
    """The file itself goes first and comes back last: without it the others are nobody's."""
    away = database.parent / "away"
    away.mkdir()
    files = [Path(f"{database}{suffix}") for suffix in ("", "-wal", "-shm")]
    for file in files:
        file.rename(away / file.name)
    yield
    for file in reversed(files):
        (away / file.name).rename(file)


def restore(database: Path, copy: Path) -> None:
    """As a person would: a copy in place of the file, and of what belonged to that nothing."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{database}{suffix}").unlink()
    copy.rename(database)
