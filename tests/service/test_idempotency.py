"""Idempotency keys on every store: one effect, equal answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.service import idempotency
from mainspring.service.idempotency import COLLECTION, PART, RETENTION
from mainspring.stores.documents import Bundle, Listing, Write
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from tests.service.conftest import define
from tests.service.serving import Client, serving

ADA = {"task": "welcome", "payload": {"guest": "Ada"}}
RENDER = {"task": "render", "payload": {"photo": "a.jpg"}}


def postgres_store(_: Path) -> Store:
    from tests.postgres import RecycledStore

    return RecycledStore()


def dynamodb_store(_: Path) -> Store:
    from tests.dynamodb import FreshStore

    return FreshStore()


STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "jobs.db"),
    "postgres": postgres_store,
    "dynamodb": dynamodb_store,
}
SLOW = {"postgres", "dynamodb"}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in STORES])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mainspring]:
    app = Mainspring(STORES[request.param](tmp_path))
    define(app)
    async with app:
        yield app


async def test_a_repeated_request_has_one_effect_and_the_same_answer(app: Mainspring, client: Client) -> None:
    first = await client.post("/v1/jobs", ADA, idempotency_key="k1")
    again = await client.post("/v1/jobs", ADA, idempotency_key='"k1"')  # the header's own form has quotes
    assert (first.status, again.status) == (201, 201)
    assert first.text == again.text
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert await app.jobs.count() == 1


async def test_the_same_key_with_another_body_is_refused(app: Mainspring, client: Client) -> None:
    await client.post("/v1/jobs", ADA, idempotency_key="k1")
    assert (await client.post("/v1/jobs", {**ADA, "delay": 1}, idempotency_key="k1")).code == "idempotency_key_reused"
    assert await app.jobs.count() == 1


@pytest.mark.parametrize(
    "text",
    [
        b'{"payload": {"guest": "Ada"}, "task": "welcome"}',
        b'{"task":"welcome","payload":{"guest":"Ada"}}\n',
        b'{"task": "welcome", "payload": {"guest": "\\u0041da"}}',
    ],
)
async def test_the_same_json_in_another_form_is_the_same_request(app: Mainspring, client: Client, text: bytes) -> None:
    first = await client.post("/v1/jobs", ADA, idempotency_key="k1")
    again = await client.post("/v1/jobs", text, idempotency_key="k1")
    assert (again.status, again.text) == (201, first.text)
    assert await app.jobs.count() == 1


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"1" * 5_000])
def test_a_body_that_is_not_json_counts_as_it_is(body: bytes) -> None:
    assert idempotency.canonical(body) == body
    assert idempotency.canonical(body + b" ") != body


async def test_many_equal_requests_at_once_create_one_job(app: Mainspring, client: Client) -> None:
    answers = await asyncio.gather(*(client.post("/v1/jobs", ADA, idempotency_key="k1") for _ in range(50)))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == 1
    assert await app.jobs.count() == 1


async def test_a_repeated_bulk_enqueue_creates_its_jobs_once(app: Mainspring, client: Client) -> None:
    body = {"jobs": [{**ADA, "tags": [str(number)]} for number in range(45)] + [{"task": "wrong"}]}
    answers = await asyncio.gather(*(client.post("/v1/jobs:bulk", body, idempotency_key="b1") for _ in range(3)))
    assert {answer.status for answer in answers} == {200}
    assert len({str(answer.data["results"]) for answer in answers}) == 1
    assert await app.jobs.count() == 45


async def test_a_held_dedupe_key_gives_its_holder_again(app: Mainspring, client: Client) -> None:
    holder = await client.post("/v1/jobs", {**ADA, "dedupe_key": "ada"})
    first = await client.post("/v1/jobs", {**ADA, "dedupe_key": "ada"}, idempotency_key="k1")
    await app.worker().drain()  # the holder is done now
    again = await client.post("/v1/jobs", {**ADA, "dedupe_key": "ada"}, idempotency_key="k1")
    assert first.data == again.data == {"id": holder.data["id"], "created": False}
    assert await app.jobs.count() == 1


async def test_keys_of_two_routes_do_not_meet(app: Mainspring, client: Client) -> None:
    assert (await client.post("/v1/jobs", ADA, idempotency_key="k1")).status == 201
    assert (await client.post("/v1/jobs:bulk", {"jobs": [ADA]}, idempotency_key="k1")).status == 200
    assert await app.jobs.count() == 2


async def test_keys_expire_after_a_day(app: Mainspring, client: Client) -> None:
    before = app.store.clock.now()
    await client.post("/v1/jobs", ADA, idempotency_key="k1")
    (document,) = await app.store.browse(Listing(COLLECTION))
    assert document.expires_at is not None
    assert 0 <= document.expires_at - before - RETENTION < 60_000


@pytest.mark.parametrize("key", ["x" * 256, "two words", "gr\u00fcn"])
async def test_a_bad_key_is_refused(app: Mainspring, client: Client, key: str) -> None:
    assert (await client.post("/v1/jobs", ADA, idempotency_key=key)).code == "invalid_request"
    assert await app.jobs.count() == 0


async def test_a_request_that_was_refused_may_be_corrected_under_its_key(client: Client) -> None:
    assert (await client.post("/v1/jobs", {"task": "welcom"}, idempotency_key="k1")).code == "unknown_task"
    assert (await client.post("/v1/jobs", ADA, idempotency_key="k1")).status == 201


async def test_two_services_on_one_store_share_keys(app: Mainspring, client: Client) -> None:
    async with serving(app) as other:
        first, second = await asyncio.gather(
            client.post("/v1/jobs", ADA, idempotency_key="k1"), other.post("/v1/jobs", ADA, idempotency_key="k1")
        )
    assert first.text == second.text
    assert await app.jobs.count() == 1


# -- what is published changes between the request and its repetition --------------------------------


async def publish_render(app: Mainspring) -> None:
    """Publish `render`, as a worker of another program would."""
    other = Mainspring("memory://")

    @other.task(name="render")
    async def render(photo: str) -> None: ...

    await app.published.publish([render], "other")


async def repeated(client: Client, path: str, body: Any, between: Callable[[], Any]) -> Any:
    """Send a request twice, check that the answers are equal, and return what they say."""
    first = await client.post(path, body, idempotency_key="k1")
    await between()
    again = await client.post(path, body, idempotency_key="k1")
    assert (again.status, again.text) == (first.status, first.text)
    assert again.headers["idempotent-replayed"] == "true"
    return first.data


@pytest.mark.parametrize("good", [0, 1, PART])
async def test_a_line_that_was_refused_stays_refused(app: Mainspring, client: Client, good: int) -> None:
    body = {"jobs": [*[ADA] * good, RENDER]}
    data = await repeated(client, "/v1/jobs:bulk", body, lambda: publish_render(app))
    assert [line["error"] is None for line in data["results"]] == [True] * good + [False]
    assert data["results"][-1]["error"]["code"] == "unknown_task"
    assert (data["created"], data["failed"]) == (good, 1)
    assert await app.jobs.count() == good


async def test_a_line_that_would_be_refused_now_keeps_its_job(app: Mainspring, client: Client) -> None:
    await publish_render(app)
    body = {"jobs": [RENDER, ADA]}
    data = await repeated(client, "/v1/jobs:bulk", body, lambda: app.published.forget("render"))
    tasks = [(await app.jobs.get(line["id"])).task for line in data["results"]]
    assert tasks == ["render", "welcome"]
    assert await app.jobs.count() == 2


async def test_a_job_whose_task_was_forgotten_is_answered_again(app: Mainspring, client: Client) -> None:
    await publish_render(app)
    data = await repeated(client, "/v1/jobs", RENDER, lambda: app.published.forget("render"))
    assert (await app.jobs.get(data["id"])).task == "render"
    assert await app.jobs.count() == 1


async def test_a_repeated_request_checks_only_the_parts_that_are_missing(app: Mainspring, client: Client) -> None:
    await publish_render(app)
    body = {"jobs": [RENDER] * (PART + 2)}
    first = await client.post("/v1/jobs:bulk", body, idempotency_key="k1")
    last = next(document for document in await app.store.browse(Listing(COLLECTION)) if document.key.id == "1")
    await app.store.write([Bundle((Write(last.key, None),))])  # as if the process had died before it
    await app.published.forget("render")
    again = await client.post("/v1/jobs:bulk", body, idempotency_key="k1")
    assert again.data["results"][:PART] == first.data["results"][:PART]
    assert [line["error"]["code"] for line in again.data["results"][PART:]] == ["unknown_task"] * 2
    assert "idempotent-replayed" not in again.headers


# -- a process dies before it has noted the holder of a dedupe key ------------------------------------


@pytest.mark.parametrize("dedupe_for", ["active", "forever"])
async def test_the_holder_is_found_although_it_was_not_noted(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch, dedupe_for: str
) -> None:
    async def die(*_: object) -> None: ...

    monkeypatch.setattr(idempotency, "_note", die)
    body = {**ADA, "dedupe_key": "ada", "dedupe_for": dedupe_for}
    holder = (await client.post("/v1/jobs", body)).data["id"]
    if dedupe_for == "forever":
        await app.worker().drain()

    async def finish_and_follow() -> None:
        await app.worker().drain()
        if dedupe_for == "active":
            assert (await client.post("/v1/jobs", body)).data["created"]  # it holds the key now

    assert await repeated(client, "/v1/jobs", body, finish_and_follow) == {"id": holder, "created": False}
