"""Public tokens: what a web page may read with one, and for how long."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import aiohttp
import pytest
from starlette.routing import Route

from mainspring import Context, Mainspring
from mainspring.errors import ConfigurationError, Failure
from mainspring.job import Move, ProgressReport
from mainspring.service import PublicTokens, Tokens
from mainspring.service.event_frames import PUBLIC_KINDS
from mainspring.service.live import Pace
from mainspring.service.public_tokens import LONGEST_TTL, MOST_JOBS, PURPOSE, decode, encode
from mainspring.service.signing_keys import SigningKeys
from mainspring.stores.feed import ChangeKind
from mainspring.stores.protocol import WorkerInfo
from tests.conformance.scenario import end, put, running
from tests.service.event_client import EventClient, Served
from tests.service.event_client import serving as serving_events
from tests.service.serving import Client, api_of, serving
from tests.service.test_security import token_of

ELSEWHERE = "https://shop.example"
QUICK = Pace(keep_alive=0.05, check=0.05, grace=0.5)


@pytest.fixture
def shop(app: Mainspring) -> Mainspring:
    @app.task
    async def render(ctx: Context, secret: str) -> str:
        await ctx.step("prepare", prepare)
        return "the result"

    async def prepare() -> str:
        return "the output"

    return app


RENDER = {"task": "render", "payload": {"secret": "hunter2"}, "tags": ["vip"], "target": {"type": "order", "id": "7"}}


async def rendered(client: Client, **changes: Any) -> str:
    made = await client.post("/v1/jobs", {**RENDER, **changes})
    assert made.status == 201, made
    return str(made.data["id"])


async def public_token(client: Client, **body: Any) -> str:
    made = await client.post("/v1/tokens:public", body)
    assert made.status == 201, made
    return str(made.data["text"])


# -- what it shows --------------------------------------------------------------------------------


async def test_a_public_token_shows_the_state_of_its_job_and_nothing_else(shop: Mainspring) -> None:
    async with serving(shop) as client:
        job_id = await rendered(client)
        text = await public_token(client, jobs=[job_id])
        before = (await client.using(text).get(f"/v1/public/jobs/{job_id}")).data
        await shop.worker().drain()
        after = await client.using(text).get(f"/v1/public/jobs/{job_id}")
    assert (before["status"], before["done"], before["steps"]) == ("pending", False, [])
    assert (after.data["status"], after.data["done"], after.data["result"]) == ("completed", True, None)
    assert after.data["steps"] == [{"name": "prepare", "state": "done"}]
    assert set(after.data) == {
        "id", "status", "done", "progress", "steps", "created_at", "started_at", "finished_at", "result",
    }  # fmt: skip
    for secret in ("hunter2", "vip", "the output", "the result", "render", "order", "default"):
        assert secret not in after.text


async def test_the_result_is_shown_if_the_token_says_so(shop: Mainspring) -> None:
    async with serving(shop) as client:
        job_id = await rendered(client)
        await shop.worker().drain()
        text = await public_token(client, jobs=[job_id], result=True)
        assert (await client.using(text).get(f"/v1/public/jobs/{job_id}")).data["result"] == "the result"


async def test_a_failure_is_shown_without_its_error(app: Mainspring) -> None:
    async with serving(app) as client:
        job_id = (await client.post("/v1/jobs", {"task": "fail", "payload": {"why": "password=hunter2"}})).data["id"]
        await app.worker().drain()
        text = await public_token(client, jobs=[job_id], result=True)
        answer = await client.using(text).get(f"/v1/public/jobs/{job_id}")
    assert (answer.data["status"], answer.data["done"]) == ("dead_letter", True)
    assert "hunter2" not in answer.text


async def test_a_list_has_the_jobs_of_the_token(shop: Mainspring) -> None:
    async with serving(shop) as client:
        jobs = [await rendered(client) for _ in range(3)]
        other = await rendered(client, target={"type": "order", "id": "8"})
        of_jobs = client.using(await public_token(client, jobs=jobs[:2]))
        of_target = client.using(await public_token(client, target={"type": "order", "id": "7"}))
        assert {job["id"] for job in (await of_jobs.get("/v1/public/jobs")).data["jobs"]} == set(jobs[:2])
        assert {job["id"] for job in (await of_target.get("/v1/public/jobs")).data["jobs"]} == set(jobs)
        assert (await of_target.get(f"/v1/public/jobs/{jobs[0]}")).status == 200
        assert (await of_target.get(f"/v1/public/jobs/{other}")).code == "forbidden"


async def test_other_jobs_are_refused_whether_they_exist_or_not(shop: Mainspring) -> None:
    async with serving(shop) as client:
        mine, other = [await rendered(client) for _ in range(2)]
        for text in (
            await public_token(client, jobs=[mine]),
            await public_token(client, target={"type": "user", "id": "1"}),
        ):
            answers = [await client.using(text).get(f"/v1/public/jobs/{job_id}") for job_id in (other, "nope")]
            assert [answer.code for answer in answers] == ["forbidden", "forbidden"]
            assert answers[0].data["detail"] == answers[1].data["detail"]


async def test_a_job_of_the_token_that_is_gone_is_not_found(shop: Mainspring) -> None:
    async with serving(shop) as client:
        job_id = await rendered(client)
        mine = client.using(await public_token(client, jobs=[job_id]))
        assert (await client.send("DELETE", f"/v1/jobs/{job_id}")).status == 204
        assert (await mine.get(f"/v1/public/jobs/{job_id}")).code == "not_found"
        assert (await mine.get("/v1/public/jobs")).data == {"jobs": []}


# -- where it works -------------------------------------------------------------------------------


FOR_EVERYONE = ("/health/live", "/health/ready", "/static/", "/v1/docs", "/v1/errors", "/login", "/logout")


async def test_a_public_token_opens_no_other_route(shop: Mainspring) -> None:
    """Whether the API's document has the route or not; also where no token is needed."""
    routes = [
        (method, re.sub("[{}]", "", route.path))
        for route in api_of(shop).routes
        if isinstance(route, Route) and not route.path.startswith(("/v1/public/", *FOR_EVERYONE))
        for method in (route.methods or set()) - {"HEAD"}
    ]
    assert len(routes) > 90
    opened = []
    async with serving(shop) as client:
        mine = client.using(await public_token(client, jobs=[await rendered(client)]))
        for method, path in [*routes, ("GET", "/v1/publicity"), ("GET", "/")]:
            if (status := await mine.status(method, path, b"{")) != 403:
                opened.append((method, path, status))
        headers = {"authorization": f"Bearer {mine.token}"}
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await client.session.ws_connect(f"{client.url}/v1/events/ws", headers=headers)
    assert opened == []


async def test_other_tokens_do_not_open_its_routes(app: Mainspring) -> None:
    async with serving(app, tokens="required") as client:
        answer = await client.using(await token_of(app, "admin")).get("/v1/public/jobs")
        assert answer.code == "invalid_request"
        assert "msp_" in answer.data["detail"]
        assert (await client.get("/v1/public/jobs")).code == "unauthorized"


async def test_a_page_of_another_site_may_read_with_a_public_token(shop: Mainspring) -> None:
    async with serving(shop) as client:
        job_id = await rendered(client)
        path, text = f"/v1/public/jobs/{job_id}", await public_token(client, jobs=[job_id])
        asked = await client.send(
            "OPTIONS", path, origin=ELSEWHERE, access_control_request_method="GET",
            access_control_request_headers="authorization", sec_fetch_site="cross-site",
        )  # fmt: skip
        assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, "*")
        assert "authorization" in asked.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in asked.headers
        mine = client.using(text)
        for headers in ({"origin": ELSEWHERE}, {"origin": "null", "sec_fetch_site": "cross-site"}):
            shown = await mine.get(path, **headers)
            assert (shown.status, shown.headers["access-control-allow-origin"]) == (200, "*")
        expired = await client.using(f"{text[:-3]}abc").get(path, origin=ELSEWHERE)
        assert (expired.code, expired.headers["access-control-allow-origin"]) == ("unauthorized", "*")


async def test_nothing_else_may_be_read_from_another_site(shop: Mainspring) -> None:
    async with serving(shop) as client:
        job_id = await rendered(client)
        mine = client.using(await public_token(client, jobs=[job_id]))
        boss = client.using(await token_of(shop, "admin"))
        for answer in (
            await client.get(f"/v1/public/jobs/{job_id}", origin=ELSEWHERE),
            await boss.get(f"/v1/public/jobs/{job_id}", origin=ELSEWHERE),
            await boss.get(f"/v1/jobs/{job_id}", origin=ELSEWHERE),
            await mine.get(f"/v1/jobs/{job_id}", origin=ELSEWHERE),
            await client.send("OPTIONS", "/v1/jobs", origin=ELSEWHERE, access_control_request_method="GET"),
        ):
            assert "access-control-allow-origin" not in answer.headers
        foreign = await client.send(
            "OPTIONS", "/v1/public/jobs", host="evil.example", access_control_request_method="GET"
        )
        assert foreign.code == "host_not_allowed"


# -- how long it works ----------------------------------------------------------------------------


async def test_a_forged_token_is_refused(shop: Mainspring) -> None:
    async with serving(shop) as client:
        mine, other = [await rendered(client) for _ in range(2)]
        text = await public_token(client, jobs=[mine])
        head, _, signature = text.rpartition(".")
        key_id, _, claims = head.removeprefix("msp_").partition("_")
        swapped = json.loads(decode(claims)) | {"jobs": [other]}
        forged = [
            f"msp_{key_id}_{encode(json.dumps(swapped).encode())}.{signature}",
            f"msp_00000000_{claims}.{signature}",
            f"msp_{key_id}_{claims}.{signature[:-1]}",
            f"msp_{key_id}_{claims}.",
            f"msp_{key_id}_{claims}",
            "msp_",
            f"msp_{key_id}_{'A' * 5_000}.{signature}",
            text + "\n",
        ]
        for each in forged:
            assert (await client.using(each.strip()).get(f"/v1/public/jobs/{other}")).status in {401, 403}, each
            assert await PublicTokens(Tokens(shop.store)).find(each) is None, each


async def test_a_signature_for_something_else_is_not_a_public_token(app: Mainspring) -> None:
    tokens = Tokens(app.store)
    key = await tokens.signing_keys.current()
    claims = encode(json.dumps({"exp": 1 << 50, "by": "", "jobs": ["x"]}).encode())
    assert await PublicTokens(tokens).find(f"msp_{key.id}_{claims}.{encode(key.sign(f'{PURPOSE}.{claims}'))}")
    assert not await PublicTokens(tokens).find(f"msp_{key.id}_{claims}.{encode(key.sign(claims))}")


async def test_an_expired_public_token_is_refused(shop: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(shop) as client:
        made = await client.post("/v1/tokens:public", {"jobs": [await rendered(client)], "ttl": 60})
        mine, now = client.using(made.data["text"]), shop.store.clock.now()
        monkeypatch.setattr(shop.store.clock, "now", lambda: now + 59_000)
        assert (await mine.get("/v1/public/jobs")).status == 200
        monkeypatch.setattr(shop.store.clock, "now", lambda: now + 61_000)
        assert (await mine.get("/v1/public/jobs")).code == "unauthorized"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "give one of them"),
        ({"jobs": ["x"], "target": {"type": "a", "id": "b"}}, "give one of them"),
        ({"target": {"type": "a", "id": "b"}, "ttl": 86_401}, "86400"),
        ({"target": {"type": "a", "id": "b"}, "ttl": 0}, "/ttl"),
        ({"target": {"type": "a", "id": "b"}, "ttl": "60"}, "/ttl"),
        ({"jobs": ["x"] * (MOST_JOBS + 1)}, "/jobs"),
        ({"jobs": ["x"], "scopes": ["admin"]}, "/scopes"),
    ],
)
async def test_a_public_token_that_cannot_be(client: Client, body: Any, message: str) -> None:
    answer = await client.post("/v1/tokens:public", body)
    assert (answer.code, message in answer.data["detail"]) == ("invalid_request", True), answer


async def test_a_public_token_for_a_job_that_does_not_exist(client: Client) -> None:
    assert (await client.post("/v1/tokens:public", {"jobs": ["nope"]})).code == "not_found"


async def test_a_public_token_that_would_not_fit_into_a_header(app: Mainspring) -> None:
    tokens = PublicTokens(Tokens(app.store))
    with pytest.raises(ConfigurationError, match="name fewer jobs"):
        await tokens.create(jobs=tuple(f"{number:0200}" for number in range(20)))
    with pytest.raises(ConfigurationError, match="24 hours"):
        await tokens.create(jobs=("x",), ttl=LONGEST_TTL + 1)


async def test_it_ends_with_the_token_that_made_it(shop: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page must not go on reading in the name of a program that may not any more."""
    monkeypatch.setattr("mainspring.service.tokens.FRESH_FOR", 0.0)
    reader = await token_of(shop, "read", "enqueue")
    async with serving(shop, tokens="required") as client:
        mine = client.using(await public_token(client.using(reader), jobs=[await rendered(client.using(reader))]))
        assert (await mine.get("/v1/public/jobs")).status == 200
        await Tokens(shop.store).revoke(reader.split("_")[1], actor="tester")
        assert (await mine.get("/v1/public/jobs")).code == "unauthorized"


async def test_a_public_token_cannot_make_another(shop: Mainspring) -> None:
    async with serving(shop) as client:
        job_id = await rendered(client)
        mine = client.using(await public_token(client, jobs=[job_id]))
        assert (await mine.post("/v1/tokens:public", {"jobs": [job_id]})).code == "forbidden"


# -- signing keys ---------------------------------------------------------------------------------


async def test_rotation_keeps_tokens_until_they_expire(shop: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(shop) as client:
        job_id = await rendered(client)
        old = await public_token(client, jobs=[job_id], ttl=86_400)
        key = (await client.post("/v1/tokens:rotate", {"reason": "each month"})).data["key"]
        new = await public_token(client, jobs=[job_id])
        assert new.startswith(f"msp_{key}_")
        for text in (old, new):
            assert (await client.using(text).get("/v1/public/jobs")).status == 200
    assert (await shop.audit())[0].action == "signing_key.rotate"
    keys = Tokens(shop.store).signing_keys
    later = shop.store.clock.now() + 86_400_001
    monkeypatch.setattr(shop.store.clock, "now", lambda: later)
    assert await PublicTokens(Tokens(shop.store)).find(old) is None
    await keys.rotate(actor="tester")
    assert await keys.find(old.split("_")[1]) is None  # nothing that it has signed is valid, so it is gone
    assert await keys.find(key) is not None


async def test_rotation_can_end_all_tokens_at_once(shop: Mainspring) -> None:
    async with serving(shop) as client:
        job_id = await rendered(client)
        old = await public_token(client, jobs=[job_id])
        assert (await client.post("/v1/tokens:rotate", {"forget": True})).status == 200
        assert (await client.using(old).get("/v1/public/jobs")).code == "unauthorized"
        new = client.using(await public_token(client, jobs=[job_id]))
        assert (await new.get("/v1/public/jobs")).status == 200


async def test_all_processes_make_one_key(app: Mainspring) -> None:
    keys = [SigningKeys(app.store) for _ in range(20)]
    assert len({key.id for key in await asyncio.gather(*(each.current() for each in keys))}) == 1


async def test_a_new_key_of_another_process_is_known_at_once(app: Mainspring) -> None:
    here, there = PublicTokens(Tokens(app.store)), Tokens(app.store)
    await here.create(jobs=("x",))
    await there.signing_keys.rotate(actor="tester")
    _, text = await PublicTokens(there).create(jobs=("x",))
    assert await here.find(text) is not None


async def test_two_rotations_at_once_are_two_keys(app: Mainspring) -> None:
    made = await asyncio.gather(*(SigningKeys(app.store).rotate(actor="tester") for _ in range(5)))
    keys = SigningKeys(app.store)
    assert len({key.id for key in made}) == 5
    assert all([await keys.find(key.id) for key in made])


async def test_unknown_keys_do_not_flood_the_store(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone can invent keys, so reads for them take turns and share what they find."""
    keys, reads, read = SigningKeys(app.store), [], app.store.documents

    async def counted(wanted: Any) -> Any:
        reads.append(wanted)
        await asyncio.sleep(0)
        return await read(wanted)

    monkeypatch.setattr(app.store, "documents", counted)
    assert not any(await asyncio.gather(*(keys.find(f"{number:08x}") for number in range(100))))
    assert len(reads) <= 3


# -- following ------------------------------------------------------------------------------------


async def follow(served: Served, text: str, after: str | None = None, **query: Any) -> EventClient:
    headers = {"authorization": f"Bearer {text}"} | ({"last-event-id": after} if after else {})
    client = EventClient(await served.http.get(f"{served.url}/v1/public/events", params=query, headers=headers))
    served.stack.callback(client.close)
    if client.status == 200:
        client.hello = await client.next()
    return client


async def made_in(served: Served, **options: Any) -> str:
    _, text = await PublicTokens(served.tokens).create(**options)
    return text


async def test_events_of_the_jobs_come_without_what_is_inside(app: Mainspring) -> None:
    await app.store.join(WorkerInfo("w1", "host", 1, ("*",)), lambda _: None)
    async with serving_events(app) as served:
        held, other = await running(app.store), await running(app.store)
        client = await follow(served, await made_in(served, jobs=(held.id,)))
        await end(app.store, other, Move.DONE)
        await app.store.report([ProgressReport(held.id, held.token, 0.5, "half")])
        await end(app.store, held, Move.RETRY, failure=Failure("ValueError", "password=hunter2", ""))
        progressed, retrying = await client.take(2)
    assert progressed.data == {
        "job_id": held.id, "kind": "progressed", "at": progressed.data["at"], "fraction": 0.5, "note": "half",
    }  # fmt: skip
    assert retrying.data == {"job_id": held.id, "kind": "retrying", "at": retrying.data["at"]}


async def test_a_stream_resumes_where_it_was(app: Mainspring) -> None:
    async with serving_events(app) as served:
        target = ("order", "7")
        text = await made_in(served, target=target)
        await put(app.store, target=target)
        client = await follow(served, text)
        second = await put(app.store, target=target)
        await put(app.store, target=("order", "8"))
        event = await client.next()
        client.close()
        third = await put(app.store, target=target)
        resumed = await follow(served, text, after=event.id)
        assert (event.job, (await resumed.next()).job) == (second, third)


async def test_a_stream_of_some_of_its_jobs(app: Mainspring) -> None:
    async with serving_events(app) as served:
        jobs = tuple([await put(app.store) for _ in range(2)])
        text = await made_in(served, jobs=jobs)
        assert (await follow(served, text, job=jobs[0])).status == 200
        refused = await follow(served, text, job=await put(app.store))
        assert (refused.status, await refused.problem()) == (403, "forbidden")


async def test_a_stream_ends_when_its_token_expires(app: Mainspring) -> None:
    async with serving_events(app) as served:
        text = await made_in(served, jobs=("x",), ttl=0.3)
        client = await follow(served, text)
        (last,) = await client.rest()
        assert (last.event, last.data) == ("end", {"reason": "expired"})
        assert (await follow(served, text, after=last.id)).status == 401


async def test_a_stream_ends_when_the_token_that_made_its_token_is_revoked(app: Mainspring) -> None:
    async with serving_events(app, QUICK, tokens="required") as served:
        token, _ = await served.tokens.create("shop", ["read"], actor="ana")
        text = await made_in(served, jobs=("x",), issuer=token.id)
        client = await follow(served, text)
        await Tokens(app.store).revoke(token.id, actor="ana")  # by another process
        (last,) = await client.rest()
        assert last.data == {"reason": "revoked"}


async def test_a_stream_ends_when_its_signing_key_is_forgotten(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.service.signing_keys.FRESH_FOR", 0.0)
    async with serving_events(app, QUICK) as served:
        client = await follow(served, await made_in(served, jobs=("x",)))
        await SigningKeys(app.store).rotate(actor="ana", forget=True)  # by another process
        (last,) = await client.rest()
        assert last.data == {"reason": "revoked"}


async def test_a_public_token_has_so_many_streams_of_its_own(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of one page do not use up the streams of another page, or of the program that made both tokens."""
    monkeypatch.setattr("mainspring.service.live.MOST_STREAMS", 1)
    async with serving_events(app, tokens="required") as served:
        token, _ = await served.tokens.create("shop", ["read"], actor="ana")
        one, two = [await made_in(served, jobs=(name,), issuer=token.id) for name in "xy"]
        statuses = [(await follow(served, text)).status for text in (one, two, one)]
        assert statuses == [200, 200, 429]


async def test_a_page_follows_by_websocket(app: Mainspring) -> None:
    async with serving_events(app, tokens="required") as served:
        job_id = await put(app.store)
        text = await made_in(served, jobs=(job_id,))
        url = f"{served.url}/v1/public/events/ws"
        async with served.http.ws_connect(url, origin=ELSEWHERE) as socket:
            await socket.send_json({"subscribe": "events", "token": text})
            assert (await socket.receive_json())["event"] == "hello"
            await app.jobs.cancel(job_id, reason="secret", actor="ana")
            event = await socket.receive_json()
        assert (event["event"], set(event["data"])) == ("cancelled", {"job_id", "kind", "at"})
        for message in ({"token": text[:-1]}, {"token": await token_of(app, "admin")}, {}):
            async with served.http.ws_connect(url, origin=ELSEWHERE) as socket:
                await socket.send_json({"subscribe": "events", **message})
                refused = await socket.receive_json()
            assert refused["data"]["code"] == ("unauthorized" if message else "invalid_request")


def test_a_page_does_not_make_workers_record_starts() -> None:
    assert ChangeKind.STARTED not in PUBLIC_KINDS
