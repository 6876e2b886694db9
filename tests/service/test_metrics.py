"""`/metrics` and `/metrics/cluster` of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from mainspring import Mainspring
from mainspring.errors import StoreUnavailable
from mainspring.log import context_fields
from mainspring.metrics import CONTENT_TYPE, Metrics
from mainspring.middleware import EnqueueCall
from mainspring.service import ServiceSettings, Tokens, make_service
from mainspring.service.random_text import hash_of
from mainspring.service.tokens import TRUSTED_FOR
from tests.metrics.test_metrics import Page
from tests.service.serving import Answer, Client, listening, serving


def page_of(answer: Answer) -> Page:
    assert (answer.status, answer.headers["content-type"]) == (200, CONTENT_TYPE)
    return Page(answer.text.encode())


async def test_requests_are_counted_by_route(app: Mainspring, client: Client) -> None:
    await app.published.publish(app.tasks.values(), "w1")
    job = (await client.post("/v1/jobs", {"task": "welcome", "payload": {"guest": "Ada"}})).data["id"]
    for path in (f"/v1/jobs/{job}", "/v1/jobs/nope", "/nope", "/v1/queues"):
        await client.get(path)
    await client.send("BREW", "/v1/queues")
    page = page_of(await client.get("/metrics"))
    assert page("http_request_seconds_count", route="/v1/jobs", method="POST", status="201") == 1
    assert page("http_request_seconds_count", route="/v1/jobs/{job_id}", method="GET", status="200") == 1
    assert page("http_request_seconds_count", route="/v1/jobs/{job_id}", method="GET", status="404") == 1
    assert page("http_request_seconds_count", route="unmatched", method="GET", status="404") == 1
    assert page("http_request_seconds_count", route="/v1/queues", method="other", status="405") == 1
    assert page("enqueued_total", queue="mail", task="welcome", via="api") == 1
    assert page("sse_clients") == 0
    assert page("feed_lag_seconds") == 0


async def test_paths_below_a_mount_do_not_become_labels(app: Mainspring) -> None:
    outer = Starlette(routes=[Mount("/jobs", make_service(app, ServiceSettings(tokens="optional")))])
    async with listening(outer) as url, aiohttp.ClientSession() as session:
        client = Client(session, f"{url}/jobs")
        for path in ("/nope", "/v1/nope/again", "/v1/jobs/nope", "/v1/leases"):
            await client.get(path)
        page = page_of(await client.get("/metrics"))
    routes = page.values("http_request_seconds_count", "route")
    assert routes == {"unmatched", "/v1/jobs/{job_id}", "/v1/leases"}


async def test_the_cluster_is_read_from_the_store(app: Mainspring, client: Client) -> None:
    await app.tasks["welcome"].enqueue("Ada")
    page = page_of(await client.get("/metrics/cluster"))
    assert page("queue_due", queue="mail") == 1
    await app.tasks["welcome"].enqueue("Bo")
    assert page_of(await client.get("/metrics/cluster"))("queue_due", queue="mail") == 1  # as it was read before


async def test_two_processes_show_the_same_cluster(app: Mainspring, client: Client) -> None:
    await app.tasks["welcome"].enqueue("Ada")
    other = Mainspring(app.store)
    async with serving(other) as second:
        answers = [await each.get("/metrics/cluster") for each in (client, second)]
    pages = [
        {key: value for key, value in page_of(answer).samples.items() if "age" not in key[0]} for answer in answers
    ]
    assert pages[0] == pages[1]


async def test_clients_of_live_events_are_counted(app: Mainspring, client: Client) -> None:
    async with client.session.get(f"{client.url}/v1/events") as stream:
        await stream.content.readany()
        assert page_of(await client.get("/metrics"))("sse_clients") == 1
        await app.tasks["welcome"].enqueue("Ada")
        while b"welcome" not in await stream.content.readany():
            pass
        assert page_of(await client.get("/metrics"))("feed_lag_seconds") >= 0
        stream.close()


async def test_metrics_can_be_turned_off(app: Mainspring) -> None:
    async with serving(app, metrics=False) as client:
        for path in ("/metrics", "/metrics/cluster"):
            assert (await client.get(path)).code == "not_found"
    assert app.runtime.bus.meter is None


async def test_what_a_program_enqueues_beside_the_service_is_its_own(app: Mainspring, client: Client) -> None:
    await app.tasks["welcome"].enqueue("Ada")
    await client.get("/v1/queues")
    await app.tasks["welcome"].enqueue("Bo")
    page = page_of(await client.get("/metrics"))
    assert page("enqueued_total", queue="mail", task="welcome", via="app") == 2


async def test_what_code_logs_within_a_request_has_its_id(app: Mainspring, client: Client) -> None:
    seen: list[dict[str, Any]] = []

    @app.around_enqueue
    def note(call: EnqueueCall) -> Iterator[None]:
        seen.append(context_fields())
        yield

    await app.published.publish(app.tasks.values(), "w1")
    answer = await client.post("/v1/jobs", {"task": "welcome", "payload": {"guest": "Ada"}})
    await app.tasks["welcome"].enqueue("Bo")
    assert seen == [{"request_id": answer.headers["x-request-id"]}, {}]


# -- tokens and outages -----------------------------------------------------------------------------


async def token_of(app: Mainspring, scope: str) -> str:
    _, text = await Tokens(app.store).create("prometheus", [scope], actor="tester")
    return text


def break_store(app: Mainspring, patch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("gone")

    for name in ("halts", "stats", "documents"):
        patch.setattr(app.store, name, fail)


async def test_a_token_with_the_scope_read_is_needed(app: Mainspring) -> None:
    async with serving(app, tokens="required") as client:
        for path in ("/metrics", "/metrics/cluster"):
            assert (await client.get(path)).code == "unauthorized"
            assert (await client.using(await token_of(app, "enqueue")).get(path)).code == "forbidden"
            assert (await client.using(await token_of(app, "read")).get(path)).status == 200


async def test_a_known_token_reads_the_metrics_of_an_outage(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    known, other = await token_of(app, "read"), await token_of(app, "enqueue")
    monkeypatch.setattr("mainspring.service.tokens.FRESH_FOR", 0.0)
    async with serving(app, tokens="required") as client:
        await client.using(known).get("/metrics")
        await client.using(other).get("/metrics")
        break_store(app, monkeypatch)
        Metrics.of(app)._probe._began = float("-inf")
        assert page_of(await client.using(known).get("/metrics"))("store_up") == 0
        assert (await client.using(known).get("/metrics/cluster")).code == "store_unavailable"
        assert (await client.using(known).get("/v1/queues")).code == "store_unavailable"
        assert (await client.using(other).get("/metrics")).code == "forbidden"
        assert (await client.get("/metrics")).code == "unauthorized"
        unknown = known[:-1] + ("a" if known[-1] != "a" else "b")
        assert (await client.using(unknown).get("/metrics")).code == "unauthorized"


async def test_a_token_is_not_trusted_for_long_without_the_store(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await token_of(app, "read")
    tokens = Tokens(app.store)
    assert tokens.last_known(text) is None
    token = await tokens.find(text)
    assert tokens.last_known(text) == token
    read_at, _ = tokens._known.get(hash_of(text))
    tokens._known.put(hash_of(text), read_at - TRUSTED_FOR, token)
    assert tokens.last_known(text) is None


async def test_a_store_that_hangs_does_not_hold_up_the_metrics(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await token_of(app, "read")
    for name, value in {"service.tokens.FRESH_FOR": 0.0, "service.guard.TOKEN_TIMEOUT": 0.01}.items():
        monkeypatch.setattr(f"mainspring.{name}", value)
    monkeypatch.setattr("mainspring.metrics.metrics.PROBE_TIMEOUT", 0.01)

    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    async with serving(app, tokens="required") as client:
        await client.using(text).get("/metrics")
        for name in ("halts", "documents"):
            monkeypatch.setattr(app.store, name, hang)
        Metrics.of(app)._probe._began = float("-inf")
        assert page_of(await client.using(text).get("/metrics"))("store_up") == 0
