"""Between processes: the write lock is fair, wake-ups arrive without polling, and all may start at once."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import Chaos
from tests.chaos.database import SqliteDatabase
from tests.chaos.ledger import Ledger
from tests.chaos.processes import Forks, Nursery
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


def test_no_writer_starves_beside_another(nursery: Nursery) -> None:
    writers = [nursery.start("enqueue:flood", seconds=2) for _ in range(2)]
    wait_until(lambda: nursery.ledger.count("note") == 2, lambda: "both to be ready")
    (nursery.folder / "go").touch()
    for writer in writers:
        assert writer.wait() == 0, writer.said()
    shares = sorted(len(nursery.ledger.of("ack", who=writer.who)) for writer in writers)
    print(f"jobs of either writer: {shares}")
    assert shares[0] * 4 >= shares[1]


def test_an_idle_worker_is_woken_from_another_process(nursery: Nursery) -> None:
    """It does not poll at all here: without the wake-up nothing would ever start."""
    worker = nursery.start("work:work_without_polling")
    worker.wait_for("worker_started")
    nursery.run("enqueue:one_by_one", number=20)
    delays = start_delays(nursery.ledger)
    print(f"from enqueued to started: {statistics.median(delays) * 1000:.1f} ms")
    assert len(delays) == 20
    assert statistics.median(delays) < 0.05


def start_delays(ledger: Ledger) -> list[float]:
    """Seconds; a job may start before its enqueuer has written down that it was told so."""
    enqueued = {entry.job_id: entry.at for entry in ledger.of("ack")}
    return [max(0, runs[0].start - enqueued[job_id]) / 1e9 for job_id, runs in ledger.runs.items()]


WORKER: dict[str, Any] = {"concurrency": 2, "heartbeat_interval": 0.2, "maintenance_interval": 0.2}


def test_all_may_start_at_once_where_there_is_no_database_yet(forks: Forks, tmp_path: Path, chaos: Chaos) -> None:
    for number in range(chaos.size(3, 50)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Nursery(forks, folder, SqliteDatabase(folder / "jobs.db")) as nursery:
            start_at_once(nursery)


def start_at_once(nursery: Nursery) -> None:
    workers = [nursery.start("work:work", **WORKER) for _ in range(3)]
    enqueuers = [nursery.start("enqueue:some", number=5) for _ in range(5)]
    for enqueuer in enqueuers:
        assert enqueuer.wait() == 0, enqueuer.said()
    wait_until(lambda: nursery.ledger.acknowledged <= nursery.ledger.done.keys(), workers[0].said)
    for worker in workers:
        assert "locked" not in worker.said()
        assert worker.code is None, worker.said()
    assert nursery.ledger.problems(nursery.database.statuses()) == []
    assert nursery.database.ailments() == []
