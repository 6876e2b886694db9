"""`mainspring settings`."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, Rate, Retry
from mainspring.cli import main
from mainspring.cli.settings import parse_rate, parse_retry


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = Mainspring(url)
    app.run(app.store.open())
    app.run(app.close())
    return url


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_settings_are_set_listed_and_cleared(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--at-once", "2", "--rate", "100/min", "--run-timeout", "1min", "--max-attempts", "4", "--retry", "30s"]
    by = ["--actor", "ana", "--reason", "slow", "--store", store]
    assert main(["settings", "set", "--task", "send", *given, "--paused", "yes", *by]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["OF", "NAME", "SETTING", "VALUE", "BY", "WHEN", "WHY"]
    assert main(["settings", "list", "--json", "--store", store]) == 0
    found = {row["option"]: row for row in printed(capsys)["settings"]}
    assert {option: row["value"] for option, row in found.items() if option != "retry"} == {
        "limit": 2, "rate": {"count": 100, "per": 60.0, "burst": None}, "timeout": 60.0, "max_attempts": 4,
        "paused": True,
    }  # fmt: skip
    assert found["retry"]["value"]["base"] == 30
    assert {(row["kind"], row["name"], row["actor"], row["reason"]) for row in found.values()} == {
        ("task", "send", "ana", "slow")
    }
    assert main(["settings", "clear", "limit", "rate", "--task", "send", "--json", "--store", store]) == 0
    assert printed(capsys) == {"cleared": True}
    assert main(["settings", "clear", "--task", "send", "--store", store]) == 0
    assert main(["settings", "clear", "--task", "send", "--store", store]) == 0
    assert "there was nothing to clear" in capsys.readouterr().err
    assert main(["settings", "list", "--store", store]) == 0
    assert capsys.readouterr().err == "nothing was changed at run time\n"


def test_settings_of_an_unknown_task_are_written_with_a_warning(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "set", "--task", "nope", "--at-once", "2", "--json", "--store", store]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["settings"][0]["value"] == 2
    assert "no worker has published one" in err
    assert main(["settings", "set", "--queue", "nope", "--at-once", "2", "--store", store]) == 0
    assert not capfd.readouterr().err


def test_wrong_settings_are_explained(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "set", "--task", "send", "--store", store]) != 0
    assert "give at least one of limit, rate" in capsys.readouterr().err
    assert main(["settings", "set", "--at-once", "2", "--store", store]) != 0
    assert main(["settings", "set", "--queue", "mail", "--paused", "yes", "--store", store]) != 0
    assert "mainspring pause" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "rate"), [("5/s", Rate(5, per=timedelta(seconds=1))), ("20/15min", Rate(20, per=900))]
)
def test_rates_are_read(text: str, rate: Rate) -> None:
    assert (parse_rate(text).count, parse_rate(text).per_milli) == (rate.count, rate.per_milli)


@pytest.mark.parametrize("text", ["5", "x/s", "0/s", "5/", "5/0s"])
def test_other_texts_are_not_rates(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_rate(text)


def test_retry_delays_are_read_and_do_not_change_the_number_of_attempts() -> None:
    half, whole = timedelta(seconds=30), timedelta(minutes=1)
    assert parse_retry("30s") == Retry.fixed(half, max_attempts=None)
    assert parse_retry("30s,1min") == Retry(max_attempts=None, explicit=(half, whole), jitter_share=0.0)
    exponential = Retry(max_attempts=None, base=timedelta(seconds=10), max_delay=timedelta(hours=1))
    assert parse_retry("10s..1h") == exponential
