"""Sessions of browsers: logging in and out, what a cookie may do, and when it ends."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from mainspring import Mainspring
from mainspring.errors import StoreUnavailable
from mainspring.service import ServiceSettings, Tokens, make_service
from mainspring.service.live import Pace
from mainspring.service.login import is_local
from mainspring.service.login_limit import FREE_FAILURES, MOST_ADDRESSES, LoginLimit
from mainspring.service.problems import Problem
from mainspring.service.sessions import COLLECTION, IDLE, LONGEST, TOUCH_AFTER, cookie_header, cookie_in
from mainspring.service.tokens import parts_of
from mainspring.stores.documents import Listing
from tests.service.event_client import EventClient
from tests.service.event_client import serving as serving_events
from tests.service.serving import Answer, Client, listening, serving
from tests.service.test_pages import BROWSER, Checked
from tests.service.test_security import ADA, token_of

FORM = "application/x-www-form-urlencoded"
OURS = {"sec_fetch_site": "same-origin"}
WRITE = {**OURS, "x_mainspring": "1"}


async def post_form(client: Client, path: str, text: str = "", **headers: str) -> Answer:
    """Send a form as a browser does, and do not follow the answer."""
    sent = {"content-type": FORM, "accept": BROWSER, **{name.replace("_", "-"): each for name, each in headers.items()}}
    body = f"token={quote(text)}".encode()
    async with client.session.post(f"{client.url}{path}", data=body, headers=sent, allow_redirects=False) as response:
        return Answer(response.status, await response.text(), {k.lower(): v for k, v in response.headers.items()})


async def logged_in(client: Client, text: str) -> str:
    """Log in; return the header Cookie for later requests."""
    answer = await post_form(client, "/login", text, **OURS)
    assert answer.status == 303, answer
    return answer.headers["set-cookie"].partition(";")[0]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read five seconds ago is read again."""
    monkeypatch.setattr("mainspring.service.sessions.FRESH_FOR", 0.0)
    monkeypatch.setattr("mainspring.service.tokens.FRESH_FOR", 0.0)


# -- logging in and out -----------------------------------------------------------------------------


async def test_a_person_logs_in_looks_around_and_logs_out(app: Mainspring) -> None:
    text = await token_of(app, "read")
    async with serving(app, tokens="required") as client:
        form = await client.get("/login", accept=BROWSER)
        assert {"form", "label", "button"} <= Checked(form.text).elements
        assert "script" not in Checked(form.text).elements
        answer = await post_form(client, "/login", text, **OURS)
        assert (answer.status, answer.headers["location"]) == (303, "/login")
        assert answer.headers["set-cookie"].endswith("; Path=/; Max-Age=604800; HttpOnly; SameSite=Lax")
        cookie = answer.headers["set-cookie"].partition(";")[0]
        assert (await client.get("/v1/jobs", cookie=cookie)).status == 200
        assert "<code>test</code>" in (await client.get("/login", cookie=cookie, accept=BROWSER)).text
        gone = await post_form(client, "/logout", cookie=cookie, **OURS)
        assert (gone.status, "Max-Age=0" in gone.headers["set-cookie"]) == (303, True)
        assert (await client.get("/v1/jobs", cookie=cookie)).code == "unauthorized"
    assert [entry.action for entry in await app.audit()][:2] == ["session.end", "session.create"]
    assert text not in str(await app.audit())


async def test_the_store_has_no_cookie(app: Mainspring) -> None:
    async with serving(app) as client:
        cookie = await logged_in(client, await token_of(app, "read"))
    (document,) = await app.store.browse(Listing(COLLECTION))
    session_id, _, secret = cookie.removeprefix("ms=").partition("_")
    assert document.key.id == session_id
    assert secret not in document.data
    assert secret not in str(await app.audit())


async def test_a_wrong_token_opens_no_session(app: Mainspring) -> None:
    async with serving(app, tokens="required") as client:
        answer = await post_form(client, "/login", "msk_nope", **OURS)
        assert (answer.status, "set-cookie" in answer.headers) == (401, False)
        assert 'role="alert"' in answer.text
        refused = await post_form(client, "/login", "<script>", accept="*/*", **OURS)
        assert refused.code == "unauthorized"
    assert await Tokens(app.store).sessions.list() == []


async def test_a_new_login_ends_the_session_before_it(app: Mainspring) -> None:
    text = await token_of(app, "read")
    async with serving(app, tokens="required") as client:
        first = await logged_in(client, text)
        answer = await post_form(client, "/login", text, cookie=first, **OURS)
        second = answer.headers["set-cookie"].partition(";")[0]
        assert second != first
        assert (await client.get("/v1/jobs", cookie=first)).code == "unauthorized"
        assert (await client.get("/v1/jobs", cookie=second)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://evil.example", "sec_fetch_site": "same-origin"},
    ],
)
async def test_no_other_page_can_log_a_browser_in_or_out(app: Mainspring, headers: dict[str, str]) -> None:
    text = await token_of(app, "read")
    async with serving(app, tokens="required") as client:
        cookie = await logged_in(client, text)
        answer = await post_form(client, "/login", text, **headers)
        assert (answer.status, "set-cookie" in answer.headers) == (403, False)
        assert (await post_form(client, "/logout", cookie=cookie, **headers)).status == 403
        assert (await client.get("/v1/jobs", cookie=cookie)).status == 200


async def test_a_browser_without_fetch_metadata_logs_in_by_its_origin(app: Mainspring) -> None:
    async with serving(app) as client:
        answer = await post_form(client, "/login", await token_of(app, "read"), origin=client.url)
        assert answer.status == 303


async def test_a_login_that_others_could_read_is_refused(app: Mainspring) -> None:
    text = await token_of(app, "read")
    async with serving(app, allowed_hosts="jobs.example") as client:
        answer = await post_form(client, "/login", text, host="jobs.example", accept="*/*", **OURS)
        assert (answer.code, "HTTPS" in answer.data["detail"]) == ("forbidden", True)


async def test_behind_a_proxy_with_tls_the_cookie_is_safe(app: Mainspring) -> None:
    """The proxy says that it speaks HTTPS; uvicorn believes proxies of this machine."""
    text = await token_of(app, "read")
    proxy = {"host": "jobs.example", "x_forwarded_proto": "https"}
    async with serving(app, tokens="required", allowed_hosts="jobs.example") as client:
        answer = await post_form(client, "/login", text, **proxy, **OURS)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-ms=")
        assert cookie.endswith("; Secure")
        named = cookie.partition(";")[0]
        assert (await client.get("/v1/jobs", cookie=named, **proxy)).status == 200
        assert (await client.get("/v1/jobs", cookie=named.removeprefix("__Host-"), **proxy)).code == "unauthorized"


async def test_a_form_of_another_kind_is_refused(client: Client) -> None:
    answer = await client.post("/login", {"token": "x"}, **OURS)
    assert (answer.code, FORM in answer.data["detail"]) == ("invalid_request", True)
    large = await post_form(client, "/login", "x" * 3_000, accept="*/*", **OURS)
    assert large.code == "body_too_large"
    assert (await client.send("DELETE", "/login")).headers["allow"] == "GET, HEAD, POST"


# -- what a cookie may do ---------------------------------------------------------------------------


async def test_a_write_by_cookie_must_come_from_our_page(app: Mainspring) -> None:
    async with serving(app, tokens="required") as client:
        cookie = await logged_in(client, await token_of(app, "enqueue"))
        assert (await client.post("/v1/jobs", ADA, cookie=cookie, **WRITE)).status == 201
        assert (await client.post("/v1/jobs", ADA, cookie=cookie, origin=client.url, x_mainspring="1")).status == 201
        for headers in (
            {},
            OURS,
            {"x_mainspring": "1"},
            {"x_mainspring": "1", "sec_fetch_site": "same-site"},
            {"x_mainspring": "1", "sec_fetch_site": "cross-site"},
            {"x_mainspring": "1", "origin": "null"},
            {**WRITE, "origin": "http://localhost:1"},
        ):
            assert (await client.post("/v1/jobs", ADA, cookie=cookie, **headers)).code == "forbidden", headers
    assert await app.jobs.count() == 2


async def test_a_read_by_cookie_for_another_page_is_refused(app: Mainspring) -> None:
    async with serving(app, tokens="required") as client:
        cookie = await logged_in(client, await token_of(app, "read"))
        for headers in ({"origin": "https://evil.example"}, {"sec_fetch_site": "cross-site"}):
            answer = await client.get("/v1/jobs", cookie=cookie, **headers)
            assert (answer.code, "access-control-allow-origin" in answer.headers) == ("forbidden", False)
        assert (await client.get("/v1/public/jobs", cookie=cookie)).code == "invalid_request"


async def test_a_session_has_the_scopes_of_its_token(app: Mainspring) -> None:
    async with serving(app, tokens="required") as client:
        cookie = await logged_in(client, await token_of(app, "read"))
        assert (await client.post("/v1/jobs", ADA, cookie=cookie, **WRITE)).code == "forbidden"
        assert (await client.get("/v1/sessions", cookie=cookie)).code == "forbidden"


async def test_a_token_in_the_header_comes_before_the_cookie(app: Mainspring) -> None:
    async with serving(app, tokens="required") as client:
        cookie = await logged_in(client, await token_of(app, "read"))
        boss = client.using(await token_of(app, "enqueue"))
        assert (await boss.post("/v1/jobs", ADA, cookie=cookie)).status == 201


@pytest.mark.parametrize("cookie", ["ms=", "ms=x", "ms", "=;;", "ms=" + "a" * 5_000, f"ms={'a' * 12}_{'b' * 43}"])
async def test_a_cookie_that_is_none_of_ours_is_like_none(app: Mainspring, cookie: str) -> None:
    """Another program on this machine may have set it."""
    async with serving(app) as client:
        assert (await client.post("/v1/jobs", ADA, cookie=cookie)).status == 201
    async with serving(app, tokens="required") as client:
        assert (await client.get("/v1/jobs", cookie=cookie)).code == "unauthorized"


async def test_a_session_follows_events_until_it_ends(app: Mainspring) -> None:
    async with serving_events(app, Pace(check=0.05), tokens="required") as served:
        token, _ = await served.tokens.create("test", ["read"], actor="ana")
        session, value = await served.tokens.sessions.create(token.id, actor="ana", address="127.0.0.1")
        headers = {"cookie": f"ms={value}"}
        client = EventClient(await served.http.get(f"{served.url}/v1/events", headers=headers))
        assert (await client.next()).event == "hello"
        async with served.http.ws_connect(f"{served.url}/v1/events/ws", headers=headers, origin=served.url) as socket:
            await socket.send_json({"subscribe": "events"})
            assert (await socket.receive_json())["event"] == "hello"
            await Tokens(app.store).sessions.end(session.id, actor="ana")  # by another process
            assert (await client.next()).data == {"reason": "revoked"}
            assert (await socket.receive_json())["data"] == {"reason": "revoked"}
        client.close()
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await served.http.ws_connect(f"{served.url}/v1/events/ws", headers=headers, origin="https://evil.example")


# -- when it ends -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh")
async def test_a_session_ends_with_its_token(app: Mainspring) -> None:
    text = await token_of(app, "read")
    admin = await token_of(app, "admin")
    async with serving(app, tokens="required") as client:
        cookie = await logged_in(client, text)
        await Tokens(app.store).revoke((parts_of(text) or ("", ""))[0], actor="tester")
        assert (await client.get("/v1/jobs", cookie=cookie)).code == "unauthorized"
        assert (await client.using(admin).get("/v1/sessions")).data == {"sessions": [], "cursor": None}


@pytest.mark.usefixtures("fresh")
async def test_a_session_ends_when_it_is_not_used(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(app, tokens="required") as client:
        cookie = await logged_in(client, await token_of(app, "read"))
        now = app.store.clock.now()
        for moment, status in ((IDLE - 1_000, 200), (2 * IDLE - 10_000, 200), (3 * IDLE, 401)):
            monkeypatch.setattr(app.store.clock, "now", lambda moment=moment: now + moment)
            assert (await client.get("/v1/jobs", cookie=cookie)).status == status


@pytest.mark.usefixtures("fresh")
async def test_a_session_ends_after_a_week_however_much_it_is_used(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = Tokens(app.store).sessions
    _, cookie = await sessions.create("token", actor="ana", address="")
    now = app.store.clock.now()
    for moment in range(0, LONGEST + IDLE, IDLE // 2):
        monkeypatch.setattr(app.store.clock, "now", lambda moment=moment: now + moment)
        assert (await sessions.find(cookie) is not None) is (moment < LONGEST), moment
    assert await sessions.list() == []


@pytest.mark.usefixtures("fresh")
async def test_a_session_in_use_is_written_seldom(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, writes = Tokens(app.store).sessions, []
    _, cookie = await sessions.create("token", actor="ana", address="")
    now, write = app.store.clock.now(), app.store.write

    async def counted(bundles: Any) -> Any:
        writes.append(bundles)
        return await write(bundles)

    monkeypatch.setattr(app.store, "write", counted)
    for moment in range(0, 2 * TOUCH_AFTER, TOUCH_AFTER // 10):
        monkeypatch.setattr(app.store.clock, "now", lambda moment=moment: now + moment)
        assert await sessions.find(cookie) is not None
    assert len(writes) == 1


@pytest.mark.usefixtures("fresh")
async def test_a_use_does_not_bring_an_ended_session_back(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Tokens(app.store).sessions
    session, cookie = await sessions.create("token", actor="ana", address="")
    later, read = app.store.clock.now() + TOUCH_AFTER, app.store.documents
    monkeypatch.setattr(app.store.clock, "now", lambda: later)

    async def read_and_end(keys: Any) -> Any:
        found = await read(keys)
        monkeypatch.setattr(app.store, "documents", read)
        await Tokens(app.store).sessions.end(session.id, actor="ana")  # just before the use is written
        return found

    monkeypatch.setattr(app.store, "documents", read_and_end)
    await sessions.find(cookie)
    assert await sessions.find(cookie) is None
    assert await sessions.list() == []


async def test_an_administrator_lists_and_ends_sessions(app: Mainspring) -> None:
    admin = await token_of(app, "admin")
    async with serving(app, tokens="required") as client:
        mine, other = await logged_in(client, admin), await logged_in(client, await token_of(app, "read"))
        sessions = (await client.get("/v1/sessions", cookie=mine)).data["sessions"]
        assert {session["current"] for session in sessions} == {True, False}
        assert {session["address"] for session in sessions} == {"127.0.0.1"}
        ended = next(session["id"] for session in sessions if not session["current"])
        assert (await client.send("DELETE", f"/v1/sessions/{ended}", cookie=mine)).code == "forbidden"
        assert (await client.send("DELETE", f"/v1/sessions/{ended}", cookie=mine, **WRITE)).status == 204
        assert (await client.get("/v1/jobs", cookie=other)).code == "unauthorized"
        again = await client.using(admin).send("DELETE", f"/v1/sessions/{ended}")
        assert again.code == "not_found"


# -- how often --------------------------------------------------------------------------------------


async def test_an_address_fails_five_times_and_then_waits(app: Mainspring) -> None:
    text = await token_of(app, "read")
    async with serving(app, tokens="required") as client:
        failures = [await post_form(client, "/login", "nope", **OURS) for _ in range(FREE_FAILURES)]
        assert {answer.status for answer in failures} == {401}
        refused = await post_form(client, "/login", text, accept="*/*", **OURS)
        assert (refused.code, refused.headers["retry-after"]) == ("too_many_logins", "60")
        shown = await post_form(client, "/login", text, **OURS)
        assert (shown.status, shown.headers["retry-after"], "try again in" in shown.text) == (429, "60", True)


async def test_many_attempts_at_once_gain_nothing(app: Mainspring) -> None:
    async with serving(app, tokens="required") as client:
        answers = await asyncio.gather(*(post_form(client, "/login", "nope", **OURS) for _ in range(30)))
    assert sorted(answer.status for answer in answers) == [401] * FREE_FAILURES + [429] * (30 - FREE_FAILURES)


async def test_an_outage_is_not_the_failure_of_a_person(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    text, read = await token_of(app, "read"), app.store.documents

    async def unavailable(*_: object) -> None:
        raise StoreUnavailable("no answer")

    async with serving(app, tokens="required") as client:
        monkeypatch.setattr(app.store, "documents", unavailable)
        for _ in range(10):
            assert (await post_form(client, "/login", text, **OURS)).status == 503
        monkeypatch.setattr(app.store, "documents", read)
        assert (await post_form(client, "/login", text, **OURS)).status == 303


def test_each_further_failure_doubles_the_wait() -> None:
    now = 0.0
    limit = LoginLimit(lambda: now)
    waits = []
    for _ in range(FREE_FAILURES + 8):
        limit.check("10.0.0.1")
        limit.fail("10.0.0.1")
        try:
            limit.check("10.0.0.1")
        except Problem as problem:
            waits.append(problem.retry_after)
            now += problem.retry_after or 0
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    limit.check("10.0.0.2")
    now += 60
    for _ in range(FREE_FAILURES - 1):
        limit.fail("10.0.0.1")
        limit.check("10.0.0.1")  # a minute without a failure: it begins again


def test_an_ipv6_customer_is_one_address() -> None:
    limit = LoginLimit(lambda: 0.0)
    for number in range(FREE_FAILURES):
        limit.fail(f"2001:db8::{number}")
    with pytest.raises(Problem):
        limit.check("2001:db8::ffff")
    limit.check("2001:db8:0:1::1")
    limit.check("")


def test_many_addresses_do_not_fill_the_memory() -> None:
    limit = LoginLimit(lambda: 0.0)
    for number in range(MOST_ADDRESSES + 10):
        limit.fail(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(limit._records) == MOST_ADDRESSES


# -- cookies and mounting ---------------------------------------------------------------------------


def test_cookies_are_found_by_their_whole_name() -> None:
    assert cookie_in("a=1; ms=x; __Host-ms=y", secure=False) == "x"
    assert cookie_in("a=1; ms=x; __Host-ms=y", secure=True) == "y"
    assert cookie_in("xms=1; ms2=3", secure=False) == ""
    assert cookie_header("", secure=True) == "__Host-ms=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax; Secure"


def test_what_is_local() -> None:
    assert all(map(is_local, ("localhost:8340", "127.0.0.1", "[::1]:1", "LOCALHOST")))
    assert not any(map(is_local, ("", "jobs.example", "127.0.0.1.evil.example", "[::2]")))


async def test_a_mounted_service_logs_in_at_its_own_place(app: Mainspring) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    text = await token_of(app, "read")
    whole = Starlette(routes=[Mount("/queue", make_service(app, ServiceSettings()))])
    async with listening(whole) as url, aiohttp.ClientSession() as session:
        client = Client(session, f"{url}/queue")
        assert 'action="/queue/login"' in (await client.get("/login", accept=BROWSER)).text
        answer = await post_form(client, "/login", text, **OURS)
        assert answer.headers["location"] == "/queue/login"
        assert (await client.get("/v1/jobs", cookie=answer.headers["set-cookie"].partition(";")[0])).status == 200
