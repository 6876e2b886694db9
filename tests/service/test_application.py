"""Plain routes: they are called without the framework's layers, and answer what other routes answer."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.errors import StoreUnavailable
from mainspring.service.application import PLAIN_ROUTES, PlainRoutes
from mainspring.service.guard import Receive, Send
from tests.service.serving import Client

ADA = {"task": "welcome", "payload": {"guest": "ada"}}


def broken(error: Exception) -> Any:
    async def insert(*_: object, **__: object) -> None:
        raise error

    return insert


async def test_a_plain_route_that_fails_answers_an_error_of_ours_without_secrets(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app.runtime.pipeline, "insert", broken(RuntimeError("password=hunter2")))
    answer = await client.post("/v1/jobs", ADA)
    assert (answer.status, answer.code) == (500, "internal_error")
    assert "hunter2" not in answer.text
    assert answer.data["request_id"] in caplog.text


async def test_a_store_that_is_away_is_an_error_of_a_plain_route(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app.runtime.pipeline, "insert", broken(StoreUnavailable("db.internal")))
    answer = await client.post("/v1/jobs", ADA)
    assert (answer.code, answer.headers["retry-after"]) == ("store_unavailable", "5")
    assert "db.internal" not in answer.text
    assert answer.data["request_id"] in caplog.text


@pytest.mark.parametrize("path", PLAIN_ROUTES)
async def test_another_method_of_a_plain_route_is_left_to_the_framework(client: Client, path: str) -> None:
    answer = await client.send("PUT", path, {})
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert "POST" in answer.headers["allow"]


@pytest.mark.parametrize(
    ("scope", "is_left"),
    [
        ({"path": "/v1/jobs"}, False),
        ({"path": "/queue/v1/jobs", "root_path": "/queue"}, False),
        ({"path": "/v1/jobs", "method": "GET"}, True),
        ({"path": "/v1/jobs/"}, True),
        ({"path": "/v1/tokens"}, True),
        ({"path": "/v1/jobs", "type": "websocket"}, True),
        ({"path": "/v1/jobs", "fastapi.telemetry": object()}, True),  # OpenTelemetry watches the framework
    ],
)
async def test_which_requests_go_to_plain_routes(
    monkeypatch: pytest.MonkeyPatch, scope: dict[str, Any], *, is_left: bool
) -> None:
    called: list[str] = []

    async def handle(_: object) -> Any:
        called.append("plain")
        return answered

    async def others(scope: Any, receive: Receive, send: Send) -> None:
        called.append("others")

    async def answered(scope: Any, receive: Receive, send: Send) -> None: ...

    async def unused(*_: object) -> Any: ...

    monkeypatch.setitem(PLAIN_ROUTES, "/v1/jobs", handle)
    await PlainRoutes(others)({"type": "http", "method": "POST", "root_path": "", **scope}, unused, unused)
    assert called == ["others" if is_left else "plain"]
