"""Fake servers as their users see them: by HTTP, from synchronous and asynchronous code."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from mainspring.testing.fakes import Answer, FakeHaltServer, FakeServer, FakeWebhook, Request


@pytest.fixture
def webhook() -> Iterator[FakeWebhook]:
    with FakeWebhook() as server:
        yield server


def send(url: str, document: object = None, *, key: str | None = None, timeout: float = 10) -> Any:
    """Send a document by POST, or GET without one; return the JSON of the answer."""
    headers = {} if key is None else {"Idempotency-Key": key}
    body = None if document is None else json.dumps(document).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=timeout) as response:  # noqa: S310
        return json.load(response)


def test_a_request_is_recorded_with_its_query_headers_and_body(webhook: FakeWebhook) -> None:
    send(f"{webhook.url}/alerts?level=high", {"n": 1}, key="a")
    (request,) = webhook.received
    assert (request.method, request.path, request.query) == ("POST", "/alerts", {"level": ["high"]})
    assert request.headers["idempotency-key"] == "a"
    assert request.json() == {"n": 1}


def test_a_webhook_accepts_documents_of_one_key_once(webhook: FakeWebhook) -> None:
    answers = [send(webhook.url, {"n": n}, key=key) for n, key in enumerate(["a", "a", None, None])]
    assert [answer["repeated"] for answer in answers] == [False, True, False, False]
    assert (webhook.accepted, len(webhook.received)) == ([{"n": 0}, {"n": 2}, {"n": 3}], 4)


def test_a_webhook_refuses_what_is_not_a_document(webhook: FakeWebhook) -> None:
    with pytest.raises(urllib.error.HTTPError, match="405"):
        send(webhook.url)
    request = urllib.request.Request(webhook.url, b"{")  # noqa: S310
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(request, timeout=10)  # noqa: S310
    assert webhook.accepted == []


def test_faults_end_after_their_number_or_when_the_server_recovers(webhook: FakeWebhook) -> None:
    webhook.fail(503, times=1)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        send(webhook.url, 1)
    send(webhook.url, 2)
    webhook.fail()
    for _ in range(3):
        with pytest.raises(urllib.error.HTTPError, match="500"):
            send(webhook.url, 3)
    webhook.recover()
    send(webhook.url, 4)
    assert (webhook.accepted, len(webhook.received)) == ([2, 4], 6)


def test_a_server_can_hang_up_before_or_after_the_effect(webhook: FakeWebhook) -> None:
    webhook.fail(None, times=1)
    with pytest.raises(OSError, match="closed"):
        send(webhook.url, "before", key="a")
    webhook.fail(None, times=1, after=True)
    with pytest.raises(OSError, match="closed"):
        send(webhook.url, "after", key="b")
    assert webhook.accepted == ["after"]
    assert send(webhook.url, "after", key="b") == {"repeated": True}


def test_a_slow_server_answers_late(webhook: FakeWebhook) -> None:
    webhook.slow(30)
    with pytest.raises(TimeoutError):
        send(webhook.url, 1, timeout=0.05)
    webhook.recover()
    send(webhook.url, 2)


def test_a_server_that_is_down_refuses_connections_and_comes_back_at_its_port(webhook: FakeWebhook) -> None:
    url = webhook.url
    webhook.down()
    with pytest.raises(urllib.error.URLError, match="refused"):
        send(url, 1)
    webhook.recover()
    send(url, 2)
    assert (webhook.url, webhook.accepted) == (url, [2])


def test_a_stopped_server_can_start_again(webhook: FakeWebhook) -> None:
    url = webhook.url
    webhook.stop()
    webhook.stop()
    webhook.start()
    send(url, 1)
    assert webhook.accepted == [1]


def test_a_port_in_use_is_an_error_of_start(webhook: FakeWebhook) -> None:
    with pytest.raises(OSError, match="in use"):
        FakeWebhook(webhook.port).start()


def test_what_is_not_http_gets_an_error(webhook: FakeWebhook) -> None:
    for text in (b"hello\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", webhook.port), timeout=10) as client:
            client.sendall(text)
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")


def test_waiting_for_too_long_says_what_came(webhook: FakeWebhook) -> None:
    send(f"{webhook.url}/alerts", 1)
    with pytest.raises(TimeoutError, match=r"waited 0.01 s for 2 requests; .*'/alerts'"):
        webhook.wait_for(2, timeout=0.01)
    assert webhook.wait_accepted(1) == [1]
    assert webhook.wait_accepted_that(lambda document: document == 1) == 1


async def test_a_coroutine_can_wait_for_requests() -> None:
    async with FakeWebhook() as server:
        sending = asyncio.create_task(asyncio.to_thread(send, server.url, 1))
        assert [request.json() for request in await server.arrived(1)] == [1]
        await sending


def test_a_halt_server_says_what_it_was_told() -> None:
    with FakeHaltServer() as server:
        assert send(f"{server.url}/halt") == {"halted": False, "reason": ""}
        server.halt("fire drill")
        assert send(f"{server.url}/halt") == {"halted": True, "reason": "fire drill"}
        server.resume()
        assert send(f"{server.url}/halt") == {"halted": False, "reason": ""}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            send(server.url)


def test_a_mistake_in_a_fake_of_your_own_reaches_its_client() -> None:
    class Broken(FakeServer):
        def answer(self, request: Request) -> Answer:
            raise LookupError(request.path)

    with Broken() as server, pytest.raises(urllib.error.HTTPError) as caught:
        send(f"{server.url}/here")
    assert json.load(caught.value) == {"error": "LookupError: /here"}
    caught.value.close()


def test_a_fault_can_have_headers() -> None:
    with FakeServer() as server:
        server.fail(429, headers={"Retry-After": "30"}, times=1)
        with pytest.raises(urllib.error.HTTPError) as refused:
            send(server.url)
        refused.value.close()
    assert (refused.value.code, refused.value.headers["Retry-After"]) == (429, "30")


def test_a_server_whose_port_was_taken_can_be_started_once_it_is_free() -> None:
    with FakeServer() as first:
        second = FakeServer(first.port)
        with pytest.raises(OSError, match="address already in use"):
            second.start()
        second.stop()  # does nothing
    with second:
        urllib.request.urlopen(second.url, timeout=5).close()  # noqa: S310 - ours
