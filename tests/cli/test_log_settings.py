"""Which level and format a worker logs with: the command line, the environment, then the file."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from mainspring.cli import logs
from mainspring.cli.serve import settings_of
from mainspring.errors import ConfigurationError
from mainspring.service.settings import ServiceSettings

NAMES = ("MAINSPRING_LOG_LEVEL", "LOG_LEVEL", "MAINSPRING_LOG_FORMAT")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def chosen(*, level: str | None = None, form: str | None = None, as_json: bool = False) -> tuple[str, bool]:
    found = logs.chosen(Namespace(log_level=level, log_format=form), as_json=as_json)
    return found["level"], found["as_json"]


def test_options_come_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert chosen() == ("info", False)
    assert chosen(as_json=True) == ("info", True)
    (tmp_path / "mainspring.toml").write_text('log_level = "error"\nlog_format = "json"\nport = 1\n')
    assert chosen() == ("error", True)
    monkeypatch.setenv("LOG_LEVEL", "WARNING")
    assert chosen() == ("warning", True)
    monkeypatch.setenv("MAINSPRING_LOG_LEVEL", "debug")
    monkeypatch.setenv("MAINSPRING_LOG_FORMAT", "text")
    assert chosen(as_json=True) == ("debug", False)
    assert chosen(level="info", form="json") == ("info", True)


def test_the_service_takes_its_format_from_the_same_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    args = Namespace(**dict.fromkeys([*ServiceSettings.model_fields, "config"]))
    assert settings_of(args).log_format == "text"
    (tmp_path / "mainspring.toml").write_text('log_format = "json"\n')
    assert settings_of(args).log_format == "json"
    monkeypatch.setenv("MAINSPRING_LOG_FORMAT", "text")
    assert settings_of(args).log_format == "text"
    args.log_format = "json"
    assert settings_of(args).log_format == "json"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("LOG_LEVEL", "loud", "log_level is 'loud'; use one of debug, info, warning, error"),
        ("MAINSPRING_LOG_FORMAT", "xml", "log_format is 'xml'; use one of text, json"),
    ],
)
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=said):
        chosen()


@pytest.mark.parametrize("content", [b"log_level = ", b'log_level = "\xe9"', b"log_level = 3"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mainspring.toml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"mainspring\.toml|log_level is 3"):
        chosen()


APP = """
import logging
from mainspring import Mainspring

app = Mainspring("sqlite:///jobs.db")
log = logging.getLogger("shop")

@app.task(queue="mail")
async def on_loop() -> None:
    log.info("two\\nlines")

@app.task(queue="mail")
def in_thread() -> None:
    log.info("thread")

@app.task(queue="mail", isolation="process")
def in_process() -> None:
    log.info("process")

if __name__ == "__main__":
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    ids = [task.using(trace=trace).enqueue_sync().id for task in (on_loop, in_thread, in_process)]
    for job_id in ids:
        app.job(job_id)
"""


@pytest.mark.slow
def test_each_line_of_a_handler_is_an_object_that_says_what_it_is_about(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "mainspring", "worker", "shop:app", "--log-format", "json"]
    found: dict[str, dict[str, Any]] = {}
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stderr is not None
            for line in worker.stderr:
                entry = json.loads(line)
                if entry["logger"] == "shop":
                    found[entry["event"]] = entry
                if len(found) == 3:
                    break
        finally:
            worker.terminate()
    assert found.keys() == {"two\nlines", "thread", "process"}
    for entry in found.values():
        assert (entry["queue"], entry["attempt"], entry["level"]) == ("mail", 1, "info")
        assert entry["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
        assert entry["span_id"] == "00f067aa0ba902b7"
        assert entry["worker"]
        assert entry["job_id"]
    assert len({entry["worker"] for entry in found.values()}) == 1
