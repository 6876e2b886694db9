"""A bulk enqueue as NDJSON: a job per line, with the rules of the JSON form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.redaction import MARK
from mainspring.service.bodies import MOST_IN_BULK
from mainspring.service.guard import BULK_FACTOR, MAX_DEPTH
from tests.service.serving import Answer, Client, serving
from tests.service.test_limits import nested
from tests.service.test_security import token_of

PATH = "/v1/jobs:bulk"
LINES = "application/x-ndjson"
ADA = {"task": "welcome", "payload": {"guest": "Ada"}}
BEA = {"task": "welcome", "payload": {"guest": "Bea"}, "queue": "vip"}
WRONG = {"task": "wellcome"}


def lines(*jobs: Any) -> bytes:
    return b"".join(json.dumps(job).encode() + b"\n" for job in jobs)


async def send(client: Client, body: bytes, content_type: str = LINES, **headers: str) -> Answer:
    return await client.post(PATH, body, content_type=content_type, **headers)


@pytest.mark.parametrize("content_type", [LINES, "application/ndjson", "Application/X-NDJSON; charset=utf-8"])
async def test_each_line_is_a_job(app: Mainspring, client: Client, content_type: str) -> None:
    answer = await send(client, lines(ADA, BEA), content_type)
    assert (answer.status, answer.data["created"], answer.data["failed"]) == (200, 2, 0)
    jobs = [await app.jobs.get(result["id"]) for result in answer.data["results"]]
    assert [(job.queue, job.payload) for job in jobs] == [("mail", {"guest": "Ada"}), ("vip", {"guest": "Bea"})]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n \r\n\t\n"])
async def test_the_last_line_may_have_an_end_and_blank_lines_after_it(
    app: Mainspring, client: Client, end: bytes
) -> None:
    answer = await send(client, json.dumps(ADA).encode() + b"\r\n" + json.dumps(BEA).encode() + end)
    assert (answer.status, answer.data["created"]) == (200, 2)
    assert await app.jobs.count() == 2


async def test_a_line_that_cannot_be_enqueued_has_an_error_at_its_index(client: Client) -> None:
    by_lines = (await send(client, lines(ADA, WRONG, BEA))).data
    as_json = (await client.post(PATH, {"jobs": [ADA, WRONG, BEA]})).data
    assert [result["created"] for result in by_lines["results"]] == [True, False, True]
    assert by_lines["results"][1] == as_json["results"][1]
    assert by_lines["results"][1]["error"]["code"] == "unknown_task"


@pytest.mark.parametrize(
    "wrong", [{"queue": 3}, [], 3, {"task": "a", "tags": [1]}, {"task": "a", "callback": "ftp://x"}]
)
async def test_a_line_of_another_shape_is_refused_as_in_the_json_form(
    app: Mainspring, client: Client, wrong: Any
) -> None:
    by_lines = await send(client, lines(ADA, wrong))
    as_json = await client.post(PATH, {"jobs": [ADA, wrong]})
    assert by_lines.code == as_json.code == "invalid_request"
    assert by_lines.data["errors"] == as_json.data["errors"]
    assert all(error["pointer"].startswith("/jobs/1") for error in by_lines.data["errors"])
    assert await app.jobs.count() == 0


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"task": "welcome"',
        b"",
        b"welcome",
        b'"',
        b'{"task": "welcome"} {"task": "welcome"}',
        b'{"task": "welcome"},{"task": "welcome"}',
        b'{"task": "\xff"}',
        b"[" * 60 + b"]" * 60 + b"[",
    ],
)
async def test_a_line_that_is_not_json_is_named_and_nothing_is_enqueued(
    app: Mainspring, client: Client, wrong: bytes
) -> None:
    answer = await send(client, lines(ADA) + wrong + b"\n" + lines(BEA))
    assert answer.code == "invalid_request"
    assert [(error["pointer"], error["code"]) for error in answer.data["errors"]] == [("/jobs/1", "json_invalid")]
    assert answer.data["detail"].startswith("/jobs/1: line 2 is not JSON: ")
    assert "line 1" not in answer.data["detail"]
    assert await app.jobs.count() == 0


async def test_a_job_that_is_spread_over_two_lines_is_two_wrong_lines(client: Client) -> None:
    answer = await send(client, b'{"task": "welcome",\n"payload": {"guest": "Ada"}}\n')
    assert [error["pointer"] for error in answer.data["errors"]] == ["/jobs/0", "/jobs/1"]


@pytest.mark.parametrize("body", [b"", b"\n", b" \r\n\n"])
async def test_a_body_without_a_line_is_refused(client: Client, body: bytes) -> None:
    answer = await send(client, body)
    assert answer.code == "invalid_request"
    assert [(error["pointer"], error["code"]) for error in answer.data["errors"]] == [("/jobs", "too_short")]


async def test_there_may_be_as_many_lines_as_jobs_in_the_json_form(app: Mainspring, client: Client) -> None:
    assert (await send(client, lines(*[ADA] * MOST_IN_BULK))).data["created"] == MOST_IN_BULK
    answer = await send(client, lines(*[ADA] * (MOST_IN_BULK + 1)))
    assert [(error["pointer"], error["code"]) for error in answer.data["errors"]] == [("/jobs", "too_long")]
    assert "1,001 lines" in answer.data["detail"]
    assert await app.jobs.count() == MOST_IN_BULK


async def test_lines_have_the_limits_of_the_json_form(app: Mainspring) -> None:
    async with serving(app, max_body=1_000) as client:
        line = json.dumps(ADA).encode().ljust(999) + b"\n"
        assert (await send(client, line * BULK_FACTOR)).status == 200
        assert (await send(client, line * BULK_FACTOR + b"\n")).code == "body_too_large"


async def test_each_line_may_have_as_many_levels_as_a_body(client: Client) -> None:
    def job(levels: int) -> dict[str, Any]:
        return {"task": "any", "payload": nested(levels - 1), "allow_unknown": True}

    assert (await send(client, lines(*[job(MAX_DEPTH)] * 5))).data["created"] == 5
    answer = await send(client, lines(ADA, job(MAX_DEPTH + 1)))
    assert answer.code == "invalid_request"
    assert "64 levels" in answer.data["detail"]


async def test_lines_that_were_copied_from_an_answer_are_refused(client: Client) -> None:
    shown = {"task": "welcome", "payload": {"guest": "Ada", "password": MARK}}
    assert (await send(client, lines(ADA, shown))).code == "invalid_payload"


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/signals"])
async def test_other_routes_do_not_take_lines(client: Client, path: str) -> None:
    answer = await client.post(path, lines(ADA), content_type=LINES)
    assert answer.code == "invalid_request"
    assert f"the body is marked as {LINES!r}; send JSON" in answer.data["detail"]


async def test_the_scope_is_checked_before_the_lines(app: Mainspring) -> None:
    reader = await token_of(app, "read")
    async with serving(app, tokens="required") as client:
        assert (await send(client.using(reader), b"nonsense")).code == "forbidden"


# -- idempotency keys ---------------------------------------------------------------------------------


async def test_repeated_lines_are_enqueued_once(app: Mainspring, client: Client) -> None:
    body = lines(*[ADA] * 30, WRONG)
    first = await send(client, body, idempotency_key="k1")
    again = await send(client, body, idempotency_key="k1")
    assert (again.status, again.text) == (first.status, first.text)
    assert again.headers["idempotent-replayed"] == "true"
    assert await app.jobs.count() == 30


async def test_the_same_jobs_in_another_form_are_the_same_request(app: Mainspring, client: Client) -> None:
    first = await send(client, lines(ADA, BEA), idempotency_key="k1")
    spaced = b'{ "payload": {"guest": "\\u0041da"}, "task": "welcome" }\r\n' + json.dumps(BEA).encode() + b"\n\n"
    assert (await send(client, spaced, idempotency_key="k1")).text == first.text
    assert (await client.post(PATH, {"jobs": [ADA, BEA]}, idempotency_key="k1")).text == first.text
    assert await app.jobs.count() == 2


@pytest.mark.parametrize("other", [lines(ADA), lines(BEA, ADA), lines(ADA, BEA, BEA)])
async def test_other_lines_under_the_same_key_are_refused(app: Mainspring, client: Client, other: bytes) -> None:
    await send(client, lines(ADA, BEA), idempotency_key="k1")
    assert (await send(client, other, idempotency_key="k1")).code == "idempotency_key_reused"
    assert await app.jobs.count() == 2


async def test_refused_lines_may_be_corrected_under_their_key(app: Mainspring, client: Client) -> None:
    assert (await send(client, lines(ADA) + b"{\n", idempotency_key="k1")).code == "invalid_request"
    assert (await send(client, lines(ADA, BEA), idempotency_key="k1")).data["created"] == 2
    assert await app.jobs.count() == 2
