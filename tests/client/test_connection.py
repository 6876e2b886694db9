"""Where a client gets its URL and its token from, and that it never shows the token."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from mainspring.client import AsyncClient, Client, Forbidden, ServiceUnreachable, Unauthorized
from mainspring.errors import ConfigurationError
from tests.client.serving import Loop, Service, connected, served

SECRET = "msk_7owZxPgY_planted-secret"


def test_arguments_come_first_and_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client() as client:
        assert repr(client) == "Client('http://127.0.0.1:8340')"
    monkeypatch.setenv("MAINSPRING_URL", "https://jobs.example/mainspring/")
    with Client() as client:
        assert repr(client) == "Client('https://jobs.example/mainspring')"
    with Client("http://other") as client:
        assert repr(client) == "Client('http://other')"


@pytest.mark.parametrize(
    "url", ["jobs.example", "ftp://jobs", "http://", "http://h?token=x", "http://h#x", "http://me:pw@h"]
)
def test_a_wrong_url_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client(url)
    assert "pw" not in str(caught.value)
    assert "token=x" not in str(caught.value)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": float("inf")}, {"retry_for": -1}, {"token": ""}])
def test_wrong_settings_are_refused(options: dict[str, Any]) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ConfigurationError):
            kind("http://127.0.0.1:1", **options)


@pytest.mark.parametrize("token", ["msk_\nsecret", "msk_ secret", "msk_sécret"])
def test_a_broken_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client(token=token)
    assert "cret" not in str(caught.value)


def test_the_token_is_never_shown(kind: str, service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with connected(kind, service.url, token=SECRET) as client:
        assert SECRET not in repr(client._target)
        assert SECRET not in repr(vars(client.runner))
        with pytest.raises(Unauthorized) as caught:
            client.stats()
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error!r} {error} {vars(error)}"
        error = error.__cause__ or error.__context__
    assert SECRET not in caplog.text


def test_a_token_comes_from_the_environment(kind: str, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(loop, tokens="required") as service:
        text = loop.run(make_token(service, "enqueue"))
        monkeypatch.setenv("MAINSPRING_TOKEN", text)
        with connected(kind, service.url) as client:
            assert client.enqueue("welcome", {"guest": "Ada"}).created
            with pytest.raises(Forbidden, match="scope"):
                client.stats()
        monkeypatch.delenv("MAINSPRING_TOKEN")
        with connected(kind, service.url) as client, pytest.raises(Unauthorized, match="MAINSPRING_TOKEN"):
            client.stats()


async def make_token(service: Service, *scopes: str) -> str:
    from mainspring.service import Tokens

    _, text = await Tokens(service.app.store).create("test", scopes, actor="test")
    return text


def test_nothing_listens(kind: str) -> None:
    with connected(kind, "http://127.0.0.1:9", retry_for=0) as client, pytest.raises(ServiceUnreachable) as caught:
        client.stats()
    assert not caught.value.sent
    assert "http://127.0.0.1:9" in str(caught.value)


def test_a_client_that_is_closed_says_so(service: Service) -> None:
    client = Client(service.url)
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.stats()


def test_no_frame_of_an_error_holds_the_token() -> None:
    with Client("http://127.0.0.1:9", token=SECRET, retry_for=0) as client, pytest.raises(ServiceUnreachable) as caught:
        client.stats()
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    for entry in caught.traceback[1:]:
        assert SECRET not in str({name: repr(value) for name, value in entry.frame.f_locals.items()}), entry


def test_a_certificate_that_is_not_trusted_is_told_at_once() -> None:
    import ssl

    import httpx2

    from mainspring.client.connection import Connection
    from mainspring.client.runners import unreachable

    cause = httpx2.ConnectError("handshake")
    cause.__cause__ = OSError()
    cause.__cause__.__context__ = ssl.SSLCertVerificationError("self-signed certificate")
    error = unreachable(Connection("https://jobs.example", 1.0, 1.0), cause)
    assert isinstance(error, ConfigurationError)
    assert "self-signed certificate" in str(error)
    assert "verify=" in str(error)


def test_a_service_that_does_not_answer_in_time(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with connected(kind, url, timeout=0.05, retry_for=0) as client, pytest.raises(ServiceUnreachable) as caught:
            client.enqueue("welcome")
    assert caught.value.sent
    assert "no answer in time" in str(caught.value)


def test_headers_of_the_caller_are_sent_beside_the_token(kind: str, loop: Loop) -> None:
    with served(loop, tokens="required") as service:
        text = loop.run(make_token(service, "read"))
        with connected(kind, service.url, token=text, headers={"x-tenant": "a"}) as client:
            assert client.runner.http.headers["x-tenant"] == "a"
            assert client.stats().workers == []
