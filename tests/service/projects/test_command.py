"""`mainspring tokens create --project … --queues …`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.cli import main

pytestmark = pytest.mark.slow  # SQLite files


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAINSPRING_STORE", store)
    app = Mainspring(store)
    app.run(app.store.open())
    app.run(app.close())


def test_a_token_of_a_project_is_made_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tokens", "create", "ci", "--scope", "read", "--project", "acme", "--queues", "mail,x/*", "--json"]
    assert main(arguments) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["project"], made["queues"]) == ("acme", ["mail", "x/*"])
    assert main(["tokens", "list"]) == 0
    assert "p/acme/mail,p/acme/x/*" in capsys.readouterr().out


def test_a_token_of_everything_is_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "create", "ci", "--scope", "read"]) == 0
    assert main(["tokens", "list"]) == 0
    assert " all " in capsys.readouterr().out


def test_a_wrong_project_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "create", "ci", "--scope", "read", "--project", "A b"]) != 0
    assert "not a name for a project" in capsys.readouterr().err
