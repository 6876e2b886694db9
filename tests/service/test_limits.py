"""Limits of a request: how long its body may take, how deep it may be, and how large its headers may be."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from mainspring import Mainspring
from mainspring.service import ServiceSettings, Tokens
from mainspring.service.guard import MAX_DEPTH, MAX_HEADERS, Message, Request
from mainspring.service.problems import Problem
from mainspring.service.program import Service
from mainspring.service.rate_limits import MANY_BUCKETS, RateLimits
from mainspring.service.recent import Recent
from mainspring.service.tokens import checksum
from tests.service.event_client import serving as serving_events
from tests.service.serving import Client, serving

PATIENCE = 30.0  # seconds; only a failing test waits this long


async def send(url: str, data: bytes) -> bytes:
    """Send bytes, and return all that comes back until the service hangs up."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/halt", "/v1/leases", "/login"])
async def test_a_body_that_does_not_arrive_is_given_up(app: Mainspring, path: str) -> None:
    """Routes read their body in different ways. The connection is closed: the rest of the body could be anything."""
    kind = "application/x-www-form-urlencoded" if path == "/login" else "application/json"
    lines = f"POST {path} HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost\r\ncontent-type: {kind}\r\n"
    async with serving(app, body_timeout=0.05) as client:
        answer = await send(client.url, f'{lines}content-length: 100\r\n\r\n{{"task":'.encode())
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert b"request_timeout" in answer


async def test_a_request_without_a_body_and_a_stream_may_take_longer(app: Mainspring) -> None:
    async with serving_events(app, body_timeout=0.01) as served:
        stream = await served.events()
        await asyncio.sleep(0.05)
        job = await app.enqueue("welcome", {"guest": "ada"})
        assert (await stream.next()).job == job.id
        claim = {"worker": "far", "queues": ["none"], "wait": 0.05}
        assert (await Client(served.http, served.url).post("/v1/leases", claim)).status == 200


def nested(levels: int) -> Any:
    value: Any = 1
    for number in range(levels):
        value = [value] if number % 2 else {"a": value}
    return value


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs:bulk", "/v1/signals"])
async def test_a_body_may_not_be_nested_too_deep(client: Client, path: str) -> None:
    def body(levels: int) -> Any:
        if path == "/v1/signals":
            return {"key": "k", "payload": nested(levels - 1)}
        job = {"task": "any", "payload": nested(levels - (3 if path.endswith("bulk") else 1)), "allow_unknown": True}
        return {"jobs": [job]} if path.endswith("bulk") else job

    assert (await client.post(path, body(MAX_DEPTH))).status in {200, 201}
    refused = await client.post(path, body(MAX_DEPTH + 1))
    assert (refused.status, refused.code) == (422, "invalid_request")
    assert "64 levels" in refused.text


@pytest.mark.parametrize("body", [b"[" * 900_000, b'{"a":' * 100_000, b"[" * 300 + b"]" * 300])
async def test_brackets_alone_do_no_harm(client: Client, body: bytes) -> None:
    assert (await client.post("/v1/jobs", body)).status in {400, 422}


async def test_brackets_within_texts_are_not_levels(client: Client) -> None:
    text = {"task": "any", "payload": {"a": "[{" * 5_000, "b": ['\\"[' * 100] * 3}, "allow_unknown": True}
    assert (await client.post("/v1/jobs", text)).status == 201


async def test_long_headers_are_refused(app: Mainspring, client: Client) -> None:
    own = {f"x_{number}": "x" * 1_000 for number in range(20)}
    answer = await client.get("/v1/jobs", **own)
    assert (answer.status, answer.code) == (431, "headers_too_large")
    assert (await client.get("/v1/jobs", x_1="x" * 8_000)).status == 200


async def test_the_program_refuses_headers_without_an_end(app: Mainspring) -> None:
    service = Service(app, ServiceSettings(port=0, worker=False))
    serving = asyncio.create_task(service.serve())
    endless = b"GET /v1/jobs HTTP/1.1\r\nhost: localhost\r\n" + b"x-a: aaaa\r\n" * (2 * MAX_HEADERS // 11)
    try:
        async with asyncio.timeout(PATIENCE):
            answer = await send(service.url, endless)
    finally:
        service.stop()
        await serving
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_token_in_the_first_message_is_limited_like_one_in_a_header(app: Mainspring) -> None:
    _, text = await Tokens(app.store).create("watch", ["read"], actor="test")
    async with serving_events(app, tokens="required", rate_limit=0.001, rate_burst=2) as served:
        told = []
        for _ in range(3):
            socket = await served.socket({"subscribe": "events", "token": text})
            told.append(json.loads(await socket.receive_str()))
        assert [each["event"] for each in told] == ["hello", "hello", "error"]
        assert told[2]["data"]["code"] == "too_many_requests"


# -- memory -----------------------------------------------------------------------------------------


def test_wrong_secrets_do_not_push_out_right_ones() -> None:
    recent: Recent[str] = Recent(10)
    recent.put("right", 1.0, "ada")
    for number in range(100):
        recent.put(f"wrong {number}", 2.0, None)
    assert recent.get("right") == (1.0, "ada")
    assert recent.get("wrong 99") == (2.0, None)
    assert recent.get("wrong 0") == recent.get("never seen")
    recent.put("right", 3.0, None)  # it was revoked
    assert recent.get("right") == (3.0, None)


async def test_forged_tokens_do_not_make_the_service_read_a_right_one_again(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.service.tokens.MOST_KNOWN", 10)
    tokens = Tokens(app.store)
    _, right = await tokens.create("web", ["read"], actor="test")
    assert await tokens.find(right) is not None
    others = [(await tokens.create("old", ["read"], actor="test"))[0].id for _ in range(20)]
    for token_id in others:
        forged = f"msk_{token_id}_{'a' * 43}"
        assert await tokens.find(forged + checksum_of(forged)) is None
    reads: list[object] = []
    monkeypatch.setattr(tokens, "_read", reads.append)
    assert await tokens.find(right) is not None
    assert reads == []


def checksum_of(text: str) -> str:
    _, token_id, secret = text.split("_")
    return checksum(f"{token_id}{secret}")


def test_buckets_are_bounded_whatever_the_limit_is() -> None:
    limits = RateLimits(0.000_001, 1_000_000)
    limits.take("busy")
    limits.take("busy")
    for number in range(3 * MANY_BUCKETS):
        limits.take(f"token {number}")
        assert len(limits._buckets) <= MANY_BUCKETS + 1
    assert b"r=999997" in limits.take("busy")[1][1]  # the one that has used the most is not forgotten


# -- how the guard reads a body ---------------------------------------------------------------------


class Sender:
    """A client that sends a body in parts; None is a part that comes later, after `go_on`."""

    def __init__(self, *parts: bytes | None) -> None:
        self._parts = list(parts)
        self.go_on = asyncio.Event()
        self.cleaned_up = False

    async def receive(self) -> Message:
        if self._parts and self._parts[0] is None:
            self._parts.pop(0)
            try:
                await self.go_on.wait()
            finally:
                self.cleaned_up = True
        if not self._parts:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._parts.pop(0), "more_body": bool(self._parts)}

    def request(self, timeout: float = PATIENCE) -> Request:
        async def send(_: Message) -> None: ...

        found = Request({"path": "/", "headers": [], "method": "POST"}, self.receive, send)
        found.max_body, found.body_timeout = 1_000, timeout
        return found


async def test_the_whole_body_is_read_once() -> None:
    for parts in ([b"one"], [b"o", b"", b"ne"]):
        request = Sender(*parts).request()
        assert [await request.body(), await request.body()] == [b"one", b"one"]


async def test_a_part_that_comes_later_is_waited_for() -> None:
    sender = Sender(b"o", None, b"n", b"e")
    reading = asyncio.create_task(sender.request().body())
    await asyncio.sleep(0)
    assert not reading.done()
    sender.go_on.set()
    assert await reading == b"one"


async def test_a_body_does_not_end_with_a_client_that_hangs_up() -> None:
    sender = Sender(b"o", None)
    sender.go_on.set()
    request = sender.request()
    for _ in range(2):
        with pytest.raises(ClientDisconnect):
            await request.body()


async def test_a_wait_for_a_part_that_is_given_up_leaves_nothing_behind() -> None:
    for cancelled in (True, False):
        sender = Sender(b"o", None)
        reading = asyncio.create_task(sender.request(PATIENCE if cancelled else 0.001).body())
        await asyncio.sleep(0)
        if cancelled:
            reading.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else Problem):
            await reading
        assert sender.cleaned_up
