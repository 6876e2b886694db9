"""Callbacks: requests that tell of a job's end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mainspring import Discard, Mainspring, Status
from mainspring.testing.fakes import Answer, FakeEndpoint
from mainspring.webhooks import new_secret, verify
from tests.service.pushing import Served, serving


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Mainspring("memory://") as app, serving(app) as served:

        @app.task
        async def add(a: int, b: int = 1) -> int:
            if not a:
                msg = "nothing to add"
                raise Discard(msg)
            return a + b

        yield served


@pytest.fixture
async def endpoint() -> AsyncIterator[FakeEndpoint]:
    async with FakeEndpoint() as endpoint:
        yield endpoint


async def default_secret(served: Served) -> list[str]:
    texts: list[str] = (await served.call("GET", "/v1/secrets/default"))[1]["texts"]
    return texts


async def test_a_callback_tells_the_result_and_is_signed(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await served.enqueue("add", {"a": 2}, callback=endpoint.url, target={"type": "order", "id": "7"})
    await served.run()
    (request,) = endpoint.received
    assert verify(request.body, request.headers, await default_secret(served)) != job_id  # the id of the callback
    body = request.json()
    assert body["result"] == 3
    assert (body["job"]["id"], body["job"]["status"], body["job"]["task"]) == (job_id, "completed", "add")
    assert body["job"]["target"] == {"type": "order", "id": "7"}


async def test_a_callback_tells_the_error_too(served: Served, endpoint: FakeEndpoint) -> None:
    await served.enqueue("add", {"a": 0}, callback=endpoint.url)
    await served.run()
    (body,) = endpoint.bodies
    assert body["job"]["status"] == "dead_letter"
    assert (body["error"]["type"], body["error"]["message"]) == ("Discard", "nothing to add")


@pytest.mark.parametrize(("a", "path"), [(1, "/done"), (0, "/failed")])
async def test_a_failure_callback_is_called_instead(served: Served, endpoint: FakeEndpoint, a: int, path: str) -> None:
    ways = {"callback": f"{endpoint.url}/done", "failure_callback": {"url": f"{endpoint.url}/failed"}}
    await served.enqueue("add", {"a": a}, **ways)
    await served.run()
    assert [request.path for request in endpoint.received] == [path]


async def test_a_failure_callback_alone_hears_of_no_success(served: Served, endpoint: FakeEndpoint) -> None:
    await served.enqueue("add", {"a": 1}, failure_callback=endpoint.url)
    await served.run()
    assert endpoint.received == []


async def test_a_job_that_is_cancelled_calls_back(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await served.enqueue("add", {"a": 1}, callback=endpoint.url, delay=60)
    await served.post(f"/v1/jobs/{job_id}:cancel", {"reason": "no longer needed"})
    await served.run()
    (body,) = endpoint.bodies
    assert (body["job"]["status"], body["error"]["message"]) == ("cancelled", "no longer needed")


async def test_a_callback_is_tried_again_until_it_arrives(served: Served, endpoint: FakeEndpoint) -> None:
    endpoint.reply(Answer(500), Answer(204))
    await served.enqueue("add", {"a": 1}, callback=endpoint.url)
    await served.run()
    (job,) = await callbacks(served)
    assert (job.status, job.max_attempts) == (Status.RETRYING, 10)
    await served.post(f"/v1/jobs/{job.id}:retry")
    await served.run()
    assert (await served.job(job.id)).status is Status.COMPLETED
    assert len({request.headers["webhook-id"] for request in endpoint.received}) == 1


async def callbacks(served: Served) -> list[Any]:
    _, page = await served.call("GET", "/v1/jobs?tag=callback")
    return [await served.job(job["id"]) for job in page["jobs"]]


async def test_a_job_with_a_dedupe_key_calls_back_once(served: Served, endpoint: FakeEndpoint) -> None:
    given = {"task": "add", "payload": {"a": 1}, "dedupe_key": "k", "callback": endpoint.url}
    assert [(await served.post("/v1/jobs", given))[0] for _ in range(2)] == [201, 200]
    await served.run()
    assert len(endpoint.received) == 1


async def test_jobs_of_a_bulk_enqueue_call_back(served: Served, endpoint: FakeEndpoint) -> None:
    jobs = [{"task": "add", "payload": {"a": a}, "callback": endpoint.url} for a in (1, 2)]
    jobs.append({"task": "add", "payload": {"a": 1}, "callback": {"url": endpoint.url, "secret": "missing"}})
    status, answer = await served.post("/v1/jobs:bulk", {"jobs": jobs})
    assert (status, answer["created"], answer["failed"]) == (200, 2, 1)
    assert "no secret 'missing'" in answer["results"][2]["error"]["detail"]
    await served.run()
    assert sorted(body["result"] for body in endpoint.bodies) == [2, 3]


async def test_a_pushed_job_calls_back(served: Served, endpoint: FakeEndpoint) -> None:
    endpoint.reply(Answer(200, {"n": 1}), Answer(204))
    await served.enqueue("http", {"url": f"{endpoint.url}/work"}, callback=f"{endpoint.url}/done")
    await served.run()
    assert [request.path for request in endpoint.received] == ["/work", "/done"]
    assert endpoint.bodies[1]["result"] == {"n": 1}


async def test_headers_and_secret_of_a_callback_are_used(served: Served, endpoint: FakeEndpoint) -> None:
    secret = new_secret()
    await served.post("/v1/secrets", {"name": "mine", "secret": secret})
    callback = {"url": endpoint.url, "headers": {"X-Room": "7"}, "secret": "mine", "timeout": 5}
    await served.enqueue("add", {"a": 1}, callback=callback)
    await served.run()
    (request,) = endpoint.received
    assert request.headers["x-room"] == "7"
    verify(request.body, request.headers, [secret])


@pytest.mark.parametrize(
    "callback",
    ["ftp://example.com", "", 7, {}, {"url": "http://example.com", "headers": {"webhook-id": "x"}},
     {"url": "http://example.com", "unknown": 1}, {"url": "http://example.com", "timeout": 0}],
)  # fmt: skip
async def test_a_wrong_callback_is_refused(served: Served, callback: Any) -> None:
    status, answer = await served.post("/v1/jobs", {"task": "add", "payload": {"a": 1}, "callback": callback})
    assert (status, answer["code"]) == (422, "invalid_request")


async def test_callbacks_are_repeated_with_an_idempotency_key_only_once(served: Served, endpoint: FakeEndpoint) -> None:
    given = {"task": "add", "payload": {"a": 1}, "callback": endpoint.url}
    for _ in range(2):
        await served.post("/v1/jobs", given, headers={"idempotency-key": "k"})
    await served.run()
    assert len(endpoint.received) == 1
