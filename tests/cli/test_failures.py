"""`mainspring failures …`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.cli import main
from mainspring.features.failures.api import Failures
from mainspring.features.failures.group import FailureGroup
from mainspring.features.failures.storage import Groups
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


def test_failures_that_are_not_counted_yet_are_mentioned(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = known(run)  # adds up the failures
    assert json.loads(run("failures", "list", "--json"))["complete"]
    assert json.loads(run("failures", "show", name, "--json"))["group"]["complete"]
    assert "not counted yet" not in run("failures", "list") + run("failures", "show", name)
    monkeypatch.setattr(Groups, "catch_up", leave_some)
    page = json.loads(run("failures", "list", "--json"))
    assert (page["complete"], page["groups"][0]["complete"]) == (False, False)
    for command in (("list",), ("list", "--task", "other"), ("show", name), ("resolve", name), ("unmute", name)):
        assert "some of the newest failures are not counted yet; ask again soon\n" in run("failures", *command)
    for verb in ("show", "mute", "unmute", "reopen"):
        assert not json.loads(run("failures", verb, name, "--json"))["group"]["complete"]


async def leave_some(_groups: Groups) -> bool:
    return False


def test_resolve_mute_unmute_reopen(run: Any) -> None:
    name = known(run)
    resolved = json.loads(run("failures", "resolve", name, "--note", "fixed", "--actor", "ana", "--json"))["group"]
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


@pytest.mark.parametrize("command", ["resolve", "mute", "unmute", "reopen"])
def test_a_note_is_kept_with_the_group_and_in_the_audit_log(run: Any, command: str) -> None:
    name = known(run)
    if command == "unmute":
        run("failures", "mute", name)
    group = json.loads(run("failures", command, name, "--note", "see ticket", "--json"))["group"]
    assert group["note"] == "see ticket"
    assert json.loads(run("audit", "--json"))["entries"][0]["reason"] == "see ticket"


def test_a_wrong_state_is_answered_with_the_names_of_states(run: Any) -> None:
    said = run("failures", "list", "--state", "nope", code=2)
    assert "nope" in said
    assert "GroupState" not in said
    assert all(state in said for state in ("open", "resolved", "muted"))


def test_the_end_of_a_mute_is_shown_as_a_time(run: Any) -> None:
    name = known(run)
    assert "muted until:" not in run("failures", "show", name)
    run("failures", "mute", name, "--for", "2h")
    assert re.search(
        r"^muted until: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(in 2 h\)$", run("failures", "show", name), re.MULTILINE
    )
    assert re.search(r"until=\d{4}-\d\d-\d\dT\d\d:\d\d", run("audit"))


@pytest.mark.parametrize("digits", [4, 8, 15, 16])
def test_the_beginning_of_a_fingerprint_is_enough(run: Any, digits: int) -> None:
    name = known(run)
    beginning = name[:digits]
    assert name in run("failures", "show", beginning)
    assert name in run("failures", "show", beginning.upper())
    for command in ("resolve", "reopen", "mute", "unmute"):
        assert name in run("failures", command, beginning)
    assert "3 jobs would be retried" in run("failures", "retry", beginning, "--dry-run")


def test_a_beginning_that_is_too_short_or_of_no_group_is_not_found(run: Any) -> None:
    name = known(run)
    assert "give at least the first 4 digits" in run("failures", "show", name[:3], code=3)
    other = "0000" if name[0] != "0" else "1111"
    assert f"no fingerprint of a failure group begins with {other}" in run("failures", "resolve", other, code=3)
    assert f"begins with acme.{name[:6]}" in run("failures", "show", f"acme.{name[:6]}", code=3)


def test_a_beginning_of_several_fingerprints_changes_nothing(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = known(run)
    find = Failures.beginning_with_sync

    def twice(self: Failures, beginning: str, *, limit: int) -> list[FailureGroup]:
        (group,) = find(self, beginning, limit=limit)
        return [group, replace(group, fingerprint=beginning + "0" * 12, task="mail")]

    monkeypatch.setattr(Failures, "beginning_with_sync", twice)
    said = run("failures", "resolve", name[:4], code=2)
    both = f"{name} (charge, LookupError), {name[:4]}000000000000 (mail, LookupError); give more of the fingerprint"
    assert f"several fingerprints begin with {name[:4]}: {both}" in said
    assert known(run) == name
    assert "resolved" not in run("failures", "list")
