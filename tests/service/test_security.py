"""Who may do what: tokens, scopes, hosts and sizes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.routing import Mount

from mainspring import Mainspring
from mainspring.errors import StoreRefused, StoreUnavailable
from mainspring.service import Scope, ServiceSettings, Tokens, make_service
from mainspring.service.guard import OPEN_PATHS
from mainspring.service.tokens import COLLECTION, FRESH_FOR, checksum, parts_of
from mainspring.stores.documents import Document, Key, Listing
from tests.service.permissions import PAGE, SOCKETS, cells, page
from tests.service.serving import Client, api_of, listening, serving

ADA = {"task": "welcome", "payload": {"guest": "Ada"}}


async def token_of(app: Mainspring, *scopes: str, **more: Any) -> str:
    _, text = await Tokens(app.store).create("test", scopes, actor="tester", **more)
    return text


# -- tokens ---------------------------------------------------------------------------------------


async def test_a_token_is_kept_as_a_hash(app: Mainspring) -> None:
    text = await token_of(app, "read")
    token_id, secret = parts_of(text) or ("", "")
    (document,) = await app.store.browse(Listing(COLLECTION))
    assert document.key.id == token_id
    assert secret not in document.data
    assert text not in str(await app.audit())


@pytest.mark.parametrize("place", [5, 20, -1])
async def test_a_mistyped_token_is_known_without_the_store(app: Mainspring, place: int) -> None:
    text = await token_of(app, "read")
    wrong = "a" if text[place] != "a" else "b"
    assert parts_of(text) is not None
    assert parts_of(text[:place] + wrong + (text[place + 1 :] if place != -1 else "")) is None


async def test_a_token_is_needed_where_one_is_required(app: Mainspring) -> None:
    text = await token_of(app, "read")
    async with serving(app, tokens="required") as client:
        answer = await client.get("/v1/jobs")
        assert (answer.code, answer.headers["www-authenticate"]) == ("unauthorized", "Bearer")
        for path in OPEN_PATHS:
            assert (await client.get(path)).status == 200
        assert (await client.using(text).get("/v1/jobs")).status == 200


@pytest.mark.parametrize("header", ["Bearer nope", "Basic dXNlcjpwYXNz", "Bearer"])
async def test_a_wrong_token_is_refused_even_where_none_is_needed(client: Client, header: str) -> None:
    assert (await client.get("/v1/jobs", authorization=header)).code == "unauthorized"


async def test_a_forged_secret_is_refused(app: Mainspring, client: Client) -> None:
    token_id, _ = parts_of(await token_of(app, "admin")) or ("", "")
    forged = "A" * 43
    text = f"msk_{token_id}_{forged}{checksum(f'{token_id}{forged}')}"
    assert parts_of(text) is not None
    assert (await client.using(text).get("/v1/jobs")).code == "unauthorized"


async def test_an_expired_token_is_refused(app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    text = await token_of(app, "read", expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert (await client.using(text).get("/v1/jobs")).status == 200
    later = app.store.clock.now() + 3_600_000
    monkeypatch.setattr(app.store.clock, "now", lambda: later)
    assert (await client.using(text).get("/v1/jobs")).code == "unauthorized"


async def test_a_revoked_token_ends_within_seconds(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, text = await token_of(app, "admin"), await token_of(app, "read")
    assert (await client.using(text).get("/v1/jobs")).status == 200
    token_id, _ = parts_of(text) or ("", "")
    await Tokens(app.store).revoke(token_id, actor="tester")  # by another process
    monkeypatch.setattr("mainspring.service.tokens.FRESH_FOR", 0.0)  # those seconds have passed
    assert (await client.using(text).get("/v1/jobs")).code == "unauthorized"
    assert (await client.using(admin).get("/v1/jobs")).status == 200
    assert FRESH_FOR <= 5


async def test_a_slow_read_does_not_make_a_revoked_token_last_longer(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    read = app.store.documents

    async def slow(keys: Sequence[Key]) -> Sequence[Document]:
        nonlocal now
        found = await read(keys)
        now += FRESH_FOR
        return found

    monkeypatch.setattr("mainspring.service.tokens.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(app.store, "documents", slow)
    tokens, text = Tokens(app.store), await token_of(app, "read")
    token = await tokens.find(text)
    assert token is not None
    monkeypatch.setattr(app.store, "documents", read)
    await Tokens(app.store).revoke(token.id, actor="tester")  # by another process
    assert await tokens.find(text) is None


async def test_a_store_that_cannot_look_up_a_token_is_unavailable(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await token_of(app, "admin")

    async def unavailable(*_: object) -> None:
        msg = "no answer from db.internal"
        raise StoreUnavailable(msg)

    monkeypatch.setattr(app.store, "documents", unavailable)
    async with serving(app, tokens="required") as client:
        answer = await client.using(text).get("/v1/jobs")
        assert (answer.code, answer.headers["retry-after"]) == ("store_unavailable", "5")
        assert "db.internal" not in answer.text
        headers = {"authorization": f"Bearer {text}"}
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await client.session.ws_connect(f"{client.url}/v1/events/ws", headers=headers)
        assert (await client.using(text).get("/health/live")).status == 200


async def test_only_an_outage_of_the_store_asks_the_caller_to_try_again(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:
        msg = "db.internal refuses the password"
        raise StoreRefused(msg)

    monkeypatch.setattr(app.jobs, "find", refused)
    answer = await client.get("/v1/jobs")
    assert (answer.code, "retry-after" in answer.headers) == ("internal_error", False)
    assert "db.internal" not in answer.text


async def test_tokens_are_managed_over_http(app: Mainspring) -> None:
    admin = await token_of(app, "admin")
    async with serving(app, tokens="required") as client:
        boss = client.using(admin)
        made = await boss.post("/v1/tokens", {"name": "ci", "scopes": ["enqueue"]})
        assert made.status == 201
        ci = client.using(made.data["text"])
        assert (await ci.post("/v1/jobs", ADA)).status == 201
        answer = await ci.get("/v1/jobs")
        assert answer.code == "forbidden"
        assert "needs the scope read" in answer.data["detail"]
        assert made.data["text"] not in (await boss.get("/v1/tokens")).text
        assert (await boss.send("DELETE", f"/v1/tokens/{made.data['token']['id']}")).status == 204
        assert (await ci.post("/v1/jobs", ADA)).code == "unauthorized"
        assert (await boss.send("DELETE", "/v1/tokens/nope")).code == "not_found"


async def test_the_audit_log_names_the_token(app: Mainspring) -> None:
    text = await token_of(app, "operate", "enqueue")
    async with serving(app, tokens="required") as client:
        mine = client.using(text)
        job_id = (await mine.post("/v1/jobs", ADA)).data["id"]
        await mine.post(f"/v1/jobs/{job_id}:cancel")
    assert (await app.audit())[0].actor == "token test"


# -- every cell of the permission table -------------------------------------------------------------


def operations(app: Mainspring) -> list[tuple[str, str, Scope]]:
    document = api_of(app).openapi()
    return [
        (method.upper(), path, Scope(operation["x-scope"]))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "x-scope" in operation
    ]


async def test_every_operation_names_its_scope(app: Mainspring) -> None:
    document = api_of(app).openapi()
    without = [
        path for path, methods in document["paths"].items() for each in methods.values() if "x-scope" not in each
    ]
    assert set(without) == OPEN_PATHS


async def test_each_scope_opens_its_operations_and_no_others(app: Mainspring) -> None:
    texts = {scope: await token_of(app, scope.value) for scope in Scope}
    wrong = []
    async with serving(app, tokens="required") as client:
        for method, path, needed in operations(app):
            for scope, text in texts.items():
                status = await client.using(text).status(method, path.replace("{", "").replace("}", ""), b"{")
                if (status == 403) is (scope in {needed, Scope.ADMIN}):
                    wrong.append((method, path, scope, status))
                assert status != 401
    assert wrong == []


async def test_each_scope_opens_the_websocket_of_events_or_does_not(app: Mainspring) -> None:
    async with serving(app, tokens="required") as client:
        for scope in Scope:
            headers = {"authorization": f"Bearer {await token_of(app, scope.value)}"}
            async with client.session.ws_connect(f"{client.url}/v1/events/ws", headers=headers) as socket:
                await socket.send_json({"subscribe": "events"})
                first = await socket.receive_json()
            is_open = cells(SOCKETS["WS /v1/events/ws"])[list(Scope).index(scope)]
            assert (first["event"], first["data"].get("code")) == (
                ("hello", None) if is_open else ("error", "forbidden")
            )


async def test_only_public_tokens_open_their_websocket(app: Mainspring) -> None:
    text = await token_of(app, "admin")
    async with serving(app, tokens="required") as client:
        async with client.session.ws_connect(f"{client.url}/v1/public/events/ws") as socket:
            await socket.send_json({"subscribe": "events", "token": text})
            first = await socket.receive_json()
        job = await app.enqueue("welcome", {"guest": "Ada"})
        public = (await client.using(text).post("/v1/tokens:public", {"jobs": [job.id]})).data["text"]
        async with client.session.ws_connect(f"{client.url}/v1/public/events/ws") as socket:
            await socket.send_json({"subscribe": "events", "token": public})
            assert (await socket.receive_json())["event"] == "hello"
    assert (first["event"], first["data"]["code"]) == ("error", "unauthorized")


def test_the_table_of_permissions_is_published() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `make permissions`"


# -- hosts and sizes --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[::2]", ""])
async def test_another_host_is_refused(client: Client, host: str) -> None:
    """A page of another site could give its own name this address, and would then be of the same origin."""
    assert (await client.get("/v1/jobs", host=host)).code == "host_not_allowed"


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "[::1]:8340", "127.0.0.1", "jobs.example"])
async def test_a_configured_host_is_allowed(app: Mainspring, host: str) -> None:
    async with serving(app, allowed_hosts="jobs.example, other.example") as client:
        assert (await client.get("/v1/jobs", host=host)).status == 200


async def test_a_probe_may_name_any_host(app: Mainspring) -> None:
    """Kubernetes asks each pod at its own address."""
    async with serving(app, host="0.0.0.0", tokens="required") as client:
        for path in OPEN_PATHS:
            assert (await client.get(path, host="10.1.2.3:8340")).status == 200
        assert (await client.get("/v1/jobs", host="10.1.2.3:8340")).code == "host_not_allowed"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/jobs", "GET, POST"),
        ("PUT", "/v1/jobs/x", "DELETE, GET, PATCH"),
        ("PUT", "/v1/jobs/x:cancel", "POST"),
        ("DELETE", "/v1/jobs:bulk", "POST"),
        ("POST", "/health/live", "GET"),
    ],
)
async def test_a_method_that_a_path_does_not_have(client: Client, method: str, path: str, allowed: str) -> None:
    answer = await client.send(method, path)
    assert (answer.code, answer.headers["allow"]) == ("method_not_allowed", allowed)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"origin": "http://[evil"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
    ],
)
async def test_a_page_of_another_site_can_do_nothing(app: Mainspring, client: Client, headers: dict[str, str]) -> None:
    """Browsers let any page send a text to this machine, where no token is needed."""
    for path, body in (("/v1/jobs", ADA), ("/v1/leases", {"worker": "evil"}), ("/v1/halt", {"reason": "evil"})):
        assert (await client.post(path, body, content_type="text/plain", **headers)).code == "forbidden"
    assert (await client.get("/v1/jobs", **headers)).code == "forbidden"
    assert await app.jobs.count() == 0
    assert not await app.halts()


async def test_a_page_of_another_site_cannot_open_a_websocket(client: Client) -> None:
    for origin in ("https://evil.example", "null"):
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await client.session.ws_connect(f"{client.url}/v1/events/ws", origin=origin)
    async with client.session.ws_connect(f"{client.url}/v1/events/ws", origin=client.url) as socket:
        assert not socket.closed


async def test_a_page_of_the_service_itself_is_allowed(client: Client) -> None:
    assert (await client.post("/v1/jobs", ADA, origin=client.url, sec_fetch_site="same-origin")).status == 201
    assert (await client.post("/v1/jobs", ADA)).status == 201
    assert (await client.get("/v1/jobs", sec_fetch_site="cross-site", sec_fetch_mode="navigate")).status == 200


async def test_a_page_with_a_token_may_be_of_another_site(app: Mainspring) -> None:
    """Browsers add no token by themselves, as they do with cookies."""
    text = await token_of(app, "enqueue")
    async with serving(app, tokens="required") as client:
        answer = await client.using(text).post("/v1/jobs", ADA, origin="https://shop.example")
        assert answer.status == 201
        assert (await client.post("/v1/jobs", ADA, origin="https://shop.example")).code == "unauthorized"


async def test_a_body_that_is_too_large_is_refused(app: Mainspring) -> None:
    async with serving(app, max_body=1_000) as client:
        assert (await client.post("/v1/jobs", b" " * 1_001)).code == "body_too_large"
        assert (await client.post("/v1/jobs:bulk", b" " * 5_001)).code == "body_too_large"

        async def endless() -> Any:
            for _ in range(10):
                yield b" " * 500

        for path in ("/v1/jobs", "/v1/halt"):
            async with client.session.post(f"{client.url}{path}", data=endless()) as response:
                assert response.status == 413
                assert (await response.json(content_type=None))["code"] == "body_too_large"


def test_another_address_than_loopback_needs_tokens() -> None:
    assert not ServiceSettings().bound().needs_tokens
    assert ServiceSettings(tokens="required").bound().needs_tokens
    assert ServiceSettings(host="0.0.0.0").bound().needs_tokens
    with pytest.raises(ValidationError, match="tokens are required"):
        ServiceSettings(host="10.0.0.1", tokens="optional")


async def test_an_error_of_ours_tells_no_secret(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> None:
        msg = "password=hunter2"
        raise RuntimeError(msg)

    monkeypatch.setattr(app.jobs, "find", broken)
    answer = await client.get("/v1/jobs")
    assert answer.code == "internal_error"
    assert "hunter2" not in answer.text
    assert answer.data["request_id"] in caplog.text


# -- mounted into another application ---------------------------------------------------------------


@asynccontextmanager
async def mounted(app: Mainspring, **settings: Any) -> AsyncIterator[Client]:
    """Serve another application that has the service under /queue."""
    service = make_service(app, ServiceSettings(**settings))
    whole = Starlette(routes=[Mount("/queue", service)])
    async with listening(whole) as url, aiohttp.ClientSession() as session:
        yield Client(session, f"{url}/queue")


async def test_a_mounted_service_needs_tokens_unless_they_are_optional(app: Mainspring) -> None:
    """The address that the other application listens on is not known."""
    text = await token_of(app, "read")
    async with mounted(app) as client:
        assert (await client.get("/v1/jobs")).code == "unauthorized"
        assert (await client.using(text).get("/v1/jobs")).status == 200
    async with mounted(app, tokens="optional") as client:
        assert (await client.get("/v1/jobs")).status == 200


async def test_a_mounted_service_knows_where_it_is(app: Mainspring) -> None:
    async with mounted(app, tokens="optional") as client:
        jobs = [(await client.post("/v1/jobs", ADA)) for _ in range(2)]
        assert jobs[0].headers["location"] == f"/queue/v1/jobs/{jobs[0].data['id']}"
        page = await client.get("/v1/jobs?limit=1")
        assert page.headers["link"].startswith("</queue/v1/jobs?limit=1&cursor=")
        refused = await client.send("PUT", "/v1/jobs")
        assert (refused.code, refused.headers["allow"]) == ("method_not_allowed", "GET, POST")
        assert (await client.get("/v1/openapi.json")).data["servers"] == [{"url": "/queue"}]
    assert "servers" not in api_of(app).openapi()  # another application is somewhere else


async def test_the_probes_of_a_mounted_service_are_open(app: Mainspring) -> None:
    async with mounted(app) as client:
        for path in OPEN_PATHS:
            assert (await client.get(path)).status == 200
