"""A full disk gives clear errors, loses nothing, and everything goes on when there is room again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import Chaos
from tests.chaos.database import SqliteDatabase
from tests.chaos.processes import Forks, Nursery, Process
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

CLEAR = "StoreFull: no room left on the disk of {path}; nothing was changed; free some and try again"
MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'
WORKER: dict[str, Any] = {"heartbeat_interval": 0.2, "maintenance_interval": 0.2}


def with_disk(size: str, disk: Path) -> list[str]:
    """A command that runs another one with a small disk, which only that one sees and which goes with it."""
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    return [*namespace, "sh", "-c", MOUNT, "sh", size, str(disk)]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    disk = tmp_path / "disk"
    disk.mkdir()
    wrapper = with_disk("1m", disk)
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here to mount a small disk with")
    tried = subprocess.run([*wrapper, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {tried.stderr.strip()}")
    with Forks(*wrapper) as forks, Nursery(forks, tmp_path, SqliteDatabase(disk / "jobs.db")) as made:
        yield made


def test_all_goes_on_when_there_is_room_again(nursery: Nursery, chaos: Chaos) -> None:
    worker = nursery.start("work:work", **WORKER)
    enqueuer = nursery.start("enqueue:stubbornly")
    for megabytes in range(2, chaos.size(2, 8)):
        wait_until_full(enqueuer)
        nursery.run("disk:resize", size=f"{megabytes}m")
    wait_until_full(enqueuer)
    late = nursery.start("work:work", **WORKER)  # finds no room, and waits for it too
    late.wait_for("no room left")
    before = nursery.ledger.count("ack")
    nursery.run("disk:resize", size="64m")
    late.wait_for("worker_started")
    wait_until(lambda: nursery.ledger.count("ack") >= before + 20, enqueuer.said)
    (nursery.folder / "enough").touch()
    assert enqueuer.wait() == 0, enqueuer.said()
    wait_until(lambda: nursery.ledger.acknowledged <= nursery.ledger.done.keys(), worker.said)
    assert worker.code is None, worker.said()
    assert set(enqueuer.lines()) == {CLEAR.format(path=nursery.sqlite.path)}
    nursery.run("disk:copy_out")
    check(nursery)


def wait_until_full(enqueuer: Process) -> None:
    enqueuer.wait_for("StoreFull", times=len(enqueuer.lines()) + 3)


def check(nursery: Nursery) -> None:
    """Nothing is lost, and nothing was done twice: no process died."""
    copy = SqliteDatabase(nursery.folder / "copy.db")
    assert nursery.ledger.problems(copy.statuses()) == []
    assert {len(runs) for runs in nursery.ledger.runs.values()} == {1}
    assert copy.ailments() == []
