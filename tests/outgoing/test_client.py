"""Outgoing requests, with real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from mainspring.errors import RequestFailed, RequestRefused
from mainspring.outgoing.addresses import Reach, networks_of
from mainspring.outgoing.client import MAX_ANSWER, Outgoing, OutgoingRequest
from mainspring.testing.fakes import Answer, FakeEndpoint

LOOPBACK = Reach(networks_of(["127.0.0.0/8", "::1/128"]))


@pytest.fixture
async def site() -> AsyncIterator[FakeEndpoint]:
    async with FakeEndpoint() as site:
        yield site


class FakeResolver(AbstractResolver):
    """Answers with the next of some addresses at each question, and with the last one for ever."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = list(addresses)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked += 1
        address = self._addresses.pop(0) if len(self._addresses) > 1 else self._addresses[0]
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)]

    async def close(self) -> None:
        pass


def get(url: str, **more: Any) -> OutgoingRequest:
    return OutgoingRequest("GET", url, **more)


SPELLINGS = [
    "127.0.0.1", "127.1", "0x7f.1", "0x7f000001", "2130706433", "017700000001", "0177.0.0.1", "0", "0.0.0.0",
    "localhost", "LOCALHOST", "①②⑦.0.0.1", "127。0。0。1", "[::1]", "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]", "[::127.0.0.1]", "[0:0:0:0:0:0:0:1]",
]  # fmt: skip


@pytest.mark.parametrize("host", SPELLINGS)
async def test_loopback_is_refused_however_it_is_written(site: FakeEndpoint, host: str) -> None:
    with pytest.raises(RequestRefused):
        await Outgoing().send(get(f"http://{host}:{site.port}/"))
    assert site.received == []


@pytest.mark.parametrize("host", ["127.0.0.1", "0x7f.1", "localhost", "①②⑦.0.0.1"])
async def test_an_allowed_network_is_reached_however_it_is_written(site: FakeEndpoint, host: str) -> None:
    answer = await Outgoing(LOOPBACK).send(get(f"http://{host}:{site.port}/a?b=c"))
    assert (answer.status, answer.body, answer.cut) == (200, b'{"ok": true}', False)
    assert site.received[0].path == "/a"


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "fd00::1", "fe80::1"])
async def test_a_name_that_stands_for_a_private_address_is_refused(address: str) -> None:
    with pytest.raises(RequestRefused, match="not a public address"):
        await Outgoing(resolver=FakeResolver(address)).send(get("http://inside.example/"))


async def test_a_name_that_stands_for_another_address_at_the_second_question_is_refused(site: FakeEndpoint) -> None:
    resolver = FakeResolver("127.0.0.2", "127.0.0.1")
    outgoing = Outgoing(Reach(networks_of(["127.0.0.2/32"])), resolver=resolver)
    with pytest.raises(RequestFailed):  # allowed, but nothing listens there
        await outgoing.send(get(f"http://rebinding.example:{site.port}/"))
    with pytest.raises(RequestRefused, match=r"127\.0\.0\.1 is not"):
        await outgoing.send(get(f"http://rebinding.example:{site.port}/"))
    assert (resolver.asked, site.received) == (2, [])


async def test_a_name_is_resolved_once_for_each_request(site: FakeEndpoint) -> None:
    resolver = FakeResolver("127.0.0.1")
    await Outgoing(LOOPBACK, resolver=resolver).send(get(f"http://once.example:{site.port}/"))
    assert (resolver.asked, len(site.received)) == (1, 1)


async def test_redirects_are_answers_and_not_followed(site: FakeEndpoint) -> None:
    site.reply(Answer(302, None, {"Location": f"{site.url}/elsewhere"}))
    answer = await Outgoing(LOOPBACK).send(get(site.url))
    assert (answer.status, len(site.received)) == (302, 1)


async def test_proxies_of_the_environment_are_not_used(site: FakeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", site.url)
    monkeypatch.setenv("http_proxy", site.url)
    with pytest.raises(RequestRefused):
        await Outgoing(resolver=FakeResolver("10.0.0.1")).send(get("http://inside.example/"))
    assert site.received == []


async def test_of_a_long_answer_the_start_is_kept(site: FakeEndpoint) -> None:
    site.reply(Answer(200, b"x" * (MAX_ANSWER + 1)))
    answer = await Outgoing(LOOPBACK).send(get(site.url))
    assert (len(answer.body), answer.cut) == (MAX_ANSWER, True)
    site.reply(Answer(200, b"x" * MAX_ANSWER))
    answer = await Outgoing(LOOPBACK).send(get(site.url))
    assert (len(answer.body), answer.cut) == (MAX_ANSWER, False)


async def test_an_answer_without_end_is_cut() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        try:
            while not writer.is_closing():
                writer.write(b"x" * 65_536)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        answer = await Outgoing(LOOPBACK).send(get(f"http://127.0.0.1:{port}/"))
    assert (len(answer.body), answer.cut) == (MAX_ANSWER, True)


async def test_a_compressed_answer_is_kept_as_it_came(site: FakeEndpoint) -> None:
    site.reply(Answer(200, b"\x1f\x8bnot really", {"Content-Encoding": "gzip"}))
    assert (await Outgoing(LOOPBACK).send(get(site.url))).body == b"\x1f\x8bnot really"
    assert site.received[0].headers["accept-encoding"] == "identity"


async def test_a_server_that_is_too_slow_fails(site: FakeEndpoint) -> None:
    site.slow(30)
    with pytest.raises(RequestFailed, match=r"within 0\.2 s"):
        await Outgoing(LOOPBACK).send(get(site.url, timeout=0.2))


async def test_a_server_that_hangs_up_or_is_down_fails(site: FakeEndpoint) -> None:
    site.fail(None)
    with pytest.raises(RequestFailed):
        await Outgoing(LOOPBACK).send(get(site.url))
    site.down()
    with pytest.raises(RequestFailed):
        await Outgoing(LOOPBACK).send(get(site.url))


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({"x-a": "b\r\nx-evil: 1"}, "line break"),
        ({"x-a": "b\nc"}, "line break"),
        ({"x-a": "b\0"}, "control"),
        ({"x-a\r\nx-b": "c"}, "name"),
        ({"": "c"}, "name"),
        ({"x a": "c"}, "name"),
        ({"Host": "other.example"}, "cannot be set"),
        ({"transfer-encoding": "chunked"}, "cannot be set"),
        ({"Content-Length": "0"}, "cannot be set"),
        ({"x-a": "€"}, "control"),
        ({"x-a": "b" * 8001}, "8,000"),
    ],
)
async def test_headers_that_could_forge_a_request_are_refused(
    site: FakeEndpoint, headers: dict[str, str], problem: str
) -> None:
    with pytest.raises(RequestRefused, match=problem):
        await Outgoing(LOOPBACK).send(get(site.url, headers=headers))
    assert site.received == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/", "file:///etc/passwd", "example.com", "//example.com", "http://", "http://:80/",
        "http://user:secret@example.com/", "http://user@example.com", "http://example.com:99999/", "http://[::1",
        "gopher://127.0.0.1/", "unix:///run/docker.sock", "http://example.com/" + "a" * 4000, "", "http://exa mple/",
    ],
)  # fmt: skip
async def test_urls_that_are_not_of_http_are_refused(url: str) -> None:
    with pytest.raises(RequestRefused):
        await Outgoing(LOOPBACK, resolver=FakeResolver("10.0.0.1")).send(get(url))


@pytest.mark.parametrize(
    ("method", "timeout"), [("CONNECT", 1.0), ("get", 1.0), ("GET\r\n", 1.0), ("GET", 0.0), ("GET", 1801.0)]
)
async def test_odd_methods_and_timeouts_are_refused(method: str, timeout: float) -> None:
    with pytest.raises(RequestRefused):
        await Outgoing(LOOPBACK).send(OutgoingRequest(method, "http://127.0.0.1/", timeout=timeout))


async def test_method_headers_and_body_arrive(site: FakeEndpoint) -> None:
    await Outgoing(LOOPBACK).send(OutgoingRequest("PUT", site.url, {"x-a": "b"}, b'"body"'))
    (request,) = site.received
    assert (request.method, request.headers["x-a"], request.body) == ("PUT", "b", b'"body"')
    assert request.headers["user-agent"] == "Mainspring"
