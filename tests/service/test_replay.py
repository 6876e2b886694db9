"""What becomes of idempotency keys when something goes wrong, and how long they last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.errors import StoreUnavailable
from mainspring.job import Status
from mainspring.service import Tokens, replay
from mainspring.service.idempotency import COLLECTION, RETENTION
from mainspring.service.replay import LONGEST_ANSWER, TRIGGERS, KeyedRequest
from mainspring.stores.documents import By, Document, Listing
from mainspring.stores.protocol import Filter
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from tests.service.conftest import define
from tests.service.keyed_requests import REQUESTS, WELCOME, dead_letter, due_jobs, schedule, send, waiting_job
from tests.service.serving import SOON, Answer, Client

JUST_OVER_A_DAY = RETENTION / 1000 + 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def app(clock: ManualClock) -> AsyncIterator[Mainspring]:
    app = Mainspring(MemoryStore(clock=clock))
    define(app)
    async with app:
        yield app


async def documents(app: Mainspring, collection: str = COLLECTION) -> list[Document]:
    return await app.store.browse(Listing(collection))


async def until(app: Mainspring, *, is_used: bool) -> None:
    """Wait until a key is used, or is not used any more."""
    async with asyncio.timeout(SOON):
        while bool(await documents(app)) is not is_used:  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0)


async def twice(client: Client, path: str, body: Any = None) -> list[Answer]:
    return [await client.post(path, body, idempotency_key="k1") for _ in range(2)]


@pytest.fixture
def lossy(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> pytest.MonkeyPatch:
    """The process that carries a request out dies before it has kept the answer, and the repetition comes later."""

    async def die(_self: KeyedRequest, response: Any) -> Any:
        clock.advance(60)
        return response

    monkeypatch.setattr(KeyedRequest, "_kept", die)
    return monkeypatch


# -- the answer is lost -----------------------------------------------------------------------------


async def test_a_repeated_request_whose_answer_is_lost_is_told_what_to_read(
    app: Mainspring, client: Client, lossy: pytest.MonkeyPatch
) -> None:
    job_id = await waiting_job(app)
    first, again = await twice(client, f"/v1/jobs/{job_id}:cancel")
    assert (first.status, again.status, again.code) == (200, 409, "already_done")
    assert again.data["see"] == f"/v1/audit?operation={again.data['effect']['operation']}"
    (entry,) = (await client.get(again.data["see"])).data["entries"]
    assert (entry["action"], entry["detail"]["filter"]["ids"]) == ("cancel", [job_id])
    other = await client.post(f"/v1/jobs/{job_id}:cancel", {"reason": "other"}, idempotency_key="k1")
    assert other.code == "idempotency_key_reused"


@pytest.mark.parametrize(
    "path", ["/user", "/v1/bulk", "/v1/batches", "/v1/schedules/{schedule_id}:trigger", "/v1/jobs/{job_id}:complete"]
)
async def test_what_was_created_is_answered_again_although_the_answer_is_lost(
    app: Mainspring, client: Client, lossy: pytest.MonkeyPatch, path: str
) -> None:
    keyed = await REQUESTS[path](app)
    first, again = [await send(client, keyed, "k1") for _ in range(2)]
    assert (again.status, again.data) == (first.status, first.data)
    assert again.headers.get("location") == first.headers.get("location")
    assert again.headers["idempotent-replayed"] == "true"


async def test_a_request_waits_for_the_answer_of_another_process(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request comes between the effect and the answer of the first."""
    kept, reached, go_on = KeyedRequest._kept, asyncio.Event(), asyncio.Event()

    async def late(self: KeyedRequest, response: Any) -> Any:
        reached.set()
        await go_on.wait()
        return await kept(self, response)

    async def found(self: KeyedRequest) -> Any:
        record = await find(self)
        if record is not None:
            go_on.set()
        return record

    find = KeyedRequest._find
    monkeypatch.setattr(KeyedRequest, "_kept", late)
    path = f"/v1/jobs/{await waiting_job(app)}:cancel"
    first = asyncio.ensure_future(client.post(path, idempotency_key="k1"))
    await reached.wait()
    monkeypatch.setattr(KeyedRequest, "_find", found)
    again = await client.post(path, idempotency_key="k1")
    assert again.headers["idempotent-replayed"] == "true"
    assert again.text == (await first).text


async def test_an_answer_that_cannot_be_kept_is_given(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> bool:
        raise StoreUnavailable

    monkeypatch.setattr(KeyedRequest, "_put", fail)
    job_id = await waiting_job(app)
    assert (await client.post(f"/v1/jobs/{job_id}:cancel", idempotency_key="k1")).data["cancelled"] is True


async def test_a_very_long_answer_is_not_kept(app: Mainspring, client: Client) -> None:
    job = await app.enqueue("welcome", {"guest": "x" * LONGEST_ANSWER}, delay=timedelta(hours=1))
    first, again = await twice(client, f"/v1/jobs/{job.id}:cancel")
    assert (first.status, again.code) == (200, "already_done")
    assert "bytes that are kept" in again.data["detail"]


# -- what leaves no key -----------------------------------------------------------------------------


async def test_a_request_that_is_refused_may_be_corrected_under_its_key(app: Mainspring, client: Client) -> None:
    job_id = await waiting_job(app)
    path = f"/v1/jobs/{job_id}:retry"
    assert (await client.post(path, {"reason": 1}, idempotency_key="k1")).code == "invalid_request"
    assert (await client.post(path, idempotency_key="k1")).code == "illegal_move"
    assert await documents(app) == []
    await app.jobs.cancel(job_id)
    assert (await client.post(path, idempotency_key="k1")).status == 200


async def test_a_request_without_effect_keeps_its_answer(app: Mainspring, client: Client) -> None:
    first = await client.post("/v1/dead:purge", {"older_than": 0}, idempotency_key="k1")
    await dead_letter(app)
    again = await client.post("/v1/dead:purge", {"older_than": 0}, idempotency_key="k1")
    assert first.data == again.data
    assert again.data["changed"] == 0
    assert await app.jobs.count(app.jobs.dead()) == 1


@pytest.mark.parametrize("key", ["x" * 256, "two words", ""])
async def test_a_bad_key_is_refused(app: Mainspring, client: Client, key: str) -> None:
    job_id = await waiting_job(app)
    assert (await client.post(f"/v1/jobs/{job_id}:cancel", idempotency_key=key)).code == "invalid_request"
    assert (await app.jobs.get(job_id)).status is Status.PENDING


async def test_keys_of_two_tokens_do_not_meet(app: Mainspring, client: Client) -> None:
    tokens = Tokens(app.store)
    texts = [(await tokens.create(name, ["operate"], actor="test"))[1] for name in ("a", "b")]
    answers = [
        await client.using(text).post("/v1/queues/mail:pause", {"wait": 0.0}, idempotency_key="k1") for text in texts
    ]
    assert ["idempotent-replayed" in answer.headers for answer in answers] == [False, False]


async def test_a_request_without_the_scope_learns_nothing_of_keys(app: Mainspring, client: Client) -> None:
    (_, text) = await Tokens(app.store).create("reader", ["read"], actor="test")
    body = {"worker": "w1"}
    assert (await client.using(text).post("/v1/leases", body, idempotency_key="k1")).code == "forbidden"
    assert await documents(app) == []


# -- secrets ----------------------------------------------------------------------------------------


async def test_no_secret_is_kept_with_a_key(app: Mainspring, client: Client) -> None:
    token, again = await twice(client, "/v1/tokens", {"name": "ci", "scopes": ["read"]})
    assert again.code == "already_done"
    (entry,) = (await client.get(again.data["see"])).data["entries"]
    assert entry["detail"]["token"] == token.data["token"]["id"]
    secret, _ = await twice(client, "/v1/secrets", {"name": "shop"})
    rotated, _ = await twice(client, "/v1/secrets/shop:rotate")
    kept = "".join(document.data for document in await documents(app))
    hidden = [token.data["text"], *secret.data["texts"], *rotated.data["texts"]]
    assert len(await documents(app)) == 3
    assert not any(text in kept for text in hidden)


async def test_the_default_secret_does_not_use_the_key_of_a_batch(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made for the first callback, before the batch. If that used the key, the batch would be lost."""

    async def die(*_: object, **__: object) -> None:
        msg = "the process dies"
        raise StoreUnavailable(msg)

    body = {"jobs": [{**WELCOME, "callback": {"url": "http://example.com"}}]}
    with monkeypatch.context() as patch:
        patch.setattr(type(app.batches), "put", die)
        assert (await client.post("/v1/batches", body, idempotency_key="k1")).status == 503
    assert await documents(app) == []
    assert (await client.post("/v1/batches", body, idempotency_key="k1")).status == 201


# -- how long keys last -----------------------------------------------------------------------------


async def test_a_key_lasts_a_day(app: Mainspring, client: Client, clock: ManualClock) -> None:
    body = {"wait": 0.0}
    await client.post("/v1/halt", body, idempotency_key="k1")
    clock.advance(JUST_OVER_A_DAY - 2)
    assert "idempotent-replayed" in (await client.post("/v1/halt", body, idempotency_key="k1")).headers
    clock.advance(2)
    assert "idempotent-replayed" not in (await client.post("/v1/halt", body, idempotency_key="k1")).headers


async def test_the_key_of_a_trigger_lasts_as_long_as_its_job(
    app: Mainspring, client: Client, clock: ManualClock
) -> None:
    path = f"/v1/schedules/{await schedule(app)}:trigger"
    first = await client.post(path, idempotency_key="k1")
    for _ in range(3):
        clock.advance(JUST_OVER_A_DAY)
        await client.post(path, idempotency_key=f"at {clock.now()}".replace(" ", "-"))
        again = await client.post(path, idempotency_key="k1")
        assert (again.text, again.headers["idempotent-replayed"]) == (first.text, "true")
    await app.jobs.delete(first.data["job_id"])
    clock.advance(JUST_OVER_A_DAY)
    await client.post(path, idempotency_key="k2")
    second = await client.post(path, idempotency_key="k1")
    assert second.data["job_id"] != first.data["job_id"]


async def test_the_key_of_a_trigger_lasts_although_its_answer_is_lost(
    app: Mainspring, client: Client, clock: ManualClock, lossy: pytest.MonkeyPatch
) -> None:
    path = f"/v1/schedules/{await schedule(app)}:trigger"
    job_id = (await client.post(path, idempotency_key="k1")).data["job_id"]
    clock.advance(JUST_OVER_A_DAY)
    await client.post(path, idempotency_key="k2")
    assert (await client.post(path, idempotency_key="k1")).data["job_id"] == job_id
    await app.jobs.delete(job_id)
    clock.advance(JUST_OVER_A_DAY)
    await client.post(path, idempotency_key="k3")
    assert (await client.post(path, idempotency_key="k1")).status == 201


async def test_keys_of_ended_triggers_do_not_pile_up(
    app: Mainspring, client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "MOST_FORGOTTEN", 2)
    path = f"/v1/schedules/{await schedule(app)}:trigger"
    for number in range(8):
        job_id = (await client.post(path, idempotency_key=f"k{number}")).data["job_id"]
        await app.jobs.delete(job_id)
        clock.advance(JUST_OVER_A_DAY)
    assert len(await documents(app, TRIGGERS)) == 1


# -- batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before the jobs", "after the jobs"])
async def test_a_batch_that_was_begun_is_completed(
    app: Mainspring, client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    insert = app.runtime.pipeline.insert

    async def die(jobs: Any) -> Any:
        if point == "after the jobs":
            await insert(jobs)
        raise StoreUnavailable

    body = {"jobs": [{**WELCOME, "delay": 60}] * 3, "on_finished": WELCOME}
    with monkeypatch.context() as patch:
        patch.setattr(app.runtime.pipeline, "insert", die)
        assert (await client.post("/v1/batches", body, idempotency_key="k1")).status == 503
    (begun,) = (await app.batches.list()).batches
    clock.advance(60)
    answers = await asyncio.gather(*(client.post("/v1/batches", body, idempotency_key="k1") for _ in range(3)))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].data["id"] == begun.id
    assert await app.jobs.count() == 4  # with the one that waits for the others
    assert (await app.batches.progress(begun.id)).total == 3


# -- leases -----------------------------------------------------------------------------------------


async def test_a_repeated_claim_gives_the_jobs_that_the_worker_still_has(app: Mainspring, client: Client) -> None:
    body = {"worker": "w1", "queues": [await due_jobs(app, 4)], "limit": 2}
    first = await client.post("/v1/leases", body, idempotency_key="k1")
    done, kept = first.data["jobs"]
    item = {"id": done["id"], "token": done["token"], "done": {"result": "x"}}
    await client.post("/v1/leases:report", {"worker": "w1", "items": [item]})
    await client.post("/v1/leases", {**body, "limit": 1})  # another claim of the worker
    again = await client.post("/v1/leases", body, idempotency_key="k1")
    assert [job["id"] for job in again.data["jobs"]] == [kept["id"]]
    assert await app.jobs.count(Filter(statuses=(Status.RUNNING,))) == 2


async def test_a_claim_whose_answer_is_lost_gives_its_jobs_again(
    app: Mainspring, client: Client, lossy: pytest.MonkeyPatch
) -> None:
    queue = await due_jobs(app, 4)
    held = (await client.post("/v1/leases", {"worker": "w1", "queues": [queue]})).data["jobs"][0]
    body = {"worker": "w1", "queues": [queue], "limit": 2, "held": {held["id"]: held["token"]}}
    first, again = await twice(client, "/v1/leases", body)
    assert {job["id"] for job in again.data["jobs"]} == {job["id"] for job in first.data["jobs"]}
    assert await app.jobs.count(Filter(statuses=(Status.RUNNING,))) == 3


async def test_a_claim_without_jobs_does_not_use_its_key(app: Mainspring, client: Client) -> None:
    body = {"worker": "w1", "queues": ["mail"]}
    assert (await client.post("/v1/leases", body, idempotency_key="k1")).data["jobs"] == []
    assert await documents(app) == []
    await app.enqueue("welcome", {"guest": "Ada"})
    assert len((await client.post("/v1/leases", body, idempotency_key="k1")).data["jobs"]) == 1


async def test_a_claim_that_is_given_up_does_not_use_its_key(app: Mainspring, client: Client) -> None:
    body = {"worker": "w1", "queues": ["mail"], "wait": 30.0}
    waiting = asyncio.ensure_future(client.post("/v1/leases", body, idempotency_key="k1"))
    await until(app, is_used=True)
    waiting.cancel()
    await until(app, is_used=False)
    await app.enqueue("welcome", {"guest": "Ada"})
    assert len((await client.post("/v1/leases", body, idempotency_key="k1")).data["jobs"]) == 1


async def test_a_report_whose_answer_is_lost_may_be_repeated(
    app: Mainspring, client: Client, lossy: pytest.MonkeyPatch
) -> None:
    claimed = await client.post("/v1/leases", {"worker": "w1", "queues": [await due_jobs(app, 1)]})
    (job,) = claimed.data["jobs"]
    item = {"id": job["id"], "token": job["token"], "done": {"result": "x"}}
    first, again = await twice(client, "/v1/leases:report", {"worker": "w1", "items": [item]})
    assert first.data["replies"][0]["reply"] == "ok"
    assert (again.status, again.data["replies"][0]["id"]) == (200, job["id"])


# -- what a request leaves running --------------------------------------------------------------------


async def test_what_goes_on_after_a_request_does_not_use_its_key(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, left = asyncio.Event(), list[asyncio.Task[By]]()

    async def make_a_change() -> By:
        await later.wait()
        return By("later")

    resume = app.resume

    async def resume_and_more(*args: Any, **options: Any) -> bool:
        left.append(asyncio.create_task(make_a_change()))
        return await resume(*args, **options)

    monkeypatch.setattr(app, "resume", resume_and_more)
    await client.post("/v1/resume", idempotency_key="k1")
    later.set()
    assert (await left[0]).once is None
