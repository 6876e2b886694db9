"""Metrics of a process without the service."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mainspring import Mainspring
from mainspring.cli import main
from mainspring.errors import ConfigurationError, StoreUnavailable
from mainspring.metrics import CONTENT_TYPE, MetricsServer
from mainspring.metrics.server import TOKEN_VARIABLE

APP = """
from mainspring import Mainspring
app = Mainspring("sqlite:///jobs.db")
"""


def get(url: str, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    connection = HTTPConnection(urlsplit(url).hostname or "", urlsplit(url).port, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type", ""), answer.read().decode()
    finally:
        connection.close()


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (TOKEN_VARIABLE, "MAINSPRING_METRICS_PORT", "MAINSPRING_METRICS_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def app() -> Iterator[Mainspring]:
    app = Mainspring("memory://")
    app.run(app.store.open())
    yield app
    app.run(app.close())


def test_both_pages_are_served_on_this_machine(app: Mainspring) -> None:
    with MetricsServer(app, port=0) as server:
        status, kind, text = get(server.url)
        assert (status, kind) == (200, CONTENT_TYPE)
        assert "mainspring_store_up 1.0" in text
        status, kind, text = get(server.url, "/metrics/cluster?x=1")
        assert (status, kind) == (200, CONTENT_TYPE)
        assert "mainspring_halted 0.0" in text
        assert get(server.url, "/")[0] == 404
        assert urlsplit(server.url).hostname == "127.0.0.1"


def test_a_store_that_is_away_is_told(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> None:
        raise StoreUnavailable("gone")

    for name in ("halts", "stats"):
        monkeypatch.setattr(app.store, name, fail)
    with MetricsServer(app, port=0) as server:
        assert "mainspring_store_up 0.0" in get(server.url)[2]
        assert get(server.url, "/metrics/cluster")[0] == 503


async def test_it_answers_while_a_handler_blocks_the_event_loop(app: Mainspring) -> None:
    with MetricsServer(app, port=0) as server:
        assert get(server.url)[0] == 200  # this call blocks the loop


def test_a_page_of_another_site_cannot_read_them(app: Mainspring) -> None:
    with MetricsServer(app, port=0) as server:
        assert get(server.url, host="evil.example")[0] == 421
        assert get(server.url, host="localhost:1")[0] == 200
        assert get(server.url, host="[::1]:80")[0] == 200


def test_a_token_is_needed_if_one_is_set(app: Mainspring) -> None:
    with MetricsServer(app, port=0, token="s3cret") as server:
        assert get(server.url)[0] == 401
        assert get(server.url, authorization="Bearer wrong")[0] == 401
        assert get(server.url, authorization="bearer s3cret", host="jobs-1.example")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "jobs.example"])
def test_other_machines_need_a_token(app: Mainspring, host: str) -> None:
    with pytest.raises(ConfigurationError, match=TOKEN_VARIABLE):
        MetricsServer(app, port=0, host=host)


def test_a_port_in_use_is_named(app: Mainspring) -> None:
    with MetricsServer(app, port=0) as server:
        port = urlsplit(server.url).port
        assert port is not None
        with pytest.raises(ConfigurationError, match=rf"127.0.0.1:{port}: .*; choose another port"):
            MetricsServer(app, port=port)
    with pytest.raises(ConfigurationError, match="choose another port"):
        MetricsServer(app, port=70_000)


def test_the_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "shop_metrics.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("mainspring.metrics")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setenv("MAINSPRING_METRICS_PORT", "0")
    monkeypatch.setattr("mainspring.cli.logs.set_up", lambda *_, **__: None)
    assert main(["worker", "shop_metrics:app"]) == 2
    assert "pip install 'mainspring[metrics]'" in capsys.readouterr().err


def test_a_port_that_is_none_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "shop_port.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAINSPRING_METRICS_PORT", "http")
    monkeypatch.setattr("mainspring.cli.logs.set_up", lambda *_, **__: None)
    assert main(["worker", "shop_port:app"]) == 2
    assert "MAINSPRING_METRICS_PORT is 'http'" in capsys.readouterr().err


@pytest.mark.slow
async def test_each_worker_of_a_supervisor_has_its_own_port(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    command = [sys.executable, "-m", "mainspring", "worker", "shop:app", "--workers", "2", "--metrics-port", "0"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, stderr=subprocess.PIPE, env={**os.environ, "MAINSPRING_LOG_FORMAT": "text"}
    )
    assert process.stderr is not None
    urls: set[str] = set()
    try:
        async with asyncio.timeout(60):
            while len(urls) < 2:
                line = (await process.stderr.readline()).decode()
                assert line, "the supervisor has ended"
                urls |= set(re.findall(r"http://[\d.:]+/metrics", line))
        pages = [await asyncio.to_thread(get, url) for url in urls]
        assert all("mainspring_store_up 1.0" in text for _, _, text in pages)
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0
