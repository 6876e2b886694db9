"""A job that kills its worker ends in the dead letters and does not take others along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mainspring.job import MAX_CRASHES
from tests.chaos.conftest import Chaos, each_store_if_long
from tests.chaos.processes import ROOT, Nursery
from tests.chaos.programs.tasks import with_settings
from tests.chaos.waiting import DEADLINE

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@each_store_if_long
def test_a_job_that_segfaults_is_alone_in_the_dead_letters(nursery: Nursery, chaos: Chaos) -> None:
    others = chaos.size(1_000, 10_000)
    nursery.run("enqueue:some", number=others // 2)
    nursery.run("enqueue:some", number=1, task="segfault")
    nursery.run("enqueue:some", number=others // 2)
    with supervised_workers(nursery):
        nursery.wait_until_all_is_finished()
    assert nursery.ask("SELECT task, crashes FROM archive WHERE status <> 4") == [("segfault", MAX_CRASHES)]
    assert len(nursery.ask("SELECT id FROM archive WHERE status = 4")) == others
    check_ledger(nursery)
    assert nursery.database.ailments() == []


@contextmanager
def supervised_workers(nursery: Nursery) -> Iterator[None]:
    """`mainspring worker … --workers 2`, which starts another worker for each that dies."""
    command = [sys.executable, "-m", "mainspring", "worker", "tests.chaos.programs.shop:app", "--workers", "2"]
    environment = {
        **os.environ,
        "CHAOS_FOLDER": str(nursery.folder),
        "CHAOS_DATABASE": with_settings(nursery.database.url, nursery.database.watchful),
    }
    with (nursery.folder / "supervisor.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0, (nursery.folder / "supervisor.log").read_text()[-5000:]
    finally:
        process.kill()  # its children drain when it is gone
        process.wait()


def check_ledger(nursery: Nursery) -> None:
    """The poison ran three times and no more; its workers are dead, so whatever they had may have run again."""
    ledger = nursery.ledger
    (poison,) = [job_id for (job_id,) in nursery.ask("SELECT id FROM archive WHERE task = 'segfault'")]
    assert [run.end for run in ledger.runs[poison]] == [None] * MAX_CRASHES
    assert len({run.who for run in ledger.runs[poison]}) == MAX_CRASHES
    for run in ledger.runs[poison]:
        nursery.pen.write("kill", at=run.start, who=run.who)
    states = {job_id: status for job_id, status in nursery.database.statuses().items() if job_id != poison}
    assert nursery.ledger.problems({**states, poison: "completed"}) == []
