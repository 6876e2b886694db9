from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import zoneinfo
from collections import namedtuple
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring.app import Mainspring
from mainspring.cli import doctor
from mainspring.cli.doctor import check_attended, check_clock, check_hearing, check_slots, show_size
from mainspring.features.people.storage import KINDS, PEOPLE
from mainspring.health import judge
from mainspring.stores.protocol import Finding, Severity, Stats, WorkerInfo
from tests.cli.conftest import NIGHTLY_ONLY, Outcome, Run, Shop

pytestmark = pytest.mark.slow

Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - as shutil's own


@pytest.fixture
def examine(run: Run, shop: Shop) -> Run:
    def call(*argv: str) -> Outcome:
        return run("doctor", *argv, "--store", shop.url)

    return call


def finding(outcome: Outcome, check: str) -> dict[str, Any]:
    return next(found for found in outcome.data["findings"] if found["check"] == check)


def test_a_healthy_store_passes_all_checks(examine: Run, shop: Shop) -> None:
    shop.enqueue_later()
    outcome = examine()
    assert outcome.code == 0
    assert outcome.out.endswith("\nall is well\n")
    assert all(line.startswith("✓ ") for line in outcome.out.splitlines()[:-2])
    checks = {line[2:16].strip() for line in outcome.out.splitlines()[:-2]}
    assert checks >= {"python", "packages", "time zones", "open files", "store", "integrity", "counts", "disk", "clock"}


def test_json_output_reports_the_findings(examine: Run, shop: Shop) -> None:
    outcome = examine("--json")
    assert outcome.data["healthy"] is True
    assert finding(outcome, "store") == {"severity": "ok", "check": "store", "message": shop.url, "advice": ""}


def test_an_error_is_told_with_advice_and_mended(examine: Run, shop: Shop) -> None:
    shop.enqueue()
    damage(shop.path, "UPDATE mainspring_counts SET n = 77")
    outcome = examine()
    assert outcome.code == 1
    assert "✗ counts" in outcome.out
    assert "→ run `mainspring doctor --repair`" in outcome.out
    assert "1 error, 1 warning" in outcome.out
    outcome = examine("--repair")
    assert outcome.code == 0
    assert "✓ repair" in outcome.out
    assert examine().code == 0


def damage(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_store_that_is_not_there_is_a_finding(run: Run) -> None:
    outcome = run("doctor", "--store", "sqlite:///nowhere.db", "--json")
    assert outcome.code == 1
    assert "there is no database" in finding(outcome, "store")["message"]
    assert finding(outcome, "python")["severity"] == "ok"


def test_a_damaged_file_is_a_finding(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database" * 100)
    outcome = run("doctor", "--store", "sqlite:///text.db", "--json")
    assert outcome.code == 1
    assert "not an SQLite database" in finding(outcome, "store")["message"]


def test_a_store_that_fails_on_the_way_is_a_finding(examine: Run, shop: Shop) -> None:
    damage(shop.path, "DROP TABLE mainspring_counts")
    outcome = examine("--json")
    assert outcome.code == 1
    assert finding(outcome, "python")["severity"] == "ok"
    assert outcome.data["findings"][-1]["severity"] == "error"


def test_without_a_store_it_is_wrong_usage(run: Run) -> None:
    assert run("doctor").code == 2


# -- single checks --------------------------------------------------------------------------------


def test_due_jobs_that_no_worker_takes(examine: Run, shop: Shop) -> None:
    shop.enqueue()
    found = finding(examine("--json"), "lateness")
    assert found["severity"] == "warning"
    assert found["message"] == "jobs are due that no worker takes, in: mail"
    assert found["advice"] == "start one: mainspring worker module:app --queues mail"


def test_a_paused_queue_is_not_late(examine: Run, run: Run, shop: Shop) -> None:
    shop.enqueue()
    run("pause", "mail", "--actor", "ann", "--store", shop.url)
    outcome = examine("--json")
    assert finding(outcome, "lateness")["severity"] == "ok"
    assert finding(outcome, "halts")["message"] == "queue mail is paused by ann, now"
    assert finding(outcome, "halts")["advice"] == "if that is over: mainspring resume mail"
    run("halt", "--store", shop.url)
    assert finding(examine("--json"), "halts")["message"].endswith(", and 1 more")


def test_jobs_that_wait_although_there_is_a_worker(shop: Shop) -> None:
    now = shop.app.now()
    worker = WorkerInfo("vm-1", "vm", 77, ("*",))
    stats = Stats([], {"mail": 1}, {"mail": now - timedelta(minutes=10)}, [worker], [])
    found = check_attended(judge(stats, now, shop.url))
    assert found.severity is Severity.WARNING
    assert found.message == "the oldest job of queue mail has been due for 10 min"


def test_workers_that_cannot_hear(shop: Shop) -> None:
    workers = [WorkerInfo("vm-1", "vm", 77, ("*",), polling=True), WorkerInfo("vm-2", "vm", 78, ("*",))]
    found = check_hearing(judge(Stats([], {}, {}, workers, []), shop.app.now(), shop.url))
    assert found.severity is Severity.WARNING
    assert found.message == "these are not notified of new jobs and poll each second: vm-1"
    assert "listen=" in found.advice


def test_stuck_slots_of_live_workers_are_a_warning() -> None:
    workers = [
        WorkerInfo("vm-1", "vm", 77, ("*",), 4, stuck=3),
        WorkerInfo("vm-2", "vm", 78, ("*",), 4),
        WorkerInfo("vm-3", "vm", 79, ("*",), 4, stuck=1, alive=False),
    ]
    (found,) = check_slots(Stats([], {}, {}, workers, []))
    assert found.severity is Severity.WARNING
    assert found.message == "3 of 4 slots of worker vm-1 are stuck: their jobs were told to stop but do not end"
    assert "restart process 77 of vm" in found.advice


def test_dead_letters_are_pointed_at(examine: Run, shop: Shop) -> None:
    shop.bury()
    assert finding(examine("--json"), "dead letters")["message"].startswith("1 dead letter; look at them")


def test_due_tasks_that_no_live_worker_knows(examine: Run, shop: Shop) -> None:
    shop.app.run(shop.app.store.join(WorkerInfo("vm-1", "vm", 77, ("*",), tasks=("other",)), lambda _: None))
    shop.enqueue()
    found = finding(examine("--json"), "unknown task")
    assert (found["severity"], found["message"]) == (
        "warning",
        "no live worker of queue mail knows task welcome: 1 job is due",
    )
    assert "is the code deployed" in found["advice"]


def test_a_halt_of_another_system(run: Run, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halted_app.py").write_text(NIGHTLY_ONLY.replace('shop.db"', "shop.db\", halted=lambda: 'fire drill'"))
    monkeypatch.syspath_prepend(str(tmp_path))
    shop.enqueue()
    found = finding(run("doctor", "--app", "halted_app:app", "--json"), "halts")
    assert (found["message"], found["advice"]) == (
        "the whole system is halted by another system, now",
        "end it in that system",
    )
    assert "by another system: fire drill" in run("stats", "--app", "halted_app:app").out


def test_tasks_that_the_application_does_not_know(
    run: Run, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doctored_app.py").write_text(NIGHTLY_ONLY)
    monkeypatch.syspath_prepend(str(tmp_path))
    shop.enqueue_later()
    assert finding(run("doctor", "--app", "doctored_app:app", "--json"), "tasks")["message"] == "1 known"
    shop.enqueue(delay=60)
    found = finding(run("doctor", "--app", "doctored_app:app", "--json"), "tasks")
    assert found["message"] == "jobs wait for unknown tasks: welcome"


@pytest.mark.parametrize(("free", "severity"), [(80 << 30, "ok"), (500 << 20, "warning"), (1 << 20, "error")])
def test_room_on_the_disk(free: int, severity: str, examine: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 << 30, 0, free))
    assert finding(examine("--json"), "disk")["severity"] == severity


def test_a_file_that_cannot_be_written(examine: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert finding(examine("--json"), "disk")["advice"] == "check its owner and mode"


def test_a_clock_that_went_back(shop: Shop) -> None:
    shop.enqueue()
    assert check_clock(shop.app, shop.app.now()).severity is Severity.OK
    found = check_clock(shop.app, shop.app.now() - timedelta(hours=2))
    assert found.severity is Severity.WARNING
    assert found.message == "the newest job was created in 2 h" or "in 1 h" in found.message


def test_a_store_without_repair_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("mainspring.stores.sqlite.store.SqlStore.repair")
    assert doctor.mend(Mainspring("memory://")).severity is Severity.WARNING


def raise_(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_problems_of_the_environment_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {finding.severity for finding in doctor.check_environment()} == {Severity.OK}
    monkeypatch.setattr(doctor, "OLDEST_PYTHON", (9, 9))
    monkeypatch.setattr(doctor, "PACKAGES", ("mainspring", "not-installed-anywhere"))
    monkeypatch.setattr(zoneinfo, "ZoneInfo", raise_(zoneinfo.ZoneInfoNotFoundError()))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    python, packages, zones, files = doctor.check_environment()
    assert python.severity is packages.severity is zones.severity is Severity.ERROR
    assert packages.advice == "install them: python -m pip install not-installed-anywhere"
    assert files == Finding(
        Severity.WARNING, "open files", "at most 64 per process",
        "raise it with `ulimit -n 1024`, or LimitNOFILE= in a systemd unit",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 B"), (999, "999 B"), (123_456, "123 kB"), (85e9, "85 GB"), (2.5e12, "2.5 TB")]
)
def test_sizes_are_shown_with_their_unit(size: float, shown: str) -> None:
    assert show_size(size) == shown


def test_the_collections_that_tell_whether_there_are_people_are_those_of_people() -> None:
    assert set(doctor.PEOPLE_COLLECTIONS) == {PEOPLE, KINDS}
