"""Real parents with real children; what is waited for is in the log or in the process table."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from mainspring.cli.exits import Exit
from mainspring.cli.supervisor import describe
from mainspring.ids import new_id
from mainspring.job import NewJob, Status
from mainspring.worker.program import SAME_SIGNAL_WITHIN
from tests.cli.conftest import Shop, Start, Started
from tests.cli.test_worker import APP
from tests.cli.waiting import alive, wait_until

pytestmark = pytest.mark.slow

STUCK_APP = (
    APP.replace("shop.db", "shop.db?stall_grace=0.1")
    + """

import time

@app.task()
def hang() -> None:
    time.sleep(3600)
"""
)


@pytest.fixture(autouse=True)
def _application(tmp_path: Path) -> None:
    (tmp_path / "shop_app.py").write_text(APP)


@pytest.fixture
def pair(start: Start) -> Started:
    supervisor = start("worker", "shop_app:app", "--workers", "2", "--json")
    supervisor.wait_for("worker_started", 2)
    return supervisor


def test_all_drain_and_it_exits_with_0(pair: Started, shop: Shop) -> None:
    job_id = shop.enqueue()
    wait_until(lambda: shop.status(job_id) is Status.COMPLETED)
    pair.process.send_signal(signal.SIGTERM)
    assert pair.process.wait() == 0
    assert len(pair.lines("worker_stopped")) == 2
    assert not any(alive(pid) for pid in pair.children())


def test_a_child_that_dies_is_replaced(pair: Started) -> None:
    victim = pair.children()[0]
    os.kill(victim, signal.SIGKILL)
    pair.wait_for("worker_started", 3)
    (ended,) = pair.lines("worker_process_ended")
    assert (ended["signal"], ended["restart_in"]) == ("SIGKILL", 0.1)
    os.kill(pair.children()[2], signal.SIGKILL)
    pair.wait_for("worker_started", 4)
    assert pair.lines("worker_process_ended")[1]["restart_in"] == 0.2  # it died young, so we are slower
    pair.process.send_signal(signal.SIGINT)
    assert pair.process.wait() == 0


def test_a_child_whose_slots_are_stuck_is_replaced(start: Start, shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "shop_app.py").write_text(STUCK_APP)
    supervisor = start("worker", "shop_app:app", "--workers", "1", "--reload", "--concurrency", "2", "--json")
    supervisor.wait_for("worker_started")
    shop.app.run(shop.app.store.insert([NewJob(id=new_id(), task="hang", payload="{}", timeout=100, max_attempts=1)]))
    supervisor.wait_for("worker_started", 2)
    (ended,) = supervisor.lines("worker_process_ended")
    assert ended["exit_code"] == Exit.STUCK
    (line,) = supervisor.lines("slot_stuck")
    assert (line["task"], "in hang: time.sleep(3600)" in line["stack"].splitlines()[-1]) == ("hang", True)
    job_id = shop.enqueue()
    wait_until(lambda: shop.status(job_id) is Status.COMPLETED, supervisor.log.read_text)
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.process.wait() == 0


def test_children_end_when_the_parent_is_killed(pair: Started, shop: Shop) -> None:
    job_id = shop.enqueue()
    wait_until(lambda: shop.status(job_id) is Status.COMPLETED)
    pair.process.kill()
    pair.process.wait()
    wait_until(lambda: not any(alive(pid) for pid in pair.children()), pair.log.read_text)
    assert len(pair.lines("parent_gone")) == 2
    assert len(pair.lines("worker_stopped")) == 2  # they drained


def test_a_second_signal_is_passed_on(pair: Started, shop: Shop) -> None:
    job_id = shop.nightly.enqueue_sync(day="monday").id
    wait_until(lambda: shop.status(job_id) is Status.RUNNING)
    pair.process.send_signal(signal.SIGTERM)
    pair.wait_for("worker_stopping", 2)
    time.sleep(2 * SAME_SIGNAL_WITHIN)  # sooner it would be taken for the same wish
    pair.process.send_signal(signal.SIGTERM)
    assert pair.process.wait() == 0
    assert shop.status(job_id) is Status.PENDING


def test_a_child_that_does_not_drain_makes_it_exit_with_1(pair: Started, shop: Shop) -> None:
    job_id = shop.nightly.enqueue_sync(day="monday").id
    wait_until(lambda: shop.status(job_id) is Status.RUNNING)
    pair.process.send_signal(signal.SIGTERM)
    pair.wait_for("worker_stopping", 2)
    for pid in pair.children():
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    assert pair.process.wait() == 1
    assert pair.lines("worker_process_not_drained")[0]["signal"] == "SIGKILL"


def test_a_wrong_application_is_not_started_again_and_again(start: Start, tmp_path: Path) -> None:
    (tmp_path / "shop_app.py").write_text("import not_installed_anywhere\n")
    supervisor = start("worker", "shop_app:app", "--workers", "2", "--json")
    assert supervisor.process.wait() == 2
    assert "not_installed_anywhere" in supervisor.log.read_text()
    assert not any(alive(pid) for pid in supervisor.children())


# -- reloading ------------------------------------------------------------------------------------


def test_a_change_starts_the_worker_again(start: Start, shop: Shop, tmp_path: Path) -> None:
    supervisor = start("worker", "shop_app:app", "--reload", "--json")
    supervisor.wait_for("worker_started")
    (tmp_path / "shop_app.py").write_text(APP.replace("return guest", "return guest.upper()"))
    supervisor.wait_for("worker_started", 2)
    assert supervisor.lines("reloading")[0]["changed"] == ["shop_app.py"]
    assert supervisor.lines("worker_stopped")
    job_id = shop.enqueue()
    wait_until(lambda: shop.status(job_id) is Status.COMPLETED)
    assert shop.app.run(shop.app.jobs.get(job_id)).result == "ANN"
    supervisor.process.send_signal(signal.SIGINT)
    assert supervisor.process.wait() == 0


def test_a_mistake_waits_for_its_correction(start: Start, tmp_path: Path) -> None:
    (tmp_path / "shop_app.py").write_text("def (:\n")
    supervisor = start("worker", "shop_app:app", "--reload", "--json")
    supervisor.wait_for("waiting_for_a_change")
    (tmp_path / "shop_app.py").write_text(APP)
    supervisor.wait_for("worker_started")
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.process.wait() == 0


def test_it_can_be_stopped_while_it_waits(start: Start, tmp_path: Path) -> None:
    (tmp_path / "shop_app.py").write_text("def (:\n")
    supervisor = start("worker", "shop_app:app", "--reload", "--json")
    supervisor.wait_for("waiting_for_a_change")
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.process.wait() == 0


@pytest.mark.parametrize(
    ("code", "told"),
    [(-9, {"signal": "SIGKILL"}), (1, {"exit_code": 1}), (0, {"exit_code": 0}), (-250, {"exit_code": -250})],
)
def test_how_a_child_ended(code: int, told: dict[str, object]) -> None:
    assert describe(code) == told
