"""Jobs of the task `http`: requests to workers in any language."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, Status
from mainspring.errors import ConfigurationError
from mainspring.service import ServiceSettings, make_service
from mainspring.testing.clock import ManualClock
from mainspring.testing.fakes import Answer, FakeEndpoint
from mainspring.webhooks import new_secret
from tests.service.pushing import Served, serving

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Mainspring("memory://") as app, serving(app) as served:
        yield served


@pytest.fixture
async def endpoint() -> AsyncIterator[FakeEndpoint]:
    async with FakeEndpoint() as endpoint:
        yield endpoint


async def pushed(served: Served, endpoint: FakeEndpoint, *answers: Answer, **payload: Any) -> str:
    """Enqueue a job for the endpoint, which gives these answers, and run it."""
    if answers:
        endpoint.reply(*answers)
    job_id = await served.enqueue("http", {"url": f"{endpoint.url}/work", **payload})
    await served.run()
    return job_id


# -- the request --------------------------------------------------------------------------------------------


async def test_the_json_answer_is_the_result(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await pushed(served, endpoint, Answer(200, {"rendered": 7}), body={"scene": "é"})
    job = await served.job(job_id)
    assert (job.status, job.result, job.queue) == (Status.COMPLETED, {"rendered": 7}, "http")
    (request,) = endpoint.received
    assert (request.method, request.path, request.json()) == ("POST", "/work", {"scene": "é"})
    assert request.headers["content-type"] == "application/json"


async def test_requests_are_counted_as_deliveries(served: Served, endpoint: FakeEndpoint) -> None:
    await pushed(served, endpoint, Answer(200), Answer(410))
    await pushed(served, endpoint)
    async with served.session.get(f"{served.url}/metrics") as response:
        page = await response.text()
    for outcome in ("sent", "failed"):
        assert f'mainspring_deliveries_total{{channel="http",outcome="{outcome}"}} 1.0' in page


async def test_the_request_says_which_job_it_is(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await served.enqueue("http", {"url": endpoint.url}, queue="far & wide é")
    await served.run()
    headers = endpoint.received[0].headers
    assert headers["webhook-id"] == headers["x-mainspring-job"] == job_id
    assert (headers["x-mainspring-attempt"], headers["x-mainspring-task"]) == ("1", "http")
    assert headers["x-mainspring-queue"] == "far & wide \\xe9"
    assert headers["x-mainspring-token"].startswith("msd_1_")
    assert "webhook-signature" not in headers


async def test_the_trace_is_passed_on(served: Served, endpoint: FakeEndpoint) -> None:
    await served.app.enqueue("http", {"url": endpoint.url}, trace={"traceparent": TRACE, "tracestate": "a=b"})
    await served.run()
    headers = endpoint.received[0].headers
    assert (headers["traceparent"], headers["tracestate"]) == (TRACE, "a=b")


async def test_method_headers_and_text_are_sent_as_given(served: Served, endpoint: FakeEndpoint) -> None:
    given = {"method": "PUT", "headers": {"X-Room": "7", "Content-Type": "text/csv"}, "body": "1"}
    await pushed(served, endpoint, **given)
    (request,) = endpoint.received
    assert (request.method, request.headers["x-room"], request.body) == ("PUT", "7", b"1")
    assert request.headers["content-type"] == "text/csv"


async def test_a_header_that_is_given_is_sent_once(served: Served) -> None:
    sent: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(note, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        payload = {
            "url": f"http://127.0.0.1:{port}",
            "body": {},
            "headers": {"Content-Type": "a/b", "TraceParent": "x"},
        }
        await served.app.enqueue("http", payload, trace={"traceparent": TRACE})
        await served.run()
    (text,) = sent
    assert text.lower().count(b"content-type: a/b") == text.lower().count(b"content-type:") == 1
    assert text.lower().count(b"traceparent:") == 1
    assert TRACE.encode() in text


async def test_a_get_has_no_body(served: Served, endpoint: FakeEndpoint) -> None:
    await pushed(served, endpoint, method="GET")
    assert endpoint.received[0].body == b""


async def test_a_request_is_signed_with_a_named_secret(served: Served, endpoint: FakeEndpoint) -> None:
    secret = new_secret()
    assert (await served.post("/v1/secrets", {"name": "render", "secret": secret}))[0] == 201
    endpoint.secrets = [secret]
    job_id = await pushed(served, endpoint, body={"a": 1}, secret="render")
    assert (await served.job(job_id)).status is Status.COMPLETED
    endpoint.secrets = [new_secret()]
    job_id = await pushed(served, endpoint, body={"a": 1}, secret="render")
    assert (await served.job(job_id)).status is Status.DEAD_LETTER  # 401


async def test_without_its_secret_a_job_is_tried_again_later(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await pushed(served, endpoint, secret="missing")
    job = await served.job(job_id)
    assert job.status is Status.RETRYING
    assert job.failure is not None
    assert "no secret 'missing'" in job.failure.message
    assert endpoint.received == []


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"url": "ftp://example.com"},
        {"url": "http://user:secret@example.com"},
        {"url": "http://example.com", "method": "CONNECT"},
        {"url": "http://example.com", "timeout": 0},
        {"url": "http://example.com", "timeout": 1801},
        {"url": "http://example.com", "headers": {"x-a": "b\r\nx-c: d"}},
        {"url": "http://example.com", "headers": {"Host": "other"}},
        {"url": "http://example.com", "headers": {"Webhook-Signature": "v1,forged"}},
        {"url": "http://example.com", "headers": {"X-Mainspring-Token": "forged"}},
        {"url": "http://example.com", "headers": {"x-a": "a" * 8000, "x-b": "b" * 8000, "x-c": "c" * 8000}},
        {"url": "http://example.com", "complete_within": 1e9},
        {"url": "http://example.com", "unknown": 1},
    ],
)
async def test_a_wrong_payload_is_refused_at_the_enqueue(served: Served, payload: Any) -> None:
    status, answer = await served.post("/v1/jobs", {"task": "http", "payload": payload})
    assert (status, answer["code"]) == (422, "invalid_payload")


async def test_private_networks_are_not_reached_unless_allowed(endpoint: FakeEndpoint) -> None:
    async with Mainspring("memory://") as app, serving(app, outgoing_allow=()) as served:
        job_id = await pushed(served, endpoint)
        job = await served.job(job_id)
        assert (job.status, job.attempts) == (Status.DEAD_LETTER, 1)
        assert "outgoing_allow" in job.reason
        assert endpoint.received == []


def test_the_setting_must_be_networks() -> None:
    with pytest.raises(ValueError, match=r"10\.1\.0\.0/16"):
        ServiceSettings(outgoing_allow=("10.0.0.1/8",))
    given: Any = "10.1.0.0/16, fd00:1::/64"  # as the environment gives it
    assert ServiceSettings(outgoing_allow=given).outgoing_allow == ("10.1.0.0/16", "fd00:1::/64")


async def test_an_application_with_its_own_task_of_that_name_is_refused() -> None:
    app = Mainspring("memory://")

    @app.task
    async def http() -> None: ...

    with pytest.raises(ConfigurationError, match="'http'"):
        make_service(app)


async def test_the_openapi_document_describes_push(served: Served) -> None:
    status, document = await served.call("GET", "/v1/openapi.json")
    assert status == 200
    schemas = document["components"]["schemas"]
    assert {"Callback", "CompleteBody", "FailBody", "SecretTextView"} <= schemas.keys()
    assert "callback" in schemas["NewJobBody"]["properties"]
    assert document["paths"]["/v1/jobs/{job_id}:complete"]["post"]["x-scope"] == "operate"
    for reference in set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document))):
        assert reference in schemas


# -- its answers --------------------------------------------------------------------------------------------


async def test_an_error_is_tried_again(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await pushed(served, endpoint, Answer(500, {"why": "oops"}), Answer(200, 1))
    job = await served.job(job_id)
    assert (job.status, job.attempts) == (Status.RETRYING, 1)
    assert job.failure is not None
    assert "oops" in job.failure.message
    await served.post(f"/v1/jobs/{job_id}:retry")
    await served.run()
    assert (await served.job(job_id)).result == 1
    assert [request.headers["webhook-id"] for request in endpoint.received] == [job_id] * 2


async def test_a_pause_that_is_asked_for_uses_no_attempt(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await pushed(served, endpoint, Answer(503, None, {"Retry-After": "600"}))
    job = await served.job(job_id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)
    assert 590 < (job.run_at - served.app.now()).total_seconds() <= 600


@pytest.mark.parametrize("status", [400, 410])
async def test_a_refusal_is_final(served: Served, endpoint: FakeEndpoint, status: int) -> None:
    job_id = await pushed(served, endpoint, Answer(status, {"why": "gone"}))
    job = await served.job(job_id)
    assert (job.status, job.attempts) == (Status.DEAD_LETTER, 1)


async def test_a_receiver_that_is_too_slow_fails(served: Served, endpoint: FakeEndpoint) -> None:
    endpoint.slow(30)
    job_id = await pushed(served, endpoint, timeout=0.1)
    job = await served.job(job_id)
    assert job.status is Status.RETRYING
    assert job.failure is not None
    assert "0.1 s" in job.failure.message


# -- 202: it goes on ------------------------------------------------------------------------------------------


def token_in(endpoint: FakeEndpoint, number: int = -1) -> str:
    return endpoint.received[number].headers["x-mainspring-token"]


async def accepted(served: Served, endpoint: FakeEndpoint, **payload: Any) -> str:
    """A job whose receiver has answered 202."""
    job_id = await pushed(served, endpoint, Answer(202, {"later": True}), **payload)
    job = await served.job(job_id)
    assert job.status is Status.SUSPENDED
    return job_id


async def test_the_receiver_completes_the_job(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await accepted(served, endpoint)
    for _ in range(2):  # a repeated report is the same
        status, answer = await served.post(
            f"/v1/jobs/{job_id}:complete", {"result": {"pages": 3}}, token=token_in(endpoint)
        )
        assert (status, answer) == (202, {"id": job_id, "accepted": True})
    await served.run()
    job = await served.job(job_id)
    assert (job.status, job.result, len(endpoint.received)) == (Status.COMPLETED, {"pages": 3}, 1)


@pytest.mark.parametrize("by_operator", [True, False])
async def test_a_report_is_answered_in_the_same_way_after_the_job_has_ended(
    served: Served, endpoint: FakeEndpoint, by_operator: bool
) -> None:
    job_id = await accepted(served, endpoint)
    token = None if by_operator else token_in(endpoint)
    for _ in range(2):  # the answer to the first report may have been lost
        assert (await served.post(f"/v1/jobs/{job_id}:complete", {"result": {"pages": 3}}, token=token))[0] == 202
        await served.run()
        assert (await served.job(job_id)).status is Status.COMPLETED
    for path, report in (("complete", {"result": 1}), ("fail", {"error": "no paper"})):
        status, answer = await served.post(f"/v1/jobs/{job_id}:{path}", report, token=token)
        assert (status, answer["code"]) == (409, "illegal_move")
    assert (await served.job(job_id)).result == {"pages": 3}


async def test_the_receiver_lets_the_job_fail_and_it_is_sent_again(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await accepted(served, endpoint)
    first = token_in(endpoint)
    assert (await served.post(f"/v1/jobs/{job_id}:fail", {"error": "no paper"}, token=first))[0] == 202
    await served.run()
    job = await served.job(job_id)
    assert (job.status, job.attempts) == (Status.RETRYING, 1)
    assert job.failure is not None
    assert job.failure.message == "no paper"
    await served.post(f"/v1/jobs/{job_id}:retry")
    await served.run()
    assert (await served.job(job_id)).status is Status.SUSPENDED
    assert len(endpoint.received) == 2
    status, answer = await served.post(f"/v1/jobs/{job_id}:complete", {"result": 1}, token=first)
    assert (status, answer["code"]) == (409, "illegal_move")
    assert (await served.post(f"/v1/jobs/{job_id}:complete", {"result": 2}, token=token_in(endpoint)))[0] == 202
    await served.run()
    job = await served.job(job_id)
    assert (job.status, job.result) == (Status.COMPLETED, 2)


async def test_the_receiver_gives_up(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await accepted(served, endpoint)
    report = {"error": "no such scene", "code": "SCENE", "retry": False}
    assert (await served.post(f"/v1/jobs/{job_id}:fail", report, token=token_in(endpoint)))[0] == 202
    await served.run()
    job = await served.job(job_id)
    assert (job.status, job.reason) == (Status.DEAD_LETTER, "no such scene")
    assert job.failure is not None
    assert job.failure.code == "SCENE"


async def test_the_first_of_two_different_reports_counts(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await accepted(served, endpoint)
    token = token_in(endpoint)
    assert (await served.post(f"/v1/jobs/{job_id}:complete", {"result": 1}, token=token))[0] == 202
    status, answer = await served.post(f"/v1/jobs/{job_id}:fail", {"error": "x"}, token=token)
    assert (status, answer["code"]) == (409, "illegal_move")
    await served.run()
    assert (await served.job(job_id)).result == 1


async def test_an_operator_completes_the_job(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await accepted(served, endpoint)
    _, made = await served.post("/v1/tokens", {"name": "reader", "scopes": ["read", "enqueue", "lease"]})
    status, answer = await served.post(f"/v1/jobs/{job_id}:complete", {}, token=made["text"])
    assert (status, answer["code"]) == (403, "forbidden")
    _, made = await served.post("/v1/tokens", {"name": "operator", "scopes": ["operate"]})
    assert (await served.post(f"/v1/jobs/{job_id}:complete", {}, token=made["text"]))[0] == 202
    await served.run()
    assert (await served.job(job_id)).status is Status.COMPLETED


async def test_the_token_of_a_delivery_does_nothing_else(served: Served, endpoint: FakeEndpoint) -> None:
    mine = await accepted(served, endpoint)
    token = token_in(endpoint)
    other = await accepted(served, endpoint)
    forged = token[:-1] + ("0" if token[-1] != "0" else "1")
    for method, path, given in (
        ("POST", f"/v1/jobs/{other}:complete", token),
        ("POST", f"/v1/jobs/{mine}:complete", forged),
        ("POST", f"/v1/jobs/{mine}:complete", token.replace("msd_1_", "msd_2_")),
        ("POST", f"/v1/jobs/{mine}:cancel", token),
        ("GET", f"/v1/jobs/{mine}", token),
        ("GET", "/v1/tokens", token),
        ("POST", "/v1/jobs", token),
        ("GET", f"/v1/jobs?cursor=/v1/jobs/{mine}:complete", token),
    ):
        status, answer = await served.call(method, path, {} if method == "POST" else None, token=given)
        assert (status, answer["code"]) == (401, "unauthorized"), path
    assert (await served.job(mine)).status is (await served.job(other)).status is Status.SUSPENDED


async def test_a_receiver_may_complete_before_its_answer_has_arrived(served: Served, endpoint: FakeEndpoint) -> None:
    endpoint.fail(None, times=1)  # the connection breaks, but the receiver has the request
    job_id = await pushed(served, endpoint, Answer(202))
    assert (await served.job(job_id)).status is Status.RETRYING
    assert (await served.post(f"/v1/jobs/{job_id}:complete", {"result": 5}, token=token_in(endpoint)))[0] == 202
    await served.post(f"/v1/jobs/{job_id}:retry")
    await served.run()
    await served.run()
    assert (await served.job(job_id)).result == 5


async def test_work_that_is_not_completed_in_time_fails(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await pushed(served, endpoint, Answer(202), complete_within=0.001)
    await served.run()
    job = await served.job(job_id)
    assert job.status is Status.RETRYING
    assert job.failure is not None
    assert "within 0.001 s" in job.failure.message
    status, answer = await served.post(f"/v1/jobs/{job_id}:complete", {"result": 1}, token=token_in(endpoint))
    assert (status, answer["code"]) == (409, "illegal_move")
    assert "no report came in time" in answer["detail"]


async def test_a_report_that_comes_too_late_is_refused_before_the_job_has_noticed(endpoint: FakeEndpoint) -> None:
    clock = ManualClock()
    async with Mainspring("memory://", clock=clock) as app, serving(app) as served:
        job_id = await accepted(served, endpoint, complete_within=60)
        clock.advance(61)
        status, answer = await served.post(f"/v1/jobs/{job_id}:complete", {"result": 1}, token=token_in(endpoint))
        assert (status, answer["code"]) == (409, "illegal_move")
        await served.run()
        assert (await served.job(job_id)).status is Status.RETRYING


async def test_a_job_that_was_cancelled_takes_no_report(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await accepted(served, endpoint)
    assert (await served.post(f"/v1/jobs/{job_id}:cancel"))[0] == 200
    status, answer = await served.post(f"/v1/jobs/{job_id}:complete", {"result": 1}, token=token_in(endpoint))
    assert (status, answer["code"]) == (409, "illegal_move")
    assert "cancelled" in answer["detail"]


async def test_only_pushed_jobs_that_wait_can_be_ended(served: Served, endpoint: FakeEndpoint) -> None:
    @served.app.task
    async def other() -> None: ...

    waiting = await served.enqueue("http", {"url": endpoint.url}, delay=60)
    unrelated = await served.enqueue("other")
    for job_id in (waiting, unrelated):
        status, answer = await served.post(f"/v1/jobs/{job_id}:complete", {})
        assert (status, answer["code"]) == (409, "illegal_move")
    assert (await served.post("/v1/jobs/0192f0c0-0000-7000-8000-000000000000:complete", {}))[0] == 404


async def test_wrong_reports_are_refused(served: Served, endpoint: FakeEndpoint) -> None:
    job_id = await accepted(served, endpoint)
    token = token_in(endpoint)
    status, answer = await served.post(f"/v1/jobs/{job_id}:complete", {"result": "x" * 65_535}, token=token)
    assert (status, answer["code"]) == (413, "body_too_large")
    for path, body in (("fail", {}), ("fail", {"error": ""}), ("complete", {"results": 1}), ("complete", [1])):
        status, answer = await served.post(f"/v1/jobs/{job_id}:{path}", body, token=token)
        assert (status, answer["code"]) == (422, "invalid_request")


async def test_a_job_that_goes_on_survives_a_restart(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Mainspring(url) as app, serving(app) as served:
        job_id = await accepted(served, endpoint)
    async with Mainspring(url) as app, serving(app, tokens="required") as served:
        status, _ = await served.post(f"/v1/jobs/{job_id}:complete", {"result": 1}, token=token_in(endpoint))
        assert status == 202
        await served.run()
        assert (await served.job(job_id)).result == 1
    assert len(endpoint.received) == 1
