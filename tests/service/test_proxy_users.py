"""Users whom a reverse proxy names: only a listed proxy may, and a browser is protected as with a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from mainspring import Mainspring
from mainspring.outgoing.addresses import networks_of
from mainspring.service import ServiceSettings, make_service
from mainspring.service.problems import Problem
from mainspring.service.program import Service, behind_proxies
from mainspring.service.proxy_users import PEER, ProxyUsers, is_within
from tests.service.serving import Client, listening
from tests.service.test_security import ADA, token_of
from tests.service.test_sessions import OURS, WRITE, logged_in

HEADER = "X-Forwarded-User"
NAMED = {"x_forwarded_user": "ada"}
SCOPES = ("read", "enqueue", "operate")


@asynccontextmanager
async def behind_proxy(app: Mainspring, *addresses: str, **settings: Any) -> AsyncIterator[Client]:
    """Serve as `mainspring serve` does. The test connects from 127.0.0.1, as a proxy that may be listed."""
    given = {"proxy_header": HEADER, "proxy_scopes": SCOPES, "rate_limit": 0.0, **settings}
    service = make_service(app, ServiceSettings(proxy_addresses=addresses, **given))
    async with listening(behind_proxies(service), proxy_headers=False) as url, aiohttp.ClientSession() as session:
        yield Client(session, url)


# -- who is believed --------------------------------------------------------------------------------


async def test_a_listed_proxy_names_the_user(app: Mainspring) -> None:
    async with behind_proxy(app, "10.0.0.5", "127.0.0.0/8") as client:
        assert (await client.get("/v1/jobs", **NAMED)).status == 200
        assert (await client.post("/v1/halt", {"reason": "fire"}, **NAMED, **WRITE)).status == 200
        assert (await client.get("/v1/jobs")).code == "unauthorized"
        assert (await client.get("/v1/jobs", x_forwarded_user=" ")).code == "unauthorized"
    assert (await app.audit())[0].actor == "user ada"


async def test_the_scopes_of_the_settings_count(app: Mainspring) -> None:
    async with behind_proxy(app, "127.0.0.1", proxy_scopes=("read",)) as client:
        refused = await client.post("/v1/halt", {"reason": "fire"}, **NAMED, **WRITE)
        assert refused.code == "forbidden"
        assert refused.data["detail"] == "this needs the scope operate; the user 'ada' has read"
        assert (await client.get("/v1/tokens", **NAMED)).code == "forbidden"


@pytest.mark.parametrize("trusted", ["127.0.0.1", "*", ""])
async def test_the_header_of_another_address_is_ignored(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch, trusted: str
) -> None:
    """Whatever X-Forwarded-For says, and whoever may say that: the connection comes from an address not listed."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    async with behind_proxy(app, "10.0.0.5") as client:
        for spoofed in ("10.0.0.5", "10.0.0.5, 10.0.0.5", "10.0.0.5, 203.0.113.9"):
            for name in ("x_forwarded_for", "x_real_ip", "x_client_ip"):
                assert (await client.get("/v1/jobs", **NAMED, **{name: spoofed})).code == "unauthorized"
        assert (await client.get("/v1/jobs", **NAMED, forwarded="for=10.0.0.5")).code == "unauthorized"


async def test_a_listed_proxy_may_say_where_its_clients_are(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the client's address is not the proxy's, and the proxy is believed all the same."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
    async with behind_proxy(app, "127.0.0.1") as client:
        assert (await client.get("/v1/jobs", **NAMED, x_forwarded_for="203.0.113.9")).status == 200


async def test_the_program_notes_who_has_connected(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    for address, status in (("127.0.0.1", 200), ("10.0.0.5", 401)):
        settings = ServiceSettings(port=0, worker=False, proxy_header=HEADER, proxy_addresses=(address,))
        service = Service(app, settings)
        running = asyncio.create_task(service.serve())
        async with aiohttp.ClientSession() as session:
            client = Client(session, service.url)
            assert (await client.get("/v1/jobs", **NAMED, x_forwarded_for="10.0.0.5")).status == status
        service.stop()
        await running


async def test_a_mounted_service_cannot_know_and_believes_nobody(app: Mainspring) -> None:
    settings = ServiceSettings(proxy_header=HEADER, proxy_addresses=("127.0.0.1",))
    async with listening(make_service(app, settings)) as url, aiohttp.ClientSession() as session:
        assert (await Client(session, url).get("/v1/jobs", **NAMED)).code == "unauthorized"


async def test_without_the_setting_the_header_means_nothing(app: Mainspring) -> None:
    service = behind_proxies(make_service(app, ServiceSettings(proxy_addresses=("127.0.0.1",))))
    async with listening(service, proxy_headers=False) as url, aiohttp.ClientSession() as session:
        assert (await Client(session, url).get("/v1/jobs", **NAMED)).code == "unauthorized"


@pytest.mark.parametrize(
    ("address", "is_listed"),
    [
        ("10.0.0.5", True),
        ("::ffff:10.0.0.5", True),
        ("10.0.0.6", False),
        ("fd00::7", True),
        ("fe80::1%eth0", False),
        ("", False),
        ("/run/mainspring.sock", False),
    ],
)
def test_addresses_are_compared_as_numbers(address: str, is_listed: bool) -> None:
    assert is_within(address, networks_of(["10.0.0.5", "fd00::/64"])) is is_listed


# -- names ------------------------------------------------------------------------------------------


def found(*values: bytes) -> Any:
    users = ProxyUsers(HEADER, ("10.0.0.5",), ("read",))
    headers = [(b"x-forwarded-user", value) for value in values]
    return users.find({PEER: "10.0.0.5", "headers": headers})


def test_names_are_text_of_any_language() -> None:
    assert found(" zoë@example.com ".encode()).name == "zoë@example.com"
    assert found() is None
    assert found(b"") is None


@pytest.mark.parametrize(
    "values", [(b"ada", b"root"), (b"\xff\xfe",), (b"a" * 201,), ("a\u202eb".encode(),), ("a\x85b".encode(),)]
)
def test_a_name_that_cannot_be_right_is_refused(values: tuple[bytes, ...]) -> None:
    """Of two headers, one may be the client's own."""
    with pytest.raises(Problem, match="the proxy sent a wrong user name"):
        found(*values)


# -- browsers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x_mainspring": "1"},
        OURS,
        {"sec_fetch_site": "cross-site", "x_mainspring": "1"},
        {"sec_fetch_site": "same-site", "x_mainspring": "1"},
        {"origin": "https://evil.example", "x_mainspring": "1"},
        {**WRITE, "origin": "https://evil.example"},
        {**WRITE, "origin": "null", "sec_fetch_site": "cross-site"},
    ],
)
async def test_other_pages_cannot_write_in_the_name_of_a_user(app: Mainspring, headers: dict[str, str]) -> None:
    """The browser sends what the proxy asks for by itself."""
    async with behind_proxy(app, "127.0.0.1") as client:
        assert (await client.post("/v1/jobs", ADA, **NAMED, **headers)).code == "forbidden"
        assert (await client.post("/v1/halt", {"reason": "x"}, **NAMED, **headers)).code == "forbidden"
        assert (await client.post("/v1/jobs", ADA, **NAMED, **WRITE)).status == 201


async def test_other_pages_cannot_read_in_the_name_of_a_user(app: Mainspring) -> None:
    async with behind_proxy(app, "127.0.0.1") as client:
        assert (await client.get("/v1/jobs", **NAMED, origin="https://evil.example")).code == "forbidden"
        assert (await client.get("/v1/jobs", **NAMED, sec_fetch_site="cross-site")).code == "forbidden"


async def test_other_pages_cannot_follow_events_in_the_name_of_a_user(app: Mainspring) -> None:
    async with behind_proxy(app, "127.0.0.1") as client:
        path, sent = f"{client.url}/v1/events/ws", {HEADER: "ada"}
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await client.session.ws_connect(path, headers={**sent, "origin": "https://evil.example"})
        async with client.session.ws_connect(path, headers=sent) as socket:
            await socket.send_json({"subscribe": "events"})
            assert (await socket.receive_json())["event"] == "hello"
        async with client.session.get(f"{client.url}/v1/events", headers=sent) as stream:
            assert stream.status == 200


# -- beside tokens, sessions and passwords ----------------------------------------------------------


async def test_a_bearer_token_wins(app: Mainspring) -> None:
    async with behind_proxy(app, "127.0.0.1") as client:
        program = client.using(await token_of(app, "read"))
        assert (await program.get("/v1/jobs", **NAMED)).status == 200
        assert (await program.post("/v1/jobs", ADA, **NAMED, **WRITE)).code == "forbidden"
        assert (await client.get("/v1/jobs", **NAMED, authorization="Bearer msk_wrong")).code == "unauthorized"


async def test_a_password_for_the_proxy_is_not_ours(app: Mainspring) -> None:
    """Browsers send it with each request, and proxies pass it on."""
    async with behind_proxy(app, "127.0.0.1") as client:
        assert (await client.get("/v1/jobs", **NAMED, authorization="Basic YWRhOnNlY3JldA==")).status == 200
        assert (await client.get("/v1/jobs", authorization="Basic YWRhOnNlY3JldA==")).code == "unauthorized"


async def test_a_session_comes_before_the_name(app: Mainspring) -> None:
    async with behind_proxy(app, "127.0.0.1", proxy_scopes=("read",)) as client:
        cookie = await logged_in(client, await token_of(app, "operate"))
        assert (await client.post("/v1/halt", {"reason": "x"}, cookie=cookie, **NAMED, **WRITE)).status == 200
    assert (await app.audit())[0].actor == "token test"


async def test_each_user_has_a_rate_limit(app: Mainspring) -> None:
    async with behind_proxy(app, "127.0.0.1", rate_limit=0.001, rate_burst=2) as client:
        statuses = [(await client.get("/v1/jobs", **NAMED)).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert (await client.get("/v1/jobs", x_forwarded_user="bob")).status == 200


async def test_a_user_makes_no_public_tokens(app: Mainspring) -> None:
    """Nothing could revoke them."""
    async with behind_proxy(app, "127.0.0.1") as client:
        body = {"target": {"type": "order", "id": "7"}}
        assert (await client.post("/v1/tokens:public", body, **NAMED, **WRITE)).code == "forbidden"


async def test_a_key_of_one_user_is_not_that_of_another(app: Mainspring) -> None:
    async with behind_proxy(app, "127.0.0.1") as client:
        ids = {
            (await client.post("/v1/jobs", ADA, x_forwarded_user=name, idempotency_key="1", **WRITE)).data["id"]
            for name in ("ada", "bob", "ada")
        }
    assert len(ids) == 2
