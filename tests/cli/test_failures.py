"""`mainspring failures …`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.cli import main
from mainspring.job import Status
from mainspring.stores.protocol import Filter
from tests.worker.working import eventually


async def charge(order: int) -> None:
    msg = f"there is no order {order}"
    raise LookupError(msg)


async def run_all(app: Mainspring) -> None:
    for order in range(3):
        await app.tasks["charge"].enqueue(order=order)
    async with app.worker():
        await eventually(lambda: all_failed(app))


async def all_failed(app: Mainspring) -> bool:
    return await app.jobs.count(Filter(statuses=(Status.DEAD_LETTER,))) == 3


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db", version="2.1")
    app.task(max_attempts=1)(charge)
    app.run(run_all(app))
    app.run(app.close())
    capsys.readouterr()  # the worker's log

    def call(*arguments: str, code: int = 0) -> str:
        assert main([*arguments, "--store", f"sqlite:///{tmp_path}/jobs.db"]) == code
        said = capsys.readouterr()
        return said.out + said.err

    return call


def known(run: Any) -> str:
    (group,) = json.loads(run("failures", "list", "--json"))["groups"]
    return str(group["fingerprint"])


def test_list_and_show(run: Any) -> None:
    shown = run("failures", "list")
    assert "LookupError" in shown
    assert "open" in shown
    page = run("failures", "show", known(run))
    assert "test_failures:charge" in page
    assert "versions:    2.1" in page
    assert "Traceback" in page
    assert run("failures", "list", "--state", "resolved") == "no failure groups\n"
    assert run("failures", "list", "--task", "other") == "no failure groups\n"
    assert known(run) in run("failures", "list", "--since", "1h")


def test_resolve_mute_unmute_reopen(run: Any) -> None:
    name = known(run)
    resolved = json.loads(run("failures", "resolve", name, "--reason", "fixed", "--actor", "ana", "--json"))["group"]
    assert (resolved["state"], resolved["note"], resolved["actor"]) == ("resolved", "fixed", "ana")
    assert "open" in run("failures", "reopen", name)
    muted = json.loads(run("failures", "mute", name, "--for", "2h", "--json"))["group"]
    assert (muted["state"], muted["until"] > muted["changed_at"]) == ("muted", True)
    assert "open" in run("failures", "unmute", name)
    assert "failure.resolve" in run("audit")


def test_retry_and_find_the_jobs_of_a_group(run: Any) -> None:
    name = known(run)
    found = json.loads(run("jobs", "list", "--fingerprint", name, "--json"))["jobs"]
    assert len(found) == 3
    assert "3 jobs would be retried" in run("failures", "retry", name, "--dry-run")
    assert "3 jobs retried" in run("failures", "retry", name, "--yes")
    assert json.loads(run("failures", "list", "--json"))["groups"][0]["dead"] == 0


def test_an_unknown_group_is_an_error(run: Any) -> None:
    for command in ("show", "resolve", "mute", "unmute", "reopen", "retry"):
        assert "there is no failure group 'x'" in run("failures", command, "x", code=3)
