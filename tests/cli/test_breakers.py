"""`mainspring breakers …`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.cli import main


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")
    app.run(app.store.open())
    app.run(app.close())

    def call(*arguments: str, code: int = 0) -> str:
        assert main(["breakers", *arguments, "--store", f"sqlite:///{tmp_path}/jobs.db"]) == code
        said = capsys.readouterr()
        return said.out + said.err

    return call


def test_open_list_and_close(run: Any) -> None:
    assert run("list") == "no circuit breakers\n"
    assert "maintenance" in run("open", "email-api", "--reason", "maintenance", "--for", "15min")
    (found,) = json.loads(run("list", "--json"))["breakers"]
    assert (found["name"], found["phase"], found["reason"]) == ("email-api", "open", "maintenance")
    assert found["until"] > found["since"]
    assert "open" in run("list")
    assert json.loads(run("close", "email-api", "--json"))["breaker"]["phase"] == "closed"
    assert "closed by hand" in run("list")


def test_a_bad_name_is_refused(run: Any) -> None:
    assert "not a name for a circuit breaker" in run("open", "", code=2)


def test_closing_an_unknown_breaker_is_an_error(run: Any) -> None:
    assert "there is no circuit breaker 'email-api': none has ever opened" in run("close", "email-api", code=3)
    run("open", "email-api")
    assert "there are 'email-api'" in run("close", "emailapi", code=3)
    assert json.loads(run("list", "--json"))["breakers"][0]["phase"] == "open"
    run("close", "email-api")
    run("close", "email-api")
